// A path in virtual time for tests of congestion control: flows that share one bottleneck, whose
// queue is first in, first out and drops at its tail. Each packet that arrives is told of by a
// feedback, half a round trip later.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "client/core/link/congestion.h"
#include "client/core/link/pacer.h"

namespace sluice::client {

struct PathOptions {
  double packets_per_second = 16'000;  // 200 Mb/s of 1,500 bytes
  DurationNs round_trip_ns = 30 * kMillisecond;
  std::uint32_t queue = 1000;
  double loss = 0;               // of each packet, at random
  std::uint32_t mark_above = 0;  // packets that wait; 0: nothing is marked
  DurationNs jitter_ns = 0;      // of feedback, which keeps its order
  DurationNs wake_ns = 1;  // feedback is heard at multiples of this, all that is there at once
};

// One end of the path: sends as it may, and hears what arrived.
class Source {
 public:
  virtual ~Source() = default;
  // kNever: not before the next feedback.
  virtual TimeNs may_send_at(TimeNs now) = 0;
  virtual void sent(TimeNs now) = 0;
  struct Feedback {
    TimeNs at_ns = 0;
    TimeNs sent_ns = 0;
    std::uint32_t number = 0;
    bool marked = false;
  };
  virtual void heard(const Feedback& feedback, TimeNs now) = 0;
  std::uint64_t arrived = 0;
};

// What Flow does with Congestion and Pacer.
class SluiceSource : public Source {
 public:
  explicit SluiceSource(std::uint32_t cap = 1 << 20) : congestion_(cap) {}
  TimeNs may_send_at(TimeNs now) override {
    if (stopped || sent_ - highest_ >= congestion_.window()) return kNever;
    return pacer_.may_send(congestion_.pace(), now) ? now : pacer_.next_ns();
  }
  void sent(TimeNs now) override {
    congestion_.on_sent(sent_ - highest_, now);
    ++sent_;
    pacer_.sent(1);
  }
  void heard(const Feedback& feedback, TimeNs now) override {
    ++unreported_arrived_;
    unreported_marked_ += feedback.marked;
    if (unreported_arrived_ < reported && feedback.number != sent_) return;
    const bool limited = 2 * (sent_ - highest_) >= congestion_.window();
    const std::uint32_t advanced = feedback.number - highest_;
    highest_ = feedback.number;
    congestion_.on_arrived({.now = now,
                            .advanced = advanced,
                            .arrived = unreported_arrived_,
                            .marked = unreported_marked_,
                            .rtt_ns = now - feedback.sent_ns,
                            .sent_ns = feedback.sent_ns,
                            .limited = limited});
    unreported_arrived_ = unreported_marked_ = 0;
  }
  const Congestion& congestion() const { return congestion_; }
  bool stopped = false;
  std::uint32_t reported = 1;

 private:
  Congestion congestion_;
  Pacer pacer_;
  std::uint32_t sent_ = 0;
  std::uint32_t highest_ = 0;
  std::uint32_t unreported_arrived_ = 0;
  std::uint32_t unreported_marked_ = 0;
};

// TCP's CUBIC (RFC 9438), with a timeout of 300 ms.
class CubicSource : public Source {
 public:
  TimeNs may_send_at(TimeNs now) override {
    if (sent_ - highest_ < window_) return now;
    return heard_ns_ + kTimeout;
  }
  void sent(TimeNs now) override {
    if (sent_ - highest_ >= window_) {  // nothing came for too long
      cut(now);
      window_ = 1;
      highest_ = sent_;
    }
    if (sent_++ == highest_) heard_ns_ = now;
  }
  void heard(const Feedback& feedback, TimeNs now) override {
    heard_ns_ = now;
    if (static_cast<std::int32_t>(feedback.number - highest_) <= 0) return;
    const std::uint32_t missing = feedback.number - highest_ - 1;
    highest_ = feedback.number;
    if (missing != 0 && feedback.sent_ns > cut_ns_) return cut(now);
    if (window_ < threshold_) {
      window_ += 1;
      return;
    }
    const double seconds = static_cast<double>(now - cut_ns_) / kSecond;
    const double origin = std::cbrt(most_ * (1 - kBeta) / kScale);
    const double target = kScale * std::pow(seconds - origin, 3) + most_;
    friendly_ += 3 * (1 - kBeta) / (1 + kBeta) / window_;
    window_ =
        std::max(window_ + std::clamp(target - window_, 0.01, window_ / 2) / window_, friendly_);
  }

 private:
  static constexpr DurationNs kTimeout = 300 * kMillisecond;
  static constexpr double kBeta = 0.7;
  static constexpr double kScale = 0.4;

  void cut(TimeNs now) {
    cut_ns_ = now;
    most_ = window_;
    window_ = threshold_ = friendly_ = std::max(2.0, window_ * kBeta);
  }

  double window_ = 10;
  double threshold_ = 1e9;
  double most_ = 0;
  double friendly_ = 0;  // what Reno would have
  TimeNs cut_ns_ = 0;
  TimeNs heard_ns_ = 0;
  std::uint32_t sent_ = 0;
  std::uint32_t highest_ = 0;
};

class Path {
 public:
  explicit Path(const PathOptions& path_options) : options(path_options) {}
  PathOptions options;

  template <class T, class... Args>
  T& add(Args&&... args) {
    auto source = std::make_unique<T>(std::forward<Args>(args)...);
    T& added = *source;
    sources_.push_back({.source = std::move(source), .feedback = {}});
    return added;
  }
  TimeNs now() const { return now_; }
  std::uint64_t dropped() const { return dropped_; }
  std::uint32_t waiting() const {
    return static_cast<std::uint32_t>(std::max(0.0, static_cast<double>(free_at_ns_ - now_)) /
                                      kSecond * options.packets_per_second);
  }
  // The most packets that waited since this was called last.
  std::uint32_t take_longest_queue() { return std::exchange(longest_, 0); }

  void run_for(DurationNs duration_ns) {
    const TimeNs end_ns = now_ + duration_ns;
    for (;;) {
      TimeNs next_ns = end_ns;
      Entry* first = nullptr;
      bool sends = false;
      for (Entry& entry : sources_) {
        const TimeNs feedback_ns = entry.feedback.empty() ? kNever : entry.feedback.front().at_ns;
        const TimeNs send_ns = std::max(now_, entry.source->may_send_at(now_));
        if (std::min(feedback_ns, send_ns) >= next_ns) continue;
        next_ns = std::min(feedback_ns, send_ns);
        first = &entry;
        sends = send_ns < feedback_ns;
      }
      now_ = next_ns;
      if (first == nullptr) return;
      sends ? send(*first) : hear(*first);
    }
  }

 private:
  struct Entry {
    std::unique_ptr<Source> source;
    std::deque<Source::Feedback> feedback;
    std::uint32_t number = 0;
    TimeNs last_ns = 0;
  };

  void hear(Entry& entry) {
    const Source::Feedback feedback = entry.feedback.front();
    entry.feedback.pop_front();
    ++entry.source->arrived;
    entry.source->heard(feedback, now_);
  }
  void send(Entry& entry) {
    ++entry.number;
    entry.source->sent(now_);
    if (draw_(random_) < options.loss) return;
    const std::uint32_t before = waiting();
    if (before >= options.queue) {
      ++dropped_;
      return;
    }
    longest_ = std::max(longest_, before);
    free_at_ns_ =
        std::max(free_at_ns_, now_) + static_cast<DurationNs>(kSecond / options.packets_per_second);
    const auto jitter_ns =
        static_cast<DurationNs>(draw_(random_) * static_cast<double>(options.jitter_ns));
    entry.last_ns = std::max(entry.last_ns, free_at_ns_ + options.round_trip_ns + jitter_ns);
    const TimeNs wake_ns = (entry.last_ns / options.wake_ns + 1) * options.wake_ns;
    entry.feedback.push_back({.at_ns = wake_ns,
                              .sent_ns = now_,
                              .number = entry.number,
                              .marked = options.mark_above != 0 && before >= options.mark_above});
  }

  std::vector<Entry> sources_;
  std::mt19937_64 random_{1};
  std::uniform_real_distribution<double> draw_{0, 1};
  TimeNs now_ = kSecond;
  TimeNs free_at_ns_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint32_t longest_ = 0;
};

}  // namespace sluice::client
