// The in-process appliance: an agg::Appliance with one shard, and a queue to each worker.
//
// Every call locks one mutex. The caller's thread also does the appliance's housekeeping, so the
// hub has no thread of its own. Unlike sluiced it has no ports, no addresses and no configuration.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/appliance/appliance.h"
#include "client/fork.h"
#include "client/transport/transport.h"

namespace sluice::client {

// The options of an appliance inside a worker process, which lets its caller allocate memory.
agg::ApplianceOptions options_inside(const std::string& secret);

// The datagrams for one worker, in slots that are allocated once. Guarded by the hub's mutex.
class InprocQueue {
 public:
  InprocQueue(std::size_t slots, std::size_t slot_bytes, std::string address);

  bool push(std::span<const std::uint8_t> bytes) noexcept;  // false: full or too big
  // Copies the oldest datagram out; 0: none.
  std::size_t pop(std::span<std::uint8_t> out) noexcept;
  bool empty() const noexcept { return count_ == 0; }
  std::size_t slots() const noexcept { return lengths_.size(); }

  const std::string address;  // printable
  const OwnedFd ready;        // eventfd: readable when the queue has become non-empty

 private:
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint32_t> lengths_;
  std::size_t slot_bytes_;
  std::size_t head_ = 0;
  std::size_t count_ = 0;
};

class Hub {
 public:
  explicit Hub(const std::string& secret);

  // This process's hub of that name, made if there is none.
  static std::shared_ptr<Hub> find(const std::string& name, const std::string& secret);

  std::shared_ptr<InprocQueue> attach(std::size_t mtu_bytes);
  void detach(const std::shared_ptr<InprocQueue>& queue, TimeNs now);

  void send(const std::shared_ptr<InprocQueue>& from, std::span<const Outgoing> datagrams,
            TimeNs now);
  // Fills `sizes` with the lengths of the datagrams copied into slots of `slot_bytes` at `out`.
  std::size_t receive(InprocQueue& queue, std::uint8_t* out, std::size_t slot_bytes,
                      std::span<std::size_t> sizes, TimeNs now);

 private:
  void handle(const std::shared_ptr<InprocQueue>& from, const Outgoing& datagram, TimeNs now);
  // Runs the appliance until it has nothing to do or send. The caller's thread carries out its
  // memory orders, unlocked meanwhile: only the worker whose job needs the memory has to wait.
  void run(std::unique_lock<std::mutex>& lock, TimeNs now);
  void pump(TimeNs now);
  // Workers' threads read the clock before they wait for the mutex, so times may come out of order;
  // the appliance's clock never goes back.
  TimeNs advance(TimeNs now) noexcept { return now_ns_ = std::max(now_ns_, now); }

  std::mutex mutex_;
  TimeNs now_ns_ = 0;
  agg::Appliance appliance_;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::shared_ptr<InprocQueue>> paths_;
  std::uint32_t next_queue_ = 1;
  std::vector<std::uint8_t> reply_ = std::vector<std::uint8_t>(kMaxDatagramBytes);
};

}  // namespace sluice::client
