#include "bench/papers/prophet/replay.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <utility>

#include "aggregator/base/check.h"
#include "tests/sim/random.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kNsBits = 8'000'000'000;  // a byte's bits times a second's nanoseconds

enum class What : std::uint8_t {
  kReady,        // worker: the next gradients of its backward pass are there
  kLinkFree,     // worker: its uplink can take a packet
  kFeedback,     // worker: one packet fewer is in flight
  kContributed,  // a worker's packet of `chunk` is at the aggregator
  kDownFree,     // the downlinks, which all carry the same, can take a result
  kLanded,       // the sum of `chunk` is at all workers
  kForward,      // worker: it has gone through the layer of `chunk`, here a tensor
};

struct Happening {
  TimeNs at = 0;
  std::uint64_t sequence = 0;
  What what{};
  std::uint16_t worker = 0;
  std::uint32_t chunk = 0;
  bool operator<(const Happening& other) const {  // the earliest on top
    return at != other.at ? at > other.at : sequence > other.sequence;
  }
};

struct Worker {
  explicit Worker(const client::ScheduleOptions& schedule, const client::ScheduleSetup& setup)
      : scheduler(schedule, setup) {}

  client::Scheduler scheduler;
  std::uint32_t step = 0;  // whose gradients it computes, or whose averages it goes forward with
  TimeNs backward_at = 0;
  std::size_t ready_count = 0;  // gradients of the step that were pushed
  std::size_t forward = 0;      // the tensor that its forward pass has come to
  bool computing = false;       // inside that tensor's layer
  bool sending = false;
  std::uint32_t sent = 0;       // packets
  std::uint32_t arrived = 0;    // and known to be
  DurationNs link_busy_ns = 0;  // in the iteration under way
  DurationNs compute_ns = 0;
};

class Replay {
 public:
  Replay(const std::vector<ReplayTensor>& tensors, const ReplayOptions& options)
      : tensors_(tensors),
        options_(options),
        bits_per_second_(options.bits_per_second),
        landed_step_(tensors.size()) {
    for (const ReplayTensor& tensor : tensors_) {
      CHECK(tensor.bytes != 0);
      first_chunk_.push_back(static_cast<std::uint32_t>(tensor_of_.size()));
      const std::uint64_t count = (tensor.bytes + options_.chunk_bytes - 1) / options_.chunk_bytes;
      tensor_of_.insert(tensor_of_.end(), count,
                        static_cast<std::uint32_t>(first_chunk_.size() - 1));
      add_pieces(count);
    }
    first_of_piece_.push_back(static_cast<std::uint32_t>(tensor_of_.size()));
    in_piece_.resize(first_of_piece_.size());
    first_chunk_.push_back(static_cast<std::uint32_t>(tensor_of_.size()));
    contributions_.resize(tensor_of_.size());
    chunks_left_.resize(tensors_.size());
    for (std::uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
      chunks_left_[tensor] = chunk_count(tensor);
      order_.push_back(tensor);
    }
    // Backward order: the last layer first, and of equals too.
    std::reverse(order_.begin(), order_.end());
    std::stable_sort(order_.begin(), order_.end(), [&](std::uint32_t left, std::uint32_t right) {
      return tensors_[left].ready_ns < tensors_[right].ready_ns;
    });
    for (std::uint16_t i = 0; i < options_.workers; ++i)
      workers_.emplace_back(
          options_.schedule,
          client::ScheduleSetup{.shard_count = 1,
                                .chunk_count = static_cast<std::uint32_t>(tensor_of_.size()),
                                .chunk_bytes = options_.chunk_bytes,
                                .first_chunks = first_chunk_});
  }

  ReplayResult run() {
    for (std::uint16_t i = 0; i < options_.workers; ++i) begin_backward(i);
    while (result_.iteration_ns.size() < options_.iterations) {
      CHECK(!happenings_.empty());  // else the scheduler holds something back for ever
      const Happening happening = happenings_.top();
      happenings_.pop();
      now_ = happening.at;
      handle(happening);
    }
    return std::move(result_);
  }

 private:
  // Of a tensor of `count` chunks.
  void add_pieces(std::uint64_t count) {
    const std::uint64_t chunks =
        std::max<std::uint64_t>(1, options_.store_bytes / options_.chunk_bytes);
    const std::size_t first = piece_of_.size();
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i % chunks == 0) first_of_piece_.push_back(static_cast<std::uint32_t>(first + i));
      piece_of_.push_back(static_cast<std::uint32_t>(first_of_piece_.size() - 1));
    }
  }
  Priority priority_on_wire(std::uint32_t tensor) const {
    return options_.equal_priorities ? Priority{0} : priority_of(tensor, tensors_.size());
  }
  std::uint32_t chunk_count(std::uint32_t tensor) const {
    return first_chunk_[tensor + 1] - first_chunk_[tensor];
  }
  DurationNs wire_ns(std::uint32_t chunk) const {
    const std::uint32_t tensor = tensor_of_[chunk];
    const std::uint64_t offset = (chunk - first_chunk_[tensor]) * options_.chunk_bytes;
    const std::uint64_t bytes =
        std::min<std::uint64_t>(options_.chunk_bytes, tensors_[tensor].bytes - offset);
    return static_cast<DurationNs>(bytes * kNsBits / bits_per_second_);
  }
  // The same for every policy: a function of seed, worker and step.
  DurationNs jittered(DurationNs ns, std::uint16_t worker) const {
    if (options_.jitter_permille == 0) return ns;
    const std::uint64_t drawn = sim::mix(options_.seed, worker, workers_[worker].step);
    const auto span = static_cast<DurationNs>(options_.jitter_permille);
    return ns * (1000 - span + static_cast<DurationNs>(drawn % (2 * span + 1))) / 1000;
  }
  void later(TimeNs at, What what, std::uint16_t worker, std::uint32_t chunk = 0) {
    happenings_.push({at, next_sequence_++, what, worker, chunk});
  }

  void handle(const Happening& happening) {
    Worker& worker = workers_[happening.worker];
    switch (happening.what) {
      case What::kReady: return push_ready(happening.worker);
      case What::kLinkFree: worker.sending = false; return send(happening.worker);
      case What::kFeedback: ++worker.arrived; return send(happening.worker);
      case What::kContributed: return contribute(happening.chunk);
      case What::kDownFree: down_busy_ = false; return send_down();
      case What::kLanded: return land(happening.chunk);
      case What::kForward:
        worker.computing = false;
        if (++worker.forward == tensors_.size()) return begin_backward(happening.worker);
        return go_forward(happening.worker);
    }
  }

  void begin_backward(std::uint16_t index) {
    Worker& worker = workers_[index];
    if (index == 0 && worker.step != 0) end_iteration(worker);
    ++worker.step;
    worker.compute_ns += jittered(tensors_[order_.back()].ready_ns, index);
    worker.backward_at = now_;
    worker.ready_count = worker.forward = 0;
    later(now_ + jittered(tensors_[order_[0]].ready_ns, index), What::kReady, index);
  }

  void end_iteration(Worker& worker) {
    result_.iteration_ns.push_back(now_ - worker.backward_at);
    result_.link_busy_ns.push_back(std::exchange(worker.link_busy_ns, 0));
    result_.compute_ns.push_back(std::exchange(worker.compute_ns, 0));
    if (result_.iteration_ns.size() == options_.change_after &&
        options_.changed_bits_per_second != 0)
      bits_per_second_ = options_.changed_bits_per_second;
  }

  void push_ready(std::uint16_t index) {
    Worker& worker = workers_[index];
    if (worker.ready_count == 0) worker.scheduler.begin_step(now_);
    const DurationNs ready_ns = tensors_[order_[worker.ready_count]].ready_ns;
    while (worker.ready_count < order_.size() &&
           tensors_[order_[worker.ready_count]].ready_ns == ready_ns) {
      const std::uint32_t tensor = order_[worker.ready_count++];
      const Priority priority = priority_on_wire(tensor);
      for (std::uint32_t chunk = first_chunk_[tensor]; chunk < first_chunk_[tensor + 1]; ++chunk)
        worker.scheduler.push(chunk, priority, now_);
    }
    if (worker.ready_count < order_.size())
      later(worker.backward_at + jittered(tensors_[order_[worker.ready_count]].ready_ns, index),
            What::kReady, index);
    send(index);
    go_forward(index);
  }

  void send(std::uint16_t index) {
    Worker& worker = workers_[index];
    if (worker.sending) return;
    client::Choice choice;
    if (!worker.scheduler.next({.open_shards = 1,
                                .in_flight_packets = worker.sent - worker.arrived,
                                .arrived_packets = worker.arrived,
                                .now = now_},
                               choice))
      return;
    worker.sending = true;
    ++worker.sent;
    const TimeNs sent = now_ + wire_ns(choice.chunk);
    worker.link_busy_ns += sent - now_;
    later(sent, What::kLinkFree, index);
    later(sent + options_.latency_ns / 2, What::kContributed, index, choice.chunk);
    later(sent + options_.latency_ns, What::kFeedback, index);
  }

  void contribute(std::uint32_t chunk) {
    if (++contributions_[chunk] < options_.workers) return;
    contributions_[chunk] = 0;
    const std::uint32_t piece = piece_of_[chunk];
    const std::uint32_t first = first_of_piece_[piece], end = first_of_piece_[piece + 1];
    if (++in_piece_[piece] < end - first) return;
    in_piece_[piece] = 0;
    const std::int64_t priority = priority_on_wire(tensor_of_[chunk]);
    for (std::uint32_t i = first; i < end; ++i) down_.push({-priority, next_sequence_++, i});
    send_down();
  }

  // The most urgent result first, as the switch does; cut through, so that an idle downlink adds
  // nothing to the latency.
  void send_down() {
    if (down_busy_ || down_.empty()) return;
    const std::uint32_t chunk = down_.top().chunk;
    down_.pop();
    down_busy_ = true;
    later(now_ + wire_ns(chunk), What::kDownFree, 0);
    later(now_ + options_.latency_ns - options_.latency_ns / 2, What::kLanded, 0, chunk);
  }

  void land(std::uint32_t chunk) {
    const std::uint32_t tensor = tensor_of_[chunk];
    if (--chunks_left_[tensor] != 0) return;
    chunks_left_[tensor] = chunk_count(tensor);
    ++landed_step_[tensor];
    if (++landed_count_ == tensors_.size()) {
      landed_count_ = 0;
      for (Worker& worker : workers_) worker.scheduler.clear();
    }
    for (std::uint16_t i = 0; i < options_.workers; ++i) go_forward(i);
  }

  // Begins with the next layer when backward is over, the last layer done and the average here.
  void go_forward(std::uint16_t index) {
    Worker& worker = workers_[index];
    while (!worker.computing && worker.ready_count == tensors_.size() &&
           landed_step_[worker.forward] == worker.step) {
      const DurationNs forward_ns = jittered(tensors_[worker.forward].forward_ns, index);
      if (forward_ns != 0) {
        worker.computing = true;
        worker.compute_ns += forward_ns;
        return later(now_ + forward_ns, What::kForward, index);
      }
      if (++worker.forward == tensors_.size()) return begin_backward(index);
    }
  }

  struct Result {
    std::int64_t urgency = 0;
    std::uint64_t sequence = 0;
    std::uint32_t chunk = 0;
    bool operator<(const Result& other) const {
      return urgency != other.urgency ? urgency < other.urgency : sequence > other.sequence;
    }
  };

  const std::vector<ReplayTensor>& tensors_;
  const ReplayOptions options_;
  std::uint64_t bits_per_second_;
  std::vector<std::uint32_t> order_;           // of the gradients
  std::vector<std::uint32_t> first_chunk_;     // per tensor, and the count of all
  std::vector<std::uint32_t> tensor_of_;       // per chunk
  std::vector<std::uint32_t> piece_of_;        // per chunk: which piece is stored with it
  std::vector<std::uint32_t> first_of_piece_;  // and the count of all chunks
  std::vector<std::uint32_t> in_piece_;        // summed of the step under way
  std::vector<std::uint16_t> contributions_;   // per chunk, to the step under way
  std::vector<std::uint32_t> chunks_left_;     // per tensor, to land in the step under way
  std::vector<std::uint32_t> landed_step_;     // per tensor
  std::size_t landed_count_ = 0;
  std::deque<Worker> workers_;  // never moved: a scheduler views its own memory
  std::priority_queue<Happening> happenings_;
  std::priority_queue<Result> down_;
  bool down_busy_ = false;
  std::uint64_t next_sequence_ = 0;
  TimeNs now_ = 0;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const std::vector<ReplayTensor>& tensors, const ReplayOptions& options) {
  return Replay(tensors, options).run();
}

}  // namespace sluice::bench
