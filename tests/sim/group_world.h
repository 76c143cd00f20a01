// A job of kind operations in virtual time: the production shards, the members' production
// operations, a network between them that loses, repeats, reorders and delays, and a control side
// that takes its time with each shard.
//
// A run is a function of its options. Every output is compared with what the plan says, and what
// members are told of an operation with each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "aggregator/appliance/shards.h"
#include "aggregator/operations/reservations.h"
#include "client/core/operations/operations.h"
#include "tests/sim/random.h"

namespace sluice::sim {

// What all members of a group call, one after the other.
struct PlannedOperation {
  wire::OperationKind kind{};
  Dtype dtype = Dtype::kBytes;
  Dtype wire = Dtype::kBytes;
  wire::Reduction reduction{};
  std::uint16_t root = wire::kNoRank;
  std::uint64_t bytes = 0;
  Priority priority = client::kUsualPriority;
};

struct PlannedGroup {
  std::vector<Rank> ranks;
  std::vector<PlannedOperation> operations;
  std::uint64_t first_chunk = 0;
};

// How a rank goes through its groups' operations.
struct Pace {
  TimeNs start_ns = 0;
  DurationNs pause_ns = 0;          // between two calls, up to
  std::size_t depth = 4;            // operations of a group that are open at once
  DurationNs patience_ns = kNever;  // then it cancels
};

struct GroupWorldOptions {
  std::uint64_t seed = 1;
  std::uint16_t world_size = 3;
  std::uint16_t shard_count = 1;
  std::uint16_t chunk_bytes = 128;
  std::uint32_t page_count = 256;
  std::uint32_t credit_packets = 64;
  std::vector<PlannedGroup> groups;
  std::vector<Pace> paces;  // by rank
  // The network, until `faults_stop_ns`.
  std::uint64_t loss_ppm = 0;
  std::uint64_t twice_ppm = 0;
  TimeNs faults_stop_ns = 2 * kSecond;
  DurationNs delay_ns = 100 * kMicrosecond;
  DurationNs jitter_ns = 0;
  double bytes_per_ns = 0;  // of each member's uplink and of its downlink; 0: no limit
  DurationNs control_delay_ns = kMillisecond;  // up to, for each shard
  struct Death {
    Rank rank;
    TimeNs at_ns = 0;
  };
  std::optional<Death> death;
  std::optional<Death> abort;  // of group 0, by one of its members
  struct Leave {               // of group 0, after so many of its operations
    Rank rank;
    std::uint64_t after = 0;
  };
  std::optional<Leave> leave;
  struct Disagreement {  // the rank calls something else in group 0
    Rank rank;
    std::uint64_t number = 0;
  };
  std::optional<Disagreement> disagreement;
  // The appliance is killed, and comes back later without its memory. Only then members survive it.
  struct Restart {
    std::uint64_t after_packets = 0;  // since the start, or since it was back
    DurationNs down_ns = 0;
  };
  std::vector<Restart> restarts;
  bool reproducible = false;
};

class GroupFaults;  // group_faults.h

class GroupWorld {
 public:
  explicit GroupWorld(GroupWorldOptions options);
  ~GroupWorld();

  // Until every live member has an event for each of its operations, or the time is over.
  bool run(TimeNs until_ns);
  TimeNs now() const noexcept { return now_; }
  // What is wrong, one a line; empty: nothing.
  const std::string& violations() const noexcept { return violations_; }

  // Of an operation, what the rank was told. None: nothing yet.
  struct Told {
    StatusCode code{};
    std::string text;
    TimeNs at_ns = 0;
  };
  const Told* told(Rank rank, std::size_t group, std::uint64_t number) const;
  std::uint64_t count(Verdict verdict) const { return shards_->verdicts(verdict); }
  std::uint64_t packets() const noexcept { return packets_; }
  std::uint64_t trace() const noexcept { return trace_; }
  std::uint64_t checked() const noexcept { return checked_; }
  const agg::Group& group(std::size_t index) const { return *groups_[index]; }
  std::size_t restarts() const noexcept;
  // What live members still wait for, one a line.
  std::string unfinished() const;
  std::string describe_stall(Rank rank, std::size_t group, DurationNs patience_ns) const;
  // What a member's datagrams meet, in order, before the network does: true drops the datagram.
  std::function<bool(const wire::Packet&, bool up)> drop;

 private:
  friend class GroupFaults;
  struct Buffers {
    std::vector<std::uint8_t> input;
    std::vector<std::uint8_t> output;
    TimeNs begun_ns = 0;
  };
  struct Member {
    explicit Member(std::size_t events) : link(events) {}
    client::Link link;
    std::unique_ptr<client::Operations> operations;
    Random random{0};
    bool alive = true;
    std::uint64_t boot = 0;              // of the appliance that it knows
    std::vector<client::Group*> groups;  // null: it is no member, or has left

    void join(std::uint64_t appliance, std::uint16_t rank, const GroupWorldOptions& options);
    TimeNs wakes_at_ns = kNever;
    TimeNs up_free_ns = 0;
    TimeNs down_free_ns = 0;
    std::vector<std::uint64_t> called;                   // by group
    std::vector<std::map<std::uint64_t, Buffers>> open;  // by group
    TimeNs may_call_ns = 0;
  };
  struct Event {
    TimeNs at_ns = 0;
    std::uint64_t sequence = 0;
    std::function<void()> happens;
    bool operator<(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : sequence > other.sequence;
    }
  };

  void at(TimeNs at_ns, std::function<void()> happens);
  void violated(const std::string& what);
  void make_job();
  void make_members();
  void make_groups();
  // At the appliance; `positions`: of members that were in it at one that is lost.
  using Positions = std::vector<std::optional<wire::GroupPosition>>;
  void add_group(std::uint16_t id, const Positions* positions = nullptr);

  // ---- the network ----
  void carry(Member& member, std::uint16_t rank, bool up, std::uint16_t shard,
             std::vector<std::uint8_t> bytes);
  void arrive_up(std::uint16_t shard, const std::vector<std::uint8_t>& bytes);
  void arrive_down(std::uint16_t rank, const std::vector<std::uint8_t>& bytes);

  // ---- the appliance ----
  void serve(std::uint16_t shard);
  void command(const agg::ShardCommand& command);
  TimeNs mail_time(TimeNs& last_ns);
  // How many operations the rank calls in the group.
  std::uint64_t calls_of(std::uint16_t rank, std::size_t group) const noexcept {
    const std::uint64_t all = options_.groups[group].operations.size();
    const bool leaves = group == 0 && options_.leave && options_.leave->rank.value == rank;
    return leaves ? std::min(all, options_.leave->after) : all;
  }

  // ---- members ----
  void wake(std::uint16_t rank);
  void wake_at(std::uint16_t rank, TimeNs at_ns);
  void call_some(std::uint16_t rank);
  void call(std::uint16_t rank, std::size_t group);
  void take_events(std::uint16_t rank);
  void transmit_all(std::uint16_t rank);
  bool poll(Member& member, client::Transmit& transmit, std::span<std::uint8_t> out);
  bool finished() const;

  // ---- what must hold (group_oracle.cc) ----
  void fill_input(std::uint16_t rank, std::size_t group, std::uint64_t number, Buffers& buffers);
  void check_output(std::uint16_t rank, std::size_t group, std::uint64_t number,
                    const Buffers& buffers);
  void check_agreement();
  PlannedOperation planned(std::uint16_t rank, std::size_t group, std::uint64_t number) const;
  // Its bits show the order of the additions. Narrow formats would round.
  bool is_ordered(const PlannedOperation& plan) const noexcept {
    return options_.reproducible && plan.wire == Dtype::kFloat32;
  }

  const GroupWorldOptions options_;
  Random random_;
  TimeNs now_ = kSecond;
  std::uint64_t next_sequence_ = 0;
  std::priority_queue<Event> events_;
  std::vector<TimeNs> events_arrive_ns_;  // of each shard, the last one that left
  std::vector<TimeNs> commands_arrive_ns_;
  // Of the appliance; what is on its way to one that is lost, or from it, has another boot.
  std::unique_ptr<agg::Shards> shards_;
  std::optional<agg::Reservations> reservations_;
  std::unique_ptr<agg::Job> job_;
  std::vector<std::unique_ptr<agg::Group>> groups_;
  std::uint64_t boot_ = 1;
  bool up_ = true;
  std::set<std::uint16_t> buried_;  // ranks that the appliance knows to be dead
  std::unique_ptr<GroupFaults> faults_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<std::tuple<std::uint16_t, std::size_t, std::uint64_t>, Told> told_;
  std::string violations_;
  std::uint64_t packets_ = 0;
  std::uint64_t trace_ = 0;
  std::uint64_t checked_ = 0;
};

}  // namespace sluice::sim
