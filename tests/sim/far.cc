#include "tests/sim/far.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "aggregator/core/fold.h"
#include "aggregator/core/narrow.h"
#include "aggregator/core/sparse.h"
#include "client/core/calls/residuals.h"

namespace sluice::sim {

using client::ChunkSpan;
using client::Fate;

FarSide::FarSide(const JobPlan& plan, const client::Layout& layout)
    : plan_(plan),
      layout_(layout),
      thresholds_(plan.session.prune, client::prunable_of(layout)),
      places_(layout.tensor_count()) {
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    if (!layout.tensor(tensor).far) continue;
    Place& place = places_[tensor];
    const std::size_t chunks = layout.first_chunk(tensor + 1) - layout.first_chunk(tensor);
    place.residual.resize(layout.tensor(tensor).elem_count);
    place.fates.resize(chunks);
    place.results.resize(chunks);
    place.far.dense_bytes = payload_bytes(layout.wire_dtype(tensor), layout.chunk_elems(tensor));
    place.values.resize(chunks * place.far.dense_bytes);
    place.far.fates = place.fates;
    place.far.results = place.results;
    place.far.values = place.values;
  }
}

// As a chunk that is not far leaves.
std::vector<std::uint8_t> FarSide::payload_of(const Place& place, const ChunkSpan& span) const {
  const Dtype wire = layout_.wire_dtype(span.tensor);
  const std::vector<float> nothing(span.elem_count);
  std::vector<float> left(span.elem_count);
  const float* gradient = place.gradient + span.first_elem;
  const float* residual = &place.residual[span.first_elem];
  if (plan_.is_pruned(span.tensor)) {
    agg::prune(gradient, residual, span.elem_count, place.limit, left.data());
    gradient = left.data();
    residual = nothing.data();
  }
  std::vector<std::uint8_t> payload(payload_bytes(wire, span.elem_count));
  if (wire == Dtype::kFloat32)
    std::copy_n(reinterpret_cast<const std::uint8_t*>(gradient), payload.size(), payload.begin());
  else
    agg::pack(gradient, residual, span.elem_count, wire, payload.data());
  return payload;
}

client::FarTensor* FarSide::submit(std::uint32_t tensor, const float* gradient, bool whole) {
  Place& place = places_[tensor];
  take_back(place, tensor);
  place.gradient = gradient;
  if (gradient == nullptr) return &place.far;
  const std::size_t count = place.residual.size();
  const float limit = thresholds_.next(tensor, {gradient, count}, place.residual);
  place.limit = whole ? client::kPruneNothing : limit;
  place.packed.clear();
  const Dtype wire = layout_.wire_dtype(tensor);
  const bool is_pruned = plan_.is_pruned(tensor);
  const ChunkIndex first = layout_.first_chunk(tensor);
  const ChunkIndex chunks = layout_.first_chunk(tensor + 1) - first;
  place.extents.resize(chunks);
  for (ChunkIndex i = 0; i < chunks; ++i) {
    // A device packs them in any order.
    const ChunkIndex chunk = is_pruned ? chunks - 1 - i : i;
    const ChunkSpan span = layout_.chunk(first + chunk);
    std::vector<std::uint8_t> bytes = payload_of(place, span);
    if (is_pruned) {
      std::vector<std::uint8_t> entry(bytes.size() - 1);
      const std::size_t size = agg::compress(bytes.data(), span.elem_count, wire, entry);
      if (size != agg::kNotCompressed) bytes.assign(entry.begin(), entry.begin() + size);
    }
    place.extents[chunk] = client::FarExtent::of(place.packed.size(), bytes.size());
    place.packed.insert(place.packed.end(), bytes.begin(), bytes.end());
  }
  place.packed.push_back(0);  // never without memory
  place.far.packed = place.packed.data();
  place.far.extents = is_pruned ? place.extents.data() : nullptr;
  return &place.far;
}

void FarSide::update_residual(Place& place, const ChunkSpan& span, Fate fate) const {
  float* const residual = &place.residual[span.first_elem];
  std::vector<float> left(span.elem_count);
  switch (fate) {
    case Fate::kOpen: return;
    case Fate::kUnknown: std::fill_n(residual, span.elem_count, 0.0f); return;
    case Fate::kDelivered:
      agg::fold_store(left.data(), payload_of(place, span).data(), span.elem_count,
                      layout_.wire_dtype(span.tensor));
      break;
    case Fate::kMissed: break;
  }
  agg::keep_rest(place.gradient + span.first_elem, residual, span.elem_count, left.data());
}

void FarSide::take_back(Place& place, std::uint32_t tensor) const {
  client::FarTensor& far = place.far;
  for (std::size_t i = 0; i < far.given_chunks.size(); ++i) {
    const ChunkSpan span = layout_.chunk(layout_.first_chunk(tensor) + far.given_chunks[i]);
    agg::give_back(&place.residual[span.first_elem], &far.given_payloads[i * far.dense_bytes],
                   span.elem_count, layout_.wire_dtype(tensor));
  }
  far.given_chunks.clear();
  far.given_payloads.clear();
}

void FarSide::over(std::uint32_t tensor, float* output) {
  Place& place = places_[tensor];
  const ChunkIndex first = layout_.first_chunk(tensor);
  const Dtype wire = layout_.wire_dtype(tensor);
  for (std::uint32_t i = 0; i < place.fates.size(); ++i)
    if (place.gradient != nullptr) update_residual(place, layout_.chunk(first + i), place.fates[i]);
  take_back(place, tensor);
  for (std::uint32_t i = 0; output != nullptr && i < place.results.size(); ++i) {
    const ChunkSpan span = layout_.chunk(first + i);
    const client::FarResult& result = place.results[i];
    const std::span<const std::uint8_t> all = place.values;
    std::span<const std::uint8_t> bytes = all.subspan(result.first_byte, result.bytes);
    std::vector<std::uint8_t> payload(payload_bytes(wire, span.elem_count));
    if (bytes.size() == payload.size()) {
      std::copy(bytes.begin(), bytes.end(), payload.begin());
    } else {
      wire::SparseEntry entry;
      if (!bytes.empty()) entry = wire::take_entry(bytes, span.elem_count, wire);
      agg::expand(entry, span.elem_count, wire, payload.data());
    }
    float* const average = output + span.first_elem;
    agg::fold_store(average, payload.data(), span.elem_count, wire);
    for (std::uint16_t at = 0; at < span.elem_count; ++at)
      average[at] = average[at] * result.factor / result.divisor;
  }
  std::fill(place.fates.begin(), place.fates.end(), Fate::kOpen);
  std::fill(place.results.begin(), place.results.end(), client::FarResult{});
  place.far.value_bytes = 0;
}

std::span<const float> FarSide::residual(std::uint32_t tensor) {
  take_back(places_[tensor], tensor);
  return places_[tensor].residual;
}

}  // namespace sluice::sim
