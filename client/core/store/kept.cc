#include "client/core/store/kept.h"

#include <cstring>

namespace sluice::client {
namespace {

void copy(std::vector<std::vector<float>>& tensors, const ChunkSpan& span,
          std::span<const std::uint8_t> values) noexcept {
  std::memcpy(tensors[span.tensor].data() + span.first_elem, values.data(), values.size());
}

}  // namespace

KeptLayers::KeptLayers(const Layout& layout, std::uint16_t world_size)
    : layout_(layout),
      words_(mask_words(world_size)),
      chunks_(layout.chunk_count()),
      odd_(layout.chunk_count() * words_) {
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    copies_.emplace_back(layout.tensor(tensor).elem_count);
    pushes_.emplace_back(layout.tensor(tensor).elem_count);
  }
}

void KeptLayers::keep(const wire::Packet& values) noexcept {
  const auto& body = values.body<wire::Values>();
  Chunk& kept = chunks_[body.chunk];
  if (body.version <= kept.version || values.mask_word_count() > words_) return;
  kept = {.version = body.version, .clock = body.clock};
  for (std::size_t word = 0; word < words_; ++word)
    odd_[body.chunk * words_ + word] = word < values.mask_word_count() ? values.mask_word(word) : 0;
  copy(copies_, layout_.chunk(body.chunk), values.payload());
}

void KeptLayers::keep_initial(ChunkIndex chunk, std::span<const std::uint8_t> values) noexcept {
  Chunk& kept = chunks_[chunk];
  if (kept.version > kUnseenVersion) return;
  kept = {.version = kUnseenVersion};
  copy(copies_, layout_.chunk(chunk), values);
}

void KeptLayers::keep_push(ChunkIndex chunk, std::span<const std::uint8_t> values) noexcept {
  copy(pushes_, layout_.chunk(chunk), values);
}

std::span<const std::uint8_t> KeptLayers::values(ChunkIndex chunk) const noexcept {
  const ChunkSpan span = layout_.chunk(chunk);
  return {reinterpret_cast<const std::uint8_t*>(copies_[span.tensor].data() + span.first_elem),
          span.elem_count * sizeof(float)};
}

std::span<const std::uint64_t> KeptLayers::odd(ChunkIndex chunk) const noexcept {
  return std::span(odd_).subspan(chunk * words_, words_);
}

}  // namespace sluice::client
