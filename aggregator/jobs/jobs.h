// The control side of the aggregator: who is a member of which job.
//
// Jobs keeps the table of jobs, finds the job that a packet or an event means, and ticks. Each job
// has a JobControl (job_control.h), which handles joins, keepalives, departures, returns, transfers
// of state and the end of the job.
//
// Pure: time and key material are passed in. A call writes at most one reply, into the caller's
// buffer; everything else waits for the caller in poll_*(). Control thread only: the shards get
// ShardCommands and answer with ShardEvents. Jobs touches no network: the caller keeps the path
// (address, port, MAC, VLAN) of each member, and a ControlResult says when to bind one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/base/counters.h"
#include "aggregator/base/limits.h"
#include "aggregator/base/status.h"
#include "aggregator/core/shard.h"
#include "aggregator/jobs/memory.h"
#include "aggregator/jobs/paths.h"
#include "aggregator/jobs/pausable_clock.h"
#include "aggregator/wire/auth.h"
#include "aggregator/wire/packet.h"

namespace sluice::agg {

// What the configuration says of the jobs of one name.
struct NamedOptions {
  std::string job_name;
  PolicyOptions policy;       // for ranks that leave it to the appliance
  bool reproducible = false;  // true: sums in the order of ranks, whether or not the ranks ask
};

// A part of the appliance, as a limit or as it is in use.
struct Share {
  std::size_t jobs = 0;
  std::size_t bytes = 0;
};

struct JobsOptions {
  std::string secret;                       // of every job; empty: anyone may join
  std::vector<std::string> older_secrets;   // are good too
  std::array<std::uint8_t, 32> boot_key{};  // fresh and random; cookies and challenges need it
  std::uint16_t shard_count = 1;
  std::size_t max_jobs = kMaxJobs;
  std::size_t max_workers = kMaxWorkers;  // per job
  std::size_t max_chunk_bytes = kMaxChunkBytes;
  std::size_t max_job_memory_bytes = std::size_t{4} << 30;
  std::size_t max_total_memory_bytes = std::size_t{8} << 30;
  Share per_address{kMaxJobs, SIZE_MAX};  // limit of the jobs that one host's workers found
  Share per_prefix{kMaxJobs, SIZE_MAX};   // limit of the jobs with one name up to the first slash
  DurationNs member_timeout_ns = kDefaultMemberTimeout;
  DurationNs resync_hold_ns = kDefaultResyncHold;  // the longest that a transfer stops the window
  DurationNs store_keep_ns = kDefaultStoreKeep;    // a store without workers; 0: not at all
  PolicyOptions policy;                            // of jobs that no entry below names
  std::vector<NamedOptions> named_jobs;
};

// Where a control datagram came from, as the caller knows it.
struct Origin {
  PathKey path{};                      // the whole way back, see paths.h
  std::string_view address;            // printable, "10.0.0.2:40000", for messages and challenges
  std::size_t max_datagram_bytes = 0;  // biggest UDP payload that its port can receive; 0: unknown
};

struct ControlResult {
  Verdict verdict{};
  std::size_t reply_bytes = 0;  // in the caller's buffer, to be sent back where it came from
  bool bind = false;            // the origin is proven: from now on the path of (job, rank)
  JobId job;
  Rank rank;
};

// Whether handle() has an answer to packets of this type; the caller may throw others away.
constexpr bool is_request(wire::PacketType type) noexcept {
  return type == wire::PacketType::kJoin || type == wire::PacketType::kKeepalive ||
         type == wire::PacketType::kLeave || type == wire::PacketType::kResync ||
         type == wire::PacketType::kMakeGroup;
}

// Whether the datagram is a JOIN of another protocol version, which parse() refuses.
bool is_foreign_join(std::span<const std::uint8_t> datagram) noexcept;
// The answer to such a join: a refusal that names both versions, not longer than the request.
// 0 bytes for other datagrams.
std::size_t refuse_version(std::span<const std::uint8_t> request, std::span<std::uint8_t> reply);

// A member, as a row for the metrics endpoint and for tests. Valid until the next call.
struct MemberView {
  Rank rank;
  std::string_view address;
  bool joined = false;  // a live member: neither left nor gone
  bool gone = false;    // died, fell silent, was refused or left with an error
  bool left = false;    // ended its part by itself
  DurationNs silent_ns = 0;
  // As the last keepalive of a store's worker said.
  std::uint64_t suspended_ns = 0;
  std::uint32_t oldest_request_iterations = 0;
};

// A job, as a row for the metrics endpoint and for tests. Valid until the next call.
struct JobView {
  JobId id;
  std::string_view name;
  std::uint16_t ordinal = 0;
  wire::JobState state{};
  std::uint16_t joined_count = 0;
  std::uint16_t world_size = 0;
  const Job* job = nullptr;  // null while it is made, and once the shards have released it
  bool preparing = false;    // its memory is being made
  bool was_kept = false;     // a store that has outlived all of its workers once
  std::string_view notice;   // the text that its members got; empty unless it ended by failure
  std::string_view loss;     // the last rank that it lost and goes on without; empty: all are in
};

class JobControl;
struct ControlContext;
struct JobEntry;
struct JoinRequest;
struct MemberEntry;
struct Request;
struct Usage;

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
  // Orders for memory to be made or given back. The caller has them carried out wherever seconds do
  // not matter, and hands them back, in any order. False: none waits.
  bool poll_memory(MemoryOrder& order);
  void handle_memory(MemoryOrder order, TimeNs now);

  // A hint that the member's process is gone (its vhost-user socket closed). The process is dead
  // when three pings, 200 ms apart, have been sent since the last such hint and nothing came back.
  void suspect(JobId job, Rank rank, TimeNs now);
  // A network error quotes the first bytes of a datagram of ours: nothing listens where it went.
  // Anybody can send such an error, but only a host that saw the datagram knows the member's
  // cookie. A wrong cookie changes nothing and gets a verdict that says so. With the right one the
  // verdict is kAccepted, and the error is a hint, at most once a second a member.
  Verdict suspect_quoted(const wire::CommonHeader& quoted, TimeNs now);
  // Judges who is alive. Call it at least every 50 ms, once all packets that wait are handled. An
  // absence of the caller that is longer than kAbsentAfter counts as silence of no member.
  void tick(TimeNs now);
  // The operator ends a job, or one rank's part in it; the members are told why. A job that goes on
  // without lost ranks loses only the rank, which may join again; any other ends. The message of a
  // failure says what is not there.
  Status kick(JobId job, std::optional<Rank> rank, TimeNs now);
  // The settings change while jobs run. They hold for joins and waits from now on; a job keeps the
  // policy that it began with. Precondition: shard count and boot key are as they were.
  void change_options(JobsOptions options);
  // The appliance is ending: poll_transmit() hands out notices to all members.
  void shutdown(TimeNs now);
  // The appliance is to end once nobody needs it: new jobs are refused, and members are asked to
  // move to another appliance at the end of their step.
  void drain(TimeNs now);
  // No process is a member of any job.
  bool is_empty() const noexcept;

  const VerdictCounters& verdicts() const noexcept { return verdicts_; }
  // Live jobs, for metrics; a Job stays valid until its kRemoveJob has been released by all shards.
  std::vector<const Job*> jobs() const;
  std::vector<JobView> views() const;
  std::vector<MemberView> members(JobId job, TimeNs now) const;
  // "1 of 2 ranks here; waiting for rank 1", of a job that forms and that no process has joined for
  // 5 s. Empty for other jobs.
  std::string describe_awaited(JobId job, TimeNs now) const;
  std::size_t memory_bytes() const noexcept;  // with what is being made or given back
  // How often the newest contributions of all ranks were searched, the dear part of a tick.
  std::uint64_t furthest_searches() const noexcept;

 private:
  // Whose packet a packet is, or why it is nobody's.
  struct Speaker {
    JobControl* control = nullptr;
    MemberEntry* member = nullptr;
    Verdict why{};          // when `member` is null
    bool replaced = false;  // the cookie was good until the rank was taken over
  };

  // jobs.cc: which member a request is of.
  Speaker identify(const wire::Packet& packet) const noexcept;
  ControlResult validate_path(const Request& request, ControlResult result);
  ControlResult hear(const Request& request);  // keepalives and resyncs
  ControlResult leave(const Request& request);

  // join.cc: a join from its first byte to its answer; admission.h decides.
  ControlResult join(const Request& request);

  // table.cc: which job an id or a name means, and a place for a new one.
  JobControl* find(std::size_t id) const noexcept;
  JobControl* find(std::string_view name, std::uint16_t ordinal) const noexcept;
  JobControl* create(const JoinRequest& founder, JobSpec spec);
  bool pick_id(JobId& id) noexcept;
  bool is_echo(const JoinRequest& request) const noexcept;
  Usage usage(const JoinRequest& request) const noexcept;

  // room.cc: which job gives way to one that finds no room.
  bool all_ask(const JoinRequest& asked);
  void make_room(const JoinRequest& asked);

  // A job that asks for room which another job would have to make.
  struct Claim {
    std::string name;  // empty: no job does
    std::uint64_t run_id = 0;
    std::uint16_t ordinal = 0;
    std::uint16_t world_size = 0;
    MemberMask ranks{};
    TimeNs since_ns = 0;
    TimeNs asked_ns = 0;  // when a rank asked last
  };

  std::unique_ptr<ControlContext> context_;
  std::vector<std::unique_ptr<JobControl>> controls_;  // by job id; null: free
  Claim claim_;
  std::uint16_t next_id_ = 1;
  VerdictCounters verdicts_;
};

}  // namespace sluice::agg
