// The data half of an appliance: its shards, and their mailboxes with the control side or with a
// test that plays it.
//
// For callers that run an appliance on one thread. serve() runs a whole round of an lcore; a test
// that wants a single step calls the shard itself.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "aggregator/appliance/rounds.h"
#include "aggregator/appliance/tx_buffers.h"
#include "aggregator/base/check.h"

namespace sluice::agg {

// When a command or an event can be taken out of its mailbox.
enum class Mail : std::uint8_t {
  kAtOnce,
  kDelivered,  // after deliver() was called once for it
};

// A queue from one thread of the appliance to another.
template <class Item>
class Mailbox {
 public:
  explicit Mailbox(Mail mail) : mail_(mail) {}

  void post(const Item& item) {
    items_.push_back(item);
    if (mail_ == Mail::kDelivered) ++under_way_;
  }
  void deliver() {
    CHECK(under_way_ != 0);
    --under_way_;
  }
  bool take(Item& item) {
    if (items_.size() == under_way_) return false;
    item = items_.front();
    items_.pop_front();
    return true;
  }
  std::size_t under_way() const noexcept { return under_way_; }

 private:
  const Mail mail_;
  std::deque<Item> items_;
  std::size_t under_way_ = 0;  // of items_, the newest
};

class Shards {
 public:
  explicit Shards(std::uint16_t count, Mail mail = Mail::kAtOnce);

  std::uint16_t count() const noexcept { return static_cast<std::uint16_t>(lcores_.size()); }
  Shard& shard(std::uint16_t index) { return lcores_[index]->shard; }
  const Shard& shard(std::uint16_t index) const { return lcores_[index]->shard; }
  Mailbox<ShardCommand>& commands(std::uint16_t index) { return lcores_[index]->commands; }
  Mailbox<ShardEvent>& events(std::uint16_t index) { return lcores_[index]->events; }
  std::uint64_t verdicts(Verdict verdict) const noexcept;  // of all shards

  void post(const ShardCommand& command);  // to every shard
  bool take_event(ShardEvent& event);      // of any shard

  // Runs one round of an lcore, see rounds.h. `out` has tx_buffers() and send().
  template <class Out>
  std::size_t serve(std::uint16_t index, Out& out, TimeNs now) {
    Driver<Out> driver{*lcores_[index], out};
    return serve_shard(lcores_[index]->shard, driver, now);
  }
  // Runs rounds of all lcores until no work is left. `send` is called with each Transmit and its
  // bytes.
  template <class Send>
  void drain(TimeNs now, Send&& send);

 private:
  struct Lcore {
    Lcore(ShardId id, Mail mail) : shard(id), commands(mail), events(mail) {}
    Shard shard;
    Mailbox<ShardCommand> commands;
    Mailbox<ShardEvent> events;
  };
  template <class Out>
  struct Driver {
    Lcore& lcore;
    Out& out;

    bool take_command(ShardCommand& command) { return lcore.commands.take(command); }
    bool has_event_room() const { return true; }
    void give_event(const ShardEvent& event) { lcore.events.post(event); }
    std::span<Transmit> tx_buffers() { return out.tx_buffers(); }
    void send(std::span<const Transmit> burst) { out.send(burst); }
    void swept() requires requires(Out& to) { to.swept(); }
    { out.swept(); }
  };

  std::vector<std::unique_ptr<Lcore>> lcores_;
};

// Buffers, and a function that is called with each datagram written into them; for the driver of a
// control thread or of an lcore.
template <class Send>
struct SendTo {
  Send& function;
  TxBuffers memory{};

  std::span<std::uint8_t> tx_buffer() { return memory.first(); }
  void send(const Transmit& transmit) { function(transmit, transmit.datagram()); }
  std::span<Transmit> tx_buffers() { return memory.all(); }
  void send(std::span<const Transmit> burst) {
    for (const Transmit& transmit : burst) send(transmit);
  }
};

// Repeats `round`, which returns how much work there was, until there was none. That ends: without
// packets the threads run out of work for each other.
template <class Round>
void repeat_until_idle(Round&& round) {
  constexpr std::size_t kMostRounds = 1'000'000;
  for (std::size_t rounds = 0; round() != 0;) CHECK(++rounds < kMostRounds);
}

template <class Send>
void Shards::drain(TimeNs now, Send&& send) {
  SendTo<Send> out{send};
  repeat_until_idle([&] {
    std::size_t work = 0;
    for (std::uint16_t index = 0; index < count(); ++index) work += serve(index, out, now);
    return work;
  });
}

}  // namespace sluice::agg
