// One group, as a member sees it: its four sequences, and the operations that it has called, until
// each is over and shard 0 has noted the call.
//
// A call that shard 0 has not noted in time is sent again with a question, and an operation that
// makes no progress is asked about. What shard 0 says ends the operation: cancelled, or the group
// is broken (a member is lost, or two have called different operations). Pure; the session's thread
// only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "client/core/operations/sequence.h"

namespace sluice::client {

class Group;

struct OperationEvent {  // an operation is over, and both its buffers are the caller's again
  const Group* group = nullptr;
  std::uint64_t number = 0;
  bool non_finite = false;  // some element of a sum is NaN or infinite
  Status status;
};

class Group {
 public:
  Group(GroupFacts facts, std::string name, std::string error_prefix, Link& link,
        std::uint64_t first_chunk = 0);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const GroupFacts& facts() const noexcept { return facts_; }

  // ---- its making ----
  // Calls that come before wait for it.
  bool is_made() const noexcept { return made_; }
  void made(std::uint16_t id, std::uint32_t generation, TimeNs now);
  // Its appliance is lost. Calls wait until another one, or the same without its memory, has made
  // the group again, with these floors. False: they can't be.
  void lose_appliance();
  wire::GroupPosition position() const noexcept;
  // Other members wait for what this one is still to send again.
  bool owes() const noexcept;
  bool resume(std::uint16_t id, std::uint32_t generation,
              std::span<const std::uint64_t, wire::kSequenceCount> floors, TimeNs now);
  // It will not be made, or the session is over: all that is open ends so.
  void give_up(const Status& why);

  // ---- calls ----
  // kInvalidArgument: there is no such operation. kBusy: as many are open as may be. Else an
  // operation has begun, even if the group is broken: its event says so.
  Status call(const OperationCall& call, TimeNs now, std::uint64_t& number);
  // The buffers of a held call, which has waited for them, and so have the calls after it. Nothing
  // happens if it is over.
  void release(std::uint64_t number, const void* input, void* output, TimeNs now);
  // This member waits no longer for it. Its event comes in any case: it may be completed yet.
  void cancel(std::uint64_t number, TimeNs now);
  bool poll_event(OperationEvent& event);
  std::size_t open_count() const noexcept { return open_count_; }

  // ---- what arrives ----
  Verdict handle(const wire::Packet& packet, std::uint16_t shard, TimeNs now);

  // ---- what leaves; sequences are in the order of wire::Sequence ----
  bool poll_call(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) noexcept;
  // Operations from here on may not be sent: others have to call theirs first, or this member had
  // been told that the group is broken.
  std::uint64_t number_limit() const noexcept {
    return std::min(called_by_all_ + kKeptCalls, broken_from_);
  }
  std::array<Sequence, wire::kSequenceCount>& sequences() noexcept { return sequences_; }
  const std::array<Sequence, wire::kSequenceCount>& sequences() const noexcept {
    return sequences_;
  }
  // Gives up what its caller waits for no longer.
  void handle_timeout(TimeNs now);
  TimeNs next_timeout() const noexcept;

  // ---- what it waits for ----
  // "group 'dp', operation 118, ...: rank 3 has not called it and is 5 operations behind"; empty
  // when nothing has waited for `patience_ns`.
  std::string describe_stall(DurationNs patience_ns, TimeNs now) const;
  // When something of what is open came last, or it was called; kNever: nothing is open.
  TimeNs waiting_since_ns() const noexcept;

 private:
  // Between two questions about an operation that is noted and makes no progress.
  static constexpr DurationNs kAskInterval = 250 * kMillisecond;

  struct Called {
    std::uint64_t number = 0;
    std::uint64_t end = 0;  // of its chunks
    wire::Description what;
    wire::Sequence sequence{};
    bool done = false;       // its event is out
    bool cancelled = false;  // by this member
    bool non_finite = false;
    bool unsure = false;  // all its chunks are over, if it has not ended otherwise
    bool sent = false;
    std::uint8_t asked = 0;  // questions in vain
    wire::OutcomeCode heard =
        wire::OutcomeCode::kOpen;  // once done: what another appliance is told
    std::uint16_t heard_rank = wire::kNoRank;
    TimeNs begun_ns = 0;
    TimeNs next_ns = 0;  // when it is sent (again)
    TimeNs deadline_ns = kNever;
  };
  struct Waiting {  // for the group to be made, or for buffers
    OperationCall call;
    std::uint64_t number = 0;
    TimeNs called_ns = 0;
    bool cancelled = false;
  };

  Sequence& of(wire::Sequence id) noexcept { return sequences_[static_cast<std::size_t>(id)]; }
  Called* find(std::uint64_t number) noexcept;
  Status check(const OperationCall& call) const;
  void begin(const OperationCall& call, std::uint64_t number, TimeNs called_ns, TimeNs now);
  void ask_about(Called& called, TimeNs now) noexcept;
  void ask_about_all(TimeNs now) noexcept;
  void note_broken(TimeNs now) noexcept;
  Verdict handle_outcome(const wire::Packet& packet, TimeNs now);
  void note(std::uint64_t noted) noexcept;
  void collect_done();
  void finish(Called& called, Status status, wire::OutcomeCode heard,
              std::uint16_t heard_rank = wire::kNoRank);
  wire::OutcomeCode completed_code(const Called& called) const noexcept;
  bool is_told(const Called& called) const noexcept;
  void forget_done() noexcept;
  void begin_waiting(TimeNs now);
  Status end_of(const wire::Packet& packet, const Called& called) const;
  std::string place_of(const Called& called) const;

  GroupFacts facts_;
  bool made_ = false;
  const std::string name_;
  const std::string error_prefix_;
  Link& link_;
  std::array<Sequence, wire::kSequenceCount> sequences_;
  std::deque<Called> called_;   // consecutive numbers, from the first that is somebody's business
  std::size_t told_count_ = 0;  // at the front: done and noted, kept for an appliance to come
  std::uint64_t next_ = 0;      // number of the next operation
  std::uint64_t noted_ = 0;     // shard 0 has noted all calls below it
  std::uint64_t called_by_all_ = 0;
  std::uint8_t ended_ = 0;  // see wire::GroupState
  bool broken_ = false;     // a member is lost, or two have called different operations
  wire::Outcome broken_by_;
  std::uint64_t retold_to_ = 0;  // what is below is told again even if the group is broken
  std::uint64_t broken_from_ = UINT64_MAX;  // the first operation that was called after that
  std::size_t open_count_ = 0;              // operations whose event is not out
  TimeNs quiet_until_ns_ = 0;               // no call is due before
  std::deque<Waiting> waiting_;             // until they can begin, in order
  TimeNs deadline_ns_ = kNever;             // the next of those open
  std::deque<OperationEvent> events_;
  // The last answer that named members, for reports.
  std::uint64_t behind_number_ = 0;
  std::array<wire::Behind, wire::kMaxBehind> behind_{};
  std::size_t behind_count_ = 0;
};

}  // namespace sluice::client
