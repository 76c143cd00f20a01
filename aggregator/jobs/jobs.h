// The control side of the aggregator: who is a member of which job.
//
// Joins with proof of the secret, refusals that print both values, keepalives, liveness,
// departures, and the end of a job. Pure: time and key material are passed in, one reply at most is
// written into the caller's buffer, everything else waits in poll_*(). One thread, the control
// thread; shards are told through ShardCommand and answer through ShardEvent. It never touches a
// network: the caller keeps the path (address, port, MAC, VLAN) of each member and is told when to
// bind one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/counters.h"
#include "aggregator/base/limits.h"
#include "aggregator/core/shard.h"
#include "aggregator/wire/packet.h"

namespace sluice::agg {

struct JobsOptions {
  std::string secret;  // of every job; empty: anyone may join
  std::array<std::uint8_t, 32>
      boot_key{};  // fresh randomness: cookies and challenges derive from it
  std::uint16_t shard_count = 1;
  std::size_t max_jobs = kMaxJobs;
  std::size_t max_workers = kMaxWorkers;  // per job
  std::size_t max_job_memory_bytes = std::size_t{4} << 30;
  std::size_t max_total_memory_bytes = std::size_t{8} << 30;
  DurationNs member_timeout_ns = kDefaultMemberTimeout;
};

// Where a control datagram came from, as the caller knows it.
struct Origin {
  std::string_view address;            // printable, "10.0.0.2:40000", for messages
  std::size_t max_datagram_bytes = 0;  // biggest UDP payload that its port can receive
};

struct ControlResult {
  Verdict verdict{};
  std::size_t reply_bytes = 0;  // in the caller's buffer, to be sent back where it came from
  bool bind = false;            // remember the origin as the path of (job, rank)
  JobId job;
  Rank rank;
};

// A row for the metrics endpoint and for tests. Valid until the next call.
struct MemberView {
  Rank rank;
  std::string_view address;
  bool joined = false;
  bool gone = false;
  DurationNs silent_ns = 0;
};

class Jobs {
 public:
  explicit Jobs(JobsOptions options);
  ~Jobs();

  // A parsed control packet of `packet.bytes().size()` bytes from `origin`. `reply` is the caller's
  // buffer of at least kMaxDatagramBytes; a reply to an unproven sender is never longer than the
  // packet.
  ControlResult handle(const wire::Packet& packet, const Origin& origin,
                       std::span<std::uint8_t> reply, TimeNs now);

  // Pings, notices and unasked statuses to members. False: none waits.
  bool poll_transmit(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now);
  // Commands for every shard, in order. False: none waits.
  bool poll_command(ShardCommand& command);
  void handle_event(const ShardEvent& event, TimeNs now);

  // A hint that the member's process is gone (port unreachable, vhost-user socket closed): asks it
  // three times, 200 ms apart, before it is declared dead.
  void suspect(JobId job, Rank rank, TimeNs now);
  // Liveness: call at least every 50 ms.
  void tick(TimeNs now);
  // The appliance is ending: notices to all members, which poll_transmit() hands out.
  void shutdown(TimeNs now);

  const VerdictCounters& verdicts() const noexcept { return verdicts_; }
  // Live jobs, for metrics; a Job stays valid until its kRemoveJob has been released by all shards.
  std::vector<const Job*> jobs() const;
  std::vector<MemberView> members(JobId job, TimeNs now) const;
  std::size_t memory_bytes() const noexcept;

 private:
  struct Entry;  // a job and what only the control side knows about it
  std::vector<std::unique_ptr<Entry>> entries_;
  JobsOptions options_;
  VerdictCounters verdicts_;
};

}  // namespace sluice::agg
