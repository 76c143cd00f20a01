// An appliance inside this process that neighbours reach by UDP. A server of a BCube runs it if the
// switches only forward.
//
// It consists of the aggregator's own objects, as an inproc:// appliance, and of one thread, which
// sleeps while no packet comes. It listens at the port (joins) and at the next one (gradients), as
// every appliance with one shard, and only at the given address. Several jobs of the process share
// it. Any thread may call it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aggregator/base/limits.h"
#include "aggregator/base/status.h"
#include "aggregator/base/time.h"
#include "aggregator/base/verdict.h"
#include "client/log.h"

namespace sluice::client {

struct ServedOptions {
  std::string host;  // an address of this machine, or a name of it
  std::uint16_t port = kDefaultPort;
  std::string secret;
  // For how long members that ask for something are still served at the end.
  DurationNs linger_ns = 4 * kSecond;
};

class Served {
 public:
  // The appliance at that host and port, opened with these options if there is none. Resolves the
  // host. The message of a failure says what to do.
  static Result<std::shared_ptr<Served>> open(ServedOptions options, const Log& log);

  virtual ~Served() = default;  // ends the thread and waits for it
  // Called by its last user. From now on it runs only for its members: until they have left, have
  // asked for nothing for 0.5 s, or linger_ns has passed.
  virtual void end() noexcept = 0;
  // The number of packets with this verdict.
  virtual std::uint64_t verdicts(Verdict verdict) const noexcept = 0;
  // Control packets that were dropped because their sender, or all senders together, had sent too
  // many.
  virtual std::uint64_t flooded() const noexcept = 0;
};

}  // namespace sluice::client
