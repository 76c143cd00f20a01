// A small group, for the search through all its states: what its members know, the production
// shard, and the oracle, which recomputes each sum from the parts that were counted.
//
// Each operation has one chunk, in a block of 64 of its own, since slots are reserved in blocks.
// The network may hold a copy of every packet that was ever sent: parts and floors arrive at any
// time, once more, or never, and results may be lost.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/operations/operations.h"

namespace sluice::exhaustive {

inline constexpr std::uint32_t kMostOperations = 3;

struct GroupConfig {
  std::uint16_t member_count = 3;
  std::uint32_t slot_blocks = 2;  // M
  // Of the group's operations; a broadcast is from rank 0.
  std::vector<wire::OperationKind> kinds =
      std::vector<wire::OperationKind>(kMostOperations, wire::OperationKind::kAllReduce);
  // Wrong rules laid over the real ones, which the checks must find.
  enum class Mutation : std::uint8_t { kNone, kSendEarly, kTellEarly, kCountTwice } mutation{};
};

struct GroupEvent {
  enum class Kind : std::uint8_t {
    kCall,    // the member calls its next operation
    kPart,    // a part of it arrives, with the floor that it has now
    kOld,     // the same with the floor that it had at first
    kFloors,  // its floor alone
    kProbe,   // a question about an operation's chunk, and the answer
    kLearn,   // it hears the group's floor
  };
  Kind kind{};
  std::uint16_t rank = 0;
  std::uint32_t operation = 0;
  bool lost = false;  // the results are lost
  bool is_fault() const noexcept { return lost; }
};

std::string describe(const GroupEvent& event);

class GroupModel {
 public:
  explicit GroupModel(const GroupConfig& config);

  std::vector<GroupEvent> events() const;  // that can happen now
  // Empty, or the rule that was broken.
  std::string play(const GroupEvent& event);
  // The last event has made the shard send results.
  bool answered() const noexcept { return answered_; }
  bool finished() const;
  int progress() const;     // grows when the group advances, and only then
  std::string key() const;  // of the state; members that are alike are exchanged

 private:
  struct Member {
    std::uint32_t called = 0;   // operations
    std::uint32_t known = 0;    // the group's floor, in operations
    std::uint32_t told = 0;     // its own, as the shard has it
    std::uint32_t counted = 0;  // bit: the shard has its part
    std::uint32_t over = 0;     // bit: of an operation it has all that it wants
  };

  std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(config_.kinds.size()); }
  bool contributes(std::uint16_t rank, std::uint32_t operation) const noexcept;
  bool wants(std::uint16_t rank, std::uint32_t operation) const noexcept;
  bool is_complete(std::uint32_t operation) const noexcept;
  std::uint32_t floor_of(const Member& member) const noexcept;  // in operations
  std::uint32_t group_floor() const;
  wire::GroupHeader header(std::uint16_t rank, bool old) const;
  std::string part(const GroupEvent& event);
  std::string probe(const GroupEvent& event);
  std::string take_results(bool lost);
  std::string take(const agg::PartOut& out, bool lost);
  std::string check() const;

  const GroupConfig config_;
  std::unique_ptr<agg::Group> group_;
  std::unique_ptr<agg::OperationShard> shard_;
  std::vector<Member> members_;
  bool answered_ = false;
};

}  // namespace sluice::exhaustive
