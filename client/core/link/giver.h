// What a worker has of an appliance that is lost, on its way to the next one.
//
// A block's packets leave, a probe asks what of them has come, and the rest leaves again. When a
// shard has all, the worker asks until it is told that all members have given theirs. What a packet
// holds, and what an answer means, the stream that derives from this one says. Pure; the session's
// thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "client/core/link/stream.h"

namespace sluice::client {

class Giver : public Stream {
 public:
  // ---- as a stream ----
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

 protected:
  struct Block {
    Step step = 0;
    std::uint32_t index = 0;
    std::uint64_t chunks = 0;  // that the shard is not known to have
    // What has not left since it was asked last: of these, or a statement.
    std::uint64_t waiting = 0;
    TimeNs ask_ns = 0;    // when it is asked about, once nothing waits
    bool stated = false;  // of a store: what this worker has of the block has left
  };
  struct Part {  // of a shard
    std::deque<Block> to_send;
    std::deque<Block> sent;        // whose answer is awaited, or that are to be asked about
    std::uint32_t unanswered = 0;  // probes since the last answer
    TimeNs next_ask_ns = 0;        // of any block
    TimeNs next_word_ns = 0;

    bool is_given() const noexcept { return to_send.empty() && sent.empty(); }
  };
  enum class Next : std::uint8_t { kGiven, kSend, kAskLater };

  // `blocks`: of the layout; a shard without any is told nothing.
  Giver(StreamId stream, std::uint32_t blocks, Link& link, TimeNs now);

  // Writes the block's next packet, and takes what it holds from `waiting`.
  virtual std::size_t write_block(Block& block, const wire::FlowHeader& flow,
                                  std::span<std::uint8_t> out) noexcept = 0;
  // This worker has given all to the shard. Sent until it is told that all members have.
  virtual std::size_t write_word(const wire::FlowHeader& flow,
                                 std::span<std::uint8_t> out) noexcept = 0;
  // What is left of the block after the answer.
  virtual Next judge(const wire::Answer& answer, Block& block) noexcept = 0;
  Part& part_of(std::uint32_t block) noexcept { return parts_[block % link_.shard_count()]; }

 private:
  Block* to_ask_about(std::uint16_t shard, TimeNs now) noexcept;
  void send_again(std::uint32_t, std::uint64_t) override {}

  const TimeNs began_ns_;
  TimeNs progress_ns_;
  std::vector<Part> parts_;  // one a shard that has blocks
};

}  // namespace sluice::client
