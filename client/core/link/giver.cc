#include "client/core/link/giver.h"

#include <algorithm>
#include <bit>

#include "aggregator/base/check.h"
#include "client/core/calls/text.h"

namespace sluice::client {
namespace {

constexpr DurationNs kWordAgain = 25 * kMillisecond;
constexpr DurationNs kAskLater = 5 * kMillisecond;
constexpr std::uint32_t kMostBackoff = 5;  // doublings of the time in which an answer is expected

}  // namespace

Giver::Giver(StreamId stream, std::uint32_t blocks, Link& link, TimeNs now)
    : Stream(stream, Flows::kAll, link), began_ns_(now), progress_ns_(now) {
  CHECK(link.joined());
  parts_.resize(std::min<std::size_t>(link.shard_count(), blocks));
  for (Part& part : parts_) part.next_word_ns = now;
}

bool Giver::write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) {
  for (std::uint16_t shard = 0; shard < parts_.size(); ++shard) {
    Flow& flow = link_.flows[shard];
    Part& part = parts_[shard];
    if (!flow.on_pace(now)) continue;
    const bool sends = !part.to_send.empty() && flow.may_send(flow.in_flight() != 0);
    if (!sends && (!part.is_given() || now < part.next_word_ns)) continue;
    wire::FlowHeader header = flow.next_header(now);
    if (flow.take_report_flag(!sends, now) || !sends) header.flags |= wire::kFlagReport;
    transmit = {.port_offset = static_cast<std::uint16_t>(1 + shard)};
    if (sends) {
      Block& block = part.to_send.front();
      transmit.bytes = write_block(block, header, out);
      block.ask_ns = now + flow.rtt().timeout_ns();
      if (block.waiting == 0) {
        block.ask_ns = now;
        part.sent.push_front(block);
        part.to_send.pop_front();
      }
    } else {
      transmit.bytes = write_word(header, out);
      part.next_word_ns = now + kWordAgain;
    }
    CHECK(transmit.bytes != 0);
    return true;
  }
  return false;
}

// A block that is to be asked about: all of it has left, or the window has been shut for long.
Giver::Block* Giver::to_ask_about(std::uint16_t shard, TimeNs now) noexcept {
  Part& part = parts_[shard];
  if (now < part.next_ask_ns) return nullptr;
  if (!part.sent.empty()) return now >= part.sent.front().ask_ns ? &part.sent.front() : nullptr;
  if (part.to_send.empty() || now < part.to_send.front().ask_ns) return nullptr;
  return &part.to_send.front();
}

bool Giver::poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                       TimeNs now) {
  if (shard >= parts_.size() || !link_.flows[shard].on_pace(now)) return false;
  Block* const block = to_ask_about(shard, now);
  if (block == nullptr) return false;
  Flow& flow = link_.flows[shard];
  ++link_.counters.probes;
  transmit = {.bytes = wire::encode(out, link_.identity,
                                    wire::Probe{.flow = flow.next_header(now),
                                                .step = block->step,
                                                .block = block->index,
                                                .stream = id()}),
              .port_offset = static_cast<std::uint16_t>(1 + shard)};
  Part& part = parts_[shard];
  block->ask_ns = now + (flow.rtt().timeout_ns() << std::min(part.unanswered++, kMostBackoff));
  if (part.sent.size() > 1) std::rotate(part.sent.begin(), part.sent.begin() + 1, part.sent.end());
  return true;
}

Verdict Giver::handle_answer(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::Answer>();
  const std::uint32_t shard = body.block % link_.shard_count();
  if (shard >= parts_.size()) return Verdict::kWrongShard;
  Part& part = parts_[shard];
  part.unanswered = 0;
  const auto is_it = [&](const Block& one) {
    return one.step == body.step && one.index == body.block;
  };
  const auto found = std::ranges::find_if(part.sent, is_it);
  if (found == part.sent.end()) return Verdict::kProbe;
  const Next next = judge(body, *found);
  if (next == Next::kAskLater) {
    part.next_ask_ns = now + kAskLater;
    return Verdict::kProbe;
  }
  Block block = *found;
  part.sent.erase(found);
  part.next_ask_ns = now;
  progress_ns_ = now;
  if (next == Next::kSend) part.to_send.push_front(block);
  return Verdict::kProbe;
}

// Which packets are missing, answers tell.
void Giver::hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs) noexcept {
  if (signals.gap) link_.flows[shard].accept_gap();
}

TimeNs Giver::next_timeout() const noexcept {
  TimeNs next_ns = kNever;
  for (std::size_t shard = 0; shard < parts_.size(); ++shard) {
    const Part& part = parts_[shard];
    TimeNs part_ns = part.next_word_ns;
    if (!part.sent.empty())
      part_ns = std::max(part.sent.front().ask_ns, part.next_ask_ns);
    else if (!part.to_send.empty())
      part_ns = std::max(part.to_send.front().ask_ns, part.next_ask_ns);
    next_ns = std::min(next_ns, std::max(part_ns, link_.flows[shard].held_until_ns()));
  }
  return next_ns;
}

std::string Giver::describe(TimeNs now) const {
  std::size_t left = 0;
  for (const Part& part : parts_)
    for (const std::deque<Block>* const blocks : {&part.to_send, &part.sent})
      for (const Block& block : *blocks)
        left += static_cast<std::size_t>(std::popcount(block.chunks));
  return "the ranks have given each other what they have of a lost appliance for " +
         seconds_text(now - began_ns_) + ", and this one has " + std::to_string(left) +
         " results left to give";
}

}  // namespace sluice::client
