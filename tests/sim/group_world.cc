#include "tests/sim/group_world.h"

#include <algorithm>

#include "aggregator/base/check.h"
#include "tests/sim/group_faults.h"

namespace sluice::sim {
namespace {

Cookie cookie_of(std::uint16_t rank, std::uint64_t boot) noexcept {
  return 0xC0FFEE00u + (boot << 32) + rank;
}

// Pages for as many slots, whether or not parts wait for their turn.
agg::OperationsSpec spec_of(const GroupWorldOptions& options) {
  agg::OperationsSpec spec{.world_size = options.world_size,
                           .chunk_bytes = options.chunk_bytes,
                           .shard_count = options.shard_count,
                           .reproducible = options.reproducible};
  spec.page_count = options.page_count * agg::pages_per_block(spec, spec.world_size);
  return spec;
}

}  // namespace

GroupWorld::GroupWorld(GroupWorldOptions options)
    : options_(std::move(options)),
      random_(options_.seed),
      events_arrive_ns_(options_.shard_count),
      commands_arrive_ns_(options_.shard_count) {
  faults_ = std::make_unique<GroupFaults>(*this);
  make_job();
  make_members();
  make_groups();
  if (options_.death) at(options_.death->at_ns, [this] { faults_->kill(options_.death->rank); });
  if (options_.abort) at(options_.abort->at_ns, [this] { faults_->abort(options_.abort->rank); });
}

GroupWorld::~GroupWorld() = default;

std::size_t GroupWorld::restarts() const noexcept { return faults_->restarts(); }

// At the appliance that is up.
void GroupWorld::make_job() {
  shards_ = std::make_unique<agg::Shards>(options_.shard_count);
  reservations_.emplace(spec_of(options_));
  agg::JobSpec spec{.id = JobId{5},
                    .name = "operations",
                    .world_size = options_.world_size,
                    .chunk_bytes = options_.chunk_bytes,
                    .shard_count = options_.shard_count,
                    .operations = spec_of(options_)};
  spec.chunk_counts = {0, kCollectiveChunks, 0};
  spec.windows = {0, kMaxWindow, 0};
  job_ = std::make_unique<agg::Job>(spec);
  for (std::uint16_t rank = 0; rank < options_.world_size; ++rank) {
    job_->members[rank].cookie = cookie_of(rank, boot_);
    job_->members[rank].reachable = !buried_.contains(rank);
  }
  for (std::uint16_t shard = 0; shard < options_.shard_count; ++shard)
    shards_->shard(shard).handle_command(
        {.kind = agg::ShardCommand::Kind::kAddJob, .job = job_.get()}, now_);
  job_->start(now_);
}

void GroupWorld::make_members() {
  for (std::uint16_t rank = 0; rank < options_.world_size; ++rank) {
    members_.push_back(std::make_unique<Member>(4));
    Member& member = *members_.back();
    member.random = Random(mix(options_.seed, rank));
    member.join(boot_, rank, options_);
    member.operations = std::make_unique<client::Operations>(member.link, options_.chunk_bytes,
                                                             !options_.restarts.empty());
    member.called.resize(options_.groups.size());
    member.open.resize(options_.groups.size());
    member.groups.resize(options_.groups.size());
    member.may_call_ns = kSecond + options_.paces.at(rank).start_ns;
    wake_at(rank, member.may_call_ns);
  }
}

void GroupWorld::Member::join(std::uint64_t appliance, std::uint16_t rank,
                              const GroupWorldOptions& options) {
  boot = appliance;
  link.identity = {.job = 5, .rank = rank, .cookie = cookie_of(rank, appliance)};
  link.flows.assign(options.shard_count, client::Flow(options.credit_packets));
}

void GroupWorld::make_groups() {
  for (std::uint16_t id = 0; id < options_.groups.size(); ++id) {
    const PlannedGroup& plan = options_.groups[id];
    add_group(id);
    for (const Rank rank : plan.ranks) {
      Member& member = *members_[rank.value];
      member.groups[id] =
          &member.operations->make("group" + std::to_string(id), plan.ranks,
                                   "rank " + std::to_string(rank.value) + ": ", plan.first_chunk);
      member.groups[id]->made(id, 1, now_);
    }
  }
}

void GroupWorld::add_group(std::uint16_t id, const Positions* positions) {
  const PlannedGroup& plan = options_.groups[id];
  groups_.resize(options_.groups.size());
  groups_[id] =
      std::make_unique<agg::Group>(id, static_cast<std::uint32_t>(boot_), plan.ranks,
                                   options_.world_size, options_.shard_count, plan.first_chunk);
  if (positions != nullptr) groups_[id]->resume(*positions);
  for (std::uint16_t shard = 0; shard < options_.shard_count; ++shard)
    shards_->shard(shard).handle_command({.kind = agg::ShardCommand::Kind::kAddGroup,
                                          .job = job_.get(),
                                          .groups = {.group = groups_[id].get()}},
                                         now_);
}

void GroupWorld::at(TimeNs at_ns, std::function<void()> happens) {
  events_.push({std::max(at_ns, now_), next_sequence_++, std::move(happens)});
}

void GroupWorld::violated(const std::string& what) {
  violations_ += "at " + std::to_string(now_ / kMicrosecond) + " us: " + what + "\n";
}

bool GroupWorld::run(TimeNs until_ns) {
  while (!events_.empty() && events_.top().at_ns <= until_ns && !finished()) {
    const Event event = events_.top();
    events_.pop();
    CHECK(event.at_ns >= now_);
    now_ = event.at_ns;
    event.happens();
  }
  check_agreement();
  return finished();
}

// ---- the network ----

void GroupWorld::carry(Member& member, std::uint16_t rank, bool up, std::uint16_t shard,
                       std::vector<std::uint8_t> bytes) {
  ++packets_;
  for (std::size_t i = 0; i < bytes.size(); i += 7) trace_ = mix(trace_ ^ bytes[i]);
  trace_ = mix(trace_, static_cast<std::uint64_t>(now_));
  wire::Packet packet;
  CHECK(ok(wire::parse(bytes, packet)));
  faults_->count_packet();
  if (drop && drop(packet, up)) return;
  const bool faulty = now_ < options_.faults_stop_ns;
  if (faulty && random_.chance_ppm(options_.loss_ppm)) return;
  TimeNs& free_ns = up ? member.up_free_ns : member.down_free_ns;
  if (options_.bytes_per_ns != 0)
    free_ns = std::max(free_ns, now_) +
              static_cast<DurationNs>(static_cast<double>(bytes.size()) / options_.bytes_per_ns);
  const int copies = faulty && random_.chance_ppm(options_.twice_ppm) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    const auto jitter_ns =
        static_cast<DurationNs>(random_.below(static_cast<std::uint64_t>(options_.jitter_ns) + 1));
    at(std::max(free_ns, now_) + options_.delay_ns + jitter_ns, [this, rank, up, shard, bytes] {
      if (up && up_)
        arrive_up(shard, bytes);
      else if (!up)
        arrive_down(rank, bytes);
    });
  }
}

void GroupWorld::arrive_up(std::uint16_t shard, const std::vector<std::uint8_t>& bytes) {
  wire::Packet packet;
  CHECK(ok(wire::parse(bytes, packet)));
  const Verdict verdict = shards_->shard(shard).handle(packet, false, now_);
  const bool disturbed = options_.death || options_.disagreement;
  const bool part = packet.type() == wire::PacketType::kPart;
  // An honest member sends no part that the rules forbid.
  if ((part && verdict == Verdict::kTooNew) || verdict == Verdict::kWrongShard ||
      verdict == Verdict::kShapeMismatch || verdict == Verdict::kUnknownGroup ||
      verdict == Verdict::kBadField || verdict == Verdict::kBadChunk ||
      (!disturbed && verdict == Verdict::kCollectiveMismatch))
    violated("a packet of type " + std::to_string(static_cast<int>(packet.type())) + " of rank " +
             std::to_string(packet.common().rank) + " is " + std::string(label(verdict)));
  serve(shard);
}

void GroupWorld::arrive_down(std::uint16_t rank, const std::vector<std::uint8_t>& bytes) {
  Member& member = *members_[rank];
  if (!member.alive) return;
  wire::Packet packet;
  CHECK(ok(wire::parse(bytes, packet)));
  if (packet.common().cookie != member.link.identity.cookie) return;  // of one that is lost
  std::optional<std::uint16_t> shard;
  if (packet.type() == wire::PacketType::kFeedback)
    shard = packet.body<wire::Feedback>().shard;
  else
    shard = member.operations->shard_of(packet);
  const bool aborts = options_.abort && options_.abort->rank.value == rank;
  const bool leaves = options_.leave && options_.leave->rank.value == rank;
  if (!shard && (aborts || leaves)) return;  // of what it left
  if (!shard && member.boot > 1) return;     // it does not know yet that the group is made again
  CHECK(shard && *shard < options_.shard_count);
  const client::Flow::LossSignals signals =
      member.link.flows[*shard].on_feedback(packet.feedback(), now_);
  CHECK(signals.valid);
  if (packet.type() != wire::PacketType::kFeedback) member.operations->handle(packet, *shard, now_);
  member.operations->hint(*shard, signals, now_);
  wake(rank);
}

// ---- the appliance ----

// Commands reach each shard after a time of its own, in their order.
void GroupWorld::serve(std::uint16_t index) {
  agg::Shard& shard = shards_->shard(index);
  agg::TxBuffers memory;
  while (shard.poll_work(now_)) continue;
  for (std::size_t count; (count = shard.poll_transmit(memory.all(), now_)) != 0;)
    for (std::size_t i = 0; i < count; ++i) {
      const agg::Transmit& transmit = memory.all()[i];
      const auto bytes = transmit.datagram();
      if (wire::sum_bytes(bytes).value % 0xFFFF != transmit.sum.value % 0xFFFF)
        violated("a datagram's sum is wrong");
      carry(*members_[transmit.rank.value], transmit.rank.value, false, index,
            {bytes.begin(), bytes.end()});
    }
  for (agg::ShardEvent event; shard.poll_event(event);) {
    if (event.kind != agg::ShardEvent::Kind::kGroupsRequest) continue;
    at(mail_time(events_arrive_ns_[index]), [this, event, boot = boot_] {
      if (boot != boot_) return;
      agg::OperationsRequest request = event.groups;
      if (request.kind == agg::OperationsRequest::Kind::kReserve)
        request.slots = reservations_->grant(*request.group, request.sequence, request.slots);
      command({.kind = agg::ShardCommand::Kind::kGroups, .job = job_.get(), .groups = request});
    });
  }
}

// Mail takes its time, and stays in order.
TimeNs GroupWorld::mail_time(TimeNs& last_ns) {
  const auto delay_ns = static_cast<DurationNs>(
      random_.below(static_cast<std::uint64_t>(options_.control_delay_ns) + 1));
  return last_ns = std::max(last_ns, now_ + delay_ns);
}

void GroupWorld::command(const agg::ShardCommand& command) {
  for (std::uint16_t shard = 0; shard < options_.shard_count; ++shard)
    at(mail_time(commands_arrive_ns_[shard]), [this, shard, command, boot = boot_] {
      if (boot != boot_) return;
      shards_->shard(shard).handle_command(command, now_);
      serve(shard);
    });
}

// ---- members ----

void GroupWorld::wake_at(std::uint16_t rank, TimeNs at_ns) {
  Member& member = *members_[rank];
  if (at_ns >= member.wakes_at_ns) return;
  member.wakes_at_ns = at_ns;
  at(at_ns, [this, rank, at_ns] {
    if (members_[rank]->wakes_at_ns != at_ns) return;
    members_[rank]->wakes_at_ns = kNever;
    wake(rank);
  });
}

void GroupWorld::wake(std::uint16_t rank) {
  Member& member = *members_[rank];
  if (!member.alive) return;
  for (std::uint16_t shard = 0; shard < options_.shard_count; ++shard) {
    client::Flow& flow = member.link.flows[shard];
    flow.handle_timeout(now_);
    while (const std::optional<std::uint32_t> lost = flow.take_lost(now_))
      member.operations->lose(shard, *lost);
    member.operations->recover(shard, now_);
  }
  take_events(rank);
  call_some(rank);
  transmit_all(rank);
  take_events(rank);
  faults_->leave_if_done(Rank{rank});
  TimeNs next_ns = member.operations->next_timeout();
  for (const client::Flow& flow : member.link.flows)
    next_ns = std::min(next_ns, flow.next_timeout());
  if (next_ns != kNever) wake_at(rank, std::max(next_ns, now_ + 1));
}

void GroupWorld::call_some(std::uint16_t rank) {
  Member& member = *members_[rank];
  const Pace& pace = options_.paces[rank];
  while (now_ >= member.may_call_ns) {
    std::vector<std::size_t> ready;
    for (std::size_t group = 0; group < options_.groups.size(); ++group)
      if (member.groups[group] != nullptr && member.called[group] < calls_of(rank, group) &&
          member.open[group].size() < pace.depth)
        ready.push_back(group);
    if (ready.empty()) break;
    member.may_call_ns =
        now_ +
        static_cast<DurationNs>(member.random.below(static_cast<std::uint64_t>(pace.pause_ns) + 1));
    call(rank, ready[member.random.below(ready.size())]);
  }
  if (now_ < member.may_call_ns) wake_at(rank, member.may_call_ns);
  if (pace.patience_ns == kNever) return;
  for (std::size_t group = 0; group < member.open.size(); ++group)
    for (const auto& [number, buffers] : member.open[group]) {
      if (now_ >= buffers.begun_ns + pace.patience_ns)
        member.groups[group]->cancel(number, now_);
      else
        wake_at(rank, buffers.begun_ns + pace.patience_ns);
    }
}

void GroupWorld::call(std::uint16_t rank, std::size_t group) {
  Member& member = *members_[rank];
  const std::uint64_t number = member.called[group];
  const PlannedOperation plan = planned(rank, group, number);
  Buffers& buffers = member.open[group][number];
  buffers.begun_ns = now_;
  fill_input(rank, group, number, buffers);
  std::uint64_t given = 0;
  // In place, whoever has a result has lost its contribution.
  const bool in_place = number % 2 == 1 && (plan.kind == wire::OperationKind::kAllReduce ||
                                            plan.kind == wire::OperationKind::kReduce);
  if (in_place) buffers.output = buffers.input;
  const Status status =
      member.groups[group]->call({.kind = plan.kind,
                                  .dtype = plan.dtype,
                                  .wire = plan.wire,
                                  .reduction = plan.reduction,
                                  .root = plan.root,
                                  .bytes = plan.bytes,
                                  .input = (in_place ? buffers.output : buffers.input).data(),
                                  .output = buffers.output.data(),
                                  .priority = plan.priority},
                                 now_, given);
  if (status.code() == StatusCode::kBusy) {
    member.open[group].erase(number);
    member.may_call_ns = now_ + kMillisecond;
    return;
  }
  if (!status.ok() || given != number) violated("a call is refused: " + status.message());
  ++member.called[group];
}

void GroupWorld::take_events(std::uint16_t rank) {
  Member& member = *members_[rank];
  for (client::OperationEvent event; member.operations->poll_event(event);) {
    const std::uint16_t group = event.group->facts().id;
    const auto open = member.open[group].find(event.number);
    if (open == member.open[group].end()) {
      violated("an event of no open operation");
      continue;
    }
    if (event.status.ok()) check_output(rank, group, event.number, open->second);
    std::ranges::fill(open->second.input, std::uint8_t{0xDD});  // it is the caller's again
    std::ranges::fill(open->second.output, std::uint8_t{0xDD});
    member.open[group].erase(open);
    told_[{rank, group, event.number}] = {event.status.code(), event.status.message(), now_};
  }
}

// As a session does: probes, then what operations want, then credit.
bool GroupWorld::poll(Member& member, client::Transmit& transmit, std::span<std::uint8_t> out) {
  for (client::Flow& flow : member.link.flows) flow.forget_pace();
  for (std::uint16_t shard = 0; shard < options_.shard_count; ++shard)
    if (member.operations->poll_probe(shard, transmit, out, now_)) return true;
  if (member.operations->write_next(transmit, out, now_)) return true;
  for (std::uint16_t shard = 0; shard < options_.shard_count; ++shard) {
    client::Flow& flow = member.link.flows[shard];
    const bool asks_tail = flow.asks_about_tail();
    if (!flow.credit_due() && !asks_tail) continue;
    const Priority priority = asks_tail ? flow.tail_priority() : Priority{0};
    transmit = {.port_offset = static_cast<std::uint16_t>(1 + shard), .priority = priority};
    wire::Credit body{.flow = flow.next_header(now_, priority)};
    if (asks_tail) flow.asked_about_tail(now_);
    if (asks_tail || flow.take_report_flag(false, now_)) body.flow.flags |= wire::kFlagReport;
    transmit.bytes = wire::encode(out, member.link.identity, body);
    return true;
  }
  return false;
}

void GroupWorld::transmit_all(std::uint16_t rank) {
  Member& member = *members_[rank];
  std::vector<std::uint8_t> out(kMaxDatagramBytes);
  client::Transmit transmit;
  for (int count = 0; poll(member, transmit, out); ++count) {
    CHECK(count < 100'000);
    const auto bytes = client::gather(transmit, out);
    carry(member, rank, true, static_cast<std::uint16_t>(transmit.port_offset - 1),
          {bytes.begin(), bytes.end()});
  }
}

}  // namespace sluice::sim
