// The local socket for sluicectl: a request is words, one a line, up to the end of the stream; the
// answer is one JSON object, and then the connection ends.
//
// Who may connect is who may write to the socket's file: its owner, group and mode. One connection
// is served at a time, on a thread of its own; a peer that says nothing is cut off after two
// seconds. Start and end on the main thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "aggregator/base/status.h"

namespace sluice::dataplane {

struct ControlSocketOptions {
  std::string path;
  std::string owner;  // names of the system; empty: the process's own
  std::string group;
  unsigned mode = 0600;
};

class ControlSocket {
 public:
  using Words = std::vector<std::string>;
  using Answer = std::function<std::string(const Words&)>;  // called on the socket's thread

  // Replaces a socket that a process has left behind; fails with kIoError if another one answers
  // there, or if the file can't be made so. The message names the setting and the remedy.
  static Result<std::unique_ptr<ControlSocket>> start(const ControlSocketOptions& options,
                                                      Answer answer);
  // Removes the file.
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

 private:
  ControlSocket(std::string path, Answer answer) : path_(std::move(path)), answer_(answer) {}
  Status listen_as(const ControlSocketOptions& options);
  void run() const;
  void serve(int peer) const;

  const std::string path_;
  const Answer answer_;
  int listener_ = -1;
  int stop_ = -1;  // an eventfd: readable when the thread is to end
  bool bound_ = false;
  std::thread thread_;
};

}  // namespace sluice::dataplane
