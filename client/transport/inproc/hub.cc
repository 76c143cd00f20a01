#include "client/transport/inproc/hub.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"

namespace sluice::client {
namespace {

constexpr std::size_t kQueueSlots = 1024;
constexpr DurationNs kTickInterval = 50 * kMillisecond;
constexpr std::size_t kIpUdpBytes = wire::kIpv4Bytes + wire::kUdpBytes;

agg::JobsOptions jobs_options(const std::string& secret) {
  agg::JobsOptions options;
  options.secret = secret;
  std::random_device random;
  for (std::uint8_t& byte : options.boot_key) byte = static_cast<std::uint8_t>(random());
  return options;
}

}  // namespace

InprocQueue::InprocQueue(std::size_t slots, std::size_t slot_bytes, std::string address_text)
    : address(std::move(address_text)),
      ready(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      bytes_(slots * slot_bytes),
      lengths_(slots),
      slot_bytes_(slot_bytes) {}

bool InprocQueue::push(std::span<const std::uint8_t> bytes) noexcept {
  if (count_ == lengths_.size() || bytes.size() > slot_bytes_) return false;
  const std::size_t slot = (head_ + count_) % lengths_.size();
  std::memcpy(&bytes_[slot * slot_bytes_], bytes.data(), bytes.size());
  lengths_[slot] = static_cast<std::uint32_t>(bytes.size());
  if (count_++ == 0) {
    const std::uint64_t one = 1;
    // Cannot fail: an eventfd's counter has room for 2^64 - 2.
    [[maybe_unused]] const ssize_t written = ::write(ready.get(), &one, sizeof one);
  }
  return true;
}

std::size_t InprocQueue::pop(std::span<std::uint8_t> out) noexcept {
  if (count_ == 0) return 0;
  const std::size_t bytes = std::min<std::size_t>(lengths_[head_], out.size());
  std::memcpy(out.data(), &bytes_[head_ * slot_bytes_], bytes);
  head_ = (head_ + 1) % lengths_.size();
  if (--count_ == 0) {
    std::uint64_t drained = 0;
    [[maybe_unused]] const ssize_t read = ::read(ready.get(), &drained, sizeof drained);
  }
  return bytes;
}

Hub::Hub(const std::string& secret) : jobs_(jobs_options(secret)), shard_(ShardId{0}) {}

std::shared_ptr<Hub> Hub::find(const std::string& name, const std::string& secret) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Hub>> hubs;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Hub>& entry = hubs[name];
  std::shared_ptr<Hub> hub = entry.lock();
  if (!hub) {
    hub = std::make_shared<Hub>(secret);
    entry = hub;
  }
  return hub;
}

std::shared_ptr<InprocQueue> Hub::attach(std::size_t mtu_bytes) {
  const std::lock_guard lock(mutex_);
  return std::make_shared<InprocQueue>(kQueueSlots, mtu_bytes - kIpUdpBytes,
                                       "inproc:" + std::to_string(next_queue_++));
}

void Hub::detach(const std::shared_ptr<InprocQueue>& queue, TimeNs now) {
  std::unique_lock lock(mutex_);
  now = advance(now);
  for (auto path = paths_.begin(); path != paths_.end();) {
    if (path->second != queue) {
      ++path;
      continue;
    }
    jobs_.suspect(JobId{path->first.first}, Rank{path->first.second}, now);
    path = paths_.erase(path);
  }
  run(now);
  make_memory(lock, now);
}

void Hub::send(const std::shared_ptr<InprocQueue>& from, std::span<const Outgoing> datagrams,
               TimeNs now) {
  std::unique_lock lock(mutex_);
  now = advance(now);
  for (const Outgoing& datagram : datagrams) handle(from, datagram, now);
  run(now);
  make_memory(lock, now);
}

std::size_t Hub::receive(InprocQueue& queue, std::uint8_t* out, std::size_t slot_bytes,
                         std::span<std::size_t> sizes, TimeNs now) {
  std::unique_lock lock(mutex_);
  now = advance(now);
  if (now >= next_tick_ns_) {
    next_tick_ns_ = now + kTickInterval;
    jobs_.tick(now);
    run(now);
    make_memory(lock, now);
  }
  std::size_t count = 0;
  while (count < sizes.size() && !queue.empty()) {
    sizes[count] = queue.pop({out + count * slot_bytes, slot_bytes});
    ++count;
  }
  return count;
}

void Hub::handle(const std::shared_ptr<InprocQueue>& from, const Outgoing& datagram, TimeNs now) {
  wire::Packet packet;
  Verdict why{};
  if (!wire::parse({datagram.data, datagram.bytes}, packet, why)) return;
  if (datagram.port_offset != 0) {
    shard_.handle(packet, false, now);
    return;
  }
  // No packet can name another end of this process, so the origin leaves its path open.
  const agg::Origin origin{.address = from->address, .max_datagram_bytes = kMaxDatagramBytes};
  const agg::ControlResult result = jobs_.handle(packet, origin, scratch_, now);
  if (result.bind) paths_[{result.job.value, result.rank.value}] = from;
  if (result.reply_bytes != 0) from->push({scratch_.data(), result.reply_bytes});
}

void Hub::run(TimeNs now) {
  agg::ShardCommand command;
  agg::ShardEvent event;
  agg::Transmit transmit;
  // Each part may give the other work; both run dry because none of it needs a packet.
  for (bool worked = true; worked;) {
    worked = false;
    for (; jobs_.poll_command(command); worked = true) shard_.handle_command(command, now);
    while (shard_.poll_work(now)) worked = true;
    for (; shard_.poll_event(event); worked = true) jobs_.handle_event(event, now);
    for (; shard_.poll_transmit(transmit, scratch_, now); worked = true) deliver(transmit);
    for (; jobs_.poll_transmit(transmit, scratch_, now); worked = true) deliver(transmit);
  }
}

void Hub::make_memory(std::unique_lock<std::mutex>& lock, TimeNs now) {
  for (agg::MemoryOrder order; jobs_.poll_memory(order);) {
    lock.unlock();
    agg::carry_out(order);
    lock.lock();
    now = advance(now);
    jobs_.handle_memory(std::move(order), now);
    run(now);
  }
}

void Hub::deliver(const agg::Transmit& transmit) {
  const auto path = paths_.find({transmit.job.value, transmit.rank.value});
  if (path != paths_.end()) path->second->push({scratch_.data(), transmit.bytes});
}

}  // namespace sluice::client
