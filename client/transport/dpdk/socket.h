// The vhost-user socket of a port as the host part sees it: is it there, is it free, and how to end
// a wait on it. No DPDK. Called while a transport is opened or closed, on the application's thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "client/fork.h"

namespace sluice::client {

// Which socket is at a path, whatever path leads there.
struct SocketId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const SocketId&) const = default;
};

// Without connecting: a vhost-user port takes one connection, and a trial would be taken for a
// worker.
Result<SocketId> find_socket(const std::string& path);

// A second connection to a vhost-user port would push the first worker out. A name in the abstract
// socket namespace, freed when its process ends however it ends, keeps the processes of this
// machine apart.
Result<OwnedFd> claim_socket(const std::string& path, SocketId id);

// The descriptors of this process that are connected to a Unix socket at `path`.
std::vector<int> descriptors_of(const std::string& path);

// Copies, so that a number that the plug-in has closed meanwhile is never somebody else's.
std::vector<OwnedFd> duplicate(const std::vector<int>& fds);

// Ends whatever waits for the other side.
void shut_down(const std::vector<OwnedFd>& fds) noexcept;

// Runs `action` on a thread of its own. When it takes longer than `limit`, calls `unblock` every
// 20 ms until it ends.
void run_bounded(std::chrono::milliseconds limit, const std::function<void()>& action,
                 const std::function<void()>& unblock);

}  // namespace sluice::client
