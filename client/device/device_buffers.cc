#include "client/device/device_buffers.h"

#include <algorithm>
#include <cstring>

#include "aggregator/base/check.h"
#include "client/core/calls/residuals.h"

namespace sluice::client {
namespace {

constexpr std::size_t kTableAlignBytes = 16;    // required by kernels
constexpr std::size_t kBufferAlignBytes = 256;  // copies are fastest so
constexpr std::size_t kThresholdBytes = 256;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

std::size_t area_bytes(const DeviceBuffers::Buffer& buffer) noexcept {
  return round_up(std::max(buffer.in_bytes(), buffer.head_bytes + buffer.value_capacity_bytes),
                  kBufferAlignBytes);
}

std::size_t residual_bytes_of(const DeviceBuffers::Buffer& buffer) noexcept {
  return round_up(buffer.elem_count * sizeof(float), kBufferAlignBytes);
}

const char* why_not_there(const TensorSpec& tensor, const PruneOptions& pruning,
                          bool prunes) noexcept {
  if (tensor.elem_count > UINT32_MAX) return "kernels on a device take fewer than 2^32 elements";
  if (pruning.momentum > 0) return "momentum correction is the host's";
  if (prunes && pruning.rule == PruneRule::kSampled) return "the rule 'sampled' is the host's";
  if (prunes && pruning.rule == PruneRule::kDynamicRaw)
    return "the rule 'dynamic_raw' is the host's";
  return nullptr;
}

}  // namespace

// ---- which ----

FarChoice choose_far(std::vector<TensorSpec>& tensors, Dtype wire, const PruneOptions& pruning,
                     const std::string& why_none) {
  std::vector<PruneTensor> prunable;
  for (const TensorSpec& tensor : tensors) prunable.push_back(prunable_as(tensor));
  const Thresholds thresholds(pruning, prunable);
  FarChoice choice;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    TensorSpec& tensor = tensors[i];
    if (tensor.dtype != Dtype::kFloat32 || tensor.exact) continue;
    const bool prunes = thresholds.prunes(i);
    if (!prunes && wire == Dtype::kFloat32 && !(pruning.momentum > 0)) continue;
    const char* const why =
        why_none.empty() ? why_not_there(tensor, pruning, prunes) : why_none.c_str();
    tensor.far = why == nullptr;
    ++(tensor.far ? choice.far_count : choice.near_count);
    if (tensor.far || !choice.why.empty()) continue;
    choice.first_near = tensor.name;
    choice.why = why;
  }
  return choice;
}

std::string FarChoice::describe() const {
  std::string text;
  if (far_count != 0)
    text = std::to_string(far_count) +
           " tensors are pruned and rounded on the device, where their residuals are: of them "
           "what leaves crosses the bus";
  if (near_count == 0) return text;
  if (!text.empty()) text += "; ";
  return text + std::to_string(near_count) + " tensors, '" + first_near +
         "' first, cross the bus whole, to be pruned and rounded on the host, where their "
         "residuals are: " +
         why;
}

// ---- where ----

DeviceBuffers::DeviceBuffers(const Layout& layout, const PruneOptions& pruning)
    : thresholds_(pruning, prunable_of(layout)) {
  index_.assign(layout.tensor_count(), kNone);
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    if (!layout.tensor(tensor).far) continue;
    index_[tensor] = static_cast<std::uint32_t>(buffers_.size());
    Buffer& buffer = buffers_.emplace_back();
    buffer.elem_count = layout.tensor(tensor).elem_count;
    buffer.chunk_elems = layout.chunk_elems(tensor);
    buffer.chunk_count = layout.first_chunk(tensor + 1) - layout.first_chunk(tensor);
    buffer.wire = layout.wire_dtype(tensor);
    buffer.prunes = thresholds_.prunes(tensor);
    CHECK(layout.result_dtype(tensor) == buffer.wire && buffer.chunk_count > 0);
    const std::size_t dense = payload_bytes(buffer.wire, buffer.chunk_elems);
    const std::size_t whole = (buffer.chunk_count - 1) * std::size_t{buffer.chunk_elems};
    buffer.tensor.dense_bytes = dense;
    if (buffer.prunes)
      buffer.extent_bytes =
          round_up((buffer.chunk_count + 1) * sizeof(FarExtent), kTableAlignBytes);
    buffer.dense_bytes =
        (buffer.chunk_count - 1) * dense + payload_bytes(buffer.wire, buffer.elem_count - whole);
    buffer.fate_bytes = round_up(buffer.chunk_count * sizeof(Fate), kTableAlignBytes);
    buffer.head_bytes =
        buffer.fate_bytes + round_up(buffer.chunk_count * sizeof(FarResult), kTableAlignBytes);
    buffer.value_capacity_bytes = buffer.chunk_count * dense;
  }
}

std::size_t DeviceBuffers::host_bytes(std::uint32_t tensor) const noexcept {
  const Buffer& buffer = buffers_[index_[tensor]];
  return round_up(buffer.in_bytes(), kBufferAlignBytes) +
         round_up(buffer.head_bytes + buffer.value_capacity_bytes, kBufferAlignBytes);
}

void DeviceBuffers::place(std::uint32_t tensor, std::uint8_t* host) noexcept {
  Buffer& buffer = *find(tensor);
  buffer.in = host;
  buffer.out = host + round_up(buffer.in_bytes(), kBufferAlignBytes);
  if (buffer.prunes) buffer.tensor.extents = reinterpret_cast<const FarExtent*>(buffer.in);
  buffer.tensor.packed = buffer.in + buffer.extent_bytes;
  buffer.tensor.fates = {reinterpret_cast<Fate*>(buffer.out), buffer.chunk_count};
  buffer.tensor.results = {reinterpret_cast<FarResult*>(buffer.out + buffer.fate_bytes),
                           buffer.chunk_count};
  buffer.tensor.values = {buffer.out + buffer.head_bytes, buffer.value_capacity_bytes};
  buffer.begin_anew();
}

std::size_t DeviceBuffers::residual_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += residual_bytes_of(buffer);
  return bytes;
}

std::size_t DeviceBuffers::device_bytes() const noexcept {
  std::size_t bytes = residual_bytes();
  for (const Buffer& buffer : buffers_)
    bytes += area_bytes(buffer) + (buffer.prunes ? kThresholdBytes : 0);
  return bytes;
}

void DeviceBuffers::place_on_device(std::uint8_t* memory) noexcept {
  for (Buffer& buffer : buffers_) {
    buffer.residual = reinterpret_cast<float*>(memory);
    memory += residual_bytes_of(buffer);
  }
  for (Buffer& buffer : buffers_) {
    buffer.area = memory;
    memory += area_bytes(buffer);
    if (!buffer.prunes) continue;
    buffer.threshold = reinterpret_cast<float*>(memory);
    memory += kThresholdBytes;
  }
}

void DeviceBuffers::Buffer::begin_anew() noexcept {
  std::fill(tensor.fates.begin(), tensor.fates.end(), Fate::kOpen);
  std::fill(tensor.results.begin(), tensor.results.end(), FarResult{});
  tensor.value_bytes = 0;
}

void DeviceBuffers::Buffer::take_given() {
  std::vector<std::uint32_t>& chunks = tensor.given_chunks;
  std::vector<std::uint8_t>& payloads = tensor.given_payloads;
  giving_chunks.clear();
  giving_payloads.clear();
  if (chunks.empty()) return;
  std::vector<bool> taken(chunk_count);
  const auto again = std::find_if(chunks.begin(), chunks.end(), [&](std::uint32_t chunk) {
    const bool before = taken[chunk];
    taken[chunk] = true;
    return before;
  });
  if (again == chunks.end()) {
    giving_chunks.swap(chunks);
    giving_payloads.swap(payloads);
    return;
  }
  const std::ptrdiff_t bytes =
      (again - chunks.begin()) * static_cast<std::ptrdiff_t>(tensor.dense_bytes);
  giving_chunks.assign(chunks.begin(), again);
  giving_payloads.assign(payloads.begin(), payloads.begin() + bytes);
  chunks.erase(chunks.begin(), again);
  payloads.erase(payloads.begin(), payloads.begin() + bytes);
}

}  // namespace sluice::client
