// The addresses at which a job may be, and when it moves from one to the next.
//
// The run's epoch is how often the job has moved: it is at address epoch mod count, so two members
// that move from one place move to one place. Whoever moves votes: it joins there with the next
// epoch and sends nothing more to the place before. The appliance tells the epoch to all who ask,
// and every member asks at the next address all the time; whoever hears of a higher epoch follows.
// The job goes on there once all ranks have joined, so members move together or not at all: no
// step of a synchronous job, and no operation, is completed anywhere without the one that has left.
//
// A question is a join without proof, and a challenge its answer: the appliance keeps nothing of
// it. It is padded, so the path is known to carry the job's datagrams before they depend on it.
//
// Pure; the session's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "aggregator/base/time.h"
#include "aggregator/wire/packet.h"
#include "client/core/member/join.h"

namespace sluice::client {

class Standby {
 public:
  // `options` outlives it, and has the epoch.
  Standby(const SessionOptions& options, const Layout& layout, TimeNs now);

  // There is a next address.
  bool exists() const noexcept { return options_.addresses.size() > 1; }
  // Where the job is, by its place among the addresses.
  std::uint16_t address() const noexcept { return address_of(options_.epoch); }
  // The next address has answered within the last second.
  bool is_there(TimeNs now) const noexcept;

  // How things stand at the appliance.
  struct Situation {
    DurationNs silent_ns = 0;      // nothing came from it for so long
    DurationNs incomplete_ns = 0;  // ranks are missing there, and none has come for so long
    bool is_new = false;           // this process has not joined
    bool ends = false;             // it says that it is shutting down
    wire::Drain drain{};           // it says that it is being drained
    bool between_steps = false;    // nothing of this member is under way
    bool must_stay = false;        // the job could not go on elsewhere
  };
  // The epoch to go on with; none: the job stays.
  std::optional<std::uint32_t> decide(const Situation& at, TimeNs now) noexcept;
  // The job's own appliance knows of that epoch.
  void learn(std::uint32_t epoch) noexcept { learn(epoch, address()); }
  // The epoch has changed: the next address is another one.
  void moved(TimeNs now) noexcept;
  // All ranks have agreed how the job goes on.
  void settled() noexcept { settled_epoch_ = options_.epoch; }
  bool is_settled() const noexcept { return settled_epoch_ == options_.epoch; }

  // ---- questions to the next address ----
  // Whether the packet answers one.
  bool is_answer(const wire::Packet& packet) const noexcept;
  Verdict handle(const wire::Packet& packet, TimeNs now);
  // Bytes of the next one, 0 when none is due. Goes to next_address().
  std::size_t poll_transmit(std::span<std::uint8_t> out) noexcept;
  std::uint16_t next_address() const noexcept { return address_of(options_.epoch + 1); }
  TimeNs next_timeout() const noexcept { return exists() ? next_send_ns_ : kNever; }
  // Whether one is due.
  bool handle_timeout(TimeNs now) noexcept;
  // Once when the next address has been silent for some seconds; else empty.
  std::string take_warning(TimeNs now);

 private:
  std::uint16_t address_of(std::uint32_t epoch) const noexcept {
    return exists() ? static_cast<std::uint16_t>(epoch % options_.addresses.size()) : 0;
  }
  void learn(std::uint32_t epoch, std::uint16_t address) noexcept;

  const SessionOptions& options_;
  std::optional<PaddedJoin> question_;
  std::uint32_t newest_epoch_ = 0;  // that any appliance has told
  std::uint32_t settled_epoch_ = 0;
  TimeNs next_send_ns_;
  bool send_ = false;
  TimeNs answered_ns_ = kNever;  // by the next address, last; kNever: not yet
  TimeNs asked_since_ns_;        // no answer since
  TimeNs drains_since_ns_ = kNever;
  std::string refusal_;  // its last answer
  bool warned_ = false;
};

}  // namespace sluice::client
