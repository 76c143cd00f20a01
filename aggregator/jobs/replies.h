// A request to the control side, and the packets that answer requests or tell members how their job
// stands.
//
// Pure functions from a request, a job's entry and the options to bytes in the caller's buffer;
// they decide nothing. An answer to a sender without proof is never longer than its request.
#pragma once

#include <optional>

#include "aggregator/jobs/admission.h"

namespace sluice::agg {

// A packet with where and when it arrived.
struct Request {
  const wire::Packet& packet;
  const Origin& origin;
  std::span<std::uint8_t> reply;
  TimeNs now;                   // active
  std::optional<Rank> given{};  // by an elastic job

  Rank rank() const noexcept { return given.value_or(Rank{packet.common().rank}); }
  const wire::Join& join() const noexcept { return packet.body<wire::Join>(); }
};

using ServerNonce = std::array<std::uint8_t, wire::kNonceBytes>;

// To joins. The nonce binds a challenge to where the request came from, so nothing is remembered.
ServerNonce server_nonce(const Request& request, const wire::HmacKey& boot_key) noexcept;
ControlResult challenge(const Request& request, const wire::HmacKey& boot_key, std::uint32_t epoch);
// `proven`: the sender has proven the secret, so the whole text fits.
ControlResult refuse(const Request& request, const Refusal& refusal, bool proven);
ControlResult preparing(const Request& request, std::uint8_t percent);
ControlResult accept(const Request& request, const JobEntry& entry, const JobsOptions& options);

// To the member of the rank: how the job stands, with the transfer of state under way.
std::size_t write_status(const JobEntry& entry, Rank rank, std::uint32_t echo_us,
                         DurationNs resync_hold_ns, std::span<std::uint8_t> out, TimeNs now);
// Why the job has failed, or why the member was evicted.
std::size_t write_notice(const JobEntry& entry, Rank rank, std::span<std::uint8_t> out);
// The status; to a process that is no part of the job any more, the notice.
std::size_t write_answer(const JobEntry& entry, std::uint32_t echo_us, DurationNs resync_hold_ns,
                         const Request& request);
// To a process whose rank was taken over, under the cookie that it still uses.
std::size_t write_replaced(const JobEntry& entry, const Request& request);

}  // namespace sluice::agg
