// Well-formed bodies of packets, and the encoding of one by a test.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "aggregator/wire/packet.h"

namespace sluice::wire {

inline constexpr Sender kSender{.job = 3, .rank = 5, .cookie = 0x1122334455667788};

using Buffer = std::vector<std::uint8_t>;

template <class Body>
Buffer make(const Body& body, std::vector<std::uint64_t> mask = {}, Buffer payload = {}) {
  Buffer bytes(kMaxDatagramBytes);
  const std::size_t size = encode(bytes, kSender, body, mask, payload);
  EXPECT_EQ(size, sizeof(CommonHeader) + sizeof(Body) + 8 * mask.size() + payload.size());
  bytes.resize(size);
  return bytes;
}

inline Contribution contribution() {
  return {
      .flow = {.number = 9, .timestamp_us = 8, .credit = 7, .priority = 1, .flags = kFlagReport},
      .step = 6,
      .chunk = 5,
      .base_step = 4,
      .weight = 3,
      .elem_count = 2,
      .dtype = Dtype::kFloat32};
}
const Buffer kEightBytes{1, 2, 3, 4, 5, 6, 7, 8};

// Chunks 5, 6 and 9, of ten elements each. The first has 1.0 at place 3, the second has no element,
// the third is a bitmap of elements 0 to 8 with bytes that count up.
inline constexpr std::uint64_t kSparseChunks = 0b1001100000;
inline constexpr std::uint64_t kSparseFilled = 0b1000100000;
inline Buffer sparse_entries() {
  Buffer entries{1, 0, 3, 0, 0, 0, 128, 63, 9, 0, 0xff, 1};
  for (std::uint8_t byte = 1; byte <= 9 * sizeof(float); ++byte) entries.push_back(byte);
  return entries;
}
inline Contribution sparse_contribution() {
  Contribution body = contribution();
  body.flow.flags = kFlagSparse;
  body.elem_count = 10;
  return body;
}

inline ResultHeader result() {
  return {.feedback = {.number = 1, .deferred_count = 2, .flags = kFlagMean | kFlagPulled},
          .k = 65,
          .step = 3,
          .chunk = 4,
          .weight = std::uint64_t{1} << 40,
          .may_count = 70,
          .elem_count = 4,
          .dtype = Dtype::kFloat16,
          .mask_words = 2};
}

inline Piece piece() {
  return {.flow = {.number = 9},
          .step = 6,
          .chunk = 5,
          .operation = {.size_bytes = 4000, .root = 3, .kind = CollectiveKind::kBroadcast},
          .payload_bytes = 8};
}

inline PieceResult piece_result() {
  return {.feedback = {.number = 1},
          .step = 6,
          .chunk = 5,
          .operation = {.size_bytes = 8, .root = 3, .kind = CollectiveKind::kTransfer},
          .mask_words = 1,
          .payload_bytes = 8};
}

inline Push push() {
  return {.flow = {.number = 9, .flags = kFlagReport},
          .iteration = 6,
          .chunk = 64 + 5,
          .rate = 0.5,
          .elem_count = 2,
          .block_chunks = 6};
}

inline Values values() {
  return {.feedback = {.number = 1, .flags = kFlagPulled},
          .chunk = 64 + 5,
          .clock = 7,
          .own = 8,
          .at_clock = 3,
          .waiting = 2,
          .elem_count = 2,
          .version = 9,
          .mask_words = 1};
}

inline Answer answer() {
  return {.step = 1,
          .block = 2,
          .counted = 3,
          .complete = 1,
          .probe_number = 4,
          .open_step = 5,
          .first_incomplete = 129,
          .status = AnswerStatus::kOpen,
          .mask_words = 1,
          .age_count = 2};
}

inline Join join() {
  Join body{.nonce = 1, .run_id = 2, .world_size = 4, .name_bytes = 3};
  std::memcpy(body.name, "job", 3);
  return body;
}

// A join with fingerprints of up to three tensors each.
inline Join printed_join(std::uint16_t prints, std::uint32_t tensors) {
  Join body = join();
  body.tensor_count = tensors;
  body.print_tensors = 3;
  body.print_count = prints;
  return body;
}

}  // namespace sluice::wire
