#include "client/core/member/join.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aggregator/base/check.h"
#include "aggregator/base/policy_text.h"
#include "aggregator/wire/auth.h"
#include "client/core/calls/error_prefix.h"
#include "client/core/calls/text.h"

namespace sluice::client {
namespace {

// When the appliance is back, all wait for the last rank that asks.
constexpr DurationNs kRetryAgain = 100 * kMillisecond;
constexpr DurationNs kFirstRetry = 100 * kMillisecond;
// As often as keepalives, so that an appliance that has admitted this worker, whose port comes and
// goes, hears of it and does not end the job.
constexpr DurationNs kLastRetry = 250 * kMillisecond;
// While the job's memory is made. That takes a small job milliseconds and a big one minutes.
constexpr DurationNs kFirstAsking = 5 * kMillisecond;
constexpr DurationNs kBareAfter = 1500 * kMillisecond;
constexpr DurationNs kUnreachableAfter = kSecond;
constexpr int kUnreachableReports = 3;
constexpr std::size_t kBareBytes = sizeof(wire::CommonHeader) + sizeof(wire::Join);
constexpr std::size_t kLeastPrints = 16;  // where the job's datagrams have room for fewer

// Without the fingerprints: with room for the ranks without which a store is.
std::size_t fixed_bytes(const Layout& layout, std::size_t world_size) noexcept {
  return kBareBytes + (layout.in_blocks() ? 8 * mask_words(world_size) : 0);
}

// The number of neighbouring tensors that share a fingerprint, so that the fingerprints of all
// tensors fit.
std::uint32_t print_tensors(const Layout& layout, std::size_t world_size) noexcept {
  const std::size_t whole_bytes = wire::datagram_bytes(layout.chunk_bytes(), world_size);
  const std::size_t fixed = fixed_bytes(layout, world_size);
  const std::size_t room = whole_bytes > fixed ? (whole_bytes - fixed) / 4 : 0;
  const std::size_t prints = std::max(room, kLeastPrints);
  return static_cast<std::uint32_t>((layout.tensor_count() + prints - 1) / prints);
}

wire::Join make_request(const SessionOptions& options, const Layout& layout) {
  wire::Join join{.nonce = options.nonce,
                  .run_id = options.run_id,
                  .features = options.reproducible ? wire::kFeatureReproducible : 0,
                  .world_size = options.world_size,
                  .ordinal = options.ordinal,
                  .chunk_bytes = static_cast<std::uint16_t>(layout.chunk_bytes()),
                  .policy = options.has_policy ? options.policy : PolicyOptions{},
                  .has_policy = options.has_policy,
                  .allow_nil = options.allow_nil,
                  .name_bytes = static_cast<std::uint8_t>(options.job_name.size()),
                  .averaging = options.averaging,
                  .wire = layout.wire(),
                  .kind = kind_of(options),
                  .store = options.store.value_or(StoreOptions{}),
                  .keep = options.keep,
                  .tensor_count = layout.tensor_count(),
                  .print_tensors = print_tensors(layout, options.world_size)};
  if (options.prune.rule != PruneRule::kOff) join.prune = options.prune;
  CHECK(options.store.has_value() == layout.in_blocks());
  join.layouts[kTensorStream] = {.hash = layout.hash(),
                                 .chunk_count = layout.chunk_count(),
                                 .max_elems = layout.max_chunk_elems()};
  join.layouts[index_of(StreamId::kCollectives)] = {.chunk_count = kCollectiveChunks};
  const std::size_t name_bytes = std::min(options.job_name.size(), kMaxJobNameBytes);
  std::memcpy(join.name, options.job_name.data(), name_bytes);
  join.epoch = options.epoch;
  join.has_standby = options.addresses.size() > 1;
  return join;
}

}  // namespace

std::size_t join_bytes(const Layout& layout, std::size_t world_size) noexcept {
  const std::uint32_t neighbours = print_tensors(layout, world_size);
  const std::size_t prints =
      neighbours == 0 ? 0 : (layout.tensor_count() + neighbours - 1) / neighbours;
  return std::max(fixed_bytes(layout, world_size) + prints * sizeof(std::uint32_t),
                  wire::datagram_bytes(layout.chunk_bytes(), world_size));
}

PaddedJoin::PaddedJoin(const SessionOptions& options, const Layout& layout)
    : body(make_request(options, layout)), bytes(join_bytes(layout, options.world_size)) {
  for (std::uint32_t first = 0; first < layout.tensor_count(); first += body.print_tensors)
    prints.push_back(layout.fingerprint(first, body.print_tensors));
  body.print_count = static_cast<std::uint16_t>(prints.size());
  body.datagram_bytes = static_cast<std::uint16_t>(bytes);
}

std::size_t PaddedJoin::write(std::span<std::uint8_t> out,
                              const wire::Sender& sender) const noexcept {
  const std::size_t written =
      wire::encode(out, sender, body, absent,
                   {reinterpret_cast<const std::uint8_t*>(prints.data()), 4 * prints.size()});
  CHECK(written >= kBareBytes && written <= bytes);
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(written),
            out.begin() + static_cast<std::ptrdiff_t>(bytes), std::uint8_t{0});
  return bytes;
}

JoinMachine::JoinMachine(const SessionOptions& options, const Layout& layout, TimeNs now,
                         std::optional<Again> again)
    : options_(options),
      layout_(layout),
      request_(options, layout),
      identity_{.rank = options.rank.value},
      bare_bytes_(kBareBytes),
      patience_ns_(again ? again->patience_ns : options.connect_timeout_ns),
      last_retry_ns_(again ? kRetryAgain : kLastRetry),
      started_ns_(now),
      answered_ns_(now),
      next_send_ns_(now + kFirstRetry),
      retry_ns_(kFirstRetry) {
  request_.body.was_member = again.has_value();
  if (again) {
    request_.body.resume_step = again->resume_step;
    request_.body.resume_calls = again->resume_calls;
    request_.body.resume_k = again->resume_k;
    request_.body.exchange_over = again->exchanges.over;
    request_.body.exchange_entered = again->exchanges.entered;
    request_.body.view = again->view.number;
    request_.body.settled_view = again->view.settled;
    if (again->view.number != 0) {
      const auto absent = std::span(again->view.absent).first(mask_words(options.world_size));
      request_.absent.assign(absent.begin(), absent.end());
      request_.body.mask_words = static_cast<std::uint8_t>(request_.absent.size());
    }
  }
  const std::size_t carried_bytes = std::min(options.path_datagram_bytes, kMaxDatagramBytes);
  if (options.job_name.empty() || options.job_name.size() > kMaxJobNameBytes)
    fail(StatusCode::kInvalidArgument,
         "the job's name has " + std::to_string(options.job_name.size()) +
             " bytes: it must have 1 to " + std::to_string(kMaxJobNameBytes));
  else if (options.world_size == 0 || options.world_size > kMaxWorkers ||
           (options.rank.value >= options.world_size && !asks_any_rank(options)))
    fail(StatusCode::kInvalidArgument, "rank " + std::to_string(options.rank.value) +
                                           " of world size " + std::to_string(options.world_size) +
                                           ": the world size must be 1 to " +
                                           std::to_string(kMaxWorkers) + " and the rank below it");
  else if (const PolicyField* field =
               options.has_policy ? wrong_field(options.policy, options.world_size) : nullptr)
    fail(StatusCode::kInvalidArgument,
         "policy '" + std::string(name_of(options.policy.kind)) + "' of " +
             std::to_string(options.world_size) + " workers: " + std::string(field->member) +
             " is " + std::to_string(field->get(options.policy)) + "; must be " +
             policy_range(*field, options.world_size, true));
  else if (request_.bytes > carried_bytes)
    fail(size_error("the local interface carries datagrams of " + std::to_string(carried_bytes) +
                    " bytes"));
}

// The legal changes: the machine ends once.
void JoinMachine::become(Outcome outcome) noexcept {
  CHECK(outcome_ == Outcome::kPending && outcome != Outcome::kPending);
  outcome_ = outcome;
}

Verdict JoinMachine::handle(const wire::Packet& packet, TimeNs now) {
  const wire::CommonHeader& common = packet.common();
  if (outcome_ != Outcome::kPending) return Verdict::kDuplicate;
  // The answer to a request for any rank may have the rank that is given.
  if (common.rank != options_.rank.value && !asks_any_rank(options_)) return Verdict::kBadRank;
  const std::uint64_t bare_nonce = ~options_.nonce;
  switch (packet.type()) {
    case wire::PacketType::kChallenge: {
      const auto& body = packet.body<wire::Challenge>();
      if (body.nonce == bare_nonce || body.nonce == options_.nonce)
        epoch_ = std::max(epoch_, std::uint32_t{body.epoch});
      if (body.nonce == bare_nonce) {
        bare_passes_ = true;
        return Verdict::kJoin;
      }
      if (body.nonce != options_.nonce) return Verdict::kBadCookie;
      padded_passes_ = true;
      if (challenged_ && std::memcmp(body.server_nonce, request_.body.server_nonce,
                                     sizeof(body.server_nonce)) == 0)
        return Verdict::kDuplicate;
      challenged_ = true;
      request_.body.has_proof = 1;
      std::memcpy(request_.body.server_nonce, body.server_nonce, sizeof(body.server_nonce));
      const wire::Digest proof =
          wire::join_proof(options_.secret, options_.rank.value, request_.body);
      std::memcpy(request_.body.proof, proof.data(), proof.size());
      send_padded_ = true;
      return Verdict::kJoin;
    }
    case wire::PacketType::kAccept: {
      const auto& body = packet.body<wire::Accept>();
      if (body.nonce != options_.nonce || common.cookie == 0) return Verdict::kBadCookie;
      if (body.shards == 0 || body.shards > kMaxShards || body.world_size != options_.world_size)
        return Verdict::kBadField;
      if (common.rank >= options_.world_size) return Verdict::kBadRank;
      accept_ = body;
      identity_.job = common.job;
      identity_.cookie = common.cookie;
      identity_.rank = common.rank;
      become(Outcome::kAccepted);
      return Verdict::kJoin;
    }
    case wire::PacketType::kPreparing: return handle_preparing(packet.body<wire::Preparing>(), now);
    case wire::PacketType::kRefuse: {
      const auto& body = packet.body<wire::Refuse>();
      if (body.nonce == bare_nonce) {
        bare_passes_ = true;
        size_reason_ = packet.text();
        return Verdict::kJoinRefused;
      }
      if (body.nonce != options_.nonce) return Verdict::kBadCookie;
      draining_ = body.code == wire::RefuseCode::kDraining;
      fail(body.code == wire::RefuseCode::kEnded ? StatusCode::kPeerLost : StatusCode::kRefused,
           std::string(packet.text()));
      return Verdict::kJoinRefused;
    }
    case wire::PacketType::kDiffers: {
      const auto& body = packet.body<wire::Differs>();
      if (body.nonce != options_.nonce) return Verdict::kBadCookie;
      fail(StatusCode::kRefused, std::string(packet.text()) + describe_difference(body));
      return Verdict::kJoinRefused;
    }
    default: return Verdict::kBadType;
  }
}

// The end of a sentence. The fingerprint finds the job's tensor at that place in this rank's
// layout, if two ranks have registered in different orders.
std::string JoinMachine::describe_difference(const wire::Differs& body) const {
  const std::uint32_t first = body.first_tensor;
  const auto called = [&](std::uint32_t tensor) {
    return std::to_string(tensor) + " '" + layout_.tensor(tensor).name + "'";
  };
  std::string text = "; the first that differs is ";
  if (first >= layout_.tensor_count())
    return text + "tensor " + std::to_string(first) + ", which this rank does not have";
  if (body.print_tensors > 1)
    return text + "one of tensors " + called(first) + " to " +
           called(static_cast<std::uint32_t>(
               std::min<std::uint64_t>(std::uint64_t{first} + body.print_tensors,
                                       layout_.tensor_count()) -
               1));
  text += "tensor " + called(first) + " here, ";
  if (first >= body.job_tensor_count) return text + "which the job does not have";
  for (std::uint32_t other = 0; other < layout_.tensor_count(); ++other)
    if (layout_.fingerprint(other, 1) == body.job_print)
      return text + "and there the one that is " + called(other) + " here";
  return text + "and there one of another name, size, type or option";
}

// Any answer is a sign of life. An answer that has been the same for as long as the other ranks may
// take is no sign of progress.
Verdict JoinMachine::handle_preparing(const wire::Preparing& body, TimeNs now) noexcept {
  if (body.nonce != options_.nonce) return Verdict::kBadCookie;
  padded_passes_ = true;
  const std::uint8_t percent = std::min<std::uint8_t>(body.percent, 100);
  if (!preparing_) {
    preparing_since_ns_ = now;
    retry_ns_ = kFirstAsking;
    next_send_ns_ = now + retry_ns_;
  }
  if (!preparing_ || percent > percent_) grown_ns_ = now;
  preparing_ = true;
  percent_ = std::max(percent_, percent);
  DCHECK(percent_ <= 100 && grown_ns_ <= now);
  if (now - grown_ns_ < options_.join_timeout_ns) answered_ns_ = now;
  return Verdict::kJoin;
}

std::string JoinMachine::describe() const {
  if (!preparing()) return {};
  return error_prefix(options_) + "the appliance is preparing the job's memory, " +
         std::to_string(percent_) + " %";
}

std::size_t JoinMachine::poll_transmit(std::span<std::uint8_t> out) noexcept {
  if (outcome_ != Outcome::kPending || out.size() < request_.bytes) return 0;
  if (send_padded_) {
    send_padded_ = false;
    return request_.write(out, identity_);
  }
  if (send_bare_) {
    send_bare_ = false;
    wire::Join bare = request_.body;
    bare.nonce = ~options_.nonce;
    bare.has_proof = 0;
    bare.print_count = 0;
    bare.mask_words = 0;
    std::fill(std::begin(bare.proof), std::end(bare.proof), std::uint8_t{0});
    return wire::encode(out, identity_, bare);
  }
  return 0;
}

TimeNs JoinMachine::next_timeout() const noexcept {
  if (outcome_ != Outcome::kPending) return kNever;
  return std::min(next_send_ns_, answered_ns_ + patience_ns_);
}

void JoinMachine::handle_timeout(TimeNs now) {
  if (outcome_ != Outcome::kPending) return;
  if (now - answered_ns_ >= patience_ns_)
    return preparing_ ? fail_preparing(now) : fail_unreachable(now);
  if (now < next_send_ns_) return;
  send_padded_ = true;
  send_bare_ = !padded_passes_ && can_test_size() && now - started_ns_ >= kBareAfter;
  DCHECK(retry_ns_ > 0 && request_.bytes >= bare_bytes_);
  retry_ns_ = std::min(retry_ns_ * 3 / 2, last_retry_ns_);
  next_send_ns_ = now + retry_ns_;
}

void JoinMachine::handle_unreachable(TimeNs now) {
  if (outcome_ != Outcome::kPending) return;
  ++unreachable_count_;
  if (unreachable_count_ >= kUnreachableReports && now - started_ns_ >= kUnreachableAfter)
    fail_unreachable(now);
}

Status JoinMachine::too_big(std::size_t datagram_bytes, std::size_t path_bytes) const {
  return size_error("a datagram of " + std::to_string(datagram_bytes) +
                    " bytes is too big for the path" +
                    (path_bytes != 0 ? ", which carries " + std::to_string(path_bytes) + " bytes"
                                     : std::string()));
}

void JoinMachine::fail_unreachable(TimeNs now) {
  CHECK(outcome_ == Outcome::kPending && !preparing_);
  const std::string waited = seconds_text(now - started_ns_);
  // Only at the end: a path that loses some packets, or rests for a while, answers a padded one at
  // last.
  if (bare_passes_ && !padded_passes_)
    return fail(size_error("datagrams of " + std::to_string(bare_bytes_) +
                           " bytes reach the appliance, and of those of " +
                           std::to_string(request_.bytes) + " bytes none was answered in " +
                           waited +
                           (size_reason_.empty() ? "" : " (it says: " + size_reason_ + ")")));
  if (challenged_)
    return fail(StatusCode::kUnreachable,
                "the appliance answered the first join request and none after it for " + waited +
                    ": it may be busy, or the path loses packets; try again");
  if (unreachable_count_ >= kUnreachableReports)
    return fail(StatusCode::kUnreachable,
                "nothing listens at this address and port (the host said so " +
                    std::to_string(unreachable_count_) + " times in " + waited +
                    "): start sluiced there, or correct the address");
  fail(StatusCode::kUnreachable,
       "no answer to any join request for " + waited +
           ": check that sluiced (in a BCube of mode plain: that worker) runs there and is of this "
           "release, that address and port are right, and that no firewall drops UDP");
}

void JoinMachine::fail_preparing(TimeNs now) {
  fail(StatusCode::kUnreachable,
       "the appliance was preparing the job's memory, " + std::to_string(percent_) +
           " %, and has got no further for " + seconds_text(now - grown_ns_) +
           ": look at its log, and at what else takes memory on its machine");
}

Status JoinMachine::size_error(const std::string& what) const {
  return {
      StatusCode::kInvalidArgument,
      error_prefix(options_) + what + ", and chunks of " +
          std::to_string(request_.body.chunk_bytes) + " bytes for " +
          std::to_string(options_.world_size) + " workers need datagrams of " +
          std::to_string(request_.bytes) +
          " bytes: give the path's MTU (mtu), choose a smaller chunk size, or raise the MTU along "
          "the path"};
}

void JoinMachine::fail(Status why) {
  become(Outcome::kFailed);
  failure_ = std::move(why);
}

void JoinMachine::fail(StatusCode code, std::string message) {
  fail(Status(code, error_prefix(options_) + std::move(message)));
}

}  // namespace sluice::client
