// A join from its first byte to its answer: size test, challenge, proof, and the rank.
#include <algorithm>
#include <cstring>

#include "aggregator/jobs/job_control.h"
#include "aggregator/jobs/text.h"
#include "aggregator/wire/auth.h"

namespace sluice::agg {
namespace {

Refusal wrong_secret(const JoinRequest& asked, std::string_view secret) {
  const char* difference =
      "another one than the appliance has: give the appliance's as the option `secret` (only "
      "Python reads SLUICE_SECRET)";
  if (secret.empty())
    difference =
        "one, and the appliance has none: give none, or the appliance one "
        "(appliance.secret_file)";
  else if (wire::same_digest(wire::join_proof("", asked.rank.value, asked.join), asked.join.proof))
    difference =
        "none, and the appliance has one: give it as the option `secret` (only Python reads "
        "SLUICE_SECRET)";
  return {.code = wire::RefuseCode::kBadSecret,
          .text = text("wrong secret for job '%s': rank %u at %s gave %s",
                       printable(asked.name()).c_str(), unsigned{asked.rank.value},
                       std::string(asked.address).c_str(), difference)};
}

Refusal refuse_draining(const JoinRequest& asked) {
  return {.code = wire::RefuseCode::kDraining,
          .text = text("job '%s': this appliance is being drained and takes no new jobs (rank %u "
                       "at %s): join another appliance, or this one once it has been started again",
                       printable(asked.name()).c_str(), unsigned{asked.rank.value},
                       std::string(asked.address).c_str())};
}

}  // namespace

bool is_foreign_join(std::span<const std::uint8_t> datagram) noexcept {
  wire::CommonHeader common;
  if (datagram.size() < sizeof common) return false;
  std::memcpy(&common, datagram.data(), sizeof common);
  return common.magic == wire::kMagic && common.version != wire::kVersion &&
         common.type == wire::PacketType::kJoin;
}

std::size_t refuse_version(std::span<const std::uint8_t> request, std::span<std::uint8_t> reply) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Refuse);
  if (!is_foreign_join(request) || request.size() < kFixedBytes) return 0;
  CHECK(reply.size() >= kMaxDatagramBytes);
  wire::CommonHeader common;
  std::memcpy(&common, request.data(), sizeof common);
  wire::Refuse body{.code = wire::RefuseCode::kBadVersion};
  static_assert(offsetof(wire::Join, nonce) == 0);
  std::memcpy(&body.nonce, request.data() + sizeof common, sizeof body.nonce);
  const std::string why = text(
      "it speaks version %u of the protocol, the appliance version %u: use client and "
      "appliance of one release",
      unsigned{common.version}, unsigned{wire::kVersion});
  body.text_bytes = static_cast<std::uint16_t>(std::min(why.size(), request.size() - kFixedBytes));
  const std::size_t bytes =
      wire::encode(reply, {.rank = common.rank}, body, {},
                   {reinterpret_cast<const std::uint8_t*>(why.data()), body.text_bytes});
  CHECK(bytes <= request.size());  // a stranger hears no more than it has said
  return bytes;
}

ControlResult Jobs::join(const Request& request) {
  const JoinRequest asked{.join = request.join(),
                          .rank = request.rank(),
                          .address = request.origin.address,
                          .max_datagram_bytes = request.origin.max_datagram_bytes,
                          .now = request.now,
                          .prints = request.packet.payload()};
  const wire::Join& join = asked.join;
  JobControl* control = find(asked.name(), join.ordinal);
  const bool known = control != nullptr && control->entry().run_id == join.run_id;
  const std::uint32_t epoch = known ? control->entry().epoch : 0;
  // A member that is on its way asks again, here when the next process answers, or elsewhere.
  const bool is_strange = !known || epoch != join.epoch;
  if (context_->draining && is_strange && join.was_member != 0) return {.verdict = Verdict::kJoin};
  if (join.has_proof == 0) {
    const Refusal refusal = check_size(asked, request.packet.bytes().size());
    return refusal.ok() ? challenge(request, context_->boot_key, epoch)
                        : refuse(request, refusal, false);
  }

  // A nonce that is not ours belongs to another address or to the appliance before its restart: an
  // honest worker simply proves itself again.
  if (!wire::same_digest(server_nonce(request, context_->boot_key), join.server_nonce))
    return challenge(request, context_->boot_key, epoch);
  if (std::ranges::none_of(context_->secrets, [&](const wire::HmacKey& secret) {
        return wire::same_digest(wire::join_proof(secret, request.rank().value, join), join.proof);
      }))
    return refuse(request, wrong_secret(asked, context_->options->secret), false);

  if (context_->draining && is_strange) return refuse(request, refuse_draining(asked), true);

  const auto decide = [&] {
    const JobEntry* entry = control == nullptr ? nullptr : &control->entry();
    return decide_job(asked, *context_->options, entry, usage(asked), context_->clock);
  };
  JobDecision decision = decide();
  if (decision.kind == JobDecision::Kind::kReplace) {
    control->replace(request);
    control = nullptr;
    decision = decide();
  }
  CHECK(control != nullptr || (decision.kind != JobDecision::Kind::kJoin &&
                               decision.kind != JobDecision::Kind::kReplace));
  if (control == nullptr && is_echo(asked)) return {.verdict = Verdict::kJoin};
  switch (decision.kind) {
    case JobDecision::Kind::kRefuse: return refuse(request, decision.refusal, true);
    case JobDecision::Kind::kJoin: return control->take_rank(asked, request);
    case JobDecision::Kind::kAskMembers:
      if (!is_asked(control->entry(), asked)) control->ask_members(asked);
      return {.verdict = Verdict::kJoin};  // the worker asks again
    case JobDecision::Kind::kAdopt:
      control->adopt(asked);
      return control->take_rank(asked, request);
    case JobDecision::Kind::kMakeRoom:
      if (asked.asks_any_rank() || all_ask(asked)) make_room(asked);
      return preparing(request, 0);
    case JobDecision::Kind::kReplace:
    case JobDecision::Kind::kLater: return {.verdict = Verdict::kJoin};
    case JobDecision::Kind::kFound: break;
  }
  control = create(asked, std::move(decision.spec));
  if (control == nullptr)
    return refuse(request,
                  {.code = wire::RefuseCode::kLimit,
                   .text = text("all %zu job ids of this appliance are in use: wait for a job to "
                                "end",
                                kMaxJobs)},
                  true);
  return control->take_rank(asked, request);
}

}  // namespace sluice::agg
