// The workers of a pruned job and their appliance as a shared library that Python loads: production
// thresholds (client/prune), kernels and sparse bodies (aggregator/core/sparse.h, aggregator/wire),
// without packets' loss, windows and probes.
//
// The C ABI at the end is private to this folder (group.py is its only caller). One thread.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aggregator/core/fold.h"
#include "aggregator/core/sparse.h"
#include "aggregator/wire/data.h"
#include "aggregator/wire/inet.h"
#include "client/prune/threshold.h"

namespace sluice::client {
namespace {

struct GroupOptions {  // as group.py declares it
  std::uint32_t workers;
  std::uint32_t rule;  // PruneRule
  std::uint32_t warmup_steps;
  std::uint32_t feedback;  // 0: what does not leave is lost
  double fraction;
  double sigmas;
};
struct GroupTensor {
  std::uint64_t elem_count;
  std::uint64_t dense;
};
// Of one step. Bytes are those on a link: of frames, with everything around them.
struct GroupStep {
  std::uint64_t up_bytes;    // all workers'
  std::uint64_t down_bytes;  // to one worker
  std::uint64_t left;        // elements of pruned tensors, all workers'
  std::uint64_t threshold_ns;
  std::uint64_t pack_ns;
};

// Preamble, gap and check sequence of a frame, its header, IPv4 and UDP.
constexpr std::size_t kFrameBytes = 24 + wire::kEthernetBytes + wire::kIpv4Bytes + wire::kUdpBytes;
constexpr std::size_t kMtuBytes = 1500;
constexpr std::uint32_t kBlockChunks = 64;

// What the chunks of a block take on the way, one after the other: dense ones a packet each, sparse
// ones together, as long as they are of one length and fit.
class Packets {
 public:
  Packets(std::size_t header_bytes, std::size_t chunk_bytes)
      : around_(kFrameBytes + header_bytes), chunk_bytes_(chunk_bytes) {}

  void add(std::uint32_t chunk, const float* values, std::size_t elem_count, bool pruned) {
    const auto* payload = reinterpret_cast<const std::uint8_t*>(values);
    const std::size_t dense = elem_count * sizeof(float);
    const std::size_t room = std::min(dense - 1, chunk_bytes_ - wire::kSparseHeadBytes);
    const std::size_t entry =
        pruned ? agg::compress(payload, elem_count, Dtype::kFloat32, std::span(entry_).first(room))
               : agg::kNotCompressed;
    if (entry == agg::kNotCompressed) {
      bytes_ += around_ + dense;
      return;
    }
    const std::uint32_t block = chunk / kBlockChunks;
    if (block != block_ || elem_count != elem_count_ || filled_ + entry > chunk_bytes_ ||
        filled_ == 0) {
      block_ = block, elem_count_ = elem_count;
      bytes_ += around_ + wire::kSparseHeadBytes;
      filled_ = wire::kSparseHeadBytes;
    }
    filled_ += entry;
    bytes_ += entry;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::size_t around_, chunk_bytes_;
  std::uint32_t block_ = 0;
  std::size_t elem_count_ = 0;
  std::size_t filled_ = 0;  // of the sparse packet that is open
  std::uint64_t bytes_ = 0;
  std::uint8_t entry_[kMaxChunkBytes];
};

// Of this thread alone: what else runs on the machine does not count.
std::uint64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

class Group {
 public:
  Group(const GroupOptions& options, std::span<const GroupTensor> tensors)
      : options_(options),
        chunk_bytes_((kMtuBytes - wire::kIpv6Bytes - wire::kUdpBytes -
                      wire::result_overhead_bytes(options.workers)) /
                     kChunkAlignBytes * kChunkAlignBytes) {
    std::vector<PruneTensor> shapes;
    for (const GroupTensor& tensor : tensors) {
      shapes.push_back({.elem_count = tensor.elem_count, .dense = tensor.dense != 0});
      elem_count_ += tensor.elem_count;
    }
    const PruneOptions prune{.rule = static_cast<PruneRule>(options.rule),
                             .fraction = options.fraction,
                             .sigmas = options.sigmas,
                             .warmup_steps = options.warmup_steps};
    for (std::uint32_t worker = 0; worker < options.workers; ++worker) {
      thresholds_.emplace_back(prune, shapes);
      residuals_.emplace_back(elem_count_);
    }
    tensors_ = std::move(shapes);
    left_.resize(elem_count_);
  }

  std::uint64_t pruned_elems() const {
    std::uint64_t count = 0;
    for (std::uint32_t i = 0; i < tensors_.size(); ++i)
      if (thresholds_[0].prunes(i)) count += tensors_[i].elem_count;
    return count;
  }

  // `gradients`: a row a worker.
  GroupStep step(const float* gradients, float* mean) {
    GroupStep done{};
    std::fill_n(mean, elem_count_, 0.0f);
    for (std::uint32_t worker = 0; worker < options_.workers; ++worker) {
      contribute(worker, gradients + worker * elem_count_, done);
      for (std::size_t i = 0; i < elem_count_; ++i) mean[i] += left_[i];
    }
    Packets down(sizeof(wire::CommonHeader) + sizeof(wire::ResultHeader) + sizeof(std::uint64_t),
                 chunk_bytes_);
    send(mean, down);
    done.down_bytes = down.bytes();
    const auto divisor = static_cast<float>(options_.workers);
    for (std::size_t i = 0; i < elem_count_; ++i) mean[i] /= divisor;
    return done;
  }

 private:
  void contribute(std::uint32_t worker, const float* gradient, GroupStep& done) {
    float* const residual = residuals_[worker].data();
    std::size_t first = 0;
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      const std::size_t count = tensors_[i].elem_count;
      const std::uint64_t start = cpu_ns();
      const float threshold =
          thresholds_[worker].next(i, {gradient + first, count}, {residual + first, count});
      done.threshold_ns += cpu_ns() - start;
      agg::prune(gradient + first, residual + first, count, threshold, &left_[first]);
      if (options_.feedback && thresholds_[worker].prunes(i)) {
        agg::keep_rest(gradient + first, residual + first, count, &left_[first]);
      }
      if (thresholds_[worker].prunes(i)) {
        done.left += count - static_cast<std::uint64_t>(
                                 std::count(&left_[first], &left_[first] + count, 0.0f));
      }
      first += count;
    }
    const std::uint64_t start = cpu_ns();
    Packets up(sizeof(wire::CommonHeader) + sizeof(wire::Contribution), chunk_bytes_);
    send(left_.data(), up);
    done.pack_ns += cpu_ns() - start;
    done.up_bytes += up.bytes();
  }

  void send(const float* values, Packets& packets) const {
    const std::size_t chunk_elems = chunk_bytes_ / sizeof(float);
    std::uint32_t chunk = 0;
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      for (std::size_t at = 0; at < tensors_[i].elem_count; at += chunk_elems, ++chunk) {
        packets.add(chunk, values + at, std::min(chunk_elems, tensors_[i].elem_count - at),
                    thresholds_[0].prunes(i));
      }
      values += tensors_[i].elem_count;
    }
  }

  GroupOptions options_;
  std::size_t chunk_bytes_;
  std::size_t elem_count_ = 0;
  std::vector<PruneTensor> tensors_;
  std::vector<Thresholds> thresholds_;  // a worker's
  std::vector<std::vector<float>> residuals_;
  std::vector<float> left_;
};

}  // namespace
}  // namespace sluice::client

extern "C" {

using sluice::client::Group;

void* prune_group_new(const sluice::client::GroupOptions* options,
                      const sluice::client::GroupTensor* tensors, std::uint32_t count) {
  return new Group(*options, {tensors, count});
}
void prune_group_free(void* group) { delete static_cast<Group*>(group); }
std::uint64_t prune_group_pruned_elems(const void* group) {
  return static_cast<const Group*>(group)->pruned_elems();
}
void prune_group_step(void* group, const float* gradients, float* mean,
                      sluice::client::GroupStep* done) {
  *done = static_cast<Group*>(group)->step(gradients, mean);
}

}  // extern "C"
