// Makes mutated packets of groups ones that parse, and lets those of a member mean a group that is
// there.
#pragma once

#include <algorithm>
#include <cstring>

#include "tests/fuzz/packets.h"

namespace sluice::fuzz {

// The first fields of a packet of a type, which is made as long as they need.
template <class Body>
Body& body_in(Bytes& bytes) {
  bytes.resize(std::max(bytes.size(), sizeof(wire::CommonHeader) + sizeof(Body)));
  return *reinterpret_cast<Body*>(bytes.data() + sizeof(wire::CommonHeader));
}

template <class Body>
void cut_to_body(Bytes& bytes) {
  body_in<Body>(bytes);
  bytes.resize(sizeof(wire::CommonHeader) + sizeof(Body));
}

constexpr bool is_of_group(wire::PacketType type) noexcept {
  return type == wire::PacketType::kCall || type == wire::PacketType::kPart ||
         type == wire::PacketType::kFloors || type == wire::PacketType::kPartProbe;
}

inline void repair_header(wire::GroupHeader& header) {
  header.sequence =
      static_cast<wire::Sequence>(static_cast<unsigned>(header.sequence) % wire::kSequenceCount);
  header.group %= 3;
  header.reserved = 0;
  if (header.floor % 8 != 0) header.floor %= 600;
  if (header.group_floor % 8 != 0) header.group_floor %= 8;
}

inline void repair_kind(wire::OperationKind& kind) {
  kind = static_cast<wire::OperationKind>(static_cast<unsigned>(kind) % 6);
}

inline Dtype summed(Dtype drawn) {
  constexpr Dtype kTypes[] = {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16};
  return kTypes[static_cast<unsigned>(drawn) % 3];
}

inline void repair_call(Bytes& bytes) {
  cut_to_body<wire::Call>(bytes);
  auto& body = body_in<wire::Call>(bytes);
  wire::Description& what = body.what;
  repair_header(body.group);
  repair_kind(what.kind);
  body.flow.flags &= body.kFlags;
  body.request = static_cast<wire::CallRequest>(static_cast<unsigned>(body.request) % 3);
  body.heard = static_cast<wire::OutcomeCode>(static_cast<unsigned>(body.heard) % 6);
  if (body.heard_rank % 8 != 0) body.heard_rank %= 3;
  const bool sums = wire::is_reduction(what.kind);
  what.dtype = sums ? summed(what.dtype) : Dtype::kBytes;
  what.wire = what.dtype == Dtype::kFloat32 ? summed(what.wire) : what.dtype;
  what.reduction = static_cast<wire::Reduction>(sums && static_cast<unsigned>(what.reduction) % 2);
  what.bytes = what.kind == wire::OperationKind::kBarrier ? 0 : what.bytes % 100'000 / 4 * 4;
  what.root = wire::has_root(what.kind) ? what.root % 3 : wire::kNoRank;
  if (what.number % 8 != 0) what.number %= 300;
  if (what.first % 8 != 0) what.first %= 600;
}

inline void repair_part(Bytes& bytes) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Part);
  auto& body = body_in<wire::Part>(bytes);
  repair_header(body.group);
  repair_kind(body.kind);
  body.flow.flags &= body.kFlags;
  body.given &= 1;
  body.reduction = static_cast<wire::Reduction>(static_cast<unsigned>(body.reduction) % 2);
  body.wire = wire::is_reduction(body.kind) ? summed(body.wire) : Dtype::kBytes;
  body.owner = wire::has_owner(body.kind) ? body.owner % 3 : wire::kNoRank;
  body.hash %= 2;
  if (body.chunk % 8 != 0) body.chunk %= 600;
  const std::size_t room = std::min(bytes.size() - kFixedBytes, kMaxChunkBytes);
  body.payload_bytes =
      static_cast<std::uint16_t>(room / dtype_bytes(body.wire) * dtype_bytes(body.wire));
  bytes.resize(kFixedBytes + body.payload_bytes);
}

inline void repair_group_packet(Bytes& bytes, wire::PacketType type) {
  if (type == wire::PacketType::kCall) return repair_call(bytes);
  if (type == wire::PacketType::kPart) return repair_part(bytes);
  if (type == wire::PacketType::kFloors) {
    cut_to_body<wire::Floors>(bytes);
    auto& body = body_in<wire::Floors>(bytes);
    repair_header(body.group);
    body.flow.flags &= body.kFlags;
    body.stopped &= 1;
    body.reserved = 0;
    return;
  }
  cut_to_body<wire::PartProbe>(bytes);
  auto& body = body_in<wire::PartProbe>(bytes);
  repair_header(body.group);
  body.flow.flags &= body.kFlags;
  if (body.first % 8 != 1) body.first = body.first % 600 / kChunksPerBlock * kChunksPerBlock;
}

inline void repair_position(wire::GroupPosition& position) {
  for (std::size_t i = 0; i < wire::kSequenceCount; ++i) {
    if (position.floors[i] % 8 != 0) position.floors[i] %= 600;
    position.floors[i] %= std::uint64_t{1} << 62;
    position.group_floors[i] %= position.floors[i] + 1;
  }
  position.over_number %= 300;
  position.first_number %= position.over_number + 1;
  constexpr wire::OutcomeCode kBreaks[] = {wire::OutcomeCode::kOpen, wire::OutcomeCode::kDiffers,
                                           wire::OutcomeCode::kLost};
  position.broken = kBreaks[static_cast<unsigned>(position.broken) % 3];
  position.rank %= 3;
  position.other %= 3;
  if (!wire::is_possible(position.expected)) position.expected = {};
  if (!wire::is_possible(position.actual)) position.actual = {};
}

inline void repair_make_group(Bytes& bytes) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::MakeGroup);
  auto& body = body_in<wire::MakeGroup>(bytes);
  body.request = static_cast<wire::GroupRequest>(static_cast<unsigned>(body.request) % 3);
  body.mask_words = 1;
  body.name_bytes = static_cast<std::uint8_t>(1 + body.name_bytes % 2);
  for (std::size_t i = 0; i < body.name_bytes; ++i)
    body.name[i] = static_cast<char>('a' + (body.name[i] & 1));
  body.resumes &= 1;
  repair_position(body.position);
  bytes.resize(kFixedBytes + sizeof(std::uint64_t));
  bytes[kFixedBytes] &= 7;
  for (std::size_t i = 1; i < sizeof(std::uint64_t); ++i) bytes[kFixedBytes + i] = 0;
}

// Mostly it means a group that the member is in.
inline void aim_at_group(Bytes& bytes, wire::PacketType type, const wire::GroupMade& made) {
  const auto aim = [&](wire::GroupHeader& header) {
    if (header.generation % 8 == 7) return;
    header.group = made.group;
    header.generation = made.generation;
  };
  switch (type) {
    case wire::PacketType::kCall: return aim(body_in<wire::Call>(bytes).group);
    case wire::PacketType::kPart: return aim(body_in<wire::Part>(bytes).group);
    case wire::PacketType::kFloors: return aim(body_in<wire::Floors>(bytes).group);
    default: return aim(body_in<wire::PartProbe>(bytes).group);
  }
}

}  // namespace sluice::fuzz
