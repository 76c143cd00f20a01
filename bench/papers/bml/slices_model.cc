// bench_bml_slices: one step of a BCube job, a slice at a time, for shapes of thousands of servers.
//
// Cut, stages and topology are client/bcube's; ports take a slice's time and send the earliest
// slice that is ready. Switches that sum send averages on their way down when nothing else waits,
// as client/bcube's priorities make them; plain ones send in the order of arrival. There are no
// sessions, appliances, windows, losses or feedback, and a transmission is not interrupted. A
// slice's positions: 0 .. k - 1 are the stages on the way up, k .. 2k - 1 the same stages backwards
// on the way down. With --ring the servers of the one switch are a ring, and positions count
// servers: a slice goes from the one behind its owner round to the owner, and as far once more.
// Standard output: a line of JSON.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "aggregator/base/check.h"
#include "client/bcube/slices.h"
#include "client/bcube/topology.h"

namespace {

using sluice::client::Bcube;
using sluice::client::Slice;

struct Options {
  bool plain = false;
  bool ring = false;  // plain, in a ring
  std::uint32_t chunk_bytes = 1344;
  double gbps = 10;
  double frame_bytes = 0;  // a chunk's, on the cable
  double delay_s = 4e-6;   // of the cables to a switch and from it
};

enum class Event : std::uint8_t { kSent, kArrives, kReceived };
using Timed = std::tuple<double, Event, std::uint32_t>;  // when, what, at which port

// Events in order of time. There are few delays, and what waits for the same one comes in the order
// in which it was put off: a queue for each, where a heap took more than half of a run's time.
class Events {
 public:
  void put_off(double now_s, double delay_s, Event kind, std::uint32_t port) {
    auto delay = std::ranges::find(delays_, delay_s, &Delay::s);
    if (delay == delays_.end()) delay = delays_.insert(delay, {.s = delay_s, .events = {}});
    delay->events.emplace(now_s + delay_s, kind, port);
  }
  std::optional<Timed> next() {
    Delay* first = nullptr;
    for (Delay& delay : delays_)
      if (!delay.events.empty() &&
          (first == nullptr || delay.events.front() < first->events.front()))
        first = &delay;
    if (first == nullptr) return {};
    const Timed event = first->events.front();
    first->events.pop();
    return event;
  }

 private:
  struct Delay {
    double s = 0;
    std::queue<Timed> events;
  };
  std::vector<Delay> delays_;
};

class Model {
 public:
  Model(const Bcube& bcube, std::vector<Slice> slices, const Options& options)
      : bcube_(bcube),
        slices_(std::move(slices)),
        plain_(options.plain),
        ring_(options.ring),
        n_(bcube.switch_ports()),
        k_(bcube.levels()),
        chunk_elems_(options.chunk_bytes / sizeof(float)),
        frame_s_(options.frame_bytes * 8 / (options.gbps * 1e9)),
        delay_s_(options.delay_s),
        of_thread_(k_),
        out_(std::size_t{bcube.servers()} * k_),
        in_(out_.size()) {
    for (std::uint32_t slice = 0; slice < slices_.size(); ++slice)
      of_thread_[slices_[slice].thread].push_back(slice);
    std::size_t groups = bcube.switches_per_level();
    for (std::uint32_t stage = 0; stage < k_; ++stage, groups /= n_) {
      const bool turns = stage + 1 == k_;
      stages_.push_back(
          {.groups = groups,
           .to_sum = std::vector<std::uint16_t>(plain_ ? 0 : slices_.size() * groups,
                                                static_cast<std::uint16_t>(turns ? n_ : n_ - 1)),
           .to_have = std::vector<std::uint16_t>(slices_.size() * groups,
                                                 static_cast<std::uint16_t>(plain_ ? n_ : 2))});
    }
  }

  double run() {
    for (std::uint32_t port = 0; port < out_.size(); ++port) send_next(port);
    while (const std::optional<Timed> event = events_.next()) {
      const auto [at_s, kind, port] = *event;
      now_s_ = at_s;
      switch (kind) {
        case Event::kSent:
          out_[port].busy = false;
          send_next(port);
          break;
        case Event::kArrives:
          in_[port].waiting.push(in_[port].coming.front());
          in_[port].coming.pop();
          receive_next(port);
          break;
        case Event::kReceived: {
          in_[port].busy = false;
          const Item item = in_[port].current;
          receive_next(port);
          received(item, port / k_);
          break;
        }
      }
    }
    CHECK(finished_ == slices_.size() * bcube_.servers());
    return now_s_;
  }

 private:
  struct Item {
    std::uint32_t slice = 0;
    std::uint16_t position = 0;
    std::uint16_t to = 0;  // the digit that this copy is for, of several
    // What leaves later: what is later in the gradient, then what is farther from its end.
    bool operator<(const Item& other) const noexcept {
      return std::tuple(other.slice, position, other.to) < std::tuple(slice, other.position, to);
    }
  };
  struct Arrival {
    bool down = false;
    double at_s = 0;
    Item item;
    bool operator<(const Arrival& other) const noexcept {  // who is sent later
      return std::pair(down, at_s) > std::pair(other.down, other.at_s);
    }
  };
  struct OutPort {
    std::priority_queue<Item> ready;
    std::uint32_t next = 0;  // of the slices that begin here
    bool busy = false;
  };
  struct InPort {
    std::queue<Arrival> coming;  // all take as long
    std::priority_queue<Arrival> waiting;
    Item current;
    bool busy = false;
  };
  // A slice's sums in a stage, one for each group of n servers, and what they wait for.
  struct Stage {
    std::size_t groups = 0;
    std::vector<std::uint16_t> to_sum;   // parts, at the switch
    std::vector<std::uint16_t> to_have;  // at the next half-way owner: parts or their sum, its own
  };

  double duration_s(const Item& item) const noexcept {
    return frame_s_ * static_cast<double>(slices_[item.slice].elem_count) /
           static_cast<double>(chunk_elems_);
  }
  std::uint32_t thread_of(std::uint32_t slice) const noexcept { return slices_[slice].thread; }
  std::uint32_t owner_of(std::uint32_t slice) const noexcept { return slices_[slice].owner; }
  std::uint32_t stage_of(std::uint32_t position) const noexcept {
    return position < k_ ? position : 2 * k_ - 1 - position;
  }
  std::uint32_t level_of(const Item& item) const noexcept {
    if (ring_) return 0;
    return bcube_.level_of(thread_of(item.slice), stage_of(item.position));
  }
  std::uint32_t peer(std::uint32_t server, std::uint32_t level,
                     std::uint32_t digit) const noexcept {
    return bcube_.server_at(level, bcube_.switch_of(server, level), digit);
  }
  bool owns_next(const Item& item, std::uint32_t server) const noexcept {
    const std::uint32_t level = level_of(item);
    return bcube_.digit(server, level) == bcube_.digit(owner_of(item.slice), level);
  }
  // The switch of the last stage up sends the sum down as well.
  bool turns_around(const Item& item) const noexcept { return !plain_ && item.position + 1u == k_; }
  bool begins_at(const Item& item, std::uint32_t server) const noexcept {
    if (ring_) return server == behind(owner_of(item.slice));
    return turns_around(item) || !owns_next(item, server);
  }
  std::uint32_t behind(std::uint32_t server) const noexcept { return (server + 1) % n_; }
  // Which group this is of its slice: they differ in the digits of the stages to come.
  std::size_t place_of(const Item& item, std::uint32_t server) const noexcept {
    std::size_t group = 0;
    for (std::uint32_t stage = item.position + 1; stage < k_; ++stage)
      group = group * n_ + bcube_.digit(server, bcube_.level_of(thread_of(item.slice), stage));
    return item.slice * stages_[item.position].groups + group;
  }

  // ---- ports ----

  void queue(const Item& item, std::uint32_t server) {
    const std::uint32_t port = server * k_ + level_of(item);
    out_[port].ready.push(item);
    send_next(port);
  }

  void send_next(std::uint32_t index) {
    OutPort& port = out_[index];
    const std::uint32_t server = index / k_;
    if (port.busy) return;
    // Thread e begins at level e, with its slices in order; they compete with what came later.
    const std::vector<std::uint32_t>& begin = of_thread_[index % k_];
    Item item;
    for (; port.next < begin.size(); ++port.next) {
      item.slice = begin[port.next];
      if (begins_at(item, server)) break;
    }
    if (port.next < begin.size() && (port.ready.empty() || port.ready.top() < item)) {
      ++port.next;
    } else if (!port.ready.empty()) {
      item = port.ready.top();
      port.ready.pop();
    } else {
      return;
    }
    port.busy = true;
    events_.put_off(now_s_, duration_s(item), Event::kSent, index);
    leave(item, server);
  }

  // Its first chunk is at the next port after a chunk's time and the cables'.
  void leave(const Item& item, std::uint32_t server) {
    if (ring_) return arrive(item, behind(server), 0);
    const std::uint32_t level = level_of(item);
    const std::uint32_t own = bcube_.digit(server, level);
    if (item.position >= k_) {
      if (plain_) return arrive(item, peer(server, level, item.to), level);
      for (std::uint32_t to = 0; to < n_; ++to)
        if (to != own) arrive(item, peer(server, level, to), level);
      return;
    }
    const std::uint32_t owner = peer(server, level, bcube_.digit(owner_of(item.slice), level));
    if (plain_) return arrive(item, owner, level);
    std::uint16_t& parts = stages_[item.position].to_sum[place_of(item, server)];
    CHECK(parts != 0);
    if (--parts != 0) return;
    if (!turns_around(item)) return arrive(item, owner, level);
    for (std::uint32_t to = 0; to < n_; ++to) arrive(item, peer(server, level, to), level);
  }

  void arrive(const Item& item, std::uint32_t server, std::uint32_t level) {
    const std::uint32_t port = server * k_ + level;
    in_[port].coming.push({!plain_ && item.position >= k_, now_s_ + frame_s_ + delay_s_, item});
    events_.put_off(now_s_, frame_s_ + delay_s_, Event::kArrives, port);
  }

  void receive_next(std::uint32_t index) {
    InPort& port = in_[index];
    if (port.busy || port.waiting.empty()) return;
    port.current = port.waiting.top().item;
    port.waiting.pop();
    port.busy = true;
    events_.put_off(now_s_, duration_s(port.current), Event::kReceived, index);
  }

  // ---- a slice's way ----

  void received(const Item& item, std::uint32_t server) {
    if (ring_) return pass_on(item, server);
    if (item.position < k_ && !turns_around(item)) return have_part(item, server);
    have_average(item, server);
  }

  void pass_on(Item item, std::uint32_t server) {
    if (item.position + 2u >= n_) ++finished_;  // whole: at its owner, then behind it
    if (++item.position < 2 * (n_ - 1)) queue(item, server);
  }

  void have_part(const Item& item, std::uint32_t server) {
    std::uint16_t& left = stages_[item.position].to_have[place_of(item, server)];
    CHECK(left != 0);
    // Its own part of the first stage was there at once.
    if (item.position == 0 && left == (plain_ ? n_ : 2)) --left;
    if (--left != 0) return;
    Item next = item;
    ++next.position;
    if (next.position == k_) return have_average(item, server);
    if (!turns_around(next) && owns_next(next, server)) return have_part(next, server);
    queue(next, server);
  }

  // Whoever has it sends it to the servers of each stage before the one that brought it.
  void have_average(const Item& item, std::uint32_t server) {
    ++finished_;
    const std::uint32_t stages =
        item.position < k_ ? (plain_ ? k_ : k_ - 1) : stage_of(item.position);
    for (std::uint32_t stage = stages; stage-- != 0;) {
      Item copy{.slice = item.slice, .position = static_cast<std::uint16_t>(2 * k_ - 1 - stage)};
      if (!plain_) {
        queue(copy, server);
        continue;
      }
      const std::uint32_t own = bcube_.digit(server, level_of(copy));
      for (std::uint32_t to = 0; to < n_; ++to) {
        copy.to = static_cast<std::uint16_t>(to);
        if (to != own) queue(copy, server);
      }
    }
  }

  const Bcube& bcube_;
  const std::vector<Slice> slices_;
  const bool plain_, ring_;
  const std::uint32_t n_, k_;
  const std::uint64_t chunk_elems_;
  const double frame_s_, delay_s_;
  std::vector<std::vector<std::uint32_t>> of_thread_;
  std::vector<OutPort> out_;
  std::vector<InPort> in_;
  std::vector<Stage> stages_;
  Events events_;
  std::uint64_t finished_ = 0;  // slices, at each server
  double now_s_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One step of a BCube job in virtual time, a slice at a time.");
  std::uint32_t ports = 0, levels = 0;
  std::vector<std::uint64_t> elem_counts;
  Options options;
  app.add_option("--ports", ports, "of a switch")->required();
  app.add_option("--levels", levels, "and ports of a server")->required();
  app.add_option("--elems", elem_counts, "of each tensor, most urgent first")->required();
  app.add_option("--frame-bytes", options.frame_bytes, "a chunk's, on the cable")->required();
  app.add_option("--chunk-bytes", options.chunk_bytes);
  app.add_option("--gbps", options.gbps, "of a port, each way");
  app.add_flag("--plain", options.plain, "switches only forward");
  app.add_flag("--ring", options.ring, "of the servers, instead of a BCube: --plain, one level");
  CLI11_PARSE(app, argc, argv);
  std::vector<sluice::client::TensorSpec> tensors;
  for (const std::uint64_t count : elem_counts)
    tensors.push_back({.name = "", .elem_count = count});
  if (options.ring && (levels != 1 || !options.plain)) {
    std::fprintf(stderr, "bench_bml_slices: a ring is --plain, and its --levels 1\n");
    return 1;
  }
  const auto bcube = Bcube::create(ports, levels);
  const auto layout = sluice::client::Layout::create(std::move(tensors), options.chunk_bytes);
  if (!bcube.ok() || !layout.ok()) {
    const sluice::Status why = bcube.ok() ? layout.status() : bcube.status();
    std::fprintf(stderr, "bench_bml_slices: %s\n", why.message().c_str());
    return 1;
  }
  Model model(bcube.value(), sluice::client::cut(bcube.value(), layout.value()), options);
  std::printf("{\"step_s\": %.9f}\n", model.run());
  return 0;
}
