// Stream 4: the values of a store's layers. A packet pulls the chunks of a block, and each comes by
// itself.
#pragma once

#include <string>

#include "client/core/store/push_stream.h"
#include "client/core/store/request_stream.h"

namespace sluice::client {

class PullStream final : public RequestStream {
 public:
  // Values also say which pushes are counted. `kept`: as that of `pushes`.
  PullStream(const Layout& layout, Layers& layers, RequestQueue& queue, PushStream& pushes,
             KeptLayers* kept, Link& link)
      : RequestStream(StreamId::kPulls, Direction::kPull, layout, layers, queue, link),
        pushes_(pushes),
        kept_(kept) {}

  bool in_progress() const noexcept override {
    return layers_.started && layers_.pulling_count != 0;
  }
  std::string describe(TimeNs now) const override;
  Verdict handle_result(const wire::Packet& packet, TimeNs now) override;
  void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept override;
  void give_up(const Status& why) override;

 private:
  bool under_way(const Layer& layer) const noexcept override { return layer.pulling; }
  Step step_of(const Layer& layer) const noexcept override { return layer.own + 1; }
  std::uint64_t expect(std::uint32_t block) override;
  bool write(ChunkIndex chunk, Transmit& transmit, std::span<std::uint8_t> out,
             TimeNs now) override;
  void finish(LayerIndex layer, TimeNs now);

  PushStream& pushes_;
  KeptLayers* const kept_;
};

}  // namespace sluice::client
