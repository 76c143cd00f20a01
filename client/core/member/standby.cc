#include "client/core/member/standby.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/calls/text.h"

namespace sluice::client {
namespace {

constexpr DurationNs kPresent = kSecond;
// Three keepalives are without an answer.
constexpr DurationNs kMoveAfter = 3 * kKeepaliveInterval;
// A process that starts may be earlier than its appliance.
constexpr DurationNs kBeginElsewhereAfter = 3 * kSecond;
// A rank that does not come may reach the other appliance only. Twice as long after each move in
// vain, since ranks that are stopped come nowhere.
constexpr DurationNs kIncompleteAfter = 3 * kSecond;
constexpr std::uint32_t kMostDoublings = 4;
// The step that is under way as an appliance drains may wait for long.
constexpr DurationNs kStepsEnd = kSecond;
constexpr DurationNs kWarnAfter = 5 * kSecond;

}  // namespace

Standby::Standby(const SessionOptions& options, const Layout& layout, TimeNs now)
    : options_(options), next_send_ns_(now), asked_since_ns_(now) {
  if (!exists()) return;
  question_.emplace(options, layout);
  question_->body.was_member = 1;
}

bool Standby::is_there(TimeNs now) const noexcept {
  return answered_ns_ != kNever && now - answered_ns_ <= kPresent;
}

std::optional<std::uint32_t> Standby::decide(const Situation& at, TimeNs now) noexcept {
  if (newest_epoch_ > options_.epoch) return newest_epoch_;
  const bool drains = at.drain != wire::Drain::kNone;
  if (!drains) drains_since_ns_ = kNever;
  if (drains && drains_since_ns_ == kNever) drains_since_ns_ = now;
  if (!exists() || !is_there(now) || at.must_stay) return {};
  const std::uint32_t in_vain = std::min(options_.epoch - settled_epoch_, kMostDoublings);
  bool moves = at.ends || at.silent_ns >= (at.is_new ? kBeginElsewhereAfter : kMoveAfter);
  moves |= at.drain == wire::Drain::kBegun;
  moves |= drains && (at.between_steps || now - drains_since_ns_ >= kStepsEnd);
  moves |= in_vain != 0 && at.incomplete_ns >= kIncompleteAfter << (in_vain - 1);
  if (!moves) return {};
  return options_.epoch + 1;
}

// An epoch belongs to one address: another appliance that tells it has another list.
void Standby::learn(std::uint32_t epoch, std::uint16_t address) noexcept {
  if (address_of(epoch) == address) newest_epoch_ = std::max(newest_epoch_, epoch);
}

void Standby::moved(TimeNs now) noexcept {
  CHECK(newest_epoch_ <= options_.epoch);
  if (question_) question_->body.epoch = options_.epoch;
  next_send_ns_ = asked_since_ns_ = now;
  answered_ns_ = drains_since_ns_ = kNever;
  send_ = warned_ = false;
  refusal_.clear();
}

// No other request has this nonce.
bool Standby::is_answer(const wire::Packet& packet) const noexcept {
  if (packet.type() == wire::PacketType::kChallenge)
    return packet.body<wire::Challenge>().nonce == options_.nonce + 1;
  return packet.type() == wire::PacketType::kRefuse &&
         packet.body<wire::Refuse>().nonce == options_.nonce + 1;
}

Verdict Standby::handle(const wire::Packet& packet, TimeNs now) {
  CHECK(is_answer(packet));
  if (!exists()) return Verdict::kDuplicate;
  if (packet.type() == wire::PacketType::kRefuse) {
    refusal_ = packet.text();
    return Verdict::kJoinRefused;
  }
  answered_ns_ = asked_since_ns_ = now;
  warned_ = false;
  learn(packet.body<wire::Challenge>().epoch, next_address());
  return Verdict::kJoin;
}

std::size_t Standby::poll_transmit(std::span<std::uint8_t> out) noexcept {
  if (!send_ || out.size() < question_->bytes) return 0;
  send_ = false;
  question_->body.nonce = options_.nonce + 1;
  return question_->write(out, {.rank = options_.rank.value});
}

bool Standby::handle_timeout(TimeNs now) noexcept {
  if (!exists() || now < next_send_ns_) return false;
  send_ = true;
  next_send_ns_ = now + kKeepaliveInterval;
  return true;
}

std::string Standby::take_warning(TimeNs now) {
  if (!exists() || warned_ || now - asked_since_ns_ < kWarnAfter) return {};
  warned_ = true;
  return error_prefix(options_) + options_.addresses[next_address()] + " has not answered for " +
         seconds_text(now - asked_since_ns_) +
         (refusal_.empty() ? std::string() : " (it says: " + refusal_ + ")") +
         ": the job cannot move there until it does";
}

}  // namespace sluice::client
