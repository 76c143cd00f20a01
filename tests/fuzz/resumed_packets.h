// Makes mutated packets of a member that goes on from a lost appliance ones that parse.
#pragma once

#include "aggregator/base/block.h"
#include "aggregator/base/store_options.h"
#include "tests/fuzz/group_packets.h"

namespace sluice::fuzz {

inline void repair_resume(wire::Join& body) {
  body.was_member &= 1;
  body.resume_step %= 8;
  body.resume_calls %= 8;
  body.resume_k %= 4;
  body.exchange_over %= 4;
  body.exchange_entered %= 4;
  if (body.epoch % 8 != 0) body.epoch %= 3;
  if (body.was_member == 1) return;
  body.resume_step = body.resume_calls = body.resume_k = 0;
  body.exchange_over = body.exchange_entered = 0;
}

inline void repair_held(Bytes& bytes) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Held);
  constexpr std::size_t kMaskBytes = sizeof(std::uint64_t);
  auto& body = body_in<wire::Held>(bytes);
  body.flow.flags &= body.kFlags;
  body.step %= 8;
  body.chunk = body.chunk % 8 == 7 ? wire::kNoChunk : body.chunk % 8;
  body.mask_words = 1;
  bytes.resize(std::max(bytes.size(), kFixedBytes + kMaskBytes));
  const bool nil = (body.flow.flags & wire::kFlagNil) != 0;
  body.dtype = nil ? Dtype{} : summed(body.dtype);
  const std::size_t room = std::min(bytes.size() - kFixedBytes - kMaskBytes, kMaxChunkBytes);
  body.elem_count = static_cast<std::uint16_t>(nil ? 0 : room / dtype_bytes(body.dtype));
  if (body.elem_count == 0) {
    body.flow.flags |= wire::kFlagNil;
    body.dtype = {};
    bytes.resize(kFixedBytes + kMaskBytes + sizeof(std::uint64_t));
    std::uint64_t chunks = chunk_bit(body.chunk);
    std::memcpy(&bytes[kFixedBytes + kMaskBytes], &chunks, sizeof chunks);
    return;
  }
  bytes.resize(kFixedBytes + kMaskBytes + payload_bytes(body.dtype, body.elem_count));
}

inline void repair_copies(Bytes& bytes) {
  auto& body = body_in<wire::Copies>(bytes);
  body.flow.flags &= body.kFlags;
  if (body.block % 8 != 0) body.block %= 4;
  body.pushed %= 8;
  body.pushes &= 1;
  body.base %= kMostVersion;
  body.block_chunks = static_cast<std::uint8_t>(1 + body.block_chunks % 3);
  bytes.resize(sizeof(wire::CommonHeader) + sizeof(wire::Copies) +
               body.block_chunks * sizeof(std::uint32_t));
}

inline void repair_copy(Bytes& bytes) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Copy);
  auto& body = body_in<wire::Copy>(bytes);
  body.flow.flags &= body.kFlags;
  body.chunk = body.chunk / kChunksPerBlock % 4 * kChunksPerBlock + body.chunk % 3;
  body.clock %= 8;
  body.version = 1 + body.version % 8;
  body.mask_words = 1;
  body.reserved = 0;
  const std::size_t least = kFixedBytes + sizeof(std::uint64_t) + sizeof(float);
  bytes.resize(std::max(bytes.size(), least));
  const std::size_t room =
      std::min(bytes.size() - kFixedBytes - sizeof(std::uint64_t), kMaxChunkBytes);
  body.elem_count = static_cast<std::uint16_t>(room / sizeof(float));
  bytes.resize(kFixedBytes + sizeof(std::uint64_t) + body.elem_count * sizeof(float));
}

}  // namespace sluice::fuzz
