#include "client/core/sums/held.h"

#include <algorithm>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "aggregator/core/sparse.h"
#include "aggregator/wire/sparse.h"

namespace sluice::client {

HeldResults::HeldResults(const ReceiveArena& kept, const Layout& layout, Link& link, Step from,
                         Step step, TimeNs now)
    : Giver(StreamId::kGradients, (layout.chunk_count() + kChunksPerBlock - 1) / kChunksPerBlock,
            link, now),
      kept_(kept),
      layout_(layout),
      step_(step) {
  CHECK(from != 0 && from <= step);
  for (ChunkIndex chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    if (!kept.has(chunk)) continue;
    const Step of = kept.get(chunk).step;
    if (of < from || of > step) continue;
    const std::uint32_t index = chunk / kChunksPerBlock;
    std::deque<Block>& blocks_of = part_of(index).to_send;
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

std::size_t HeldResults::write_block(Block& block, const wire::FlowHeader& flow,
                                     std::span<std::uint8_t> out) noexcept {
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
  wire::Held body{.flow = flow,
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
  return wire::encode(out, link_.identity, body, result.mask, payload);
}

std::size_t HeldResults::write_word(const wire::FlowHeader& flow,
                                    std::span<std::uint8_t> out) noexcept {
  wire::Held body{.flow = flow, .step = step_, .chunk = wire::kNoChunk};
  body.flow.flags |= wire::kFlagNil;
  const std::uint64_t list = chunk_bit(wire::kNoChunk);
  return wire::encode(out, link_.identity, body, {},
                      {reinterpret_cast<const std::uint8_t*>(&list), sizeof list});
}

Giver::Next HeldResults::judge(const wire::Answer& answer, Block& block) noexcept {
  if (answer.status == wire::AnswerStatus::kNotOpen) return Next::kAskLater;
  // The window is past the step: whoever lacks the result gets another rank's state.
  const bool gone = answer.status == wire::AnswerStatus::kGone;
  block.chunks = block.waiting = gone ? 0 : block.chunks & ~answer.counted;
  return block.chunks == 0 ? Next::kGiven : Next::kSend;
}

}  // namespace sluice::client
