#include "tests/unit/restarts/box.h"

#include <array>
#include <bit>
#include <cstring>

#include "aggregator/base/block.h"
#include "aggregator/base/check.h"
#include "tests/unit/exhaustive/small_job.h"

namespace sluice::exhaustive {
namespace {

constexpr std::uint32_t kCredit = 1'000'000;
constexpr TimeNs kNow = kSecond;

agg::JobSpec spec_of(const RestartConfig& config) {
  agg::JobSpec spec = small_job_spec("restarts", config.worker_count, config.shard_count,
                                     config.chunk_count, kSyncWindow);
  spec.allow_nil = false;  // only what is handed over may lack data
  return spec;
}

}  // namespace

Sum own_part(std::uint16_t rank, Step step, std::size_t chunk) noexcept {
  return {.value = 1u << (4 * rank + 2 * (step - 1) + chunk),
          .weight = 1u << (2 * rank + step - 1)};
}

Sum whole(const RestartConfig& config, Step step, std::size_t chunk) noexcept {
  Sum sum;
  for (std::uint16_t rank = 0; rank < config.worker_count; ++rank) {
    sum.value += own_part(rank, step, chunk).value;
    sum.weight += own_part(rank, step, chunk).weight;
  }
  return sum;
}

RestartBox::RestartBox(const RestartConfig& config, Cookie cookie, const agg::Resumed& resumed)
    : config_(config),
      cookie_(cookie),
      job_(std::make_unique<agg::Job>(spec_of(config))),
      shards_(config.shard_count) {
  for (agg::Member& member : job_->members) {
    member.cookie = cookie;
    member.reachable = true;
  }
  cut_to_a_chunk_each(*job_);
  for (std::uint16_t id = 0; id < config.shard_count; ++id)
    shards_.shard(id).handle_command({.kind = agg::ShardCommand::Kind::kAddJob, .job = job_.get()},
                                     kNow);
  job_->start(kNow, resumed);
}

Verdict RestartBox::handle(std::uint16_t shard, std::span<const std::uint8_t> bytes) {
  wire::Packet packet;
  CHECK(ok(wire::parse(bytes, packet)));
  sent_.clear();
  answer_.reset();
  ++handled_;
  const Verdict verdict = shards_.shard(shard).handle(packet, false, kNow);
  drain(shard);
  return verdict;
}

Verdict RestartBox::contribute(std::uint16_t rank, Cookie cookie, Step step, std::size_t chunk,
                               Sum sum) {
  wire::Contribution body{.flow = {.number = 1, .credit = kCredit},
                          .step = step,
                          .chunk = index_of(chunk),
                          .base_step = step,
                          .weight = sum.weight,
                          .elem_count = 1};
  const auto value = static_cast<float>(sum.value);
  const std::uint64_t list = chunk_bit(index_of(chunk));
  std::span<const std::uint8_t> data{reinterpret_cast<const std::uint8_t*>(&value), sizeof value};
  if (sum.weight == 0) {
    data = {reinterpret_cast<const std::uint8_t*>(&list), sizeof list};
    body.flow.flags = wire::kFlagNil;
    body.elem_count = 0;
  }
  std::array<std::uint8_t, 128> bytes;
  const std::size_t size =
      wire::encode(bytes, {.job = 0, .rank = rank, .cookie = cookie}, body, {}, data);
  return handle(shard_of(chunk), {bytes.data(), size});
}

std::optional<RestartBox::Answer> RestartBox::probe(std::uint16_t rank, Step step,
                                                    std::size_t chunk) {
  const wire::Probe body{.flow = {.number = 1, .credit = kCredit},
                         .step = step,
                         .block = index_of(chunk) / kChunksPerBlock,
                         .want = chunk_bit(index_of(chunk))};
  std::array<std::uint8_t, 128> bytes;
  const std::size_t size = wire::encode(bytes, {.job = 0, .rank = rank, .cookie = cookie_}, body);
  handle(shard_of(chunk), {bytes.data(), size});
  if (answer_) {
    answer_->counted &= chunk_bit(index_of(chunk));
    answer_->complete &= chunk_bit(index_of(chunk));
  }
  return answer_;
}

void RestartBox::drain(std::uint16_t shard) {
  std::array<std::uint8_t, 512> out;
  agg::Transmit transmit{.buffer = out};
  while (shards_.shard(shard).poll_transmit({&transmit, 1}, kNow) != 0) {
    wire::Packet packet;
    CHECK(ok(wire::parse(transmit.datagram(), packet)));
    if (packet.type() == wire::PacketType::kAnswer) {
      const auto& body = packet.body<wire::Answer>();
      answer_ = {.status = body.status, .counted = body.counted, .complete = body.complete};
      continue;
    }
    CHECK(packet.type() == wire::PacketType::kResult);
    const auto& body = packet.body<wire::ResultHeader>();
    SentResult result{.rank = transmit.rank.value,
                      .step = body.step,
                      .mask = packet.mask_word(0),
                      .k = body.k,
                      .sum = {.weight = static_cast<std::uint32_t>(body.weight)}};
    if ((body.feedback.flags & wire::kFlagNil) == 0) {
      float value = 0;
      CHECK(packet.payload().size() == sizeof value);
      std::memcpy(&value, packet.payload().data(), sizeof value);
      result.sum.value = static_cast<std::uint32_t>(value);
    }
    for (std::uint64_t chunks = packet.chunks(); chunks != 0; chunks &= chunks - 1) {
      const auto in_block = static_cast<std::size_t>(std::countr_zero(chunks));
      result.chunk = config_.shard_count == 1 ? in_block : shard;
      sent_.push_back(result);
    }
  }
}

SlotContent RestartBox::content(Step step, std::size_t chunk) const {
  const agg::GradientSlice& slice = job_->slices[shard_of(chunk)].gradients;
  const std::uint32_t at = job_->slot_index(StreamId::kGradients, slice, step, index_of(chunk));
  if (slice.slots[at].step != step) return {};
  const agg::Sum& sum = slice.sums[at];
  const float value = sum.has_data() ? slice.data.get()[at * slice.stride_floats] : 0;
  return {.mask = slice.masks[at],
          .sum = {.value = static_cast<std::uint32_t>(value),
                  .weight = static_cast<std::uint32_t>(sum.weight)},
          .complete = slice.slots[at].complete_for(step)};
}

std::string RestartBox::check_books() const {
  std::uint64_t counted = 0;
  for (std::size_t verdict = 0; verdict < kVerdictCount; ++verdict)
    counted += shards_.verdicts(static_cast<Verdict>(verdict));
  if (counted != handled_) return "I7: a packet without a verdict";
  std::uint64_t in_use = 0;
  std::uint64_t open = 0;
  for (const agg::JobSlice& slice : job_->slices) in_use += slice.slots_in_use.read();
  for (Step step = 1; step <= config_.last_step + 1; ++step)
    for (std::size_t chunk = 0; chunk < config_.chunk_count; ++chunk) {
      const SlotContent held = content(step, chunk);
      open += held.mask != 0 && !held.complete;
    }
  return in_use == open ? "" : "I5: slots in use are others than those that are open";
}

void RestartBox::append_to(std::vector<std::uint32_t>& key, std::size_t chunk) const {
  for (Step step = 1; step <= config_.last_step; ++step) {
    const SlotContent held = content(step, chunk);
    key.push_back(static_cast<std::uint32_t>(held.mask) << 1 | std::uint32_t{held.complete});
    key.push_back(held.sum.value >> chunk);  // as if it were the first
    key.push_back(held.sum.weight);
  }
  key.push_back(job_->slices[shard_of(chunk)].gradients.record.step);
}

}  // namespace sluice::exhaustive
