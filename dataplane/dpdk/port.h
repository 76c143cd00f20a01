// A switch port: a DPDK device, and a lane for each worker that serves it.
//
// All workers serve a port whose device has a pair of queues for each of them; if the device takes
// flow rules, it gives each worker the frames for its shard. One worker serves any other port
// (port_plan.h). open(), start() and the destructor run on the main thread; any thread may call
// up() and read the lanes' counters.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "aggregator/base/status.h"
#include "config/config.h"
#include "dataplane/core/log_rate.h"
#include "dataplane/core/mac_table.h"
#include "dataplane/core/port_plan.h"
#include "dataplane/dpdk/lane.h"
#include "dataplane/dpdk/train_socket.h"

namespace sluice::dataplane {

class Port {
 public:
  // open() creates the device and plans its use; start() makes the lanes. The messages of failures
  // name the port and the remedy.
  static Result<std::unique_ptr<Port>> open(const config::PortConfig& config, PortIndex index,
                                            const config::Config& appliance);
  Status start(rte_mempool* pool, TimeNs now, const config::Config& appliance);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // A worker that serves the port, perhaps besides others.
  std::uint16_t owner() const noexcept { return index_ % worker_count_; }
  // Null if this worker does not serve the port.
  Lane* lane_of(std::uint16_t worker) const noexcept {
    if (lanes_.size() > 1) return lanes_[worker].get();
    return worker == owner() ? lanes_.front().get() : nullptr;
  }
  // WokenBy::kDescriptor: readable while a packet waits.
  int wake_descriptor(std::uint16_t queue) const noexcept;
  // WokenBy::kInterrupt: sets whether packets in this queue raise the interrupt.
  void arm(std::uint16_t queue, bool armed) const noexcept;

  bool up() const noexcept { return up_.load(std::memory_order_relaxed); }
  std::uint64_t link_changes() const noexcept { return link_counters().link_changes.read(); }
  // Asks the device for its link and its losses. The control thread calls it a few times a second.
  void refresh(TimeNs now) noexcept;

  // Sends frames from the front and returns how many were sent. Called by the worker that owns the
  // queue.
  std::size_t transmit(std::uint16_t queue, std::span<rte_mbuf*> frames) const noexcept;

  PortIndex index() const noexcept { return index_; }
  std::uint16_t device() const noexcept { return device_; }
  std::uint32_t max_frame_bytes() const noexcept { return max_frame_bytes_; }
  const config::PortConfig& config() const noexcept { return config_; }
  const PortPlan& plan() const noexcept { return plan_; }
  PortView view() const;
  PortRow row() const;  // for the table of all ports

 private:
  Port(const config::PortConfig& config, PortIndex index, const config::Config& appliance);
  Status probe();
  Status make_plan();
  // The kernel's own interfaces have an MTU already.
  bool sets_mtu() const noexcept {
    return config_.type == config::PortType::kPci || config_.type == config::PortType::kTap;
  }
  int set_up_queues(rte_mempool* pool) noexcept;
  Status start_device(rte_mempool* pool, bool interrupts, TimeNs now);
  WokenBy find_what_wakes(bool interrupts) const noexcept;
  void open_train_socket() noexcept;
  void find_wake_socket(const std::vector<int>& before);
  void steer(const config::Config& appliance) noexcept;
  static int on_link_event(std::uint16_t device, int event, void* port, void*);
  void refresh_link(TimeNs now) noexcept;  // any thread
  void look_for_lost_memory() noexcept;
  // The link's counters are in the first lane's block.
  PortCounters& link_counters() const noexcept { return lanes_.front()->counters(); }

  const config::PortConfig config_;
  const PortIndex index_;
  const std::uint16_t worker_count_;
  const std::uint32_t max_frame_bytes_;
  std::uint16_t device_ = UINT16_MAX;
  std::string vdev_name_;                // empty: not a vdev
  std::string driver_;                   // as DPDK names it
  int wake_socket_ = -1;                 // the driver's
  std::unique_ptr<TrainSocket> trains_;  // of an af_packet port, if the kernel supports trains
  DeviceOffers offers_;
  PortPlan plan_;
  bool started_ = false;
  std::mutex link_mutex_;         // held from asking for the link until its state is noted
  mutable std::mutex arm_mutex_;  // against arming while a peer leaves
  std::atomic<bool> up_{false};   // written under link_mutex_
  bool memory_lost_ =
      false;  // under link_mutex_: the peer has cut off its memory, and has not disconnected
  LinkLog link_log_;  // under link_mutex_
  std::uint32_t faults_seen_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;  // one, or one for each worker
};

}  // namespace sluice::dataplane
