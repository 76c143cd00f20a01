// Runs kernels (lanes.h) on the host, for the fake device and for unit tests.
//
// A kernel whose result depends on an order that it may not rely on is found out: warps run one
// after the other through the phases that only a warp waits for, blocks and the lanes of every
// second phase run backwards, and shared memory begins with rubbish.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "client/device/cuda/lanes.h"

namespace sluice::cuda {

// See operations.h.
struct HostLauncher {
  template <class Kernel>
  bool launch(std::uint32_t blocks, const Kernel& kernel) const {
    static_assert(std::is_trivial_v<typename Kernel::Shared>, "as the device's shared memory is");
    constexpr std::uint32_t kTogether = Kernel::kAllWait > 1 ? kWarpLanes : Kernel::kThreads;
    const auto shared = std::make_unique<typename Kernel::Shared>();
    for (std::uint32_t block = blocks; block-- > 0;) {
      std::memset(static_cast<void*>(shared.get()), 0xa5, sizeof *shared);
      Lane lanes[Kernel::kThreads];
      for (std::uint32_t i = 0; i < Kernel::kThreads; ++i)
        lanes[i] = {.block = block, .blocks = blocks, .thread = i};
      for (std::uint32_t first = 0; first < Kernel::kThreads; first += kTogether)
        for (int phase = 0; phase < Kernel::kAllWait; ++phase)
          run_phase(kernel, phase, std::span(lanes).subspan(first, kTogether), *shared);
      for (int phase = Kernel::kAllWait; phase < Kernel::kPhases; ++phase)
        run_phase(kernel, phase, std::span(lanes), *shared);
    }
    return true;
  }
  bool zero(void* memory, std::size_t bytes) const {
    std::memset(memory, 0, bytes);
    return true;
  }

 private:
  template <class Kernel>
  static void run_phase(const Kernel& kernel, int phase, std::span<Lane> lanes,
                        typename Kernel::Shared& shared) {
    std::vector<std::uint32_t> numbers(lanes.size());
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      const std::size_t which = phase % 2 == 0 ? i : lanes.size() - 1 - i;
      if constexpr (requires { Kernel::kSummed; })
        numbers[which] = kernel.run(phase, lanes[which], shared);
      else
        kernel.run(phase, lanes[which], shared);
    }
    if constexpr (requires { Kernel::kSummed; }) {
      if (phase != Kernel::kSummed) return;
      static_assert(Kernel::kSummed < Kernel::kAllWait, "warps sum");
      const std::uint32_t total = std::accumulate(numbers.begin(), numbers.end(), 0u);
      std::uint32_t before = 0;
      for (std::size_t i = 0; i < lanes.size(); before += numbers[i++]) {
        lanes[i].before = before;
        lanes[i].total = total;
      }
    }
  }
};

}  // namespace sluice::cuda
