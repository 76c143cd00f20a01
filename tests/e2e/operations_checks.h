// What a rank of a job of operations calls and checks, over any transport. All ranks run the same
// checks at the same time. Values are small integers, so sums are exact in every format.
#pragma once

#include <sluice/sluice.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice::e2e {

inline constexpr std::int32_t kWaitMs = 60'000;

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what + "; last error: " + sluice_last_error(nullptr));
}
inline void expect_ok(sluice_status status, const std::string& what) {
  expect(status == SLUICE_OK, what + " is " + sluice_status_name(status));
}
inline void expect_text(const std::string& part) {
  expect(std::string(sluice_last_error(nullptr)).find(part) != std::string::npos,
         "no \"" + part + "\"");
}

// Of integers from 0 to 256, which both formats hold exactly.
inline std::uint16_t narrow(float value, std::int32_t dtype) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == SLUICE_BFLOAT16) return static_cast<std::uint16_t>(bits >> 16);
  if (value == 0) return 0;
  const std::uint32_t exponent = (bits >> 23 & 0xFF) - 127 + 15;
  return static_cast<std::uint16_t>(exponent << 10 | (bits >> 13 & 0x3FF));
}

// Elements of a type, from small integers.
inline std::vector<std::uint8_t> elements(const std::vector<float>& values, std::int32_t dtype) {
  std::vector<std::uint8_t> bytes;
  for (const float value : values) {
    const auto wide = std::bit_cast<std::array<std::uint8_t, 4>>(value);
    const auto half = std::bit_cast<std::array<std::uint8_t, 2>>(narrow(value, dtype));
    if (dtype == SLUICE_FLOAT32)
      bytes.insert(bytes.end(), wide.begin(), wide.end());
    else
      bytes.insert(bytes.end(), half.begin(), half.end());
  }
  return bytes;
}

inline sluice_operation operation_of(std::int32_t dtype = SLUICE_FLOAT32) {
  sluice_operation operation;
  operation.struct_size = sizeof operation;
  expect_ok(sluice_operation_init(&operation), "operation_init");
  operation.dtype = dtype;
  return operation;
}

class OperationChecks {
 public:
  OperationChecks(sluice_job* job, std::uint32_t rank, std::uint32_t world)
      : job_(job), rank_(rank), world_(world) {}

  sluice_group* group(const std::string& name, const std::vector<std::uint32_t>& ranks) {
    sluice_group* made = nullptr;
    expect_ok(sluice_make_group(job_, name.c_str(), ranks.data(), ranks.size(), &made),
              "make_group " + name);
    return made;
  }
  std::vector<std::uint32_t> everybody() const {
    std::vector<std::uint32_t> ranks(world_);
    std::iota(ranks.begin(), ranks.end(), 0u);
    return ranks;
  }
  void wait(sluice_group* group, std::uint64_t ticket, const std::string& what) {
    std::int32_t done = 0;
    expect_ok(sluice_wait(group, ticket, kWaitMs, &done), what);
    expect(done != 0, what + " is not done");
  }

  // Of rank r, element i.
  static float value(std::uint32_t rank, std::size_t i) {
    return static_cast<float>((i + 3 * rank) % 7);
  }
  std::vector<float> values(std::uint32_t rank, std::size_t count) const {
    std::vector<float> found(count);
    for (std::size_t i = 0; i < count; ++i) found[i] = value(rank, i);
    return found;
  }
  std::vector<float> sums(const std::vector<std::uint32_t>& ranks, std::size_t count) const {
    std::vector<float> found(count);
    for (std::size_t i = 0; i < count; ++i)
      for (const std::uint32_t rank : ranks) found[i] += value(rank, i);
    return found;
  }

  // Several at once, in place and not.
  void all_reduces(sluice_group* group, const std::vector<std::size_t>& counts) {
    struct Call {
      std::vector<std::uint8_t> input, output, expected;
      std::uint64_t ticket = 0;
    };
    std::vector<Call> calls;
    calls.reserve(counts.size() * 3);
    for (const std::size_t count : counts)
      for (const std::int32_t dtype : {SLUICE_FLOAT32, SLUICE_FLOAT16, SLUICE_BFLOAT16}) {
        Call& call = calls.emplace_back();
        call.input = elements(values(rank_, count), dtype);
        call.output.resize(call.input.size());
        call.expected = elements(sums(everybody(), count), dtype);
        const bool in_place = count % 2 != 0;
        if (in_place) call.output = call.input;
        const sluice_operation operation = operation_of(dtype);
        expect_ok(sluice_all_reduce(group, in_place ? call.output.data() : call.input.data(),
                                    call.output.data(), count, &operation, &call.ticket),
                  "all_reduce");
      }
    for (Call& call : calls) {
      wait(group, call.ticket, "all_reduce " + std::to_string(call.ticket));
      expect(call.output == call.expected, "the sum of all_reduce " + std::to_string(call.ticket));
    }
  }

  void mean_and_wire(sluice_group* group) {
    std::vector<float> data(5'000, static_cast<float>(world_ * (rank_ + 1)));
    const float sum = static_cast<float>(world_ * world_ * (world_ + 1) / 2);
    sluice_operation operation = operation_of();
    operation.reduction = SLUICE_MEAN;
    std::uint64_t ticket = 0;
    expect_ok(sluice_all_reduce(group, data.data(), data.data(), data.size(), &operation, &ticket),
              "mean");
    wait(group, ticket, "mean");
    expect(std::ranges::all_of(data, [&](float one) { return one == sum / float(world_); }),
           "the mean");
    data = values(rank_, 5'000);
    operation = operation_of();
    operation.wire = SLUICE_WIRE_FLOAT16;
    expect_ok(sluice_all_reduce(group, data.data(), data.data(), data.size(), &operation, &ticket),
              "float16 on the wire");
    wait(group, ticket, "float16 on the wire");
    expect(data == sums(everybody(), 5'000), "the sum of float16 on the wire");
  }

  void other_kinds(sluice_group* group, std::size_t count) {
    const std::string size = " of " + std::to_string(count);
    std::uint64_t ticket = 0;
    std::vector<float> whole = values(1, count);
    if (rank_ != 1) std::ranges::fill(whole, -1.0f);
    expect_ok(
        sluice_group_broadcast(group, 1, whole.data(), count * sizeof(float), nullptr, &ticket),
        "broadcast");
    wait(group, ticket, "broadcast" + size);
    expect(whole == values(1, count), "what rank 1 broadcasts" + size);

    std::vector<float> gathered(count * world_, -1.0f);
    const std::vector<float> own = values(rank_, count);
    expect_ok(sluice_all_gather(group, own.data(), gathered.data(), count * sizeof(float), nullptr,
                                &ticket),
              "all_gather");
    wait(group, ticket, "all_gather" + size);
    for (std::uint32_t rank = 0; rank < world_; ++rank)
      expect(std::equal(gathered.begin() + std::ptrdiff_t(rank * count),
                        gathered.begin() + std::ptrdiff_t((rank + 1) * count),
                        values(rank, count).begin()),
             "the part of rank " + std::to_string(rank) + size);

    std::vector<float> parts = values(rank_, count * world_);
    std::vector<float> part(count, -1.0f);
    expect_ok(sluice_reduce_scatter(group, parts.data(), part.data(), count, nullptr, &ticket),
              "reduce_scatter");
    wait(group, ticket, "reduce_scatter" + size);
    const std::vector<float> all = sums(everybody(), count * world_);
    expect(std::equal(part.begin(), part.end(), all.begin() + std::ptrdiff_t(rank_ * count)),
           "the part of reduce_scatter" + size);

    std::vector<float> reduced(count, -1.0f);
    expect_ok(
        sluice_reduce(group, world_ - 1, own.data(), rank_ == world_ - 1 ? reduced.data() : nullptr,
                      count, nullptr, &ticket),
        "reduce");
    wait(group, ticket, "reduce" + size);
    if (rank_ == world_ - 1)
      expect(reduced == sums(everybody(), count), "the sum of reduce" + size);

    expect_ok(sluice_group_barrier(group, nullptr, &ticket), "barrier");
    wait(group, ticket, "barrier");
  }

  // Overlapping groups, in another order on each rank, all at once.
  void groups_in_any_order() {
    struct Use {
      sluice_group* group = nullptr;
      std::vector<std::uint32_t> ranks;
      std::vector<float> data;
      std::uint64_t ticket = 0;
    };
    std::vector<Use> uses;
    for (std::uint32_t first = 0; first < world_; ++first) {
      Use use{.ranks = {first, (first + 1) % world_}, .data = values(rank_, 9'000)};
      std::ranges::sort(use.ranks);
      use.ranks.erase(std::unique(use.ranks.begin(), use.ranks.end()), use.ranks.end());
      if (std::ranges::find(use.ranks, rank_) == use.ranks.end()) continue;
      std::string name = "pair";
      for (const std::uint32_t rank : use.ranks) name += "-" + std::to_string(rank);
      use.group = group(name, use.ranks);
      uses.push_back(std::move(use));
    }
    if (rank_ % 2 != 0) std::ranges::reverse(uses);
    for (Use& use : uses)
      expect_ok(sluice_all_reduce(use.group, use.data.data(), use.data.data(), use.data.size(),
                                  nullptr, &use.ticket),
                "all_reduce of a pair");
    for (Use& use : uses) {
      wait(use.group, use.ticket, "all_reduce of a pair");
      expect(use.data == sums(use.ranks, 9'000), "the sum of a pair");
    }
  }

  // The last rank calls only after the others have given up.
  void timeout_names_who_is_missing() {
    sluice_group* const late = group("late", everybody());
    sluice_group* const all = group("all", everybody());
    const bool is_late = rank_ == world_ - 1;
    std::vector<float> data = values(rank_, 3'000);
    std::uint64_t ticket = 0, met = 0;
    const auto call = [&] {
      sluice_operation operation = operation_of();
      if (!is_late) operation.timeout_ms = 300;
      expect_ok(sluice_all_reduce(late, data.data(), data.data(), data.size(), &operation, &ticket),
                "late all_reduce");
      std::int32_t done = 0;
      const sluice_status status = sluice_wait(late, ticket, kWaitMs, &done);
      expect(status == SLUICE_TIMED_OUT && done != 0, "the late all_reduce has not timed out");
      expect_text("operation 0");
      if (!is_late) expect_text("rank " + std::to_string(world_ - 1) + " has not called it");
    };
    if (!is_late) call();
    expect_ok(sluice_group_barrier(all, nullptr, &met), "barrier");
    wait(all, met, "barrier");
    if (is_late) call();
    data = values(rank_, 3'000);
    expect_ok(sluice_all_reduce(late, data.data(), data.data(), data.size(), nullptr, &ticket),
              "the next all_reduce");
    wait(late, ticket, "the next all_reduce");
    expect(data == sums(everybody(), 3'000), "the sum of the next all_reduce");
  }

  void disagreement_is_named() {
    sluice_group* const group = this->group("differs", everybody());
    std::vector<float> data(5'000);
    std::uint64_t ticket = 0;
    const std::uint64_t count = rank_ == 1 ? 4'096 : 4'097;
    expect_ok(sluice_all_reduce(group, data.data(), data.data(), count, nullptr, &ticket),
              "an all_reduce that differs");
    std::int32_t done = 0;
    const sluice_status status = sluice_wait(group, ticket, kWaitMs, &done);
    expect(status == SLUICE_INVALID_ARGUMENT && done != 0, "the difference is not noticed");
    for (const char* const part : {"group 'differs'", "rank 1", "4096 float32", "4097 float32"})
      expect_text(part);
  }

  // Ends the job: rank 0 aborts it once every rank has called a reduce to rank 0, so once nobody
  // waits for an earlier check. The others may hear of it in any of their calls, the reduce too.
  void abort_is_heard(sluice_group* checks) {
    std::vector<float> data(100);
    std::uint64_t ticket = 0;
    sluice_status status = sluice_reduce(checks, 0, data.data(), rank_ == 0 ? data.data() : nullptr,
                                         data.size(), nullptr, &ticket);
    if (status == SLUICE_OK) status = sluice_wait(checks, ticket, kWaitMs, nullptr);
    if (rank_ == 0) {
      expect_ok(status, "the reduce before the abort");
      return expect_ok(sluice_abort_with(job_, "the loss is NaN"), "abort_with");
    }
    const std::vector<std::uint32_t> ranks = everybody();
    sluice_group* group = nullptr;
    if (status == SLUICE_OK)
      status = sluice_make_group(job_, "aborted", ranks.data(), ranks.size(), &group);
    if (status == SLUICE_OK)
      status = sluice_all_reduce(group, data.data(), data.data(), data.size(), nullptr, &ticket);
    if (status == SLUICE_OK) status = sluice_wait(group, ticket, kWaitMs, nullptr);
    expect(status == SLUICE_PEER_LOST, "the abort is not heard");
    expect_text("rank 0");
    expect_text("the loss is NaN");
  }

 private:
  sluice_job* const job_;
  const std::uint32_t rank_;
  const std::uint32_t world_;
};

// All of the above; at least two ranks.
inline void run_all_checks(sluice_job* job, std::uint32_t rank, std::uint32_t world,
                           const std::vector<std::size_t>& counts) {
  OperationChecks checks(job, rank, world);
  sluice_group* const group = checks.group("checks", checks.everybody());
  checks.all_reduces(group, counts);
  checks.mean_and_wire(group);
  for (const std::size_t count : counts) checks.other_kinds(group, count);
  checks.groups_in_any_order();
  checks.timeout_names_who_is_missing();
  checks.disagreement_is_named();
  checks.abort_is_heard(group);
}

}  // namespace sluice::e2e
