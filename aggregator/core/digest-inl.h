// A 32-bit digest of a chunk's sums, the seed of its rounding. Included by the kernels' sources,
// once per instruction set, hence the unusual include guard.
#if defined(SLUICE_DIGEST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_DIGEST_INL_H_
#undef SLUICE_DIGEST_INL_H_
#else
#define SLUICE_DIGEST_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace sluice::agg::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The sum of a hash of each element, so neither the number of lanes nor their order matters.
inline std::uint32_t digest_all(const float* acc, std::size_t elem_count) {
  constexpr std::uint32_t kGolden = 0x9e3779b1u;
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d_bits;
  const std::size_t lanes = hn::Lanes(d);
  const auto golden = hn::Set(d_bits, kGolden);
  const auto hash = [&](auto values) HWY_ATTR {
    const auto bits = hn::BitCast(d_bits, hn::Add(values, hn::Zero(d)));  // -0 has the bits of 0
    const auto spread = hn::Mul(bits, golden);
    return hn::Xor(spread, hn::ShiftRight<16>(spread));
  };
  auto sum = hn::Zero(d_bits);
  std::size_t i = 0;
  for (; i + lanes <= elem_count; i += lanes) sum = hn::Add(sum, hash(hn::LoadU(d, acc + i)));
  // Not SumOfLanes: AVX-512's reduction adds signed integers, and these overflow.
  HWY_ALIGN std::uint32_t parts[hn::MaxLanes(d_bits)];
  hn::Store(sum, d_bits, parts);
  std::uint32_t found = 0;
  for (std::size_t lane = 0; lane < lanes; ++lane) found += parts[lane];
  for (; i < elem_count; ++i) {
    const std::uint32_t spread = std::bit_cast<std::uint32_t>(acc[i] + 0.0f) * kGolden;
    found += spread ^ spread >> 16;
  }
  return found;
}

}  // namespace sluice::agg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
