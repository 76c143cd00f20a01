// The order in which an appliance does its work, stated once for every program that runs one.
//
// An appliance is a control thread (jobs/jobs.h) and an lcore for each shard (core/shard.h). Each
// of them works in rounds: it handles the packets that have arrived, and then calls the function
// here. A `Driver` connects it to the other threads and to the network: rings and ports in the data
// plane, queues in appliance.h. Pure; nothing here allocates or locks unless the driver does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "aggregator/appliance/send_budget.h"
#include "aggregator/core/shard.h"
#include "aggregator/jobs/jobs.h"

namespace sluice::agg {

inline constexpr int kSweepsPerRound = 4;  // of 256 slots: a lost member delays no burst by more
inline constexpr DurationNs kTickInterval = 20 * kMillisecond;  // between two looks at the members
inline constexpr std::size_t kControlDatagrams = 1024;  // a round; a worker's inbox holds more

// One round of an lcore for its shard. Returns how much work there was; 0: the lcore may rest.
//
//   bool Driver::take_command(ShardCommand&)        the oldest command for the shard; false: none
//   bool Driver::has_event_room()                   false: events wait in the shard
//   void Driver::give_event(const ShardEvent&)      passes an event to the control side
//   std::span<Transmit> Driver::tx_buffers()        each holds a datagram; empty: none is free
//   void Driver::send(std::span<const Transmit>)    sends the first of these buffers
//   void Driver::swept()                            optional: called after each sweep
template <class Driver>
std::size_t serve_shard(Shard& shard, Driver& driver, TimeNs now) noexcept {
  std::size_t work = 0;
  for (ShardCommand command; driver.take_command(command); ++work)
    shard.handle_command(command, now);
  for (int sweep = 0; sweep < kSweepsPerRound; ++sweep, ++work) {
    const bool more = shard.poll_work(now);
    if constexpr (requires { driver.swept(); }) driver.swept();
    if (!more) break;
  }
  for (ShardEvent event; driver.has_event_room() && shard.poll_event(event); ++work)
    driver.give_event(event);
  SendBudget budget;
  while (const std::size_t left = budget.left()) {
    std::span<Transmit> burst = driver.tx_buffers();
    burst = burst.first(shard.poll_transmit(burst.first(std::min(left, burst.size())), now));
    if (burst.empty()) break;
    budget.spend(burst);
    driver.send(burst);
  }
  return work + budget.spent();
}

// One round of the control thread. The caller has handled every packet that waited when the round
// began, so no member is judged silent while a packet of its own waits. `next_tick_ns` belongs to
// the caller, 0 at first. Returns how much work there was.
//
//   bool Driver::take_event(ShardEvent&)            the oldest event of some shard; false: none
//   std::size_t Driver::pass_memory(Jobs&, TimeNs)  orders to the maker of memory, results back
//   std::span<std::uint8_t> Driver::tx_buffer()     for the next datagram
//   void Driver::send(const Transmit&)              sends that buffer
//   void Driver::give_command(const ShardCommand&)  passes a command to every shard
template <class Driver>
std::size_t serve_control(Jobs& jobs, TimeNs& next_tick_ns, Driver& driver, TimeNs now) {
  std::size_t work = 0;
  for (ShardEvent event; driver.take_event(event); ++work) jobs.handle_event(event, now);
  if (now >= next_tick_ns) {
    jobs.tick(now);
    next_tick_ns = now + kTickInterval;
  }
  work += driver.pass_memory(jobs, now);
  Transmit transmit;
  for (std::size_t sent = 0; sent < kControlDatagrams; ++sent, ++work) {
    if (!jobs.poll_transmit(transmit, driver.tx_buffer(), now)) break;
    driver.send(transmit);
  }
  for (ShardCommand command; jobs.poll_command(command); ++work) driver.give_command(command);
  return work;
}

}  // namespace sluice::agg
