// The buffers of a job's far tensors (client/core/calls/far.h): which tensors are far, and where
// the parts of each lie in page-locked memory and in the device's memory.
//
// A float32 tensor is far if it is rounded, or pruned by a rule that the device's kernels know. Of
// such a tensor only the bytes that leave cross the bus. Pure: but for begin_anew() and
// total_bytes(), nothing here follows the addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/core/calls/far.h"
#include "client/core/calls/layout.h"
#include "client/prune/threshold.h"

namespace sluice::client {

// Which tensors of a job are pruned or rounded where, and why.
struct FarChoice {
  std::size_t far_count = 0;
  std::size_t near_count = 0;  // pruned or rounded on the host
  std::string first_near;      // of the first of these tensors
  std::string why;             // that one is not far

  // For the log; empty: nothing is pruned or rounded.
  std::string describe() const;
};
// Sets `far` of each tensor. `why_none` says why no tensor can be far; empty: some can.
FarChoice choose_far(std::vector<TensorSpec>& tensors, Dtype wire, const PruneOptions& pruning,
                     const std::string& why_none);

class DeviceBuffers {
 public:
  struct Buffer {
    FarTensor tensor;
    // `in` is what goes to the session: the extents of a pruned tensor, then the packed bytes.
    // `out` is what comes back: fates, results, values. `area`, on the device, holds first the one
    // and then the other.
    std::uint8_t* in = nullptr;
    std::uint8_t* out = nullptr;
    std::uint8_t* area = nullptr;
    float* residual = nullptr;
    float* threshold = nullptr;  // null: the tensor is not pruned
    std::uint64_t elem_count = 0;
    std::uint32_t chunk_elems = 0;
    std::uint32_t chunk_count = 0;
    Dtype wire{};
    bool prunes = false;
    std::size_t extent_bytes = 0;  // the total behind them included; 0: not pruned
    std::size_t dense_bytes = 0;   // of the dense payloads of all chunks
    std::size_t fate_bytes = 0;
    std::size_t head_bytes = 0;  // fates and results
    std::size_t value_capacity_bytes = 0;
    // The chunks given back that the device is adding to the residual now, and their payloads.
    std::vector<std::uint32_t> giving_chunks;
    std::vector<std::uint8_t> giving_payloads;

    std::size_t in_bytes() const noexcept { return extent_bytes + dense_bytes; }
    // Packed bytes of a pruned tensor. Precondition: its extents are in `in`.
    std::uint64_t total_bytes() const noexcept { return tensor.extents[chunk_count].bits; }
    // Clears fates and results: nothing has come back.
    void begin_anew() noexcept;
    // Moves chunks that were given back to `giving_chunks`, up to the first that would be there
    // twice.
    void take_given();
  };

  DeviceBuffers(const Layout& layout, const PruneOptions& pruning);
  bool empty() const noexcept { return buffers_.empty(); }
  Buffer* find(std::uint32_t tensor) noexcept {
    return index_[tensor] == kNone ? nullptr : &buffers_[index_[tensor]];
  }
  std::span<Buffer> all() noexcept { return buffers_; }
  std::size_t host_bytes(std::uint32_t tensor) const noexcept;
  // `host` has host_bytes() of the tensor, aligned for any type.
  void place(std::uint32_t tensor, std::uint8_t* host) noexcept;
  std::size_t residual_bytes() const noexcept;  // of all tensors; first in the device's memory
  std::size_t device_bytes() const noexcept;
  void place_on_device(std::uint8_t* memory) noexcept;
  // Begins the tensor's next step: how many elements the rule 'static' lets leave.
  std::uint64_t take_rank(std::uint32_t tensor) noexcept { return thresholds_.take_rank(tensor); }
  PrunePosition& position(std::uint32_t tensor) noexcept { return thresholds_.position(tensor); }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<Buffer> buffers_;
  std::vector<std::uint32_t> index_;  // into buffers_, by tensor
  Thresholds thresholds_;
};

}  // namespace sluice::client
