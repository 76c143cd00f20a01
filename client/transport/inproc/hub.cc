#include "client/transport/inproc/hub.h"

#include <pthread.h>
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
constexpr std::size_t kIpUdpBytes = wire::kIpv4Bytes + wire::kUdpBytes;

// The hubs of this process, by name. The child of a fork begins with none: the threads that drive
// the parent's hubs do not exist there, and one of them may have held a hub's mutex.
struct Hubs {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Hub>> by_name;
};

Hubs& hubs() {
  static Hubs* const instance = [] {
    ::pthread_atfork([] { hubs().mutex.lock(); }, [] { hubs().mutex.unlock(); },
                     [] {
                       hubs().by_name.clear();
                       hubs().mutex.unlock();
                     });
    return new Hubs;
  }();
  return *instance;
}

}  // namespace

agg::ApplianceOptions options_inside(const std::string& secret) {
  agg::ApplianceOptions options{.jobs = {.secret = secret}, .makes_memory = false};
  std::random_device random;
  for (std::uint8_t& byte : options.jobs.boot_key) byte = static_cast<std::uint8_t>(random());
  return options;
}

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

Hub::Hub(const std::string& secret) : appliance_(options_inside(secret)) {}

std::shared_ptr<Hub> Hub::find(const std::string& name, const std::string& secret) {
  auto& [mutex, by_name] = hubs();
  const std::lock_guard lock(mutex);
  std::erase_if(by_name, [](const auto& other) { return other.second.expired(); });
  std::weak_ptr<Hub>& entry = by_name[name];
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
    appliance_.jobs().suspect(JobId{path->first.first}, Rank{path->first.second}, now);
    path = paths_.erase(path);
  }
  run(lock, now);
}

void Hub::send(const std::shared_ptr<InprocQueue>& from, std::span<const Outgoing> datagrams,
               TimeNs now) {
  std::unique_lock lock(mutex_);
  now = advance(now);
  for (const Outgoing& datagram : datagrams) handle(from, datagram, now);
  run(lock, now);
}

std::size_t Hub::receive(InprocQueue& queue, std::uint8_t* out, std::size_t slot_bytes,
                         std::span<std::size_t> sizes, TimeNs now) {
  std::unique_lock lock(mutex_);
  now = advance(now);
  if (now >= appliance_.next_tick_ns()) run(lock, now);
  std::size_t count = 0;
  while (count < sizes.size() && !queue.empty()) {
    sizes[count] = queue.pop({out + count * slot_bytes, slot_bytes});
    ++count;
  }
  return count;
}

void Hub::handle(const std::shared_ptr<InprocQueue>& from, const Outgoing& datagram, TimeNs now) {
  wire::Packet packet;
  if (!ok(wire::parse(whole(datagram), packet))) return;
  if (datagram.port_offset != 0) {
    if (datagram.port_offset <= appliance_.shards().count())
      appliance_.handle_data(datagram.port_offset - 1, packet, false, now);
    return;
  }
  // No packet can name another end of this process, so the origin leaves its path open.
  const agg::Origin origin{.address = from->address, .max_datagram_bytes = kMaxDatagramBytes};
  const agg::ControlResult result = appliance_.handle_control(packet, origin, reply_, now);
  if (result.bind) paths_[{result.job.value, result.rank.value}] = from;
  if (result.reply_bytes != 0) from->push({reply_.data(), result.reply_bytes});
}

void Hub::pump(TimeNs now) {
  appliance_.pump(now, [this](const agg::Transmit& to, std::span<const std::uint8_t> datagram) {
    const auto path = paths_.find({to.job.value, to.rank.value});
    if (path != paths_.end()) path->second->push(datagram);
  });
}

void Hub::run(std::unique_lock<std::mutex>& lock, TimeNs now) {
  pump(now);
  for (agg::MemoryOrder order; appliance_.jobs().poll_memory(order);) {
    lock.unlock();
    agg::carry_out(order);
    lock.lock();
    now = advance(now);
    appliance_.jobs().handle_memory(std::move(order), now);
    pump(now);
  }
}

}  // namespace sluice::client
