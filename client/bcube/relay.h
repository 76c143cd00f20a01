// One worker of a BCube job: its gradients through k threads of sums and broadcasts, over ordinary
// sessions.
//
// Each (thread, stage, way) is a job of its own among the n servers of one switch, and this worker
// is in it with an ordinary session, a lane. Up: every server contributes the slices that it holds,
// and each slice's next half-way owner adds what the others gave to its own. At the turn, the last
// stage, the sum goes to all n at once. Down: who holds a slice's sum contributes it, the others
// contribute nothing, and so get it. A half-way sum is a float32 sum with its weight; the average
// is made when a slice's way is over, from bits that are equal on all servers.
//
// Aggregated: a lane's appliance is the switch. Plain, as published: the owner of a slice runs the
// appliance for its neighbours, and switches only forward.
//
// The order of stages and levels is BML's (NeurIPS 2018). Pure: the owner drives the lanes'
// sessions as it drives any, then calls work(). One thread at a time. Memory for half-way sums, a
// float an element of what this worker is half-way owner of, is allocated at the start.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "client/bcube/slices.h"
#include "client/bcube/topology.h"
#include "client/core/event_queue.h"
#include "client/core/session.h"
#include "client/core/tensors.h"

namespace sluice::client {

enum class BcubeMode : std::uint8_t { kAggregated, kPlain };
enum class Way : std::uint8_t { kUp, kTurn, kDown };

// Where a lane's appliance is, and what for.
struct LanePlace {
  std::uint32_t thread = 0;
  std::uint32_t stage = 0;
  Way way{};
  std::uint32_t level = 0;         // of the switch, and the port that leads there
  std::uint32_t switch_index = 0;  // in its level
  std::uint32_t host = 0;          // plain: the digit of the server that runs the appliance
};

class Relay {
 public:
  struct Lane {
    Lane(LanePlace where, SessionOptions options, Layout layout, TimeNs now)
        : place(where), session(std::move(options), std::move(layout), now) {}
    const LanePlace place;
    std::vector<std::uint32_t> slices;  // of its tensors, in order
    Session session;
  };

  // `options.rank` and `world_size` are those in the BCube, world_size = n^k; every lane's session
  // gets the rest as it is, and names of its own. Fails for what cannot travel in parts.
  static Result<std::unique_ptr<Relay>> create(SessionOptions options, const Bcube& bcube,
                                               BcubeMode mode, Layout layout, TimeNs now);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::deque<Lane>& lanes() noexcept { return lanes_; }
  const std::deque<Lane>& lanes() const noexcept { return lanes_; }
  // Lanes in the order in which they are asked what to transmit: what is nearer to its end first,
  // so that no port waits for the last slices alone.
  const std::vector<std::uint32_t>& send_order() const noexcept { return send_order_; }
  // Acts on what the lanes' sessions say, and on what was submitted. After every call of theirs,
  // and before they are asked what to transmit.
  void work(TimeNs now);

  // ---- as Session's ----
  Status submit(const Submission& submission, TimeNs now);
  Status end_step();
  void leave(wire::LeaveReason reason, TimeNs now);
  bool poll_event(Event& event) noexcept { return events_.pop(event); }
  const Tensors& tensors() const noexcept { return tensors_; }
  const Layout& layout() const noexcept { return layout_; }
  const Status& failure() const noexcept { return failure_; }
  bool started() const noexcept { return started_lanes_ == lanes_.size(); }

 private:
  // A lane's tensor that a slice is.
  struct Stop {
    std::uint32_t lane = 0;
    std::uint32_t tensor = 0;
  };
  // A slice on its way in the step under way.
  struct Passage {
    Slice slice;
    std::uint32_t stages = 0;      // for which this worker is half-way owner
    std::uint64_t first_half = 0;  // in halves_, if it is at all
    std::vector<Stop> up;          // by stage; the last one may be the turn
    std::vector<Stop> down;
    // ---- of the step ----
    const float* value = nullptr;  // what this worker has of it; null: no data
    float* output = nullptr;
    std::uint64_t weight = 0;
    std::uint32_t in_flight = 0;  // submissions to lanes
    Priority priority = 0;
    bool whole = false;  // the sum of all is in `output`, or nobody had data
    bool non_finite = false;
  };
  struct Progress {
    std::uint32_t slices_left = 0;
    std::uint64_t weight = 0;
    bool any_data = false;
    bool non_finite = false;
  };

  Relay(SessionOptions options, const Bcube& bcube, Layout layout);
  Status make_lanes(BcubeMode mode, TimeNs now);
  std::uint32_t turn_stage() const noexcept { return bcube_.levels() - 1; }
  void handle(Lane& lane, const Event& event, TimeNs now);
  void begin(std::uint32_t tensor, TimeNs now);
  void climb(Passage& passage, std::uint32_t stage, TimeNs now);
  void add_half(Passage& passage, const Event& event) noexcept;
  void descend(Passage& passage, std::uint32_t from_stage, TimeNs now);
  void finish(Passage& passage, TimeNs now);
  void submit(Passage& passage, const Stop& stop, Submission submission, TimeNs now);
  void fail(Status why, TimeNs now);

  const SessionOptions options_;
  const Bcube bcube_;
  const Layout layout_;
  Tensors tensors_;
  std::deque<Lane> lanes_;
  std::vector<std::uint32_t> send_order_;
  std::vector<Passage> passages_;              // by slice
  std::vector<std::uint32_t> first_passages_;  // of each tensor, and their number
  std::vector<Progress> progress_;             // by tensor
  std::vector<float> halves_;                  // what the others gave, to be added
  std::vector<std::vector<float>> spares_;     // results of tensors that were left out
  std::uint32_t last_weight_ = 1;
  std::size_t started_lanes_ = 0;
  std::size_t ended_lanes_ = 0;
  Status failure_;
  EventQueue events_;
};

}  // namespace sluice::client
