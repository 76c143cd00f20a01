// Stream 0: the tensors of the step under way, their chunks on the way out and their averages on
// the way back.
//
// tensors.h counts steps; this moves the bytes of the step under way, one at a time on the wire.
// In a job that tolerates stragglers, results may come before the tensor is submitted (they wait in
// the arena and cancel the sending), the appliance may be further than this worker (results are
// pulled), a tensor may take part without a gradient (catching up), and chunks that missed their
// step may go into the open one (late.h). Pure; the session's thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/core/calls/layout.h"
#include "client/core/calls/residuals.h"
#include "client/core/calls/ring.h"
#include "client/core/calls/tensors.h"
#include "client/core/calls/trace.h"
#include "client/core/handover/resumption.h"
#include "client/core/link/recovery.h"
#include "client/core/link/stream.h"
#include "client/core/sums/arena.h"
#include "client/core/sums/average.h"
#include "client/core/sums/handed_over.h"
#include "client/core/sums/late.h"
#include "client/core/sums/step_reports.h"
#include "client/sched/scheduler.h"

namespace sluice::client {

inline constexpr Priority kNilPriority = 0;  // without data: others may wait for nothing else

inline const float* as_floats(std::span<const std::uint8_t> bytes) noexcept {
  return reinterpret_cast<const float*>(bytes.data());
}
// Of a bit a chunk, in blocks.
inline bool has(const std::vector<std::uint64_t>& words, ChunkIndex chunk) noexcept {
  return has_chunk(words[chunk / kChunksPerBlock], chunk);
}

class GradientStream final : public Stream {
 public:
  // All outlive it.
  GradientStream(const SessionOptions& options, const Layout& layout, Tensors& tensors,
                 Residuals& residuals, Link& link);

  // Schedulers, recovery, arena and late buffer are built. `rejoined`: the job runs already, so
  // another rank's state is needed first. Refused: a synchronous job that is beyond its first step,
  // and a policy that reads of gradients what pruning hides.
  Status join(const wire::Accept& accept) override;
  // What was submitted so far may leave.
  void start(TimeNs now) override;

  // ---- the application's calls, which Calls has accepted ----
  // Hands the chunks of the next tensor that was submitted to the scheduler, or first has measured
  // what of it leaves. A call of the application does not: it would take as long as the tensor is
  // big. False: there was nothing to do.
  bool schedule_next(TimeNs now) override;
  bool has_next() const noexcept override {
    return may_schedule() &&
           (tensors_.has_joined() || std::ranges::any_of(measuring_, [this](std::uint32_t tensor) {
              return residuals_.measured(tensor);
            }));
  }

  // ---- stragglers ----
  bool tolerant() const noexcept { return arena_.has_value(); }
  void learn_open_step(Step open_step, TimeNs now) noexcept override {
    if (tolerant() && !gathers_ && open_step > known_open_) advance_open_step(open_step, now);
  }
  // See Session. Never below what this worker may contribute to.
  Step open_step() const noexcept { return std::max(known_open_, first_step_); }
  // Everything that is finished is applied here, and nothing waits to be requeued.
  bool up_to_date() const noexcept { return current_step() >= known_open_ && !late_.waiting(); }
  std::uint32_t waiting_late_chunks() const noexcept { return late_.waiting_count(); }
  // A worker without a gradient for the step need not give one: not every rank's is waited for.
  bool may_catch_up(Step step) const noexcept {
    // With a late gradient to give, it says what it has for every chunk.
    return step > kFullSteps || open_step() > step || late_.waiting();
  }
  // Gives the step under way up, and all that waits.
  void fall_behind(Status why);
  // Nothing is contributed any more: what waits to be requeued is given up.
  void leave() override { late_.discard_all(); }
  // Another rank's state after step - 1 is in use.
  void resume(Step step, TimeNs now) noexcept;
  const StepReports& reports() const noexcept { return reports_; }

  // ---- an appliance that is lost and comes back (handover.h has the rules) ----
  // Another appliance has accepted this worker. Submissions, averages and residuals stay; nothing
  // is sent before go_on().
  void change_appliance(const wire::Accept& accept);
  // A bit for each chunk of the step under way whose result has come.
  const std::vector<std::uint64_t>& results() const noexcept { return results_; }
  // All ranks know each other's results: what is held is given or taken, the rest is contributed
  // again. Refused: what the ranks have stated can't be, or a weight that does not fit a packet.
  Status go_on(const Resumption& resumption, TimeNs now);
  // With k < n, where this rank may contribute from `first_step` on. `gathers`: results come, and
  // nothing is contributed before go_on(). See held.h.
  void begin_there(Step first_step, bool gathers, TimeNs now) noexcept;
  void go_on(Step open_step, TimeNs now);
  // The newest result of each chunk; null: none are kept.
  const ReceiveArena* kept() const noexcept { return kept_ ? &*kept_ : nullptr; }

  // ---- as a stream ----
  Step current_step() const noexcept override { return tensors_.current(); }
  // Something was submitted in the step under way and is not done.
  bool in_progress() const noexcept override {
    return started_ && !gathers_ && (tensors_.begun() || handed_.any());
  }
  bool owes_others() const noexcept override {
    return in_progress() || (!results_.empty() && tensors_.begun());
  }
  Step probe_step(std::uint32_t) const noexcept override { return step_on_wire(); }
  // kTensorLost for what is in flight, once nobody reads its memory any more.
  void give_up(const Status& why) override;
  TimeNs last_progress_ns() const noexcept override { return last_progress_ns_; }
  std::string describe(TimeNs now) const override;
  Verdict handle_result(const wire::Packet& packet, TimeNs now) override;
  Verdict handle_answer(const wire::Packet& packet, TimeNs now) override;
  // Feedback has come: what is not wanted and seems to have arrived is asked about.
  void confirm_arrived(std::uint16_t shard) noexcept override {
    if (!departures_[shard].empty()) confirm_departures(shard);
  }
  bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) override;
  Priority block_priority(std::uint32_t block) const noexcept override;
  bool uses(std::uint16_t) const noexcept override { return in_progress(); }

  bool wants_feedback(std::uint16_t shard) const noexcept override {
    return scheduler_.has_value() && scheduler_->waits_for_arrival() && in_flight(shard) != 0 &&
           link_.flows[shard].unreported() != 0;
  }
  Priority feedback_priority(std::uint16_t shard) const noexcept override {
    return last_sent_[shard].unreported_priority;
  }
  // Also when this worker was away.
  void members_changed() noexcept override {
    if (scheduler_) scheduler_->relearn();
  }
  std::string describe_plan() const override {
    return scheduler_ ? scheduler_->describe_plan() : std::string();
  }
  bool poll_trace(TensorTimes& times) noexcept override { return trace_.poll(times); }

 private:
  using Part = Tensors::Part;
  bool may_schedule() const noexcept {
    return started_ && !gathers_ && step_on_wire() == tensors_.current();
  }
  struct LastSent {
    std::uint32_t number = 0;          // of the last contribution
    Priority unreported_priority = 0;  // the least urgent one since feedback was asked for
  };
  // A tensor's average of the step under way, as it comes.
  struct Average {
    bool any_data = false;     // some result carried data
    bool some_absent = false;  // some result carried none
    bool non_finite = false;
    std::uint64_t weight = 0;
    std::uint32_t chunks_left = 0;
  };

  void send_again(std::uint32_t block, std::uint64_t chunks) override;

  // gradients.cc
  void set_up(const wire::Accept& accept);
  void make_flows(const wire::Accept& accept);
  // Blocks until nobody reads what was submitted: before its memory is given back.
  void await_measurements() noexcept;
  void schedule(std::uint32_t tensor, TimeNs now);
  void schedule_chunk(ChunkIndex chunk, std::uint32_t tensor, TimeNs now) noexcept;
  // gradients_send.cc
  // What this worker has to say of a chunk, and its data in memory.
  struct Offer {
    std::span<const std::uint8_t> payload;  // empty: no data
    Step base_step = 0;
    std::uint32_t weight = 0;
    bool wanted = true;
    bool averaged = false;
    friend bool same_story(const Offer& left, const Offer& right) noexcept {
      return left.payload.empty() == right.payload.empty() && left.base_step == right.base_step &&
             left.weight == right.weight && left.wanted == right.wanted &&
             left.averaged == right.averaged;
    }
  };
  // The sparse packet that is being made; of no chunk: it will be another one.
  struct Entries {
    std::uint64_t chunks = 0;
    std::uint64_t filled = 0;  // of them, those with values
    std::size_t bytes = 0;
  };
  Offer offer_of(ChunkIndex chunk, const ChunkSpan& span) const noexcept;
  std::uint64_t keep_fitting(std::uint32_t block, std::uint64_t chunks) noexcept;
  bool add_entry(std::uint64_t bit, const ChunkSpan& span, const Offer& offer) noexcept;
  std::size_t finish_entries(std::span<std::uint8_t> out) const noexcept;
  void write_chunks(const Choice& choice, std::uint64_t chunks, Transmit& transmit,
                    std::span<std::uint8_t> out, TimeNs now) noexcept;
  std::size_t write_report(std::span<std::uint8_t> out, TimeNs now) noexcept;
  std::uint32_t in_flight(std::uint16_t shard) const noexcept;
  WindowState window_state(TimeNs now) const noexcept;
  Priority priority_of(std::uint32_t tensor) const noexcept;
  // This worker has a gradient for the step under way, with data or without.
  bool contributes(std::uint32_t tensor) const noexcept {
    const Part part = tensors_.part(tensor);
    return part == Part::kLeftOut ? !tensors_.catching_up() : part == Part::kGradient;
  }
  bool has_data(std::uint32_t tensor) const noexcept {
    return tensors_.part(tensor) == Part::kGradient && tensors_.carries_data(tensor);
  }
  // The application wants its average.
  bool wants_average(std::uint32_t tensor) const noexcept {
    const Part part = tensors_.part(tensor);
    return (part == Part::kGradient && tensors_.submission(tensor).wanted) ||
           part == Part::kCatchUp;
  }
  // It has data for the chunk in the step under way.
  bool carries_data(ChunkIndex chunk, std::uint32_t tensor) const noexcept {
    if (handed_.holds(chunk)) return handed_.gives(chunk);
    return contributes(tensor) ? has_data(tensor) : late_.waiting(chunk);
  }
  std::span<const std::uint8_t> input_of(const ChunkSpan& span) const noexcept;
  // The appliance has closed the step under way.
  bool closed() const noexcept { return known_open_ > current_step(); }
  // What waits to be requeued, or at least this worker's presence, goes into the step under way.
  bool requeues_now() const noexcept {
    return late_.requeues() && !closed() && current_step() >= first_step_;
  }
  // The tensor's chunks in the block.
  std::uint64_t chunks_in(std::uint32_t block, std::uint32_t tensor) const noexcept {
    const auto before = [block](ChunkIndex end) {
      const ChunkIndex first = block * kChunksPerBlock;
      if (end <= first) return std::uint64_t{0};
      return end - first < kChunksPerBlock ? chunk_bit(end) - 1 : ~std::uint64_t{0};
    };
    return before(layout_.first_chunk(tensor + 1)) & ~before(layout_.first_chunk(tensor));
  }
  // The chunks of the block that fare as this one does where it has no data: those of its tensor,
  // if this worker has none for all of it.
  std::uint64_t alike_without_data(ChunkIndex chunk) const noexcept;
  std::string describe_open_tensors() const;

  // gradients_receive.cc
  std::span<const std::uint8_t> expanded(std::span<const std::uint8_t> bytes,
                                         std::size_t elem_count, Dtype dtype) noexcept;
  Verdict take_result(const wire::Packet& packet, std::uint32_t block, std::uint64_t chunks,
                      const ChunkResult& result, TimeNs now);
  void finish_tensor(std::uint32_t tensor, TimeNs now);
  void clear_absent_parts(std::uint32_t tensor) noexcept;
  void finish_step();
  // After chunks of the tensor were applied.
  Verdict chunks_done(std::uint32_t tensor, std::uint32_t count, TimeNs now);
  void discard_unknown(std::uint32_t tensor) noexcept;
  // Counts this rank among those that sent what is not finite, if it did.
  void count_own_non_finite(const ChunkSpan& span) noexcept;
  void account(ChunkIndex chunk, const ChunkSpan& span, bool counted) noexcept;
  void apply(ChunkIndex chunk, const ChunkSpan& span, const ChunkResult& result) noexcept;
  // The appliance has this worker's part of these chunks: those whose result is not wanted are
  // done.
  void finish_unwanted(std::uint32_t block, std::uint64_t chunks, TimeNs now);
  void confirm_departures(std::uint16_t shard) noexcept;
  void advance_open_step(Step open_step, TimeNs now) noexcept;

  // gradients_resume.cc: the step that an appliance was lost in, at the next one.
  Offer offer_handed_over(ChunkIndex chunk, const ChunkSpan& span) const noexcept;
  void note_results();
  Status hand_over(const Resumption& resumption, ChunkIndex chunk, bool takes_part) noexcept;
  Verdict handed_over(TimeNs now);
  // It ends, but for what it hands over for others.
  bool step_is_over() const noexcept { return tensors_.all_done() && handed_.is_over(); }
  // One before current_step() while only other ranks need what is handed over.
  Step step_on_wire() const noexcept { return handed_.any() ? handed_.step() : tensors_.current(); }

  const SessionOptions& options_;
  const Layout& layout_;
  Tensors& tensors_;
  Residuals& residuals_;
  std::vector<Average> averages_;              // by tensor
  std::vector<Priority> gradient_priorities_;  // by tensor, of its last gradient
  std::optional<Scheduler> scheduler_;
  std::vector<LastSent> last_sent_;  // per shard
  // Packets of tensors whose results are not wanted that may still be on their way: per shard, by
  // number. Of one that has no room its block's timer asks.
  struct Departure {
    std::uint32_t number = 0;
    std::uint32_t block = 0;
  };
  std::vector<Ring<Departure>> departures_;
  TensorTrace trace_;
  bool started_ = false;
  std::uint32_t scheduled_count_ = 0;  // tensors of the step under way
  // Tensors of the step under way that are not scheduled before it is known what of them leaves.
  std::vector<std::uint32_t> measuring_;
  std::uint32_t nil_weight_ = 1;  // of contributions without data: as the last submission's
  TimeNs last_progress_ns_ = 0;
  // Jobs that go on when their appliance has restarted.
  std::optional<ReceiveArena> kept_;    // the newest result of each chunk
  std::vector<std::uint64_t> results_;  // see results(); empty: no appliance was lost yet
  std::vector<std::uint64_t> sent_;     // with k < n: chunks that were sent to a lost appliance
  bool gathers_ = false;                // see begin_there()
  // The open step, which this rank took for closed, and of which it catches up: it says that it has
  // nothing to add.
  Step owed_ = 0;
  Step results_step_ = 0;  // of these
  HandedOver handed_;
  mutable std::uint8_t given_[kMaxChunkBytes];  // the dense payload of a result that is given
  // Jobs that tolerate stragglers.
  std::optional<ReceiveArena> arena_;
  LateChunks late_;
  Step known_open_ = 0;  // newest step that a packet said is open
  Step first_step_ = 1;  // that this worker may contribute to
  Step passed_ = 0;      // newest step of which a result came too early to be kept
  // What the appliance does not know yet.
  struct Reports {
    Step finished = 0;  // the last step whose gradient is finished; 0: it knows that
    // This worker has come to a step. The appliance counts on two ranks inside the window and would
    // learn of that only when the next gradient is finished.
    bool reached = false;
    bool any() const noexcept { return finished != 0 || reached; }
  };
  Reports reports_due_;
  StepReports reports_;
  alignas(64) float scratch_[kMaxChunkBytes];  // an element of int8 is a byte of a chunk
  std::uint8_t packed_[kMaxChunkBytes];
  std::uint8_t expanded_[kMaxChunkBytes];  // of a sparse result
  Entries entries_;
  std::uint8_t entry_bytes_[kMaxChunkBytes];
};

}  // namespace sluice::client
