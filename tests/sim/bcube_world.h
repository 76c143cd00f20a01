// A BCube in virtual time: every server's production Relay, every appliance's production object,
// and a cable with a rate for each port.
//
// The workers run a job of `steps` steps over given tensors; every average is compared with the sum
// of the plan's gradients, to the last bit, on every server. Bytes of gradients are counted at
// every port, so that they can be held against the theory. Unlike World it has no processes that
// die and no oracle: faults are those of cables.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/appliance/appliance.h"
#include "client/bcube/relay.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/frame_pool.h"
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
  std::uint32_t nil_ppm = 0;  // of (rank, step, tensor): left out
  DurationNs compute_max_ns = 0;
  bool check_values = true;                     // false: for timing alone
  std::uint32_t receive_credit_packets = 1024;  // of a lane
  LinkOptions link;
};

class BcubeWorld {
 public:
  explicit BcubeWorld(BcubeOptions options);

  // True: all workers have taken their steps. False: it is `until`, or something was wrong.
  bool run(TimeNs until);
  const std::vector<std::string>& violations() const { return violations_; }
  // From the moment that all may submit the step to the last server's last average.
  DurationNs step_ns(Step step) const { return ended_[step] - begun_[step]; }
  // Gradient bytes that a server has sent and received at one of its ports.
  std::uint64_t sent_bytes(std::uint32_t server, std::uint32_t level) const {
    return links_[up_link(server, level)].data_bytes;
  }
  std::uint64_t received_bytes(std::uint32_t server, std::uint32_t level) const {
    return links_[up_link(server, level) + 1].data_bytes;
  }
  // With all headers.
  std::uint64_t wire_bytes(std::uint32_t server, std::uint32_t level) const {
    return links_[up_link(server, level)].wire_bytes;
  }
  std::uint64_t dropped_frames() const {
    std::uint64_t total = 0;
    for (const Cable& cable : links_) total += cable.link.counters().dropped_total();
    return total;
  }
  client::Relay& relay(std::uint32_t server) { return *servers_[server].relay; }
  const client::Bcube& bcube() const { return bcube_; }

 private:
  // Where a frame is going, in the bytes of its headers.
  struct Address {
    std::uint32_t appliance = 0;
    std::uint32_t server = 0;  // the worker's
    std::uint32_t lane = 0;    // of the worker
    std::uint16_t port_offset = 0;
    bool to_appliance = false;
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
    Step step = 0;
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
  // A server's port takes more of its lanes, which order what waits.
  bool has_room(std::uint32_t link) const {
    return plain() || links_[link].link.counters().queued < 32;
  }
  std::uint32_t level_of(const Address& address) const;
  void put(std::uint32_t link, const Address& address, std::span<const std::uint8_t> datagram,
           Priority priority, TimeNs now);
  void deliver(const Address& address, std::span<const std::uint8_t> datagram, TimeNs now);
  void arrive(std::uint32_t link, FrameIndex frame, TimeNs now);
  void to_box(const Address& address, std::span<const std::uint8_t> datagram, TimeNs now);
  void pump_box(std::uint32_t box, TimeNs now);
  void send_from_box(std::uint32_t box, const Address& to, std::span<const std::uint8_t> datagram,
                     Priority priority, TimeNs now);
  void pump_server(std::uint32_t server, TimeNs now);
  bool transmit(std::uint32_t server, TimeNs now);
  bool run_app(std::uint32_t server, TimeNs now);
  void begin_step(std::uint32_t server, TimeNs now);
  void end_step(std::uint32_t server, TimeNs now);
  void check_tensor(std::uint32_t server, const client::Event& event);
  void drain_local(TimeNs now);

  BcubeOptions options_;
  client::Bcube bcube_;
  JobPlan plan_;
  EventQueue events_;
  FramePool pool_;
  Random random_;
  std::vector<Cable> links_;
  std::vector<Server> servers_;
  std::vector<Box> boxes_;  // aggregated: a switch each; plain: a server each
  // To an appliance of the same server: no cable.
  std::deque<std::pair<Address, std::vector<std::uint8_t>>> local_;
  std::vector<std::uint8_t> buffer_;
  std::vector<std::string> violations_;
  std::vector<TimeNs> begun_, ended_;
  std::uint32_t started_ = 0;
  std::uint32_t over_ = 0;
};

}  // namespace sluice::sim
