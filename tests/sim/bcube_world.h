// A BCube in virtual time: every server's production Relay, every appliance's production object,
// and a cable with a rate for each port.
//
// The workers run a job of `steps` steps over given tensors. An oracle recomputes every average and
// compares replicas. Gradient bytes are counted at every port, to be compared with the theory.
// Servers, appliances and cables can be away for a while, or die for good.
//
// Frames are real but for their MACs.
//
// bcube_world.cc: cables and appliances; bcube_app.cc: the application of a server.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/appliance/appliance.h"
#include "aggregator/base/counters.h"
#include "aggregator/wire/inet.h"
#include "client/bcube/relay.h"
#include "tests/sim/bcube_oracle.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/frame_pool.h"
#include "tests/sim/idle_legs.h"
#include "tests/sim/link.h"
#include "tests/sim/plan.h"
#include "tests/sim/random.h"

namespace sluice::sim {

struct BcubeOptions {
  std::uint32_t switch_ports = 3;
  std::uint32_t levels = 2;
  client::BcubeMode mode{};
  std::uint64_t seed = 1;
  std::vector<std::uint64_t> elem_counts;
  Step steps = 3;
  std::uint16_t chunk_bytes = 1344;
  std::uint16_t shards = 1;
  std::uint32_t nil_ppm = 0;      // share of (rank, step, tensor) that is left out
  DurationNs pause_ns = 0;        // before a step
  DurationNs compute_max_ns = 0;  // between its tensors
  bool check_values = true;       // false: for timing alone
  Step late_step = 0;             // in this step the last server begins late_ns later
  DurationNs late_ns = 0;
  DurationNs join_timeout_ns = client::SessionOptions().join_timeout_ns;
  DurationNs start_max_ns = 0;  // servers start within it
  bool begin_together = true;   // so that a step can be timed
  bool steps_apart = false;     // a step begins when all have ended the one before
  // Other habits of an application; see JobPlan.
  bool random_order = false;  // and priorities
  bool in_place = false;
  bool pipelined = false;
  bool call_end_step = true;
  bool nil_output = false;
  bool zero_weights = false;
  AveragingChoice averaging{};
  Dtype wire{};
  client::PruneOptions prune;
  bool last_exact = false;  // of the tensors
  bool trace = false;
  std::vector<CollectivePlan> collectives;      // by before_step
  std::uint32_t receive_credit_packets = 1024;  // of a lane
  DurationNs member_timeout_ns = agg::JobsOptions().member_timeout_ns;
  LinkOptions link;
};

class BcubeWorld {
 public:
  explicit BcubeWorld(BcubeOptions options);

  // True: all live workers have taken their steps and left, or have failed after a death. False:
  // `until` has come, or a check has failed.
  bool run(TimeNs until);
  struct Part {
    // kCable is both directions of a cable; kOut leaves the server, kIn reaches it.
    enum class Kind : std::uint8_t { kServer, kBox, kCable, kOut, kIn };
    Kind kind{};
    std::uint32_t index = 0;  // server or box; of a cable the server
    std::uint32_t level = 0;  // of a cable
    bool operator==(const Part&) const = default;
  };
  // A death after the first step has begun. A box that comes back has forgotten everything.
  struct Death {
    std::vector<Part> parts;  // together; one box at most
    DurationNs after_ns = 0;  // since the first step began
    TimeNs at = kNever;       // instead of after_ns, when set
    DurationNs for_ns = 0;    // 0: for good
    // A server that dies later and for good, such as one that forwards for moved lanes.
    std::optional<std::uint32_t> then_server;
    DurationNs then_after_ns = 0;  // since the first death
  };
  void kill(const Death& death);
  // A part that is stopped or cut off for a while, and then goes on.
  struct Absence {
    Part part;
    TimeNs from = 0;
    TimeNs until = 0;
    bool forgets = false;  // a box that has forgotten everything, as after a death
  };
  void interrupt(const Absence& absence);
  void heal_at(TimeNs time) { events_.push(time, EventKind::kAction, 0); }  // no fault of cables
  struct Failure {
    DurationNs after_ns = 0;  // since the death
    std::string text;         // empty: it did not fail
  };
  const Failure& failure(std::uint32_t server) const { return failures_[server]; }
  const std::vector<std::string>& violations() const { return oracle_.violations(); }
  std::uint64_t averages() const { return oracle_.averages(); }
  // A line about every server that is not done.
  std::string describe_stall() const;
  TimeNs died_ns() const {
    if (!death_ || death_->at != kNever) return death_ ? death_->at : kNever;
    return begun_[1] == 0 ? kNever : begun_[1] + static_cast<TimeNs>(death_->after_ns);
  }
  TimeNs then_died_ns() const {
    const TimeNs died = died_ns();
    return died == kNever ? kNever : died + static_cast<TimeNs>(death_->then_after_ns);
  }
  // The time from which a dead part is back for good.
  TimeNs returned_ns() const {
    const TimeNs died = died_ns();
    return died == kNever || death_->for_ns == 0 ? kNever
                                                 : died + static_cast<TimeNs>(death_->for_ns);
  }
  bool has_started() const { return started_ == servers_.size(); }
  TimeNs started_ns() const { return started_ns_; }  // kNever: not all
  bool is_through(std::uint32_t server) const { return servers_[server].done == options_.steps; }
  TimeNs now() const { return now_; }
  std::uint64_t event_count() const { return event_count_; }
  std::uint64_t trace_hash() const { return trace_hash_; }
  // From the moment at which all servers may submit the step to the last average of the last
  // server.
  DurationNs step_ns(Step step) const { return ended_[step] - begun_[step]; }
  // From the same moment to the tensor's last average.
  DurationNs tensor_ns(Step step, std::uint32_t tensor) const {
    return tensors_ended_[step][tensor] - begun_[step];
  }
  // Gradient bytes that a server has sent and received at one of its ports.
  std::uint64_t sent_bytes(std::uint32_t server, std::uint32_t level) const {
    return links_[up_link(server, level)].data_bytes;
  }
  std::uint64_t received_bytes(std::uint32_t server, std::uint32_t level) const {
    return links_[up_link(server, level) + 1].data_bytes;
  }
  // Bytes on the wire, with all headers.
  std::uint64_t wire_bytes(std::uint32_t server, std::uint32_t level) const {
    return links_[up_link(server, level)].wire_bytes;
  }
  std::uint64_t dropped_frames() const {
    std::uint64_t total = 0;
    for (const Cable& cable : links_) total += cable.link.counters().dropped_total();
    return total;
  }
  std::uint64_t corrupted_frames() const {
    std::uint64_t total = 0;
    for (const Cable& cable : links_) total += cable.link.counters().corrupted;
    return total;
  }
  std::uint64_t marked_frames() const {
    std::uint64_t total = 0;
    for (const Cable& cable : links_) total += cable.link.counters().marked;
    return total;
  }
  // Frames that a server or a box has refused.
  std::uint64_t refused_frames() const {
    std::uint64_t total = 0;
    for (const Counter& verdict : frame_verdicts_.by_reason) total += verdict.read();
    return total;
  }
  client::Relay& relay(std::uint32_t server) { return *servers_[server].relay; }
  // The trace of a server, with its reports of detours.
  const std::vector<client::TensorTimes>& traces(std::uint32_t server) const {
    return servers_[server].traces;
  }
  const std::vector<client::Event>& moves(std::uint32_t server) const {
    return servers_[server].moves;
  }
  const client::Bcube& bcube() const { return bcube_; }

 private:
  // Stands for a frame's MACs.
  struct Address {
    std::uint16_t appliance = 0;
    std::uint16_t server = 0;  // the worker's
    std::uint16_t lane = 0;    // of the worker
    std::uint8_t local = 2;    // the sender's MAC is one that nobody gave out
    bool to_appliance = false;
    std::uint16_t port_offset = 0;
  };
  struct Cable {
    Link link;
    std::uint64_t data_bytes = 0;
    std::uint64_t wire_bytes = 0;
  };
  struct Server {
    std::unique_ptr<client::Relay> relay;
    std::vector<std::vector<float>> inputs, outputs;
    std::vector<std::uint32_t> order;  // tensors still to be submitted in this step
    TimeNs due_ns = 0;                 // of the next one
    TimeNs timer_at = kNever;
    IdleLegs idle;
    Step step = 0;  // that is being submitted
    Step done = 0;
    std::vector<client::TensorTimes> traces;
    std::vector<client::Event> moves;
    std::size_t next_collective = 0;
    std::vector<std::uint8_t> collective_buffer;
    bool submitting = false;
    bool over = false;
  };
  struct Box {
    std::unique_ptr<agg::Appliance> core;
    std::map<std::pair<std::uint16_t, std::uint16_t>, Address> paths;  // of (job, rank)
    TimeNs tick_at = kNever;
  };

  std::uint32_t up_link(std::uint32_t server, std::uint32_t level) const {
    return 2 * (server * options_.levels + level);
  }
  bool plain() const { return options_.mode == client::BcubeMode::kPlain; }
  // A server's port takes more datagrams of its lanes, which order those that wait.
  bool has_room(std::uint32_t link) const { return plain() || links_[link].link.waiting() < 32; }
  const client::LegAddress& place_of(const Address& address) const;
  // The server's port that carries a lane's datagrams.
  std::uint32_t port_of(const client::LegAddress& place) const {
    const bool spare = place.role >= client::Role::kStates;
    return spare ? bcube_.detour_level(place.level) : place.level;
  }
  std::optional<std::uint32_t> next_link(std::uint32_t link, const Address& address) const;
  void put(std::uint32_t link, const Address& address, std::span<const std::uint8_t> datagram,
           Priority priority, TimeNs now);
  void deliver(const Address& address, const wire::Datagram& datagram, TimeNs now);
  void pass(std::uint32_t link, const Address& address, FrameIndex frame,
            std::span<const std::uint8_t> datagram, TimeNs now);
  void arrive(std::uint32_t link, FrameIndex frame, TimeNs now);
  void to_box(const Address& address, const wire::Datagram& datagram, TimeNs now);
  void pump_box(std::uint32_t box, TimeNs now);
  void send_from_box(std::uint32_t box, const Address& to, std::span<const std::uint8_t> datagram,
                     Priority priority, TimeNs now);
  void pump_server(std::uint32_t server, TimeNs now);
  bool transmit(std::uint32_t server, TimeNs now);
  // ---- bcube_app.cc ----
  bool run_app(std::uint32_t server, TimeNs now);
  void handle(std::uint32_t server, const client::Event& event, TimeNs now);
  void prepare_step(std::uint32_t server, TimeNs now);
  bool start_collective(std::uint32_t server, TimeNs now);
  void begin_step(std::uint32_t server, TimeNs now);
  void submit(std::uint32_t server, Step step, std::uint32_t tensor, TimeNs now);
  void end_step(std::uint32_t server, TimeNs now);
  void check_tensor(std::uint32_t server, const client::Event& event);
  void expect_ok(std::uint32_t server, const char* what, const Status& status);
  void check_contribution(const Address& address, std::span<const std::uint8_t> datagram);

  bool is_ordinary() const { return options_.levels == 1 && !plain(); }
  void make_box(std::uint32_t index);
  void plan_return();
  void drain_local(TimeNs now);
  bool is_over() const;
  std::optional<std::uint32_t> dead_server() const {
    if (!death_ || now_ < died_ns()) return {};
    if (death_->then_server && now_ >= then_died_ns()) return death_->then_server;
    const Part& part = death_->parts.front();
    return part.kind == Part::Kind::kServer ? std::optional(part.index) : std::nullopt;
  }
  bool is_away(const Part& part, TimeNs now) const;
  bool is_away_box(std::uint32_t box, TimeNs now) const {
    return is_away({Part::Kind::kBox, box}, now) ||
           (plain() && is_away({Part::Kind::kServer, box}, now));
  }

  BcubeOptions options_;
  client::Bcube bcube_;
  JobPlan plan_;
  const client::Layout layout_;
  const std::vector<client::Slice> slices_;
  BcubeOracle oracle_;
  EventQueue events_;
  FramePool pool_;
  Random random_;
  std::vector<Cable> links_;
  std::vector<Server> servers_;
  std::vector<Box> boxes_;  // aggregated: a switch each; plain: a server each
  // Datagrams to an appliance of the same server, which cross no cable.
  std::deque<std::pair<Address, std::vector<std::uint8_t>>> local_;
  std::vector<std::uint8_t> buffer_;
  VerdictCounters frame_verdicts_;
  std::set<std::array<std::uint32_t, 4>> said_;  // step, server, lane and chunk
  std::vector<TimeNs> begun_, ended_;
  std::vector<std::vector<TimeNs>> tensors_ended_;  // by step
  std::optional<Death> death_;
  std::vector<Absence> absences_;
  std::vector<Failure> failures_;  // by server
  std::uint32_t started_ = 0;
  TimeNs started_ns_ = kNever;
  std::uint32_t over_ = 0;
  TimeNs now_ = 0;
  std::uint64_t event_count_ = 0;
  std::uint64_t trace_hash_ = 0;
};

}  // namespace sluice::sim
