#include "dataplane/host/sender.h"

#include <array>
#include <cstring>

namespace sluice::dataplane {

std::uint64_t sender_of(const wire::Frame& frame) noexcept {
  std::array<std::uint64_t, 2> words{};
  if (frame.kind == wire::FrameKind::kArp || frame.kind == wire::FrameKind::kOther) {
    std::memcpy(words.data(), frame.ethernet.src.bytes.data(), frame.ethernet.src.bytes.size());
  } else {
    static_assert(sizeof words == sizeof frame.src.bytes);
    std::memcpy(words.data(), frame.src.bytes.data(), sizeof words);
  }
  return words[0] ^ words[1] * 0xC2B2AE3D27D4EB4F;
}

}  // namespace sluice::dataplane
