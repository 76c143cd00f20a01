// Runs kernels (lanes.h) on the host: what the fake device does, and unit tests. Lanes that go
// together are through with all phases before others of their block begin, those of every second
// phase run backwards, and shared memory begins with rubbish, so that a kernel whose result hangs
// on any of it is found out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>

#include "client/device/cuda/lanes.h"

namespace sluice::cuda {

// See operations.h.
struct HostLauncher {
  template <class Kernel>
  bool launch(std::uint32_t blocks, const Kernel& kernel) const {
    static_assert(std::is_trivial_v<typename Kernel::Shared>, "as the device's shared memory is");
    const auto shared = std::make_unique<typename Kernel::Shared>();
    for (std::uint32_t block = 0; block < blocks; ++block) {
      std::memset(static_cast<void*>(shared.get()), 0xa5, sizeof *shared);
      for (std::uint32_t first = 0; first < Kernel::kThreads; first += Kernel::kTogether)
        for (int phase = 0; phase < Kernel::kPhases; ++phase)
          for (std::uint32_t i = 0; i < Kernel::kTogether; ++i) {
            const std::uint32_t thread = first + (phase % 2 == 0 ? i : Kernel::kTogether - 1 - i);
            kernel.run(phase, {.block = block, .blocks = blocks, .thread = thread}, *shared);
          }
    }
    return true;
  }
  bool zero(void* memory, std::size_t bytes) const {
    std::memset(memory, 0, bytes);
    return true;
  }
  // As cub::DeviceScan::ExclusiveSum; `room` is for that.
  bool sum_before(const std::uint64_t* from, std::uint64_t* to, std::size_t count, void* /*room*/,
                  std::size_t /*room_bytes*/) const {
    std::exclusive_scan(from, from + count, to, std::uint64_t{0});
    return true;
  }
  std::size_t sum_room_bytes(std::size_t /*count*/) const { return 0; }
};

}  // namespace sluice::cuda
