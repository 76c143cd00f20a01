#include "client/device/far_work.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

static_assert(SLUICE_DEVICE_OPEN == static_cast<int>(Fate::kOpen) &&
              SLUICE_DEVICE_DELIVERED == static_cast<int>(Fate::kDelivered) &&
              SLUICE_DEVICE_MISSED == static_cast<int>(Fate::kMissed) &&
              SLUICE_DEVICE_UNKNOWN == static_cast<int>(Fate::kUnknown));
static_assert(sizeof(FarResult) == sizeof(sluice_device_result) &&
              offsetof(FarResult, bytes) == offsetof(sluice_device_result, bytes) &&
              offsetof(FarResult, factor) == offsetof(sluice_device_result, factor) &&
              offsetof(FarResult, divisor) == offsetof(sluice_device_result, divisor));
static_assert(FarExtent::kCountBits == SLUICE_DEVICE_EXTENT_BITS);

sluice_device_tensor tensor_of(const DeviceBuffers::Buffer& buffer,
                               const float* gradient) noexcept {
  return {.gradient = gradient,
          .residual = buffer.residual,
          .elem_count = buffer.elem_count,
          .chunk_elems = buffer.chunk_elems,
          .wire = static_cast<std::uint32_t>(buffer.wire)};
}

}  // namespace

Result<std::unique_ptr<FarWork>> FarWork::create(Device& device, DeviceBuffers& buffers,
                                                 const PruneOptions& pruning) {
  std::unique_ptr<FarWork> made(new FarWork(device, buffers, pruning));
  const sluice_device_kernels& kernels = made->kernels_;
  std::uint64_t workspace_bytes = 0;
  for (const Buffer& buffer : buffers.all()) {
    if (!buffer.prunes) continue;
    const sluice_device_tensor tensor = tensor_of(buffer, nullptr);
    workspace_bytes = std::max(workspace_bytes, kernels.workspace_bytes(&tensor));
  }
  made->memory_ = kernels.acquire(device.raw(), buffers.device_bytes());
  if (made->memory_ != nullptr && workspace_bytes != 0)
    made->workspace_ = kernels.acquire(device.raw(), workspace_bytes);
  if (made->memory_ == nullptr || (workspace_bytes != 0 && made->workspace_ == nullptr))
    return Status(
        StatusCode::kExhausted,
        device.title() + ": " + std::to_string(buffers.device_bytes() + workspace_bytes) +
            " bytes of its memory, for residuals and what leaves, cannot be had: " + device.why());
  buffers.place_on_device(static_cast<std::uint8_t*>(made->memory_));
  return made;
}

FarWork::~FarWork() {
  for (void* const memory : {memory_, workspace_})
    if (memory != nullptr) kernels_.free(device_.raw(), memory);
}

bool FarWork::start(const CopyStage::Copy& copy, sluice_device_mark*& mark) {
  mark = nullptr;
  if (copy.direction == CopyStage::Direction::kScale) {
    const std::size_t count = buffers_.residual_bytes() / sizeof(float);
    return then(kernels_.scale(device_.raw(), static_cast<float*>(memory_), count, copy.factor),
                mark);
  }
  Buffer& buffer = *buffers_.find(copy.tensor);
  return copy.direction == CopyStage::Direction::kPack ? pack(copy, buffer, mark)
                                                       : finish(copy, buffer, mark);
}

// Keeps the newest mark: kernels run in order, so it stands for all before it.
bool FarWork::then(sluice_device_mark* next, sluice_device_mark*& mark) const {
  if (mark != nullptr) device_.drop(mark);
  mark = next;
  return next != nullptr;
}

float* FarWork::loan(std::uint32_t tensor, const Buffer& buffer) {
  if (loans_.size() <= tensor) loans_.resize(tensor + 1);
  if (loans_[tensor] == nullptr)
    loans_[tensor] = static_cast<float*>(device_.lock_pages(buffer.elem_count * sizeof(float)));
  return loans_[tensor];
}

sluice_device_rule FarWork::rule_for(const CopyStage::Copy& copy) noexcept {
  const std::uint64_t rank =
      pruning_.rule == PruneRule::kStatic ? buffers_.take_rank(copy.tensor) : 0;
  if (copy.whole) return {.kind = SLUICE_DEVICE_ALL};
  switch (pruning_.rule) {
    case PruneRule::kStatic: return {.kind = SLUICE_DEVICE_RANK, .rank = rank};
    case PruneRule::kSigma: return {.kind = SLUICE_DEVICE_SIGMA, .sigmas = pruning_.sigmas};
    case PruneRule::kDynamic: return {.kind = SLUICE_DEVICE_DYNAMIC};
    case PruneRule::kOff:
    case PruneRule::kSampled:
    case PruneRule::kDynamicRaw: break;
  }
  CHECK(false);  // such tensors are not far
  return {};
}

bool FarWork::pack(const CopyStage::Copy& copy, Buffer& buffer, sluice_device_mark*& mark) {
  const auto* gradient = static_cast<const float*>(copy.input);
  if (!copy.on_device) {
    float* const pages = loan(copy.tensor, buffer);
    if (pages == nullptr) return false;
    std::memcpy(pages, gradient, buffer.elem_count * sizeof(float));
    gradient = pages;
  }
  const sluice_device_tensor tensor = tensor_of(buffer, gradient);
  if (!give_back(tensor, buffer, mark)) return false;
  if (!buffer.prunes) return then(kernels_.convert(device_.raw(), &tensor, buffer.area), mark);
  const sluice_device_rule rule = rule_for(copy);
  return then(kernels_.find_threshold(device_.raw(), &tensor, &rule, workspace_, buffer.threshold),
              mark) &&
         then(kernels_.pack(device_.raw(), &tensor, buffer.threshold,
                            buffer.area + buffer.extent_bytes,
                            reinterpret_cast<std::uint64_t*>(buffer.area)),
              mark);
}

// The average may overwrite the gradient, so it is unpacked last.
bool FarWork::finish(const CopyStage::Copy& copy, Buffer& buffer, sluice_device_mark*& mark) {
  const auto* gradient = static_cast<const float*>(copy.input);
  auto* output = static_cast<float*>(copy.output);
  if (!copy.on_device) {
    float* const pages = loan(copy.tensor, buffer);
    if (pages == nullptr) return false;
    if (gradient != nullptr) gradient = pages;
    if (output != nullptr) output = pages;
  }
  const sluice_device_tensor tensor = tensor_of(buffer, gradient);
  const auto* const results =
      reinterpret_cast<const sluice_device_result*>(buffer.area + buffer.fate_bytes);
  if (gradient != nullptr &&
      !then(kernels_.update_residual(device_.raw(), &tensor, buffer.threshold, buffer.area), mark))
    return false;
  if (!give_back(tensor, buffer, mark)) return false;
  return output == nullptr ||
         then(kernels_.unpack(device_.raw(), &tensor, buffer.area + buffer.head_bytes, results,
                              output),
              mark);
}

// Uses the memory of results, which is free now.
bool FarWork::give_back(const sluice_device_tensor& tensor, Buffer& buffer,
                        sluice_device_mark*& mark) {
  if (buffer.giving_chunks.empty()) return true;
  auto* const chunks = reinterpret_cast<std::uint32_t*>(buffer.out + buffer.fate_bytes);
  std::copy(buffer.giving_chunks.begin(), buffer.giving_chunks.end(), chunks);
  std::uint8_t* const payloads = buffer.out + buffer.head_bytes;
  std::copy(buffer.giving_payloads.begin(), buffer.giving_payloads.end(), payloads);
  return then(kernels_.give_back(device_.raw(), &tensor, chunks, payloads,
                                 static_cast<std::uint32_t>(buffer.giving_chunks.size())),
              mark);
}

void FarWork::passed(const CopyStage::Copy& copy) {
  if (copy.direction == CopyStage::Direction::kScale) return;
  Buffer& buffer = *buffers_.find(copy.tensor);
  const bool finished = copy.direction == CopyStage::Direction::kFinish;
  if (finished || !buffer.giving_chunks.empty()) buffer.begin_anew();
  if (finished && copy.output != nullptr && !copy.on_device)
    std::memcpy(copy.output, loans_[copy.tensor], buffer.elem_count * sizeof(float));
}

}  // namespace sluice::client
