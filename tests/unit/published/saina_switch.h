// A model of SAINA's published algorithm (IEEE TSC 16(6), 2023) on SwitchML's slots (NSDI 2021).
//
// A pool of slots in two sets, used in turn: chunk r of a job goes to set r % 2 of the job's slot,
// and a packet names the slot and the set, nothing else. The k-th packet of a slot completes it,
// and the result goes to every worker. A bitmap of workers filters repeated packets. With k = n the
// other set is free when a slot completes, because each worker that has sent to this slot has the
// result of the other. With k < n the other set need not be free, and most of the mistakes come
// from that.
//
// The model is no part of the product: the tests beside it show that their demands on the product
// fail here.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace sluice::published {

struct Packet {
  std::size_t slot = 0;
  std::size_t set = 0;
  std::uint16_t worker = 0;
  std::vector<float> values;
};

struct Result {  // to every worker
  std::size_t slot = 0;
  std::size_t set = 0;
  std::uint16_t k = 0;
  std::vector<float> sum;
};

struct Rule {
  std::uint16_t k0 = 1;
  std::uint32_t sign_threshold_permille = 500;  // s_th
  std::uint32_t count_threshold = 5;            // c_th
};

// SFCD: sign flips of the aggregated gradient raise k.
class SignFlips {
 public:
  SignFlips(Rule rule, std::uint16_t worker_count)
      : rule_(rule), worker_count_(worker_count), k_(rule.k0) {}

  std::uint16_t k() const { return k_; }
  void set_k(std::uint16_t k) { k_ = k; }

  void end_round(std::uint64_t flipped, std::uint64_t compared) {
    if (flipped * 1000 >= rule_.sign_threshold_permille * compared)
      ++count_;
    else if (count_ > 0)
      --count_;
    if (count_ < rule_.count_threshold) return;
    count_ = 0;
    if (k_ < worker_count_) ++k_;
  }

 private:
  Rule rule_;
  std::uint16_t worker_count_;
  std::uint16_t k_;
  std::uint32_t count_ = 0;
};

class SainaSwitch {
 public:
  SainaSwitch(std::size_t slot_count, std::uint16_t worker_count, Rule rule)
      : slots_(slot_count), rule_(rule, worker_count) {
    for (auto& sets : slots_)
      for (Slot& slot : sets) slot.seen.resize(worker_count);
  }

  // One register for the whole switch.
  std::uint16_t k() const { return rule_.k(); }
  void set_k(std::uint16_t k) { rule_.set_k(k); }

  void receive(const Packet& packet) {
    Slot& slot = slots_[packet.slot][packet.set];
    Slot& twin = slots_[packet.slot][1 - packet.set];
    if (slot.seen[packet.worker]) return;  // counted already; a lost result stays lost
    slot.seen[packet.worker] = true;
    twin.seen[packet.worker] = false;
    slot.sum.resize(packet.values.size());
    for (std::size_t i = 0; i < packet.values.size(); ++i) slot.sum[i] += packet.values[i];
    if (++slot.count < k()) return;

    slot.count = 0;
    twin.sum.clear();
    egress_.push_back({.slot = packet.slot, .set = packet.set, .sum = slot.sum});
    detect(slot.sum, slots_[packet.slot][0].signs);
  }

  // The results that leave now, each with the register's present k.
  std::vector<Result> leave() {
    for (Result& result : egress_) result.k = k();
    return std::exchange(egress_, {});
  }

 private:
  struct Slot {
    std::vector<float> sum;  // empty: zero
    std::uint16_t count = 0;
    std::vector<bool> seen;
    std::vector<bool> signs;  // of the round before; set 0 keeps them for both
  };

  void detect(std::span<const float> sum, std::vector<bool>& signs) {
    std::vector<bool> now;
    for (const float value : sum) now.push_back(std::signbit(value));
    std::uint64_t flipped = 0;
    for (std::size_t i = 0; i < signs.size(); ++i) flipped += signs[i] != now[i];
    if (!signs.empty()) rule_.end_round(flipped, signs.size());
    signs = std::move(now);
  }

  std::vector<std::array<Slot, 2>> slots_;
  SignFlips rule_;
  std::vector<Result> egress_;
};

}  // namespace sluice::published
