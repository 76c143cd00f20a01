// An appliance inside this process that neighbours reach by UDP: what a server of a BCube runs
// where the switches only forward.
//
// The aggregator's own objects, as an inproc:// appliance has them, driven by one thread that
// sleeps while nothing comes. It listens at the port (joins) and at the next one (gradients), as
// every appliance of one shard, and only at the address that it is given. Several jobs of this
// process share one. Any thread.
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
  // How long members that ask for something are served at the end.
  DurationNs linger_ns = 4 * kSecond;
};

class Served {
 public:
  // The one at that host and port, opened with these options if there is none. Resolves the host.
  // The message of a failure says what to do.
  static Result<std::shared_ptr<Served>> open(ServedOptions options, const Log& log);

  virtual ~Served() = default;  // ends, and waits for that
  // For its last user. From now on it waits only for members: until they have left, have asked for
  // nothing for 0.5 s, or linger_ns has passed.
  virtual void end() noexcept = 0;
  // Packets with this verdict.
  virtual std::uint64_t verdicts(Verdict verdict) const noexcept = 0;
  // Control packets that were not heard, since their sender, or all together, had sent too many.
  virtual std::uint64_t flooded() const noexcept = 0;
};

}  // namespace sluice::client
