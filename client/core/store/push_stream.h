// Stream 3: what this worker adds to a store's layers, a chunk a packet.
#pragma once

#include <string>

#include "client/core/store/kept.h"
#include "client/core/store/request_stream.h"

namespace sluice::client {

class PushStream final : public RequestStream {
 public:
  // `kept`: null in a session that does not survive the loss of its appliance.
  PushStream(const Layout& layout, Layers& layers, RequestQueue& queue, KeptLayers* kept,
             Link& link)
      : RequestStream(StreamId::kPushes, Direction::kPush, layout, layers, queue, link),
        kept_(kept) {}

  // Also the first iteration that this worker may push, and whether the store was kept.
  Status join(const wire::Accept& accept) override;
  void make_flows(std::uint16_t shards) override;
  bool in_progress() const noexcept override {
    return layers_.started && layers_.pushing_count != 0;
  }
  bool owes_others() const noexcept override;
  std::string describe(TimeNs now) const override;
  std::string describe_plan() const override { return queue_.pool().describe_plan(); }
  // A record a layer and iteration, under the layer's first tensor, when the iteration's pull is
  // done.
  bool poll_trace(TensorTimes& times) noexcept override { return queue_.trace().poll(times); }
  void update_counters(TimeNs now) noexcept override { queue_.count_suspension(now); }
  Verdict handle_result(const wire::Packet&, TimeNs) override { return Verdict::kBadType; }
  void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept override;
  void give_up(const Status& why) override;

  // The store has counted these of the push under way: every answer of the block says so again.
  void note_counted(std::uint32_t block, std::uint64_t counted, TimeNs now) override;

 private:
  bool under_way(const Layer& layer) const noexcept override { return layer.pushing; }
  Step step_of(const Layer& layer) const noexcept override { return layer.push_step; }
  std::uint64_t expect(std::uint32_t block) override;
  bool write(ChunkIndex chunk, Transmit& transmit, std::span<std::uint8_t> out,
             TimeNs now) override;

  KeptLayers* const kept_;
};

}  // namespace sluice::client
