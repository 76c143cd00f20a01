// What pushes to a store and pulls from it have in common: requests of layers, whose chunks have a
// fate that Recovery knows, and one queue that says which of them leaves next.
//
// The pool chooses (sched/requests.h), a block of chunks at a time; what was lost goes first. A
// push is done when the store has counted it, which its probes say, and every answer to a pull; a
// pull when the values are here. Pure; the session's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "client/core/calls/layout.h"
#include "client/core/calls/trace.h"
#include "client/core/calls/types.h"
#include "client/core/link/stream.h"
#include "client/core/store/layers.h"
#include "client/sched/requests.h"

namespace sluice::client {

class RequestStream;

// The order in which pushes and pulls leave.
class RequestQueue {
 public:
  RequestQueue(const SessionOptions& options, const Layers& layers, Link& link);
  void attach(Direction direction, RequestStream& stream) noexcept {
    streams_[static_cast<std::size_t>(direction)] = &stream;
  }

  RequestPool& pool() noexcept { return pool_; }
  const RequestPool& pool() const noexcept { return pool_; }
  TensorTrace& trace() noexcept { return trace_; }
  // The application waits for a pull from now on, or does not any more.
  void suspend(bool suspended, TimeNs now) noexcept;
  // Of a wait that goes on, what is over.
  void count_suspension(TimeNs now) noexcept;
  void note_age() noexcept { link_.counters.oldest_request_iterations = pool_.oldest_age(); }

  bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now);
  // Nothing waits any more.
  void begin_anew() noexcept;
  // All of the layer's request is done: what of it has not left need not.
  void finish(Direction direction, LayerIndex layer) noexcept {
    if (unit_.direction == direction && unit_.layer == layer) unit_chunks_ = 0;
  }
  // No other push waits behind the one that is being written.
  bool is_last_push() const noexcept { return unit_chunks_ == 0 && pool_.empty(Direction::kPush); }
  bool is_last_pull() const noexcept {
    return pool_.empty(Direction::kPush) && pool_.empty(Direction::kPull);
  }
  // A push belongs to the iteration that it is read back for.
  void note_sent(LayerIndex layer, Step iteration, bool again, TimeNs now) noexcept;
  Priority priority_of(LayerIndex layer) const noexcept {
    return static_cast<Priority>(std::min(pool_.place(layer), 255u));
  }
  bool has_out(Direction direction, std::uint16_t shard) const noexcept;

 private:
  RequestStream& stream(Direction direction) const noexcept {
    return *streams_[static_cast<std::size_t>(direction)];
  }
  bool next_unit();
  bool may_send(Direction direction, std::uint16_t shard, TimeNs now) const noexcept;
  bool write_lost(Direction direction, std::uint16_t shard, Transmit& transmit,
                  std::span<std::uint8_t> out, TimeNs now);

  const Layers& layers_;
  Link& link_;
  RequestPool pool_;
  RequestStream* streams_[2] = {};
  // What the pool has handed out and has not left: a block, and of a push the chunks.
  RequestUnit unit_;
  std::uint64_t unit_chunks_ = 0;
  bool suspended_ = false;
  TimeNs suspended_since_ns_ = 0;  // counted up to here
  TensorTrace trace_;
};

class RequestStream : public Stream {
 public:
  RequestStream(StreamId id, Direction direction, const Layout& layout, Layers& layers,
                RequestQueue& queue, Link& link);

  // ---- as a stream ----
  Status join(const wire::Accept& accept) override;
  void start(TimeNs now) override;
  // Of the first layer whose request is under way; 0: none is.
  Step current_step() const noexcept override;
  Step probe_step(std::uint32_t block) const noexcept override {
    return step_of(layers_.of_block(block));
  }
  TimeNs last_progress_ns() const noexcept override { return layers_.last_progress_ns; }
  Verdict handle_answer(const wire::Packet& packet, TimeNs now) override;
  // The queue writes for both streams, so it is asked once: by that of pulls.
  bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) override {
    return direction_ == Direction::kPull && queue_.write_next(transmit, out, now);
  }
  Priority block_priority(std::uint32_t block) const noexcept override {
    return queue_.priority_of(layers_.blocks[block].layer);
  }
  bool uses(std::uint16_t) const noexcept override { return true; }
  // Another appliance has a place for this worker: of what was sent to the one before nothing more
  // comes.
  virtual void make_flows(std::uint16_t shards);

  // ---- the queue's side ----
  // The pool has handed out the block. Returns the chunks that packets are to be written for.
  virtual std::uint64_t expect(std::uint32_t block) = 0;
  // False: its fate is known, it need not leave.
  virtual bool write(ChunkIndex chunk, Transmit& transmit, std::span<std::uint8_t> out,
                     TimeNs now) = 0;
  // By shard: what is lost and leaves again. Of a pull one chunk stands for its block.
  std::vector<ChunkIndex>& lost(std::uint16_t shard) noexcept { return lost_[shard]; }

 protected:
  void send_again(std::uint32_t block, std::uint64_t chunks) override;
  virtual bool under_way(const Layer& layer) const noexcept = 0;
  // As probes name the layer's request under way.
  virtual Step step_of(const Layer& layer) const noexcept = 0;
  // The store has counted these of the block's request under way.
  virtual void note_counted(std::uint32_t, std::uint64_t, TimeNs) {}
  // All of the layer's request is done: its chunks may be asked for anew.
  void renew(LayerIndex layer);
  std::uint16_t shard_of_block(std::uint32_t block) const noexcept {
    return static_cast<std::uint16_t>(block % link_.shard_count());
  }
  Flow& flow_of(std::uint32_t block) noexcept { return link_.flows[shard_of_block(block)]; }
  std::string describe_wait(TimeNs now) const;

  const Layout& layout_;
  Layers& layers_;
  RequestQueue& queue_;

 private:
  const Direction direction_;
  std::vector<std::vector<ChunkIndex>> lost_;
};

}  // namespace sluice::client
