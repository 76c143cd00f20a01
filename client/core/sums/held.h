// The results that this worker has of an appliance that is lost, on their way to the next one, in a
// job with k < n.
//
// Every member gives all that it has of the step with which the job goes on, and of the step before
// if a member lacks some of that: equal results count once there. A block's chunks leave, a probe
// asks which of them have come, and what has not leaves again. When a shard has all, this worker
// says so, until it is told that all members have. No contribution counts before, so no new sum
// contradicts a result that somebody has. Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "client/core/calls/layout.h"
#include "client/core/link/stream.h"
#include "client/core/sums/arena.h"

namespace sluice::client {

class HeldResults final : public Stream {
 public:
  // `kept` and `layout` outlive it. It gives what is of the steps from `from` to `step`.
  HeldResults(const ReceiveArena& kept, const Layout& layout, Link& link, Step from, Step step,
              TimeNs now);

  // Of the newest step of which the worker has a result, if a policy has chosen it; else 0.
  static std::uint16_t newest_k(const ReceiveArena& kept, ChunkIndex chunk_count) noexcept;

  // ---- as a stream ----
  Step current_step() const noexcept override { return step_; }
  bool in_progress() const noexcept override { return true; }
  TimeNs last_progress_ns() const noexcept override { return progress_ns_; }
  std::string describe(TimeNs now) const override;
  Verdict handle_result(const wire::Packet&, TimeNs) override { return Verdict::kBadType; }
  Verdict handle_answer(const wire::Packet& packet, TimeNs now) override;
  bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) override;
  Priority block_priority(std::uint32_t) const noexcept override { return 0; }
  bool uses(std::uint16_t) const noexcept override { return true; }
  void work(std::uint16_t, TimeNs) override {}
  bool poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                  TimeNs now) override;
  void lose(std::uint16_t, std::uint32_t) override {}  // answers tell
  void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept override;
  TimeNs next_timeout() const noexcept override;

 private:
  struct Block {
    Step step = 0;
    std::uint32_t index = 0;
    std::uint64_t chunks = 0;   // that the shard is not known to have
    std::uint64_t waiting = 0;  // of these, those that have not left since it was asked last
    TimeNs ask_ns = 0;          // when it is asked about, once nothing waits
  };
  struct Part {  // of a shard
    std::deque<Block> to_send;
    std::deque<Block> sent;        // whose answer is awaited, or that are to be asked about
    std::uint32_t unanswered = 0;  // probes since the last answer
    TimeNs next_word_ns = 0;

    bool is_given() const noexcept { return to_send.empty() && sent.empty(); }
  };
  void write_held(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                  TimeNs now) noexcept;
  void write_word(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                  TimeNs now) noexcept;
  Block* to_ask_about(std::uint16_t shard, TimeNs now) noexcept;
  void send_again(std::uint32_t, std::uint64_t) override {}

  const ReceiveArena& kept_;
  const Layout& layout_;
  const Step step_;
  const TimeNs began_ns_;
  TimeNs progress_ns_;
  std::vector<Part> parts_;  // one a shard that has chunks
  std::uint8_t dense_[kMaxChunkBytes];
};

}  // namespace sluice::client
