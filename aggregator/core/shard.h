// One shard of the aggregator: the slots that one lcore owns, and all rules about them.
//
// Pure: packets and time go in, verdicts and datagrams come out. The lcore worker (or the
// simulator, or the in-process transport) calls handle() for each packet of a burst, and then
// poll_transmit() until it returns 0 or the egress is full. The shard writes results, answers and
// feedback into the caller's buffers. Only the payload of a sum stays in the slot
// (Transmit::shared): the caller copies it before its next call, so that a slot can be reopened at
// any time. All calls are on one thread. Commands come from the control side (jobs/jobs.h).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/counters.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"
#include "aggregator/core/job.h"
#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"

namespace sluice::agg {

// One datagram to send, in the caller's memory; the caller knows the member's path.
struct Transmit {
  std::span<std::uint8_t> buffer;  // at least wire::datagram_bytes() of the biggest job
  JobId job;
  Rank rank;
  std::size_t bytes = 0;  // written to the buffer
  Priority priority = 0;
  bool reply = false;    // an answer, a pulled result, or feedback: see send_budget.h
  wire::PartialSum sum;  // of the datagram, for its UDP checksum
  // The end of the datagram, behind `bytes`, in the shard's memory: the same for all members of a
  // result. Valid until the next call of the shard.
  std::span<const std::uint8_t> shared;

  std::size_t datagram_bytes() const noexcept { return bytes + shared.size(); }
  // The datagram in one piece, in the buffer.
  std::span<std::uint8_t> datagram() const noexcept {
    DCHECK(datagram_bytes() <= buffer.size());
    if (!shared.empty()) std::memcpy(&buffer[bytes], shared.data(), shared.size());
    return buffer.first(datagram_bytes());
  }
};

// Control side to one shard. Every shard gets every command.
struct ShardCommand {
  enum class Kind : std::uint8_t {
    kAddJob,        // start serving `job`
    kMemberGone,    // members[rank].left_from has changed: clear the rank where it no longer counts
    kMemberJoined,  // members[rank] is a new process, or one given up too early: answered by
                    // kMemberAdmitted from shard 0, or by nothing and then asked again
    kHoldClocks,    // of a store: so is members[rank], answered by each shard in JobSlice::joiners
    kMemberStarts,  // of a store: all shards hold their clocks for it, it starts at `first`
    kHoldReleased,  // members[rank].hold_from is kNoStep again: no step waits for it any more
    kOpenTransfer,  // job->transfer is new: answered by kTransferOpened from shard 0
    kSourceLost,    // `rank` gives no more of its state and nobody takes its place: answered by
                    // kTransferLost from shard 0 as soon as the target waits for more
    kAddGroup,      // of operations: start serving `groups.group`
    kRemoveGroup,   // forget it
    kGroups,        // carry out `groups`, as some shard has asked in kGroupsRequest
    kRemoveJob,     // forget the job; answered by kJobReleased
  };
  Kind kind{};
  Job* job = nullptr;
  Rank rank;
  std::uint32_t admission = 0;  // kHoldClocks, kMemberStarts
  Step first = 0;               // kMemberStarts
  OperationsRequest groups{};   // kAddGroup, kRemoveGroup, kGroups
};

// One shard to the control side.
struct ShardEvent {
  enum class Kind : std::uint8_t {
    kJobReleased,         // this shard holds no pointer to the job any more
    kCollectiveMismatch,  // `rank` disagrees with what the first packet of `step` fixed
    kStepLimit,           // a stream has used up its step numbers
    kMemberAdmitted,      // `rank` contributes from members[rank].joined_from on
    kTransferOpened,      // the transfer's first step of stream kState is `step`
    kTransferLost,        // the target waits for `step` of stream kState, which will not come
    kGroupsRequest,       // all shards are to carry out `groups`
  };
  Kind kind{};
  Job* job = nullptr;
  Rank rank;
  StreamId stream{};
  Step step = 0;
  wire::Operation expected;
  wire::Operation actual;
  OperationsRequest groups{};  // kGroupsRequest
};

class Shard {
 public:
  explicit Shard(ShardId id);

  // The job of a packet, and the slot of the chunk that a contribution names, if this shard has
  // them.
  struct Location {
    Job* job = nullptr;
    std::uint32_t slot_index = kNoSlot;
  };
  // Finds the location and prefetches what handle() will need. Valid until the next command.
  Location locate(const wire::Packet& packet) const noexcept;

  // A parsed data packet that arrived on this shard's port. `marked`: its IP header said
  // congestion-experienced. The verdict is also counted.
  Verdict handle(const wire::Packet& packet, const Location& location, bool marked,
                 TimeNs now) noexcept;
  Verdict handle(const wire::Packet& packet, bool marked, TimeNs now) noexcept {
    return handle(packet, locate(packet), marked, now);
  }

  // Whether the header has the rank and the cookie of a member that this shard knows. The control
  // side may have removed the member since, but the sender is authenticated. For packets of the
  // control port.
  bool is_member(const wire::CommonHeader& header) const noexcept;

  // Writes the next datagrams, each into its buffer except its `shared` bytes, and returns how
  // many; 0: nothing to send. Only the last of them may be a reply.
  std::size_t poll_transmit(std::span<Transmit> burst, TimeNs now) noexcept;

  // Bounded work that no packet triggers: sweeps after a member has gone. True while some is left.
  bool poll_work(TimeNs now) noexcept;

  void handle_command(const ShardCommand& command, TimeNs now) noexcept;
  bool poll_event(ShardEvent& event) noexcept;

  const VerdictCounters& verdicts() const noexcept { return verdicts_; }
  std::uint64_t replies_dropped() const noexcept { return replies_dropped_.read(); }
  std::uint64_t results_overwritten() const noexcept { return results_overwritten_.read(); }

 private:
  using MissingRanks = std::array<std::uint64_t, kMaskWords>;
  // The contents of one packet of results: one slot, or the slots of several chunks of its block
  // that have no data or are sparse. Bit i of `chunks`: chunk i of the block.
  struct ResultPart {
    std::uint32_t slot_index = 0;
    std::uint64_t chunks = 0;
    std::uint8_t flags = 0;
  };
  // A sum's result as it is sent to every member: the member's name and the numbers of its flow are
  // still zero.
  struct PreparedSum {
    // The list of several chunks is behind the header.
    std::array<std::uint8_t, wire::result_overhead_bytes(kMaxWorkers) + kMaxChunkBytes> head;
    std::size_t head_bytes;
    std::span<const std::uint8_t> payload;  // in the slot
    wire::PartialSum sum;                   // of the head and the payload
    Priority priority;
  };
  struct ActiveSlice {  // a stream with results to send; served in turn, one slot each at most
    Job* job = nullptr;
    StreamId stream{};
  };

  // shard.cc: what all data packets have in common, and the slots of all streams.
  Verdict admit(const wire::Packet& packet, Job& job, bool marked, TimeNs now) noexcept;
  Verdict finished(Job& job, const wire::Packet& packet, TimeNs now) noexcept;
  Verdict check_chunk(const Job& job, StreamId stream, ChunkIndex chunk) const noexcept;
  void reopen(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept;
  bool try_complete(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept;
  void complete(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept;
  void close_part(Job& job, StreamId stream, TimeNs now) noexcept;
  StreamSlice& current_slice(Job& job, StreamId stream) noexcept {
    StreamSlice& slice = job.slices[id_.value].of(stream);
    const Step open_step = job.open_step(stream);
    if (slice.record.step != open_step) adopt_record(job, stream, open_step);
    return slice;
  }
  // Whether the step is in the stream's window.
  Verdict check_step(Job& job, StreamId stream, Step step) noexcept {
    const Step open_step = job.open_step(stream);
    if (open_step == 0) return Verdict::kNotStarted;
    [[maybe_unused]] const StreamSlice& slice = current_slice(job, stream);
    DCHECK(slice.chunk_count != 0 && slice.record.step >= open_step);
    if (step > open_step) return Verdict::kTooNew;
    return step == 0 || open_step - step >= job.spec.windows[index_of(stream)] ? Verdict::kTooOld
                                                                               : Verdict::kAccepted;
  }
  void adopt_record(Job& job, StreamId stream, Step open_step) noexcept;

  // shard_sum.cc: contributions to sums.
  // `entry`: the entry of the chunk in a sparse packet, which may be empty; null for other packets.
  Verdict contribute(Job& job, const wire::Packet& packet, std::uint32_t slot_index,
                     const wire::SparseEntry* entry, TimeNs now) noexcept;
  Verdict contribute_each(Job& job, const wire::Packet& packet, std::uint32_t first_slot,
                          TimeNs now) noexcept;
  bool try_complete_sum(Job& job, std::uint32_t slot_index, TimeNs now) noexcept;

  // shard_held.cc: results of a lost appliance that members give.
  Verdict take_held(Job& job, const wire::Packet& packet, TimeNs now) noexcept;
  void note_gathered(Job& job) noexcept;

  // shard_piece.cc: pieces of broadcasts, barriers and transfers.
  Verdict take_piece(Job& job, const wire::Packet& packet, TimeNs now) noexcept;
  Verdict check_piece(Job& job, const PieceSlice& slice, const wire::Piece& body,
                      Rank rank) noexcept;
  void fix_operation(Job& job, PieceSlice& slice, const wire::Piece& body) noexcept;
  bool try_complete_piece(Job& job, StreamId stream, std::uint32_t slot_index, TimeNs now) noexcept;
  void close_without_root(Job& job, TimeNs now) noexcept;

  // shard_store.cc: pushes, pulls, values, members of a store.
  Verdict take_push(Job& job, const wire::Packet& packet, TimeNs now) noexcept;
  Verdict take_pull(Job& job, const wire::Packet& packet, TimeNs now) noexcept;
  void queue_values(Job& job) noexcept;
  std::size_t send_values(Job& job, std::span<Transmit> burst, TimeNs now) noexcept;
  bool write_values(Job& job, const StoreAnswer& answer, std::uint8_t flags, Transmit& transmit,
                    TimeNs now) noexcept;
  bool write_pulled_values(Job& job, Rank rank, ChunkIndex chunk, Transmit& transmit,
                           TimeNs now) noexcept;
  void fill_store_answer(const Job& job, Rank rank, Reply& reply, wire::Answer& body,
                         MissingRanks& missing) const noexcept;
  void leave_store(Job& job, Rank rank) noexcept;
  void join_store(Job& job, Rank rank, std::uint32_t admission) noexcept;
  void start_in_store(Job& job, Rank rank, std::uint32_t admission, Step first) noexcept;
  bool work_on_store(Job& job) noexcept;

  // shard_operations.cc: packets of groups.
  Verdict take_group_packet(Job& job, const wire::Packet& packet) noexcept;
  Verdict probe_parts(Job& job, const wire::Packet& packet) noexcept;
  void handle_groups(Job& job, const ShardCommand& command) noexcept;
  void follow_groups(Job& job) noexcept;
  std::size_t send_parts(Job& job, std::span<Transmit> burst, TimeNs now) noexcept;
  bool write_part(Job& job, const PartOut& part, std::uint8_t flags, Transmit& transmit,
                  TimeNs now) noexcept;
  bool write_pulled_part(Job& job, Rank rank, const Reply& reply, std::uint32_t index,
                         Transmit& transmit, TimeNs now) noexcept;
  bool write_notice(Job& job, Rank rank, Transmit& transmit, TimeNs now) noexcept;
  std::size_t write_part_answer(Job& job, Rank rank, Reply& reply, std::span<std::uint8_t> out,
                                TimeNs now) noexcept;
  bool take_request(ShardEvent& event) noexcept;

  // shard_control.cc: commands, sweeps, events.
  void member_gone(Job& job, Rank rank) noexcept;
  void member_joined(Job& job, Rank rank) noexcept;
  bool admit_to_collectives(Job& job, Rank rank) noexcept;
  void hold_released(Job& job, Rank rank) noexcept;
  void open_transfer(Job& job, TimeNs now) noexcept;
  void source_lost(Job& job, Rank rank) noexcept;
  void report_lost_transfer(Job& job) noexcept;
  bool has_part(Job& job, StreamId stream) noexcept;
  void sweep(StreamSlice& slice) noexcept;
  bool work_on(Job& job, StreamId stream, TimeNs now) noexcept;
  bool sweep_some(Job& job, StreamId stream, TimeNs now) noexcept;
  void add_job(Job& job) noexcept;
  void remove_job(Job& job) noexcept;
  void push_event(const ShardEvent& event) noexcept;

  // shard_transmit.cc: results, and the order of all that is sent.
  void queue_result(Job& job, StreamId stream, std::uint32_t slot_index) noexcept;
  std::size_t poll_results(std::span<Transmit> burst, TimeNs now) noexcept;
  void next_active(bool more) noexcept;
  static void leave_queue(StreamSlice& slice, std::uint64_t chunks) noexcept;
  std::size_t fan_out(Job& job, StreamId stream, const ResultPart& part, std::span<Transmit> burst,
                      TimeNs now) noexcept;
  Flow* flow_that_may_get(Job& job, StreamId stream, Step step, Rank rank) noexcept;
  bool write_result(Job& job, StreamId stream, const ResultPart& part, Rank rank,
                    Transmit& transmit, TimeNs now) noexcept;
  void prepare_sum(const Job& job, const ResultPart& part, TimeNs now,
                   PreparedSum& prepared) noexcept;
  static std::size_t list_chunks(const GradientSlice& slice, const ResultPart& part,
                                 wire::ResultHeader& body, std::uint8_t* out) noexcept;
  static bool write_sum(const Job& job, const PreparedSum& prepared, Flow& flow, Transmit& transmit,
                        TimeNs now) noexcept;
  bool write_piece(Job& job, StreamId stream, const ResultPart& part, Rank rank, Transmit& transmit,
                   TimeNs now) noexcept;
  Flow& flow_to(Job& job, Rank rank) noexcept;
  static wire::Sender sender_of(const Job& job, Rank rank) noexcept;
  static wire::PartialSum fill_feedback(const Job& job, Flow& flow, wire::FeedbackHeader& header,
                                        TimeNs now) noexcept;

  // shard_reply.cc: answers to probes, what they pull, feedback.
  Verdict probe(Job& job, const wire::Packet& packet) noexcept;
  Verdict queue_reply(Job& job, Rank rank, const Reply& reply) noexcept;
  std::uint32_t place_for_reply(Job& job, Rank rank, const Reply& wanted) noexcept;
  Reply& reply_at(Job& job, Rank rank, std::uint32_t place) noexcept;
  void queue_feedback(Job& job, Rank rank) noexcept;
  void give_turn(Job& job, Rank rank) noexcept;
  Rank take_turn(Job& job) noexcept;
  bool poll_reply(Transmit& transmit, TimeNs now) noexcept;
  bool write_reply(Job& job, Rank rank, Transmit& transmit, TimeNs now) noexcept;
  std::size_t write_answer(Job& job, Rank rank, Reply& reply, std::span<std::uint8_t> out,
                           TimeNs now) noexcept;
  std::size_t encode_answer(Job& job, Rank rank, const Reply& reply, wire::Answer& body,
                            const MissingRanks& missing, std::span<std::uint8_t> out,
                            TimeNs now) noexcept;

  const ShardId id_;
  std::array<Job*, kMaxJobs> jobs_{};
  std::array<Job*, kMaxJobs> reply_jobs_{};  // ring: jobs with a member that has a turn
  std::size_t reply_job_head_ = 0;
  std::size_t reply_job_count_ = 0;
  std::uint32_t results_in_turn_ = 0;                           // sent since the last reply
  std::array<ActiveSlice, kMaxJobs * kStreamsOfJob> active_{};  // ring
  std::size_t active_head_ = 0;
  std::size_t active_count_ = 0;
  std::uint32_t sent_in_turn_ = 0;  // by the first of them
  std::vector<ShardEvent> events_;
  std::size_t event_count_ = 0;
  bool sweep_pending_ = false;
  bool requests_pending_ = false;  // some job's groups have requests
  VerdictCounters verdicts_;
  Counter replies_dropped_;
  Counter results_overwritten_;
};

}  // namespace sluice::agg
