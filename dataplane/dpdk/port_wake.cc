// The sources that wake a port's workers: found while its device starts, armed before workers rest.
#include <rte_ethdev.h>

#include <algorithm>

#include "dataplane/dpdk/idle_wait.h"
#include "dataplane/dpdk/port.h"

namespace sluice::dataplane {

// af_packet makes its socket with the device, af_xdp with the queue.
void Port::find_wake_socket(const std::vector<int>& before) {
  for (const int socket : packet_sockets())
    if (std::find(before.begin(), before.end(), socket) == before.end()) wake_socket_ = socket;
}

WokenBy Port::find_what_wakes(bool interrupts) const noexcept {
  if (wake_socket_ >= 0) return WokenBy::kDescriptor;
  if (!interrupts) return WokenBy::kClock;
  const bool tap = config_.type == config::PortType::kTap;  // nothing to arm
  for (std::uint16_t queue = 0; queue < plan_.queues; ++queue) {
    if (!tap && rte_eth_dev_rx_intr_enable(device_, queue) != 0) return WokenBy::kClock;
    if (wake_descriptor(queue) < 0) return WokenBy::kClock;
    rte_eth_dev_rx_intr_disable(device_, queue);
  }
  return tap ? WokenBy::kDescriptor : WokenBy::kInterrupt;
}

int Port::wake_descriptor(std::uint16_t queue) const noexcept {
  return wake_socket_ >= 0 ? wake_socket_ : rte_eth_dev_rx_intr_ctl_q_get_fd(device_, queue);
}

void Port::arm(std::uint16_t queue, bool armed) const noexcept {
  const std::lock_guard lock(arm_mutex_);
  if (armed)
    rte_eth_dev_rx_intr_enable(device_, queue);
  else
    rte_eth_dev_rx_intr_disable(device_, queue);
}

}  // namespace sluice::dataplane
