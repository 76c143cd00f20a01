#include "client/core/store/given.h"

#include <algorithm>
#include <array>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

constexpr std::uint64_t kStatement = 1;  // in Block::waiting of a block that is not stated

}  // namespace

GivenLayers::GivenLayers(const KeptLayers& kept, const Layers& layers, const Layout& layout,
                         bool gathers, Link& link, TimeNs now)
    : Giver(StreamId::kPushes, static_cast<std::uint32_t>(layers.blocks.size()), link, now),
      kept_(kept),
      layers_(layers),
      layout_(layout),
      gathers_(gathers) {
  for (std::uint32_t index = 0; index < layers.blocks.size(); ++index)
    part_of(index).to_send.push_back(
        {.step = wire::kCopiesStep, .index = index, .waiting = kStatement});
}

std::size_t GivenLayers::write_block(Block& block, const wire::FlowHeader& flow,
                                     std::span<std::uint8_t> out) noexcept {
  if (!block.stated) {
    block.stated = true;
    block.waiting = 0;
    return write_statement(block, flow, out);
  }
  const ChunkIndex chunk = first_chunk(block.index, block.waiting);
  block.waiting &= block.waiting - 1;
  const KeptLayers::Chunk& kept = kept_.chunk(chunk);
  const std::span<const std::uint64_t> odd =
      gathers_ ? std::span<const std::uint64_t>() : kept_.odd(chunk);
  return wire::encode(out, link_.identity,
                      wire::Copy{.flow = flow,
                                 .chunk = chunk,
                                 .clock = kept.clock,
                                 .version = kept.version,
                                 .elem_count = layout_.chunk(chunk).elem_count,
                                 .mask_words = static_cast<std::uint8_t>(odd.size())},
                      odd, kept_.values(chunk));
}

// Versions of a block lie close together: its chunks are pushed in turn. One that lies too far
// behind to be named is stated as none.
std::size_t GivenLayers::write_statement(const Block& block, const wire::FlowHeader& flow,
                                         std::span<std::uint8_t> out) const noexcept {
  const LayerBlock& one = layers_.blocks[block.index];
  const Layer& layer = layers_.layers[one.layer];
  const ChunkIndex first = block.index * kChunksPerBlock;
  wire::Copies body{.flow = flow,
                    .block = block.index,
                    .pushed = layer.unread() > 1 ? layer.pushed : layer.read,
                    .block_chunks = one.chunk_count,
                    .pushes = static_cast<std::uint8_t>(layer.unread() == 1)};
  StoreVersion newest = kNoVersion;
  for (std::uint32_t i = 0; i < one.chunk_count; ++i)
    newest = std::max(newest, kept_.chunk(first + i).version);
  body.base = newest > UINT32_MAX / 2 ? newest - UINT32_MAX / 2 : kUnseenVersion;
  std::array<std::uint32_t, kChunksPerBlock> above{};
  for (std::uint32_t i = 0; i < one.chunk_count; ++i)
    if (const StoreVersion version = kept_.chunk(first + i).version; version >= body.base)
      above[i] = static_cast<std::uint32_t>(version - body.base) + 1;
  return wire::encode(out, link_.identity, body, {},
                      {reinterpret_cast<const std::uint8_t*>(above.data()),
                       one.chunk_count * sizeof(std::uint32_t)});
}

std::size_t GivenLayers::write_word(const wire::FlowHeader& flow,
                                    std::span<std::uint8_t> out) noexcept {
  return wire::encode(out, link_.identity, wire::Credit{.flow = flow});
}

Giver::Next GivenLayers::judge(const wire::Answer& answer, Block& block) noexcept {
  switch (answer.status) {
    case wire::AnswerStatus::kNotOpen:
      block.stated = false;
      block.waiting = kStatement;
      return Next::kSend;
    case wire::AnswerStatus::kGone: return Next::kAskLater;
    case wire::AnswerStatus::kOpen: break;
  }
  std::uint64_t had = 0;
  const LayerBlock& one = layers_.blocks[block.index];
  for (std::uint32_t i = 0; i < one.chunk_count; ++i)
    if (kept_.chunk(block.index * kChunksPerBlock + i).version != kNoVersion)
      had |= std::uint64_t{1} << i;
  block.chunks = block.waiting = had & ~answer.counted;
  return block.chunks == 0 ? Next::kGiven : Next::kSend;
}

}  // namespace sluice::client
