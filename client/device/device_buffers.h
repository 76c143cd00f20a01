// The far tensors of a job (client/core/calls/far.h): which they are, and where each one's parts
// lie, in page-locked memory and in the device's.
//
// Far is a float32 tensor that is rounded, or pruned by a rule that the device's kernels know: so
// what leaves of it crosses the bus and not all of it. Pure; the addresses are never followed here
// but for begin_anew().
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
  std::string first_near;      // a name
  std::string why;             // not on the device

  // For the log; empty: nothing is pruned or rounded.
  std::string describe() const;
};
// Marks those that are far. `why_none`: why none can be; empty: they can.
FarChoice choose_far(std::vector<TensorSpec>& tensors, Dtype wire, const PruneOptions& pruning,
                     const std::string& why_none);

class DeviceBuffers {
 public:
  struct Buffer {
    FarTensor tensor;
    // On its way to the session: extents, where it is pruned, then what leaves. On its way back:
    // fates, results, values. The area on the device is for the one and then for the other.
    std::uint8_t* in = nullptr;
    std::uint8_t* out = nullptr;
    std::uint8_t* area = nullptr;
    float* residual = nullptr;
    float* threshold = nullptr;  // null: it is not pruned
    std::uint64_t elem_count = 0;
    std::uint32_t chunk_elems = 0;
    std::uint32_t chunk_count = 0;
    Dtype wire{};
    bool prunes = false;
    std::size_t extent_bytes = 0;  // and their total's; 0: not pruned
    std::size_t dense_bytes = 0;   // of all chunks
    std::size_t fate_bytes = 0;
    std::size_t head_bytes = 0;  // fates and results
    std::size_t value_capacity_bytes = 0;
    // Of what is given back, what the device is adding to the residual.
    std::vector<std::uint32_t> giving_chunks;
    std::vector<std::uint8_t> giving_payloads;

    std::size_t in_bytes() const noexcept { return extent_bytes + dense_bytes; }
    // How much leaves of what is pruned, once the extents are here.
    std::uint64_t total_bytes() const noexcept { return tensor.extents[chunk_count].bits; }
    // For what comes back, and nothing has.
    void begin_anew() noexcept;
    // Some of what is given back is the device's now, no chunk twice.
    void take_given();
  };

  DeviceBuffers(const Layout& layout, const PruneOptions& pruning);
  bool empty() const noexcept { return buffers_.empty(); }
  Buffer* find(std::uint32_t tensor) noexcept {
    return index_[tensor] == kNone ? nullptr : &buffers_[index_[tensor]];
  }
  std::span<Buffer> all() noexcept { return buffers_; }
  std::size_t host_bytes(std::uint32_t tensor) const noexcept;
  // `host`: host_bytes() of it, aligned for anything.
  void place(std::uint32_t tensor, std::uint8_t* host) noexcept;
  std::size_t residual_bytes() const noexcept;  // of all, first in the device's memory
  std::size_t device_bytes() const noexcept;
  void place_on_device(std::uint8_t* memory) noexcept;
  // Of the tensor's next step, which begins: how many elements 'static' lets leave.
  std::uint64_t take_rank(std::uint32_t tensor) noexcept { return thresholds_.take_rank(tensor); }
  PrunePosition& position(std::uint32_t tensor) noexcept { return thresholds_.position(tensor); }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<Buffer> buffers_;
  std::vector<std::uint32_t> index_;  // by tensor, in buffers_
  Thresholds thresholds_;
};

}  // namespace sluice::client
