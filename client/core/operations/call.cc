// Where the data of a call's chunks is, and what is kept of a call that is over.
#include "client/core/operations/call.h"

#include <algorithm>
#include <cstring>

#include "aggregator/base/block.h"
#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"

namespace sluice::client {

std::uint16_t OpenCall::owner_of(const GroupFacts& group, std::uint64_t chunk) const noexcept {
  if (wire::has_root(what.kind)) return what.root;
  if (!wire::has_parts(what.kind)) return wire::kNoRank;
  return group.members[cut.part_of(chunk - first)].value;
}

void OpenCall::begin_sending(std::uint16_t shard_count) noexcept {
  for (std::uint16_t shard = 0; shard < shard_count; ++shard) {
    std::uint64_t& chunk = next_send[shard];
    chunk = first;
    while (chunk / kChunksPerBlock % shard_count != shard)
      chunk = (chunk / kChunksPerBlock + 1) * kChunksPerBlock;
  }
}

std::size_t OpenCall::part_of(const GroupFacts& group, std::uint64_t chunk, bool result,
                              std::span<std::uint8_t> out,
                              std::span<const std::uint8_t>& payload) const noexcept {
  const std::uint64_t index = chunk - first;
  const std::uint16_t part_bytes = cut.bytes_of(index);
  if (part_bytes == 0) return 0;
  if (ended) {
    payload = {kept.data() + (chunk - kept_from) * group.chunk_bytes, part_bytes};
    return 0;
  }
  std::uint64_t from = cut.offset_of(index) / dtype_bytes(what.wire) * dtype_bytes(what.dtype);
  if (what.kind == (result ? wire::OperationKind::kAllGather : wire::OperationKind::kReduceScatter))
    from += cut.part_of(index) * what.bytes;
  const std::uint8_t* const data = (result ? output : input) + from;
  if (what.wire == what.dtype) {
    payload = {data, part_bytes};
    return 0;
  }
  static constexpr std::array<float, kMaxChunkBytes / 2> kNothingLost{};
  agg::pack(reinterpret_cast<const float*>(data), kNothingLost.data(),
            part_bytes / dtype_bytes(what.wire), what.wire, out.data());
  return part_bytes;
}

// A mean of float32 travels as the sum: the division here is IEEE's, as everywhere. A narrower mean
// was divided before it was rounded, and so was one that a member has given.
void OpenCall::read_result(const GroupFacts& group, std::uint64_t chunk,
                           std::span<const std::uint8_t> payload, bool divided) noexcept {
  if (payload.empty()) return;
  const std::uint64_t index = chunk - first;
  std::uint64_t to = cut.offset_of(index) / dtype_bytes(what.wire) * dtype_bytes(what.dtype);
  if (what.kind == wire::OperationKind::kAllGather) to += cut.part_of(index) * what.bytes;
  std::uint8_t* const data = output + to;
  const std::size_t elem_count = payload.size() / dtype_bytes(what.wire);
  if (what.wire != what.dtype)
    agg::fold_store(reinterpret_cast<float*>(data), payload.data(), elem_count, what.wire);
  else if (what.reduction == wire::Reduction::kMean && what.wire == Dtype::kFloat32 && !divided)
    agg::mean(reinterpret_cast<float*>(data), payload.data(), elem_count,
              static_cast<float>(group.members.size()));
  else
    std::memcpy(data, payload.data(), payload.size());
}

void OpenCall::keep(const GroupFacts& group, std::uint64_t from) {
  kept_from = from;
  const std::size_t stride = group.chunk_bytes;
  if (cut.bytes_of(0) != 0) kept.resize((end - from) * stride);
  for (std::uint64_t chunk = from; !kept.empty() && chunk < end; ++chunk) {
    const std::span<std::uint8_t> out{kept.data() + (chunk - from) * stride, stride};
    std::span<const std::uint8_t> payload;
    part_of(group, chunk, wants(group, chunk), out, payload);
    std::ranges::copy(payload, out.begin());
  }
  ended = true;
}

void KeptCalls::add(OpenCall call) {
  const auto after = std::ranges::upper_bound(calls_, call.first, {}, &OpenCall::first);
  calls_.insert(after, std::move(call));
}

void KeptCalls::move_to(std::deque<OpenCall>& calls) {
  for (OpenCall& kept : calls_) {
    const auto after = std::ranges::upper_bound(calls, kept.first, {}, &OpenCall::first);
    calls.insert(after, std::move(kept));
  }
  calls_.clear();
}

}  // namespace sluice::client
