// One stream of a session, as the session drives it. The kind of the job decides which streams
// there are; the session sees no difference between them but their order.
//
// Gradients (../sums), collectives and another rank's state (../bytes), pushes and pulls
// (../store), groups (../operations).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "aggregator/base/check.h"
#include "aggregator/base/status.h"
#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"
#include "client/core/calls/trace.h"
#include "client/core/calls/types.h"
#include "client/core/link/link.h"
#include "client/core/link/recovery.h"

namespace sluice::client {

class Stream {
 public:
  // Which flows its chunks use: all, those of the job's tensors; or the first shard's alone, of
  // pieces.
  enum class Flows : std::uint8_t { kFirst, kAll };

  Stream(StreamId id, Flows flows, Link& link) noexcept : link_(link), id_(id), flows_(flows) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamId id() const noexcept { return id_; }

  // ---- its life ----
  // The shards and the policy are known. An error: this session cannot take part, and says so.
  virtual Status join(const wire::Accept&) { return {}; }
  // All ranks have joined.
  virtual void start(TimeNs) {}
  // Ranks have joined or left.
  virtual void members_changed() noexcept {}
  virtual void handle_status(const wire::Status&, TimeNs) {}
  // Other ranks wait for the rest of what this one has begun.
  virtual bool owes_others() const noexcept { return false; }
  virtual void leave() {}
  // The session is over: events for all that is under way.
  virtual void give_up(const Status&) {}

  // ---- what is under way ----
  // The step under way, or the next one.
  virtual Step current_step() const noexcept = 0;
  // The step that a probe of the block names.
  virtual Step probe_step(std::uint32_t) const noexcept { return current_step(); }
  // Something of the step under way is awaited.
  virtual bool in_progress() const noexcept = 0;
  // When something of it came last, or it began.
  virtual TimeNs last_progress_ns() const noexcept = 0;
  // What it waits for, in words; empty when for nothing.
  virtual std::string describe(TimeNs now) const = 0;
  // What the schedule does and knows.
  virtual std::string describe_plan() const { return {}; }
  virtual bool poll_trace(TensorTimes&) noexcept { return false; }
  // Brings the counters that grow with time up to date.
  virtual void update_counters(TimeNs) noexcept {}

  // ---- what arrives ----
  // A failure of the whole job goes to Link::fail().
  virtual Verdict handle_result(const wire::Packet& packet, TimeNs now) = 0;
  virtual Verdict handle_answer(const wire::Packet& packet, TimeNs now) = 0;
  // Of each data packet that came on the shard's flow, what its header told: before it is handled,
  // and when it has been.
  virtual void learn_open_step(Step, TimeNs) noexcept {}
  virtual void confirm_arrived(std::uint16_t) noexcept {}

  // ---- what leaves ----
  // Schedules one of the tensors that were submitted. False: there was none.
  virtual bool has_next() const noexcept { return false; }
  virtual bool schedule_next(TimeNs) { return false; }
  // Writes the next packet of data as the windows allow. False: nothing may be sent now.
  virtual bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) = 0;
  // The least urgent priority among the block's chunks: a probe that overtook them would find them
  // missing.
  virtual Priority block_priority(std::uint32_t block) const noexcept = 0;
  // Something waits for packets in flight to arrive, and feedback on the shard's was not asked for.
  virtual bool wants_feedback(std::uint16_t) const noexcept { return false; }
  // Of such a request: it must not overtake what it asks about.
  virtual Priority feedback_priority(std::uint16_t) const noexcept { return 0; }
  // A packet for the control port.
  bool has_control() const noexcept { return send_control_; }
  virtual std::size_t poll_control(std::span<std::uint8_t>) noexcept { return 0; }

  // ---- what was lost ----
  Recovery& recovery() noexcept { return *recovery_; }
  const Recovery& recovery() const noexcept { return *recovery_; }
  // It has chunks on the flow of the shard that somebody waits for.
  virtual bool uses(std::uint16_t shard) const noexcept = 0;
  // Its Recovery has work on the flow: of pieces only while one is under way, their leftovers are
  // nobody's work.
  bool recovers(std::uint16_t shard) const noexcept {
    return flows_ == Flows::kAll || (shard == 0 && in_progress());
  }
  virtual void work(std::uint16_t shard, TimeNs now) {
    recovery_->work(shard, now, link_.flows[shard]);
  }
  // Writes a probe that is due and on the flow's pace.
  virtual bool poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                          TimeNs now);
  // The packet of that number is lost: what it carried is sent again, if it was of this stream.
  virtual void lose(std::uint16_t shard, std::uint32_t number) {
    const Recovery::Lost lost = recovery_->lose(shard, number, link_.flows[shard]);
    if (lost.chunks != 0) send_again(lost.block, lost.chunks);
  }
  virtual void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept {
    recovery_->hint(shard, signals, now, link_.flows[shard]);
  }
  virtual void handle_timeout(TimeNs) {}
  virtual TimeNs next_timeout() const noexcept { return recovery_->next_timeout(); }

 protected:
  // These chunks of the block are lost: they go to the scheduler once more.
  virtual void send_again(std::uint32_t block, std::uint64_t chunks) = 0;

  Link& link_;
  std::optional<Recovery> recovery_;  // since the join at the latest
  bool send_control_ = false;

 private:
  const StreamId id_;
  const Flows flows_;
};

}  // namespace sluice::client
