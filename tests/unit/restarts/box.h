// A production appliance of a small synchronous job, as the search through its restarts drives it.
//
// It lives until the search drops it, with all that it knows; the next one has other cookies. Each
// packet ends in one verdict, which is compared with the appliance's own count (I7).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/appliance/shards.h"

namespace sluice::exhaustive {

struct RestartConfig {
  std::uint16_t worker_count = 2;
  std::uint16_t shard_count = 1;  // or 2: a chunk each
  std::size_t chunk_count = 2;
  Step last_step = 2;
  // Wrong rules laid over the real ones, which the checks must find.
  enum class Mutation : std::uint8_t {
    kNone,
    kGiveTwice,      // every holder gives a result
    kAddToGiven,     // who lacks a result contributes beside the one that is given
    kSkipExchange,   // a worker contributes before it has read all states
    kTakeFromOld,    // a worker takes results of the appliance that it has left
    kForgetKept,     // a holder gives what the caller's memory holds by now
    kKeepCookies,    // the appliance takes packets that were sent to the one before
    kOpenTheNewest,  // it opens the newest step that a worker is in
    kSkipClosing,    // who is ahead contributes to its own step before the one before is closed
  } mutation{};
};

// What a contribution or a result carries. Parts are distinct bits, so a sum names them.
struct Sum {
  std::uint32_t value = 0;
  std::uint32_t weight = 0;  // 0: without data
  friend bool operator==(const Sum&, const Sum&) = default;
};
Sum own_part(std::uint16_t rank, Step step, std::size_t chunk) noexcept;
Sum whole(const RestartConfig& config, Step step, std::size_t chunk) noexcept;

// A slot that belongs to `step`.
struct SlotContent {
  std::uint64_t mask = 0;
  Sum sum;
  bool complete = false;
};

struct SentResult {
  std::uint16_t rank = 0;
  Step step = 0;
  std::size_t chunk = 0;
  std::uint64_t mask = 0;
  std::uint16_t k = 0;
  Sum sum;
};

class RestartBox {
 public:
  // `resumed`: with what the job goes on; step 0: it is new.
  RestartBox(const RestartConfig& config, Cookie cookie, const agg::Resumed& resumed);

  Step open_step() const { return job_->windows[0].open_step.load(); }
  Verdict contribute(std::uint16_t rank, Cookie cookie, Step step, std::size_t chunk, Sum sum);
  struct Answer {
    wire::AnswerStatus status{};
    std::uint64_t counted = 0;  // bits of the chunk's block
    std::uint64_t complete = 0;
  };
  // Asks about one chunk, and for its result; the answer has the chunk's bits alone.
  std::optional<Answer> probe(std::uint16_t rank, Step step, std::size_t chunk);
  // Results that the last call has sent.
  const std::vector<SentResult>& sent() const noexcept { return sent_; }

  SlotContent content(Step step, std::size_t chunk) const;
  // Empty, or the limit that does not hold (I5, I7).
  std::string check_books() const;
  // All that it knows of a chunk, and its shard of the open step.
  void append_to(std::vector<std::uint32_t>& key, std::size_t chunk) const;

 private:
  std::uint16_t shard_of(std::size_t chunk) const noexcept {
    return static_cast<std::uint16_t>(config_.shard_count == 1 ? 0 : chunk);
  }
  ChunkIndex index_of(std::size_t chunk) const noexcept {
    return static_cast<ChunkIndex>(config_.shard_count == 1 ? chunk : chunk * kChunksPerBlock);
  }
  Verdict handle(std::uint16_t shard, std::span<const std::uint8_t> bytes);
  void drain(std::uint16_t shard);

  const RestartConfig& config_;
  const Cookie cookie_;
  std::unique_ptr<agg::Job> job_;
  agg::Shards shards_;
  std::vector<SentResult> sent_;
  std::optional<Answer> answer_;
  std::uint64_t handled_ = 0;
};

}  // namespace sluice::exhaustive
