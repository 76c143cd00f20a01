#include "client/core/sums/held.h"

#include <algorithm>
#include <bit>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/core/sparse.h"
#include "aggregator/wire/sparse.h"
#include "client/core/calls/text.h"

namespace sluice::client {
namespace {

constexpr DurationNs kWordAgain = 25 * kMillisecond;
constexpr std::uint32_t kMostBackoff = 5;  // doublings of the time in which an answer is expected

}  // namespace

HeldResults::HeldResults(const ReceiveArena& kept, const Layout& layout, Link& link, Step from,
                         Step step, TimeNs now)
    : Stream(StreamId::kGradients, Flows::kAll, link),
      kept_(kept),
      layout_(layout),
      step_(step),
      began_ns_(now),
      progress_ns_(now) {
  CHECK(link.joined() && from != 0 && from <= step);
  const std::uint32_t blocks = (layout.chunk_count() + kChunksPerBlock - 1) / kChunksPerBlock;
  parts_.resize(std::min<std::size_t>(link.shard_count(), blocks));
  for (Part& part : parts_) part.next_word_ns = now;
  for (ChunkIndex chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    if (!kept.has(chunk)) continue;
    const Step of = kept.get(chunk).step;
    if (of < from || of > step) continue;
    const std::uint32_t index = chunk / kChunksPerBlock;
    std::deque<Block>& blocks_of = parts_[link.shard_of_chunk(chunk)].to_send;
    // A block has results of two steps at most, and its chunks come one behind the other.
    Block* block = nullptr;
    for (std::size_t back = 1; back <= std::min<std::size_t>(2, blocks_of.size()); ++back)
      if (Block& one = blocks_of[blocks_of.size() - back]; one.index == index && one.step == of)
        block = &one;
    if (block == nullptr) block = &blocks_of.emplace_back(Block{.step = of, .index = index});
    block->chunks |= chunk_bit(chunk);
    block->waiting = block->chunks;
  }
}

std::uint16_t HeldResults::newest_k(const ReceiveArena& kept, ChunkIndex chunk_count) noexcept {
  std::uint16_t k = 0;
  Step newest = 0;
  for (ChunkIndex chunk = 0; chunk < chunk_count; ++chunk) {
    if (!kept.has(chunk)) continue;
    const ChunkResult result = kept.get(chunk);
    if (result.step < newest) continue;
    k = result.step == newest ? std::max(k, result.k) : result.k;
    newest = result.step;
  }
  if (newest <= kFullSteps) return 0;  // whatever the policy had chosen
  return k;
}

bool HeldResults::write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) {
  for (std::uint16_t shard = 0; shard < parts_.size(); ++shard) {
    Flow& flow = link_.flows[shard];
    const Part& part = parts_[shard];
    if (!flow.on_pace(now)) continue;
    if (!part.to_send.empty() && flow.may_send(flow.in_flight() != 0)) {
      write_held(shard, transmit, out, now);
      return true;
    }
    if (!part.is_given() || now < part.next_word_ns) continue;
    write_word(shard, transmit, out, now);
    return true;
  }
  return false;
}

void HeldResults::write_held(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                             TimeNs now) noexcept {
  Part& part = parts_[shard];
  Flow& flow = link_.flows[shard];
  Block& block = part.to_send.front();
  const ChunkIndex chunk = first_chunk(block.index, block.waiting);
  block.waiting &= block.waiting - 1;
  const ChunkResult result = kept_.get(chunk);
  const ChunkSpan span = layout_.chunk(chunk);
  const Dtype dtype = layout_.result_dtype(span.tensor);
  std::span<const std::uint8_t> payload = result.payload;
  if (result.is_entry) {
    wire::SparseEntry entry;
    if (!payload.empty()) entry = wire::take_entry(payload, span.elem_count, dtype);
    agg::expand(entry, span.elem_count, dtype, dense_);
    payload = {dense_, payload_bytes(dtype, span.elem_count)};
  }
  wire::Held body{.flow = flow.next_header(now),
                  .step = result.step,
                  .chunk = chunk,
                  .weight = result.summed.weight,
                  .k = result.k,
                  .may_count = result.summed.may_count,
                  .elem_count = result.absent ? std::uint16_t{0} : span.elem_count,
                  .dtype = result.absent ? Dtype{} : dtype,
                  .mask_words = static_cast<std::uint8_t>(result.mask.size())};
  const std::uint64_t list = chunk_bit(chunk);
  if (result.absent) {
    body.flow.flags |= wire::kFlagNil;
    payload = {reinterpret_cast<const std::uint8_t*>(&list), sizeof list};
  }
  if (result.summed.is_mean) body.flow.flags |= wire::kFlagMean;
  if (result.non_finite) body.flow.flags |= wire::kFlagNonFinite;
  if (flow.take_report_flag(false, now)) body.flow.flags |= wire::kFlagReport;
  block.ask_ns = now + flow.rtt().timeout_ns();
  if (block.waiting == 0) {
    block.ask_ns = now;
    part.sent.push_front(block);
    part.to_send.pop_front();
  }
  transmit = {.bytes = wire::encode(out, link_.identity, body, result.mask, payload),
              .port_offset = static_cast<std::uint16_t>(1 + shard)};
  CHECK(transmit.bytes != 0);
}

// This worker has given all. Said until it is told that all members have.
void HeldResults::write_word(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                             TimeNs now) noexcept {
  Flow& flow = link_.flows[shard];
  wire::Held body{.flow = flow.next_header(now), .step = step_, .chunk = wire::kNoChunk};
  (void)flow.take_report_flag(true, now);
  body.flow.flags |= wire::kFlagReport | wire::kFlagNil;
  const std::uint64_t list = chunk_bit(wire::kNoChunk);
  transmit = {.bytes = wire::encode(out, link_.identity, body, {},
                                    {reinterpret_cast<const std::uint8_t*>(&list), sizeof list}),
              .port_offset = static_cast<std::uint16_t>(1 + shard)};
  parts_[shard].next_word_ns = now + kWordAgain;
}

// A block that is to be asked about: all of it has left, or the window has been shut for long.
HeldResults::Block* HeldResults::to_ask_about(std::uint16_t shard, TimeNs now) noexcept {
  Part& part = parts_[shard];
  if (!part.sent.empty()) return now >= part.sent.front().ask_ns ? &part.sent.front() : nullptr;
  if (part.to_send.empty() || now < part.to_send.front().ask_ns) return nullptr;
  return &part.to_send.front();
}

bool HeldResults::poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                             TimeNs now) {
  if (shard >= parts_.size() || !link_.flows[shard].on_pace(now)) return false;
  Block* const block = to_ask_about(shard, now);
  if (block == nullptr) return false;
  Flow& flow = link_.flows[shard];
  ++link_.counters.probes;
  transmit = {.bytes = wire::encode(out, link_.identity,
                                    wire::Probe{.flow = flow.next_header(now),
                                                .step = block->step,
                                                .block = block->index,
                                                .stream = StreamId::kGradients}),
              .port_offset = static_cast<std::uint16_t>(1 + shard)};
  Part& part = parts_[shard];
  block->ask_ns = now + (flow.rtt().timeout_ns() << std::min(part.unanswered++, kMostBackoff));
  if (part.sent.size() > 1) std::rotate(part.sent.begin(), part.sent.begin() + 1, part.sent.end());
  return true;
}

Verdict HeldResults::handle_answer(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Answer>();
  const std::uint32_t shard = body.block % link_.shard_count();
  if (shard >= parts_.size()) return Verdict::kWrongShard;
  Part& part = parts_[shard];
  part.unanswered = 0;
  const auto is_it = [&](const Block& one) {
    return one.step == body.step && one.index == body.block;
  };
  const auto found = std::ranges::find_if(part.sent, is_it);
  if (found == part.sent.end() || body.status == wire::AnswerStatus::kNotOpen)
    return Verdict::kProbe;
  Block block = *found;
  part.sent.erase(found);
  progress_ns_ = now;
  // The window is past the step: whoever lacks the result gets another rank's state.
  block.chunks = body.status == wire::AnswerStatus::kGone ? 0 : block.chunks & ~body.counted;
  if (block.chunks == 0) return Verdict::kProbe;
  block.waiting = block.chunks;
  part.to_send.push_front(block);
  return Verdict::kProbe;
}

// Which packets are missing, answers tell.
void HeldResults::hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs) noexcept {
  if (signals.gap) link_.flows[shard].accept_gap();
}

TimeNs HeldResults::next_timeout() const noexcept {
  TimeNs next_ns = kNever;
  for (const Part& part : parts_) {
    TimeNs part_ns = part.next_word_ns;
    if (!part.sent.empty())
      part_ns = part.sent.front().ask_ns;
    else if (!part.to_send.empty())
      part_ns = part.to_send.front().ask_ns;
    next_ns = std::min(next_ns, part_ns);
  }
  return next_ns;
}

std::string HeldResults::describe(TimeNs now) const {
  std::size_t left = 0;
  for (const Part& part : parts_)
    for (const std::deque<Block>* const blocks : {&part.to_send, &part.sent})
      for (const Block& block : *blocks)
        left += static_cast<std::size_t>(std::popcount(block.chunks));
  return "the ranks have given each other what they have of a lost appliance for " +
         seconds_text(now - began_ns_) + ", and this one has " + std::to_string(left) +
         " results left to give";
}

}  // namespace sluice::client
