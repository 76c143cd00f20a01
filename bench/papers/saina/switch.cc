// The appliance's part of the experiment as a shared library that Python loads: one production job
// on one production shard, in virtual time, fed and read through encoded packets. One part is not
// the product's: the blind clock, a k that only this bench knows, written over the published one.
//
// The C ABI at the end is private to this folder (switch.py is its only caller). One thread. Times
// are nanoseconds of the caller's virtual clock. A call that the shard refuses returns -1; the
// trainer treats it as a bug.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aggregator/appliance/shards.h"
#include "aggregator/core/fold.h"
#include "aggregator/wire/packet.h"

namespace sluice::agg {
namespace {

struct SwitchOptions {  // as switch.py declares it
  std::uint32_t workers;
  std::uint32_t elements;
  std::uint32_t kind;  // PolicyKind, or kClock
  std::uint32_t requeue;
  std::uint32_t k;
  std::uint32_t sign_threshold_permille;
  std::uint32_t count_threshold;
  std::uint32_t sign_stride;
  std::uint32_t round_steps;
  std::uint32_t planned_steps;
  std::uint32_t clock_steps;  // of kClock: k grows by one each so many steps
};

struct SwitchResult {  // as switch.py declares it
  std::uint32_t step;
  std::uint32_t k;
  std::uint64_t mask;
  std::uint32_t may_count;  // ranks that it could have had
};

constexpr std::uint32_t kClock = 100;
constexpr std::size_t kChunkElems = kMaxChunkBytes / sizeof(float);
constexpr std::uint16_t kJob = 5;
constexpr std::uint32_t kUnlimitedCredit = 1u << 30;
constexpr std::size_t kGradients = index_of(StreamId::kGradients);

PolicyOptions policy_options(const SwitchOptions& options) {
  const bool clock = options.kind == kClock;
  return {.kind = clock ? PolicyKind::kFixed : static_cast<PolicyKind>(options.kind),
          .late = options.requeue ? LateMode::kRequeue : LateMode::kDrop,
          .k = static_cast<std::uint16_t>(options.k),
          .sign_threshold_permille = static_cast<std::uint16_t>(options.sign_threshold_permille),
          .count_threshold = static_cast<std::uint16_t>(options.count_threshold),
          .sign_stride = static_cast<std::uint16_t>(options.sign_stride),
          .round_steps = options.round_steps,
          .planned_steps = options.planned_steps};
}

JobSpec job_spec(const SwitchOptions& options) {
  JobSpec spec{.id = JobId{kJob},
               .name = "saina",
               .world_size = static_cast<std::uint16_t>(options.workers),
               .chunk_bytes = static_cast<std::uint16_t>(kChunkElems * sizeof(float)),
               .policy = policy_options(options)};
  spec.chunk_counts[kGradients] =
      static_cast<std::uint32_t>((options.elements + kChunkElems - 1) / kChunkElems);
  spec.max_elems[kGradients] = kChunkElems;
  spec.windows[kGradients] = kAsyncWindow;
  return spec;
}

Cookie cookie_of(std::uint32_t rank) { return 0x5A1A00u + rank; }

class Switch {
 public:
  explicit Switch(const SwitchOptions& options)
      : options_(options),
        job_(job_spec(options)),
        numbers_(options.workers),
        sum_(options.elements) {
    for (std::uint32_t rank = 0; rank < options.workers; ++rank)
      job_.members[rank].cookie = cookie_of(rank);
    job_.members[0].reachable = true;  // one copy of each result is enough
    shards_.shard(0).handle_command({.kind = ShardCommand::Kind::kAddJob, .job = &job_}, 0);
    job_.start(0);
  }

  bool finished(std::uint32_t rank, Step base, TimeNs now) {
    const wire::Finished body{.flow = flow_of(rank), .step = base};
    return handle(wire::encode(packet_, sender(rank), body), now) == Verdict::kFinished;
  }

  // 1: this contribution completed the step; 0: it counted; -1: refused.
  int contribute(std::uint32_t rank, Step base, Step step, TimeNs now, const float* gradient) {
    if (!finished(rank, base, now)) return -1;
    bool complete = true;
    for (std::uint32_t chunk = 0; chunk * kChunkElems < options_.elements; ++chunk) {
      const std::size_t begin = chunk * kChunkElems;
      const std::size_t elem_count = std::min(kChunkElems, options_.elements - begin);
      const wire::Contribution body{.flow = flow_of(rank),
                                    .step = step,
                                    .chunk = chunk,
                                    .base_step = base,
                                    .weight = 1,
                                    .elem_count = static_cast<std::uint16_t>(elem_count),
                                    .dtype = Dtype::kFloat32};
      const auto* payload = reinterpret_cast<const std::uint8_t*>(gradient + begin);
      const Verdict verdict = handle(
          wire::encode(packet_, sender(rank), body, {}, {payload, elem_count * sizeof(float)}),
          now);
      if (verdict != Verdict::kFolded && verdict != Verdict::kCompleted) return -1;
      complete &= verdict == Verdict::kCompleted;
    }
    if (!complete) return 0;
    if (options_.kind == kClock) set_clock_k();
    return take_results(now) ? 1 : -1;
  }

  bool result(SwitchResult& out, float* mean_out) const {
    if (result_.step == 0) return false;
    out = result_;
    mean(mean_out, reinterpret_cast<const std::uint8_t*>(sum_.data()), sum_.size(),
         static_cast<float>(weight_));
    return true;
  }

  Step open_step() const { return job_.windows[kGradients].open_step.load(); }
  std::uint16_t k() const { return record_of(open_step()).k; }
  double phi() const {
    return job_.gauges.noise_scale_valid.load() ? job_.gauges.noise_scale.load() : -1;
  }

 private:
  wire::Sender sender(std::uint32_t rank) const {
    return {.job = kJob, .rank = static_cast<std::uint16_t>(rank), .cookie = cookie_of(rank)};
  }
  wire::FlowHeader flow_of(std::uint32_t rank) {
    return {.number = ++numbers_[rank], .credit = kUnlimitedCredit};
  }
  const StepRecord& record_of(Step step) const {
    return job_.windows[kGradients].records[step % job_.spec.windows[kGradients]];
  }

  Verdict handle(std::size_t packet_bytes, TimeNs now) {
    wire::Packet packet;
    const Verdict why = wire::parse({packet_.data(), packet_bytes}, packet);
    if (!ok(why)) return why;
    return shards_.shard(0).handle(packet, false, now);
  }

  // The next step is published and nobody has contributed to it: no shard has adopted its record.
  void set_clock_k() {
    const Step step = open_step();
    if (step <= kFullSteps) return;
    const std::uint32_t k = options_.k + (step - 1) / options_.clock_steps;
    StepRecord& record = job_.windows[kGradients].records[step % job_.spec.windows[kGradients]];
    record.k = static_cast<std::uint16_t>(std::min(k, options_.workers));
  }

  // The result packets of the step that is complete, as one worker gets them.
  bool take_results(TimeNs now) {
    std::size_t elem_count = 0;
    shards_.drain(now, [&](const Transmit&, std::span<const std::uint8_t> bytes) {
      wire::Packet packet;
      CHECK(ok(wire::parse(bytes, packet)));
      if (packet.type() != wire::PacketType::kResult) return;
      const auto& header = packet.body<wire::ResultHeader>();
      const auto* values = packet.payload().data();
      std::copy_n(values, packet.payload().size(),
                  reinterpret_cast<std::uint8_t*>(sum_.data() + header.chunk * kChunkElems));
      result_ = {.step = header.step,
                 .k = header.k,
                 .mask = packet.mask_word(0),
                 .may_count = header.may_count};
      weight_ = header.weight;
      elem_count += header.elem_count;
    });
    return elem_count == sum_.size();
  }

  const SwitchOptions options_;
  Job job_;
  Shards shards_{1};
  std::vector<std::uint32_t> numbers_;  // packets sent by each worker
  std::array<std::uint8_t, kMaxDatagramBytes> packet_{};
  std::vector<float> sum_;
  std::uint64_t weight_ = 0;
  SwitchResult result_{};
};

Switch& switch_of(void* self) { return *static_cast<Switch*>(self); }

}  // namespace

extern "C" {

void* saina_switch_new(const void* options) {
  return new Switch(*static_cast<const SwitchOptions*>(options));
}
void saina_switch_free(void* self) { delete static_cast<Switch*>(self); }

// The gradient of `rank`, computed on `base`, for the open step. 1: it completed the step.
int saina_switch_contribute(void* self, std::uint32_t rank, std::uint32_t base, std::uint32_t step,
                            std::int64_t now, const float* gradient) {
  return switch_of(self).contribute(rank, base, step, now, gradient);
}

// A gradient that is finished and will not be sent.
int saina_switch_finished(void* self, std::uint32_t rank, std::uint32_t base, std::int64_t now) {
  return switch_of(self).finished(rank, base, now) ? 0 : -1;
}

// The newest result: its step, k, members, and the mean of the gradients.
int saina_switch_result(void* self, void* out, float* mean) {
  return switch_of(self).result(*static_cast<SwitchResult*>(out), mean) ? 0 : -1;
}

std::uint32_t saina_switch_open_step(void* self) { return switch_of(self).open_step(); }
std::uint32_t saina_switch_k(void* self) { return switch_of(self).k(); }
// The gradient noise scale in batches; -1 while unknown or not asked for by the policy.
double saina_switch_phi(void* self) { return switch_of(self).phi(); }

}  // extern "C"
}  // namespace sluice::agg
