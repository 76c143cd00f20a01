// An appliance without I/O: the control side, its shards, and the order in which they are driven.
//
// Packets and time go in, verdicts and datagrams come out. The in-process transport, the simulator,
// the fuzzers and tests run a whole appliance on one thread with it; `sluiced` runs the same parts
// in the same order (rounds.h) on several threads. The caller keeps each member's path and learns
// it from ControlResult::bind. Pure; all calls on one thread.
#pragma once

#include <array>
#include <span>

#include "aggregator/appliance/shards.h"
#include "aggregator/jobs/jobs.h"

namespace sluice::agg {

struct ApplianceOptions {
  JobsOptions jobs;
  Mail mail = Mail::kAtOnce;
  // The appliance makes and frees the memory of jobs at once. Otherwise the caller does, which may
  // take seconds: see Jobs::poll_memory().
  bool makes_memory = true;
};

class Appliance {
 public:
  explicit Appliance(ApplianceOptions options);

  Jobs& jobs() noexcept { return jobs_; }
  const Jobs& jobs() const noexcept { return jobs_; }
  Shards& shards() noexcept { return shards_; }
  const Shards& shards() const noexcept { return shards_; }

  // Handles a parsed packet of the control port, see Jobs::handle(). A join whose job was made at
  // once is handled a second time, as if its worker had sent it again.
  ControlResult handle_control(const wire::Packet& packet, const Origin& origin,
                               std::span<std::uint8_t> reply, TimeNs now);
  // Handles a parsed packet of a shard's port, see Shard::handle().
  Verdict handle_data(std::uint16_t shard, const wire::Packet& packet, bool marked,
                      TimeNs now) noexcept {
    return shards_.shard(shard).handle(packet, marked, now);
  }
  // The time by which the next round of the control thread is due.
  TimeNs next_tick_ns() const noexcept { return next_tick_ns_; }
  // Joins that were handled a second time.
  std::uint64_t repeated() const noexcept { return repeated_; }
  // The number of packets with this verdict, of the control side and all shards.
  std::uint64_t verdicts(Verdict verdict) const noexcept;

  // Runs one round of the control thread, and of one lcore. `out` has tx_buffer(), tx_buffers() and
  // send() of a driver (rounds.h).
  template <class Out>
  std::size_t serve_control(Out& out, TimeNs now) {
    Driver<Out> driver{*this, out};
    return agg::serve_control(jobs_, next_tick_ns_, driver, now);
  }
  template <class Out>
  std::size_t serve_shard(std::uint16_t shard, Out& out, TimeNs now) {
    return shards_.serve(shard, out, now);
  }
  // Runs rounds of all threads until no work is left. `send` is called with each Transmit and its
  // bytes.
  template <class Send>
  void pump(TimeNs now, Send&& send);

 private:
  template <class Out>
  struct Driver {
    Appliance& self;
    Out& out;

    bool take_event(ShardEvent& event) { return self.shards_.take_event(event); }
    std::size_t pass_memory(Jobs&, TimeNs now) { return self.make_memory(now); }
    std::span<std::uint8_t> tx_buffer() { return out.tx_buffer(); }
    void send(const Transmit& transmit) { out.send(transmit); }
    void give_command(const ShardCommand& command) { self.shards_.post(command); }
  };

  std::size_t make_memory(TimeNs now);

  Jobs jobs_;
  Shards shards_;
  const bool makes_memory_;
  TimeNs next_tick_ns_ = 0;
  std::uint64_t repeated_ = 0;
};

template <class Send>
void Appliance::pump(TimeNs now, Send&& send) {
  SendTo<Send> out{send};
  repeat_until_idle([&] {
    std::size_t work = serve_control(out, now);
    for (std::uint16_t shard = 0; shard < shards_.count(); ++shard)
      work += serve_shard(shard, out, now);
    return work;
  });
}

}  // namespace sluice::agg
