// Prophet's knowledge and plan in words: its bursts, and the block rule played through on its
// predictions. Cold.
#include <algorithm>
#include <string>
#include <vector>

#include "aggregator/base/text.h"
#include "client/sched/prophet.h"

namespace sluice::client {
namespace {

std::string in_ms(double ns) { return text("%.3f ms", ns / kMillisecond); }

std::string range(Priority first, Priority last) {
  return first == last ? std::to_string(first)
                       : std::to_string(first) + " to " + std::to_string(last);
}

struct Waiting {
  ReadinessProfile::Prediction prediction;
  std::uint32_t packets = 0;  // not sent yet
};

// Plays one step: the tensors that are ready at a time, most urgent first, in blocks.
class Play {
 public:
  Play(const ReadinessProfile& profile, const TensorChunks& tensors, const BlockRule& rule)
      : rule_(rule) {
    most_urgent_ = kLeastUrgent;
    for (std::uint32_t place = 0; place < profile.tensor_count(); ++place) {
      const auto prediction = profile.prediction(place);
      most_urgent_ = std::min(most_urgent_, prediction.priority);
      waiting_.push_back(
          {prediction, tensors.end(prediction.tensor) - tensors.begin(prediction.tensor)});
    }
  }

  std::string blocks() {
    std::string text;
    double now_ns = 0;
    for (std::uint32_t count = 1;; ++count) {
      const Waiting* top = most_urgent_ready(now_ns);
      if (top == nullptr) {
        const Waiting* soonest = next_to_come();
        if (soonest == nullptr) return text;
        now_ns = static_cast<double>(soonest->prediction.offset_ns);
        --count;
        continue;
      }
      if (strict_from(now_ns)) return text + rest(now_ns);
      const Priority first = top->prediction.priority;
      const DurationNs until_ns = until_more_urgent(first, now_ns);
      const auto [sent, last] = send(rule_.packets(until_ns), now_ns);
      text += "block " + std::to_string(count) + " at " + in_ms(now_ns) + ": " +
              std::to_string(sent) + " packets of priority " + range(first, last);
      if (until_ns != kNever)
        text += ", something more urgent in " + in_ms(static_cast<double>(until_ns));
      text += "\n";
      now_ns += sent / rule_.packets_per_ns + static_cast<double>(rule_.overhead_ns);
    }
  }

 private:
  static bool ready(const Waiting& waiting, double now_ns) {
    return static_cast<double>(waiting.prediction.offset_ns) <= now_ns;
  }
  Waiting* most_urgent_ready(double now_ns) {
    Waiting* top = nullptr;
    for (Waiting& waiting : waiting_)
      if (waiting.packets != 0 && ready(waiting, now_ns) &&
          (top == nullptr || waiting.prediction.priority < top->prediction.priority))
        top = &waiting;
    return top;
  }
  const Waiting* next_to_come() const {
    const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                                 [](const Waiting& waiting) { return waiting.packets != 0; });
    return at == waiting_.end() ? nullptr : &*at;
  }
  bool strict_from(double now_ns) const {
    return std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
      return waiting.prediction.priority == most_urgent_ && ready(waiting, now_ns);
    });
  }
  DurationNs until_more_urgent(Priority than, double now_ns) const {
    for (const Waiting& waiting : waiting_)
      if (!ready(waiting, now_ns) && waiting.prediction.priority < than)
        return waiting.prediction.burst_start_ns - static_cast<DurationNs>(now_ns) > 0
                   ? waiting.prediction.burst_start_ns - static_cast<DurationNs>(now_ns)
                   : waiting.prediction.offset_ns - static_cast<DurationNs>(now_ns);
    return kNever;
  }
  // Returns the number of packets sent, and the priority of the last.
  std::pair<std::uint32_t, Priority> send(std::uint32_t packets, double now_ns) {
    std::uint32_t sent = 0;
    Priority last = 0;
    for (Waiting* top = nullptr; sent < packets && (top = most_urgent_ready(now_ns)) != nullptr;) {
      const std::uint32_t part = std::min(top->packets, packets - sent);
      top->packets -= part;
      sent += part;
      last = top->prediction.priority;
    }
    return {sent, last};
  }
  std::string rest(double now_ns) const {
    std::uint64_t packets = 0;
    for (const Waiting& waiting : waiting_) packets += waiting.packets;
    return "from " + in_ms(now_ns) + " on: strict, " + std::to_string(packets) + " packets\n";
  }

  const BlockRule rule_;
  std::vector<Waiting> waiting_;  // by offset
  Priority most_urgent_ = 0;
};

std::string describe_bursts(const ReadinessProfile& profile, const TensorChunks& tensors) {
  std::string text;
  std::uint32_t count = 0;
  for (std::uint32_t place = 0; place < profile.tensor_count();) {
    const auto start = profile.prediction(place);
    Priority first = kLeastUrgent, last = 0;
    std::uint32_t members = 0;
    std::uint64_t packets = 0;
    for (; place < profile.tensor_count(); ++place) {
      const auto prediction = profile.prediction(place);
      if (prediction.burst_start_ns != start.burst_start_ns) break;
      first = std::min(first, prediction.priority);
      last = std::max(last, prediction.priority);
      packets += tensors.end(prediction.tensor) - tensors.begin(prediction.tensor);
      ++members;
    }
    text += "burst " + std::to_string(++count) + " at " +
            in_ms(static_cast<double>(start.burst_start_ns)) + ": " + std::to_string(members) +
            " tensors, " + std::to_string(packets) + " packets, priority " + range(first, last) +
            "\n";
  }
  return text;
}

}  // namespace

std::string ProphetPolicy::describe_plan() const {
  if (!profile_.known())
    return "prophet: learning when tensors become ready (" +
           std::to_string(profile_.learnt_steps()) + " of " +
           std::to_string(ReadinessProfile::kLearntSteps) + " steps, " +
           std::to_string(profile_.restarts()) + " times anew), strict until then\n";
  if (!meter_.known()) return "prophet: too few packets a step to measure the bandwidth, strict\n";
  const BlockRule measured = rule();
  std::string text =
      "prophet: learnt from " + std::to_string(ReadinessProfile::kLearntSteps) + " steps (" +
      std::to_string(profile_.restarts()) + " times anew), " +
      std::to_string(static_cast<std::uint64_t>(measured.packets_per_ns * kMillisecond)) +
      " packets/ms, " + in_ms(static_cast<double>(measured.overhead_ns)) + " more a block\n";
  text += describe_bursts(profile_, tensors_);
  return text + Play(profile_, tensors_, measured).blocks();
}

}  // namespace sluice::client
