// The control side of the aggregator: who is a member of which job.
//
// Joins with proof of the secret, refusals that print both values, keepalives, liveness,
// departures, returns to a job that went on, transfers of state, and the end of a job. Pure: time
// and key material are passed in, one reply at most is written into the caller's buffer, everything
// else waits in poll_*(). One thread, the control thread; shards are told through ShardCommand and
// answer through ShardEvent. It never touches a network: the caller keeps the path (address, port,
// MAC, VLAN) of each member and is told when to bind one.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/base/counters.h"
#include "aggregator/base/limits.h"
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

// What may be taken of the appliance, or is.
struct Share {
  std::size_t jobs = 0;
  std::size_t bytes = 0;
};

struct JobsOptions {
  std::string secret;  // of every job; empty: anyone may join
  std::array<std::uint8_t, 32>
      boot_key{};  // fresh randomness: cookies and challenges derive from it
  std::uint16_t shard_count = 1;
  std::size_t max_jobs = kMaxJobs;
  std::size_t max_workers = kMaxWorkers;  // per job
  std::size_t max_chunk_bytes = kMaxChunkBytes;
  std::size_t max_job_memory_bytes = std::size_t{4} << 30;
  std::size_t max_total_memory_bytes = std::size_t{8} << 30;
  Share per_address{kMaxJobs, SIZE_MAX};  // most that one host's workers found
  Share per_prefix{kMaxJobs, SIZE_MAX};   // most of jobs whose names are alike up to a slash
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
         type == wire::PacketType::kLeave || type == wire::PacketType::kResync;
}

// Whether it is a JOIN of another protocol version, which parse() refuses.
bool is_foreign_join(std::span<const std::uint8_t> datagram) noexcept;
// The answer to one: a refusal that names both versions, not longer than the request. To anything
// else 0 bytes.
std::size_t refuse_version(std::span<const std::uint8_t> request, std::span<std::uint8_t> reply);

// A row for the metrics endpoint and for tests. Valid until the next call.
struct MemberView {
  Rank rank;
  std::string_view address;
  bool joined = false;  // a live member: neither left nor gone
  bool gone = false;    // died, fell silent, was refused or left with an error
  bool left = false;    // ended its part by itself
  DurationNs silent_ns = 0;
  // Of a store's worker, as its last keepalive said.
  std::uint64_t suspended_ns = 0;
  std::uint32_t oldest_request_iterations = 0;
};

// Likewise, of a job.
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
  std::string_view notice;   // what its members were told; empty unless it ended by failure
  std::string_view loss;     // the last rank that it lost and goes on without; empty: all are in
};

struct Furthest;
struct Identity;
struct JobEntry;
struct JoinRequest;
struct Refusal;
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
  // Memory to be made or given back: whoever may be away for seconds carries the order out and
  // hands it back, in any order. False: none waits.
  bool poll_memory(MemoryOrder& order);
  void handle_memory(MemoryOrder order, TimeNs now);

  // A hint that the member's process is gone (its vhost-user socket closed): it is declared dead
  // when three pings, 200 ms apart, have been sent since the last such hint and nothing came back.
  void suspect(JobId job, Rank rank, TimeNs now);
  // An error says that nothing listens where a datagram of ours went, whose first bytes it quotes.
  // Anybody can send one, but only who saw that datagram knows the member's cookie: a wrong one is
  // the verdict, and changes nothing; kAccepted else. A hint otherwise, at most once a second a
  // member.
  Verdict suspect_quoted(const wire::CommonHeader& quoted, TimeNs now);
  // Liveness: call at least every 50 ms, when all packets that wait have been handled. Time in
  // which no call came for longer than kAbsentAfter counts as silence for nobody.
  void tick(TimeNs now);
  // The appliance is ending: notices to all members, which poll_transmit() hands out.
  void shutdown(TimeNs now);

  const VerdictCounters& verdicts() const noexcept { return verdicts_; }
  // Live jobs, for metrics; a Job stays valid until its kRemoveJob has been released by all shards.
  std::vector<const Job*> jobs() const;
  std::vector<JobView> views() const;
  std::vector<MemberView> members(JobId job, TimeNs now) const;
  // Of a job that forms and to which nobody has come for 5 s: "1 of 2 ranks here; waiting for rank
  // 1". Else empty.
  std::string describe_awaited(JobId job, TimeNs now) const;
  std::size_t memory_bytes() const noexcept;  // with what is being made or given back
  // How often all ranks' newest contributions were looked through, the dear part of a tick.
  std::uint64_t furthest_searches() const noexcept { return furthest_searches_; }

 private:
  struct Outgoing {
    JobId job;
    Rank rank;
    std::uint64_t serial = 0;  // of the entry, so that a reused id gets no old mail
    wire::PacketType type{};
  };

  // join.cc: a request from the first byte to the answer; admission.h decides.
  ControlResult join(const Request& request);
  ControlResult challenge(const Request& request) const;
  ControlResult refuse(const Request& request, const Refusal& refusal, bool proven) const;
  Refusal wrong_secret(const JoinRequest& asked) const;
  void ask_members(JobEntry& entry, const JoinRequest& asked);
  ControlResult prepare(const JobEntry& entry, const Request& request) const;
  ControlResult preparing(const Request& request, std::uint8_t percent) const;
  ControlResult take_rank(JobEntry& entry, const JoinRequest& asked, const Request& request);
  ControlResult admit_to_running(JobEntry& entry, const Request& request);
  ControlResult accept(const JobEntry& entry, const Request& request) const;
  std::array<std::uint8_t, wire::kNonceBytes> server_nonce(const Request& request) const noexcept;
  Cookie make_cookie(const JobEntry& entry, Rank rank, std::uint64_t nonce) noexcept;
  void occupy(JobEntry& entry, const Request& request);
  void revive(JobEntry& entry, Rank rank, TimeNs now);
  void start_if_complete(JobEntry& entry, TimeNs now);

  // table.cc: which job is meant.
  JobEntry* find(std::string_view name, std::uint16_t ordinal) const noexcept;
  JobEntry* found(const JoinRequest& request, JobSpec spec);
  bool pick_id(JobId& id) noexcept;
  bool is_echo(const JoinRequest& request) const noexcept;
  Usage usage(const JoinRequest& request) const noexcept;

  // room.cc: what gives way to a job that finds no room.
  bool all_ask(const JoinRequest& asked);
  void make_room(const JoinRequest& asked);

  // memory.cc: a job's memory on its way.
  void order_job(JobEntry& entry);
  void give_back(JobEntry& entry, std::unique_ptr<Job> job);
  void note_no_memory(JobEntry& entry, TimeNs now);
  void check_wanted(JobEntry& entry, TimeNs now);

  // jobs.cc: members' packets.
  void hear(JobEntry& entry, const Request& request);
  ControlResult keepalive(const Request& request);
  ControlResult leave(const Request& request);
  Identity identify(const wire::Packet& packet) const noexcept;
  ControlResult validate_path(const Request& request, ControlResult result);
  void carry_out_leave(JobEntry& entry, Rank rank, const wire::Leave& leave, TimeNs now);

  // rejoin.cc: members come and go while the job goes on.
  void remove_member(JobEntry& entry, Rank rank) noexcept;
  std::string describe_shrinking(const JobEntry& entry, std::string what) const;
  void rejoin(JobEntry& entry, Rank rank, TimeNs now);
  void repeat_rejoin(JobEntry& entry, Rank rank, TimeNs now);
  void admitted(JobEntry& entry, Rank rank, TimeNs now);
  void start_joiners(JobEntry& entry, TimeNs now);
  void evict(JobEntry& entry, Rank rank, std::string why, TimeNs now);
  void note_loss(JobEntry& entry, Rank rank, wire::NoticeCode code, std::string why, TimeNs now);

  // keep.cc: stores without workers, and without initial values.
  bool keep(JobEntry& entry, TimeNs now);
  void check_kept(JobEntry& entry, TimeNs now);
  void check_initial_values(JobEntry& entry, TimeNs now);
  void adopt(JobEntry& entry, const JoinRequest& request);

  // resync.cc: one rank's state for another.
  ControlResult resync(const Request& request);
  void ask_for_state(JobEntry& entry, Rank rank, std::uint32_t number, TimeNs now);
  void finish_resync(JobEntry& entry, Rank rank, std::uint32_t number);
  void advance_resyncs(JobEntry& entry, TimeNs now);
  void check_transfer(JobEntry& entry, TimeNs now);
  void check_idle_return(JobEntry& entry, Rank rank, TimeNs now);
  void start_transfer(JobEntry& entry, Rank source, TimeNs now);
  void open_transfer(JobEntry& entry, Rank source, TimeNs now);
  void end_transfer(JobEntry& entry);
  void transfer_opened(JobEntry& entry, Step step);
  void transfer_lost(JobEntry& entry, Step step, TimeNs now);
  void forget_resync(JobEntry& entry, Rank rank);
  bool choose_source(const JobEntry& entry, Rank target, TimeNs now, Rank& source) const;
  bool can_give_state(const JobEntry& entry, Rank rank, Rank target) const noexcept;
  std::string describe_hold(const JobEntry& entry, TimeNs now) const;
  std::string describe_no_source(const JobEntry& entry, Rank target) const;

  // liveness.cc
  void suspect(JobEntry& entry, Rank rank, TimeNs now);
  void check_member(JobEntry& entry, Rank rank, TimeNs now);
  void lose(JobEntry& entry, Rank rank, wire::NoticeCode code, TimeNs now);
  TimeNs last_heard(const JobEntry& entry, Rank rank) const noexcept;

  // ends.cc: the ends of single ranks of a synchronous job.
  const Furthest& furthest(JobEntry& entry) noexcept;
  bool is_awaited(JobEntry& entry, Rank rank) noexcept;
  bool let_go(JobEntry& entry, Rank rank, wire::NoticeCode code, TimeNs now);
  void check_ends(JobEntry& entry, TimeNs now);
  std::string describe_loss_by(const JobEntry& entry, Rank rank, wire::NoticeCode code,
                               TimeNs now) const;
  std::string describe_early_end(JobEntry& entry, Rank rank);

  // ending.cc: how a job ends, and what is said about it.
  void fail(JobEntry& entry, wire::NoticeCode code, Rank about, std::string text, TimeNs now);
  void replace(JobEntry& entry, const Request& request);
  void retire(JobEntry& entry, TimeNs now);
  void release(JobEntry& entry);
  void expire(JobEntry& entry, TimeNs now);
  std::size_t write_status(const JobEntry& entry, Rank rank, std::uint32_t echo_us,
                           std::span<std::uint8_t> out, TimeNs now) const noexcept;
  std::size_t write_answer(const JobEntry& entry, Rank rank, std::uint32_t echo_us,
                           const Request& request) const;
  std::size_t write_notice(const JobEntry& entry, Rank rank, std::span<std::uint8_t> out) const;
  std::size_t write_replaced(const JobEntry& entry, Rank rank, const Request& request) const;
  std::string describe_loss(const JobEntry& entry, Rank rank, std::string_view what,
                            DurationNs silent_ns) const;
  void command(ShardCommand::Kind kind, const JobEntry& entry, Rank rank = {}, Step first = 0);
  void queue(const JobEntry& entry, Rank rank, wire::PacketType type);

  // Who asks for room that another job would have to make.
  struct Claim {
    std::string name;  // empty: nobody does
    std::uint64_t run_id = 0;
    std::uint16_t ordinal = 0;
    std::uint16_t world_size = 0;
    MemberMask ranks{};
    TimeNs since_ns = 0;
    TimeNs asked_ns = 0;  // the last time
  };

  JobsOptions options_;
  Claim claim_;
  PausableClock clock_;  // `now` of every private method is its active time
  const wire::HmacKey secret_;
  const wire::HmacKey boot_key_;
  std::vector<std::unique_ptr<JobEntry>> entries_;  // by job id; null: free
  std::deque<Outgoing> outgoing_;
  std::deque<ShardCommand> commands_;
  std::deque<MemoryOrder> orders_;
  std::uint64_t furthest_searches_ = 0;
  std::uint64_t next_serial_ = 1;
  std::uint16_t next_id_ = 1;
  VerdictCounters verdicts_;
};

}  // namespace sluice::agg
