// The vhost-user socket of a port, without DPDK: finds it, claims it, and ends waits on it. Called
// while a transport is opened or closed, on the application's thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "client/fork.h"

namespace sluice::client {

// Identifies a socket, whatever path leads to it.
struct SocketId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const SocketId&) const = default;
};

// Finds the socket without connecting: a vhost-user port takes one connection, and would take a
// trial for a worker.
Result<SocketId> find_socket(const std::string& path);

// Claims the socket for this process: a second connection to a vhost-user port would push the first
// worker out. The claim is a name in the abstract socket namespace, which is freed when the process
// ends, however it ends.
Result<OwnedFd> claim_socket(const std::string& path, SocketId id);

// The descriptors of this process that are connected to a Unix socket at `path`.
std::vector<int> descriptors_of(const std::string& path);

// Duplicates descriptors: one that the plug-in closes meanwhile could become another file.
std::vector<OwnedFd> duplicate(const std::vector<int>& fds);

// Ends all waits for the other side.
void shut_down(const std::vector<OwnedFd>& fds) noexcept;

// Runs `action` on a thread of its own. If it takes longer than `limit`, calls `unblock` every 20
// ms until it ends.
void run_bounded(std::chrono::milliseconds limit, const std::function<void()>& action,
                 const std::function<void()>& unblock);

}  // namespace sluice::client
