// An operation as a member calls it, and its data: where a chunk is read and written.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregator/base/limits.h"
#include "aggregator/base/time.h"
#include "aggregator/base/types.h"
#include "aggregator/wire/operation.h"
#include "client/core/calls/types.h"

namespace sluice::client {

inline constexpr Priority kUsualPriority = 128;

// `bytes` are of the data; of one rank's part for reduce-scatter and all-gather. What a kind does
// not need may be null. Both buffers are the operation's until its event. Input and output may be
// the same memory; of all-gather and reduce-scatter the part may be this rank's part of the whole.
struct OperationCall {
  wire::OperationKind kind{};
  Dtype dtype = Dtype::kBytes;
  Dtype wire = Dtype::kBytes;  // in which it travels; a narrower format rounds to nearest
  wire::Reduction reduction{};
  std::uint16_t root = wire::kNoRank;  // a rank of the job
  std::uint64_t bytes = 0;
  const void* input = nullptr;
  void* output = nullptr;
  Priority priority = kUsualPriority;  // 0 is the most urgent
  DurationNs patience_ns = kNever;     // then the member gives it up
  OperationDone done = {};
};

// One that is under way in its sequence.
struct OpenCall {
  wire::Description what;
  std::uint64_t number = 0;
  std::uint64_t first = 0;  // chunk of the sequence
  std::uint64_t end = 0;
  std::uint32_t hash = 0;
  wire::Cut cut;
  const std::uint8_t* input = nullptr;
  std::uint8_t* output = nullptr;
  Priority priority = kUsualPriority;
  std::uint64_t left = 0;   // chunks that are not over for this member
  std::uint64_t floor = 0;  // the first chunk whose result it wants and lacks; `end`: none
  // The first chunk of which another operation's result has come: the floor stays below until shard
  // 0 has judged, or the chunk would count as had.
  std::uint64_t differs_from = UINT64_MAX;
  bool non_finite = false;
  bool unsure = false;  // of some chunk only the floor says that it is over: it may be void
  // Of each shard the first of its chunks that has not been sent for the first time.
  std::array<std::uint64_t, kMaxShards> next_send{};

  bool contains(std::uint64_t chunk) const noexcept { return first <= chunk && chunk < end; }
};

}  // namespace sluice::client
