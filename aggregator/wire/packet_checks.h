// What parse() checks of a packet beyond its header: the parts that checks share, and those of a
// store's packets. For packet.cc alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"
#include "aggregator/wire/data.h"

namespace sluice::wire {

// The parts behind a body: the number of mask words, the chunks, the payload's bytes, and whether
// padding may follow.
struct Tail {
  std::size_t mask_word_count = 0;
  std::uint64_t chunks = 0;  // of a sum's packet; with `list_words` only the first of them
  // Words of the chunk lists behind the mask: no list, the chunks, or, in a sparse packet, the
  // chunks with entries as well. The payload of a sparse packet is the rest.
  std::size_t list_words = 0;
  std::uint16_t elem_count = 0;  // of a sparse packet, as the type
  Dtype dtype{};
  std::size_t payload_bytes = 0;
  bool padding_allowed = false;
};

inline Verdict field_if(bool valid) noexcept {
  return valid ? Verdict::kAccepted : Verdict::kBadField;
}

inline Verdict check_mask(std::uint8_t mask_words, Tail& tail) noexcept {
  tail.mask_word_count = mask_words;
  return mask_words <= kMaskWords ? Verdict::kAccepted : Verdict::kBadLength;
}

inline Verdict check_floats(std::uint16_t elem_count, Tail& tail) noexcept {
  tail.payload_bytes = payload_bytes(Dtype::kFloat32, elem_count);
  return elem_count != 0 && tail.payload_bytes <= kMaxChunkBytes ? Verdict::kAccepted
                                                                 : Verdict::kBadLength;
}

inline Verdict check(const Push& body, Tail& tail) noexcept {
  if (body.reserved != 0 || body.block_chunks > kChunksPerBlock ||
      body.chunk % kChunksPerBlock >= body.block_chunks || body.iteration > kLastStep)
    return Verdict::kBadField;
  return check_floats(body.elem_count, tail);
}

inline Verdict check(const Pull& body, Tail&) noexcept {
  return field_if(body.chunks != 0 && body.need <= kLastStep && body.own < kLastStep);
}

inline Verdict check(const Values& body, Tail& tail) noexcept {
  if (body.reserved != 0) return Verdict::kBadField;
  const Verdict verdict = check_mask(body.mask_words, tail);
  return ok(verdict) ? check_floats(body.elem_count, tail) : verdict;
}

inline Verdict check(const Copies& body, Tail& tail) noexcept {
  tail.payload_bytes = body.block_chunks * sizeof(std::uint32_t);
  return field_if(body.block_chunks != 0 && body.block_chunks <= kChunksPerBlock &&
                  body.pushed <= kLastStep && body.pushes <= 1 && body.base <= kMostVersion);
}

inline Verdict check(const Copy& body, Tail& tail) noexcept {
  if (body.reserved != 0 || body.version == kNoVersion || body.version > 2 * kMostVersion ||
      body.clock > kLastStep)
    return Verdict::kBadField;
  const Verdict verdict = check_mask(body.mask_words, tail);
  return ok(verdict) ? check_floats(body.elem_count, tail) : verdict;
}

}  // namespace sluice::wire
