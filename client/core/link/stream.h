// One stream of a session, as the session drives it: gradients, collectives, or another rank's
// state. The session sees no difference between them but their order.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"
#include "client/core/calls/types.h"
#include "client/core/link/link.h"
#include "client/core/link/recovery.h"

namespace sluice::client {

class Stream {
 public:
  Stream(StreamId id, Link& link) noexcept : link_(link), id_(id) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamId id() const noexcept { return id_; }
  // The step under way, or the next one.
  virtual Step current_step() const noexcept = 0;
  // Something of the step under way is awaited.
  virtual bool in_progress() const noexcept = 0;
  // When something of it came last, or it began.
  virtual TimeNs last_progress_ns() const noexcept = 0;
  // What it waits for, in words; empty when for nothing.
  virtual std::string describe(TimeNs now) const = 0;

  // A failure of the whole job goes to Link::fail().
  virtual Verdict handle_result(const wire::Packet& packet, TimeNs now) = 0;
  virtual Verdict handle_answer(const wire::Packet& packet, TimeNs now) = 0;

  // Writes the next packet of data as the windows allow. False: nothing may be sent now.
  virtual bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) = 0;
  // The least urgent priority among the block's chunks: a probe that overtook them would find them
  // missing.
  virtual Priority block_priority(std::uint32_t block) const noexcept = 0;
  // It has chunks on the flow of the shard.
  virtual bool uses(std::uint16_t shard) const noexcept = 0;
  virtual Recovery& recovery() noexcept = 0;

 protected:
  Link& link_;

 private:
  const StreamId id_;
};

}  // namespace sluice::client
