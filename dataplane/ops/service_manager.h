// Tells the service manager how the process does: sd_notify(3)'s datagrams, without its library.
//
// Main thread only. Without NOTIFY_SOCKET in the environment every call does nothing.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace sluice::dataplane {

class ServiceManager {
 public:
  // `socket`: NOTIFY_SOCKET's value, where "@" begins an abstract name; empty: nobody listens.
  // `watchdog_us`: WATCHDOG_USEC's.
  ServiceManager(std::string socket, std::string_view watchdog_us);
  static ServiceManager from_environment();

  void ready(const std::string& status) const { send("READY=1\nSTATUS=" + status); }
  void status(const std::string& status) const { send("STATUS=" + status); }
  void alive() const { send("WATCHDOG=1"); }
  void stopping() const { send("STOPPING=1\nSTATUS=telling the workers, and ending"); }
  // A reload begins, by the clock that systemd compares, and ready() ends it.
  void reloading() const;

  // alive() is due this often; 0: nobody waits for it. Half of what the service manager allows.
  std::chrono::microseconds alive_every() const noexcept { return alive_every_; }
  bool listens() const noexcept { return !socket_.empty(); }

 private:
  void send(const std::string& state) const;

  std::string socket_;
  std::chrono::microseconds alive_every_{0};
};

}  // namespace sluice::dataplane
