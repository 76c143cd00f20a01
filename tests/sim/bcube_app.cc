// The application of a BCube's server: the loop that a user would write, and checks of what it gets
// and of what leaves of its gradients.
#include <algorithm>

#include "aggregator/core/fold.h"
#include "aggregator/wire/packet.h"
#include "tests/sim/bcube_world.h"
#include "tests/sim/oracle.h"

namespace sluice::sim {

void BcubeWorld::expect_ok(std::uint32_t index, const char* what, const Status& status) {
  const bool dead = death_ && now_ >= died_ns();
  if (!status.ok() && !dead)
    oracle_.violation("rank " + std::to_string(index) + ": " + what +
                      " was refused: " + status.message());
}

void BcubeWorld::handle(std::uint32_t index, const client::Event& event, TimeNs now) {
  Server& server = servers_[index];
  const bool may_fail = death_ && now >= died_ns();
  switch (event.kind) {
    case client::Event::Kind::kStarted:
      if (++started_ == servers_.size()) started_ns_ = now;
      if (!options_.begin_together) return prepare_step(index, now);
      for (std::uint32_t each = 0; has_started() && each < servers_.size(); ++each)
        prepare_step(each, now);
      return;
    case client::Event::Kind::kTensorDone:
      check_tensor(index, event);
      tensors_ended_[event.step][event.tensor] = now;
      if (options_.pipelined && event.step < options_.steps)
        submit(index, event.step + 1, event.tensor, now);
      return;
    case client::Event::Kind::kStepDone: return end_step(index, now);
    case client::Event::Kind::kCollectiveDone:
      if (plan_.collectives[server.next_collective].kind == CollectiveKind::kBroadcast)
        oracle_.collective_done(index, server.next_collective, server.collective_buffer);
      ++server.next_collective;
      return prepare_step(index, now);
    case client::Event::Kind::kLeft:
      ++over_;
      server.over = true;
      return;
    case client::Event::Kind::kFailed:
      ++over_;
      server.over = true;
      server.submitting = false;
      failures_[index] = {now - (may_fail ? died_ns() : 0), event.status.message()};
      break;
    case client::Event::Kind::kDetoured:
    case client::Event::Kind::kReturned: server.moves.push_back(event); break;
    case client::Event::Kind::kStalled: break;
    default: return;
  }
  if (!may_fail) oracle_.violation("rank " + std::to_string(index) + ": " + event.status.message());
}

bool BcubeWorld::run_app(std::uint32_t index, TimeNs now) {
  Server& server = servers_[index];
  bool any = false;
  for (client::TensorTimes times; server.relay->poll_trace(times);) server.traces.push_back(times);
  for (client::Event event; server.relay->poll_event(event); any = true) handle(index, event, now);
  for (; server.submitting && server.due_ns <= now; any = true) {
    if (server.order.empty()) {
      client::Relay& relay = *server.relay;
      server.submitting = false;
      // Pipelined, the next step has begun, and it would belong to that one.
      if (!options_.pipelined && (options_.call_end_step || plan_.nil_ppm != 0))
        expect_ok(index, "end_step", relay.take_ended_step() ? Status() : relay.end_step());
      break;
    }
    const std::uint32_t tensor = server.order.back();
    server.order.pop_back();
    submit(index, server.step, tensor, now);
    if (options_.compute_max_ns != 0 && !server.order.empty())
      server.due_ns = now + random_.between(0, options_.compute_max_ns);
  }
  return any;
}

// The collectives before the next step, and the step.
void BcubeWorld::prepare_step(std::uint32_t index, TimeNs now) {
  if (!start_collective(index, now)) begin_step(index, now);
}

bool BcubeWorld::start_collective(std::uint32_t index, TimeNs now) {
  Server& server = servers_[index];
  const std::size_t next = server.next_collective;
  if (next == plan_.collectives.size() || plan_.collectives[next].before_step > server.done + 1)
    return false;
  const CollectivePlan& call = plan_.collectives[next];
  if (call.kind == CollectiveKind::kBarrier) {
    expect_ok(index, "barrier", server.relay->barrier(now));
  } else {
    server.collective_buffer.assign(call.size_bytes, 0);
    for (std::size_t at = 0; index == call.root.value && at < call.size_bytes; ++at)
      server.collective_buffer[at] = plan_.broadcast_byte(next, at);
    expect_ok(
        index, "broadcast",
        server.relay->broadcast(call.root, server.collective_buffer.data(), call.size_bytes, now));
  }
  events_.push(now, EventKind::kWorkerApp, index);
  return true;
}

void BcubeWorld::begin_step(std::uint32_t index, TimeNs now) {
  Server& server = servers_[index];
  server.step = server.done + 1;
  const bool first = begun_[server.step] == 0;
  if (first) begun_[server.step] = now;
  if (first && server.step == 1 && death_ && death_->at == kNever) plan_return();
  if (!options_.pipelined || server.step == 1) {
    server.order = plan_.submission_order(Rank{static_cast<std::uint16_t>(index)}, server.step);
    std::ranges::reverse(server.order);  // the next one is at the end
    server.submitting = true;
    server.due_ns = now + options_.pause_ns;
    if (server.step == options_.late_step && index + 1 == servers_.size())
      server.due_ns += static_cast<TimeNs>(options_.late_ns);
  }
  events_.push(now, EventKind::kWorkerApp, index);
}

void BcubeWorld::submit(std::uint32_t index, Step step, std::uint32_t tensor, TimeNs now) {
  Server& server = servers_[index];
  const Rank rank{static_cast<std::uint16_t>(index)};
  std::vector<float>& input = (options_.in_place ? server.outputs : server.inputs)[tensor];
  const bool nil = plan_.is_nil(rank, step, tensor);
  for (std::uint64_t i = 0; !nil && options_.check_values && i < input.size(); ++i)
    input[i] = plan_.gradient(rank, step, tensor, i);
  expect_ok(index, "submit",
            server.relay->submit({.tensor = tensor,
                                  .input = nil ? nullptr : input.data(),
                                  .output = server.outputs[tensor].data(),
                                  .weight = plan_.weight(rank, step),
                                  .priority = plan_.priority(rank, step, tensor)},
                                 now));
}

void BcubeWorld::end_step(std::uint32_t index, TimeNs now) {
  Server& server = servers_[index];
  ++server.done;
  ended_[server.done] = now;
  if (options_.check_values) oracle_.step_done(index, server.done, server.outputs);
  const bool at_rest = !options_.pipelined || server.done == options_.steps;
  for (std::uint32_t tensor = 0; at_rest && tensor < plan_.tensors.size(); ++tensor) {
    client::Kept kept;
    if (!options_.check_values || !plan_.is_lossy(tensor)) continue;
    expect_ok(index, "residual", server.relay->residual(tensor, kept));
    oracle_.check_residual(index, tensor, kept.values);
  }
  if (server.done == options_.steps) return server.relay->leave(wire::LeaveReason::kFinished, now);
  if (!options_.steps_apart) return prepare_step(index, now);
  const auto behind = [&](const Server& other) { return other.done < server.done; };
  if (std::ranges::any_of(servers_, behind)) return;
  for (std::uint32_t each = 0; each < servers_.size(); ++each) prepare_step(each, now);
}

void BcubeWorld::check_tensor(std::uint32_t index, const client::Event& event) {
  if (!options_.check_values) return;
  oracle_.tensor_done(index, servers_[index].done + 1, event,
                      servers_[index].outputs[event.tensor]);
}

// Of a gradient, on its first way, and again where lanes have moved. Not again in a lane: what was
// counted may be overwritten by the average before its sender knows.
void BcubeWorld::check_contribution(const Address& address,
                                    std::span<const std::uint8_t> datagram) {
  wire::Packet packet;
  if (!ok(wire::parse(datagram, packet)) || packet.type() != wire::PacketType::kContribution)
    return;
  client::Relay& relay = *servers_[address.server].relay;
  const client::Leg& lane = relay.legs()[address.lane];
  const Step step = relay.tensors().current();  // a lane that came later has steps of its own
  const auto& body = packet.body<wire::Contribution>();
  if ((body.flow.flags & wire::kFlagNil) != 0 || lane.slices.empty()) return;
  const client::Layout& layout = lane.session.layout();
  for_each_chunk(packet, body, body.flow.flags, [&](ChunkIndex chunk, auto payload) {
    const client::ChunkSpan span = layout.chunk(chunk);
    const client::Hop hop = layout.tensor(span.tensor).hop;
    const client::Slice& slice = slices_[lane.slices[span.tensor]];
    const bool first = hop == client::Hop::kFirst || hop == client::Hop::kWhole;
    const bool half_way = layout.tensor(span.tensor).exact;
    if (!first || half_way || !plan_.is_lossy(slice.tensor)) return;
    if (!said_.insert({step, address.server, address.lane, chunk}).second) return;
    std::vector<float> values(span.elem_count);
    agg::fold_store(values.data(), payload.data(), span.elem_count, body.dtype);
    oracle_.contributed(address.server, step, slice.tensor, slice.first_elem + span.first_elem,
                        values);
  });
}

}  // namespace sluice::sim
