// The proven network path of every member of every job, to which results and notices are sent.
//
// The control thread binds a path when a join or a keepalive has proven it. Lcores read it for each
// datagram that they send. Readers never wait: an entry is a sequence lock over words.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "aggregator/base/check.h"
#include "aggregator/base/types.h"
#include "aggregator/wire/inet.h"
#include "dataplane/core/mac_table.h"

namespace sluice::dataplane {

struct MemberPath {
  wire::UdpPath udp;  // from the appliance to the member; src_port is the join port
  PortIndex port = 0;
  bool bound = false;
  friend bool operator==(const MemberPath&, const MemberPath&) = default;
};

class PathTable {
 public:
  PathTable(std::size_t job_count, std::size_t workers_per_job)
      : job_count_(job_count),
        workers_per_job_(workers_per_job),
        entries_(std::make_unique<Entry[]>(job_count * workers_per_job)) {}

  std::size_t job_count() const noexcept { return job_count_; }
  std::size_t workers_per_job() const noexcept { return workers_per_job_; }

  // Control thread only.
  void bind(JobId job, Rank rank, const MemberPath& path) noexcept {
    Entry* entry = find(job, rank);
    CHECK(entry != nullptr);
    Words words{};
    std::memcpy(words.data(), &path, sizeof path);
    const std::uint32_t sequence = entry->sequence.load(std::memory_order_relaxed);
    entry->sequence.store(sequence + 1, std::memory_order_relaxed);  // odd: being written
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t at = 0; at < kWords; ++at)
      entry->words[at].store(words[at], std::memory_order_relaxed);
    entry->sequence.store(sequence + 2, std::memory_order_release);
  }

  // Any thread. Changes with every bind(); 0: not bound yet.
  std::uint32_t version(JobId job, Rank rank) const noexcept {
    const Entry* entry = find(job, rank);
    return entry == nullptr ? 0 : entry->sequence.load(std::memory_order_acquire);
  }

  // Any thread. `bound` is false if the path is unbound, unknown or being written right now (the
  // datagram is then lost like any other, and the member asks again).
  MemberPath read(JobId job, Rank rank) const noexcept {
    MemberPath path;
    const Entry* entry = find(job, rank);
    if (entry == nullptr) return path;
    Words words;
    const std::uint32_t before = entry->sequence.load(std::memory_order_acquire);
    for (std::size_t at = 0; at < kWords; ++at)
      words[at] = entry->words[at].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::uint32_t after = entry->sequence.load(std::memory_order_relaxed);
    if (before == 0 || before != after || (before & 1) != 0) return path;
    std::memcpy(static_cast<void*>(&path), words.data(), sizeof path);
    return path;
  }

 private:
  static_assert(std::is_trivially_copyable_v<MemberPath>);
  static constexpr std::size_t kWords = (sizeof(MemberPath) + 7) / 8;
  using Words = std::array<std::uint64_t, kWords>;
  struct Entry {
    std::atomic<std::uint32_t> sequence{0};
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };

  Entry* find(JobId job, Rank rank) const noexcept {
    if (job.value >= job_count_ || rank.value >= workers_per_job_) return nullptr;
    return &entries_[job.value * workers_per_job_ + rank.value];
  }

  std::size_t job_count_;
  std::size_t workers_per_job_;
  std::unique_ptr<Entry[]> entries_;
};

// One lcore's cache of the paths that it uses, as prepared headers. Direct mapped: two members that
// share a place are looked up in the table in turn.
class Routes {
 public:
  struct Route {
    wire::UdpHeaders headers;
    PortIndex port = 0;
  };

  // Datagrams leave from `source_port`. The table outlives it.
  Routes(const PathTable& table, std::uint16_t source_port)
      : table_(table), source_port_(source_port), places_(kPlaces) {}

  // Null where the table's path is not bound. Valid until the next call.
  Route* find(JobId job, Rank rank) noexcept {
    Place& place = places_[(job.value * kRankStride + rank.value) % kPlaces];
    const std::uint32_t version = table_.version(job, rank);
    const std::uint32_t member = std::uint32_t{job.value} << 16 | rank.value;
    if (place.version == version && place.member == member && version != 0) return &place.route;
    MemberPath path = table_.read(job, rank);  // not older than `version`
    if (!path.bound) return nullptr;
    path.udp.src_port = source_port_;
    place = {
        .route = {wire::UdpHeaders(path.udp), path.port}, .version = version, .member = member};
    return &place.route;
  }

 private:
  static constexpr std::size_t kPlaces = 1024;
  static constexpr std::size_t kRankStride =
      67;  // so that jobs of one size do not share all places
  struct alignas(64) Place {
    Route route;
    std::uint32_t version = 0;
    std::uint32_t member = 0;  // job << 16 | rank
  };

  const PathTable& table_;
  const std::uint16_t source_port_;
  std::vector<Place> places_;
};

}  // namespace sluice::dataplane
