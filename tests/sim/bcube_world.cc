#include "tests/sim/bcube_world.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "aggregator/base/check.h"
#include "aggregator/wire/packet.h"

namespace sluice::sim {
namespace {

// Of every frame but for its MACs, in whose place stands where it is going.
constexpr wire::UdpPath kPath{.src = wire::ipv4_address(10, 0, 0, 1),
                              .dst = wire::ipv4_address(10, 0, 0, 2),
                              .src_port = 1,
                              .dst_port = 2,
                              .traffic_class = wire::kEcnCapable};

client::Bcube make_bcube(const BcubeOptions& options) {
  return client::Bcube::create(options.switch_ports, options.levels).value();
}

JobPlan plan_of(const BcubeOptions& options, std::uint32_t servers) {
  JobPlan plan = make_plan(static_cast<std::uint16_t>(servers), options.steps, options.elem_counts);
  plan.tensors.back().exact = options.last_exact && plan.tensors.size() > 1;
  plan.wire = options.wire;
  plan.session.prune = options.prune;
  return plan;
}

// Of gradients: what the theory counts.
std::size_t data_bytes_of(std::span<const std::uint8_t> datagram) {
  wire::Packet packet;
  if (!ok(wire::parse(datagram, packet))) return 0;
  std::uint8_t flags = wire::kFlagNil;
  if (packet.type() == wire::PacketType::kContribution)
    flags = packet.body<wire::Contribution>().flow.flags;
  else if (packet.type() == wire::PacketType::kResult)
    flags = packet.body<wire::ResultHeader>().feedback.flags;
  return flags & wire::kFlagNil ? 0 : packet.payload().size();
}

}  // namespace

BcubeWorld::BcubeWorld(BcubeOptions options)
    : options_(std::move(options)),
      bcube_(make_bcube(options_)),
      plan_(plan_of(options_, bcube_.servers())),
      layout_(client::Layout::create(plan_.tensors, options_.chunk_bytes, options_.wire).value()),
      slices_(client::cut(bcube_, layout_)),
      oracle_(plan_, client::chunk_elems_of(bcube_, layout_, 0),
              is_ordinary() ? &layout_ : nullptr),
      random_(options_.seed),
      servers_(bcube_.servers()),
      boxes_(plain() ? bcube_.servers() : bcube_.levels() * bcube_.switches_per_level()),
      buffer_(kMaxDatagramBytes),
      begun_(options_.steps + 1, 0),
      ended_(options_.steps + 1, 0),
      tensors_ended_(options_.steps + 1, std::vector<TimeNs>(plan_.tensors.size())),
      failures_(bcube_.servers()) {
  plan_.seed = options_.seed;
  plan_.nil_ppm = options_.nil_ppm;
  plan_.random_order = plan_.random_priority = options_.random_order;
  plan_.backward_order = true;
  plan_.pipelined = options_.pipelined;
  plan_.nil_output = options_.nil_output;
  plan_.zero_weights = options_.zero_weights;
  plan_.averaging = options_.averaging;
  plan_.collectives = options_.collectives;
  for (std::uint32_t link = 0; link < up_link(bcube_.servers(), 0); ++link) {
    LinkOptions cable = options_.link;
    cable.by_priority = link % 2 != 0;  // of a switch; a server's is a card's
    links_.push_back({.link = Link(link, cable)});
  }
  for (std::uint32_t index = 0; index < boxes_.size(); ++index) {
    make_box(index);
    events_.push(0, EventKind::kTick, index);
  }
  for (std::uint32_t rank = 0; rank < servers_.size(); ++rank) {
    client::SessionOptions session;
    session.job_name = "cube";
    session.run_id = 1;
    session.rank = Rank{static_cast<std::uint16_t>(rank)};
    session.world_size = plan_.world_size();
    session.nonce = mix(options_.seed, rank);
    session.receive_credit_packets = options_.receive_credit_packets;
    session.join_timeout_ns = options_.join_timeout_ns;
    session.averaging = options_.averaging;
    session.prune = options_.prune;
    session.trace = options_.trace;
    const TimeNs start = random_.between(0, options_.start_max_ns);
    servers_[rank].relay =
        client::Relay::create(session, bcube_, options_.mode, layout_, start).value();
    for (const client::TensorSpec& tensor : plan_.tensors) {
      servers_[rank].inputs.emplace_back(tensor.elem_count);
      servers_[rank].outputs.emplace_back(tensor.elem_count);
    }
    interrupt({{Part::Kind::kServer, rank}, 0, start});
  }
}

void BcubeWorld::make_box(std::uint32_t index) {
  agg::JobsOptions jobs{.shard_count = options_.shards,
                        .member_timeout_ns = options_.member_timeout_ns};
  for (std::uint8_t& byte : jobs.boot_key) byte = static_cast<std::uint8_t>(random_.next());
  boxes_[index].core = std::make_unique<agg::Appliance>(agg::ApplianceOptions{.jobs = jobs});
  boxes_[index].paths.clear();
}

void BcubeWorld::kill(const Death& death) {
  death_ = death;
  if (death.at != kNever) plan_return();
}

// The time of the death is known, for the first time.
void BcubeWorld::plan_return() {
  const Part& part = death_->parts.front();
  if (part.kind == Part::Kind::kBox && returned_ns() != kNever && returned_ns() >= now_)
    events_.push(returned_ns(), EventKind::kAction, 1 + part.index);
}

void BcubeWorld::interrupt(const Absence& absence) {
  if (absence.until != absence.from) absences_.push_back(absence);
  if (absence.part.kind == Part::Kind::kServer)
    events_.push(absence.until, EventKind::kWorkerApp, absence.part.index);
  if (absence.forgets) events_.push(absence.until, EventKind::kAction, 1 + absence.part.index);
}

bool BcubeWorld::is_away(const Part& part, TimeNs now) const {
  const bool dead = death_ && now >= died_ns() && now < returned_ns();
  if (dead && std::ranges::find(death_->parts, part) != death_->parts.end()) return true;
  const bool then = death_ && death_->then_server && now >= then_died_ns();
  if (then && part == Part{Part::Kind::kServer, *death_->then_server}) return true;
  return std::ranges::any_of(absences_, [&](const Absence& absence) {
    return part == absence.part && absence.from <= now && now < absence.until;
  });
}

bool BcubeWorld::run(TimeNs until) {
  while (violations().empty() && !is_over() && !events_.empty() && events_.top().at <= until) {
    const SimEvent event = events_.pop();
    const TimeNs now = now_ = event.at;
    ++event_count_;
    switch (event.kind) {
      case EventKind::kLinkReady:
        links_[event.target].link.ready(pool_, random_, events_, now);
        if (event.target % 2 == 0 && has_room(event.target))  // a server's
          pump_server(event.target / 2 / options_.levels, now);
        break;
      case EventKind::kLinkArrive: arrive(event.target, event.argument, now); break;
      case EventKind::kTick:
        pump_box(event.target, now);
        events_.push(now + agg::kTickInterval, EventKind::kTick, event.target);
        break;
      case EventKind::kWorkerApp:
        servers_[event.target].timer_at = kNever;
        servers_[event.target].idle.wake_all();
        pump_server(event.target, now);
        break;
      case EventKind::kWorkerTimeout: {
        Server& server = servers_[event.target];
        if (server.timer_at > now || is_away({Part::Kind::kServer, event.target}, now)) break;
        server.timer_at = kNever;
        server.idle.handle_timeouts(server.relay->legs(), now);
        pump_server(event.target, now);
        break;
      }
      case EventKind::kAction:
        if (event.target != 0) {
          make_box(event.target - 1);
          break;
        }
        for (Cable& cable : links_) {
          LinkOptions& link = cable.link.options;
          link.loss_ppm = link.duplicate_ppm = link.reorder_ppm = link.train_loss_ppm = 0;
          link.corrupt_ppm = 0;
        }
        break;
      default: CHECK(false);
    }
    drain_local(now);
  }
  return violations().empty() && is_over();
}

bool BcubeWorld::is_over() const {
  const std::optional<std::uint32_t> dead = dead_server();
  return over_ + (dead && !servers_[*dead].over) == servers_.size();
}

std::string BcubeWorld::describe_stall() const {
  std::string text;
  for (std::uint32_t index = 0; index < servers_.size(); ++index)
    if (!servers_[index].over)
      text += "rank " + std::to_string(index) + ": step " + std::to_string(servers_[index].step) +
              ", state " + std::to_string(static_cast<int>(servers_[index].relay->state())) + ": " +
              servers_[index].relay->stall(now_).text + "\n";
  return text;
}

// ---- cables ----

const client::LegAddress& BcubeWorld::place_of(const Address& address) const {
  return servers_[address.server].relay->legs()[address.lane].address;
}

void BcubeWorld::put(std::uint32_t link, const Address& address,
                     std::span<const std::uint8_t> datagram, Priority priority, TimeNs now) {
  static_assert(offsetof(Address, local) == sizeof(wire::Mac) &&
                sizeof address <= 2 * sizeof(wire::Mac));
  const FrameIndex frame = pool_.take();
  std::vector<std::uint8_t>& bytes = pool_[frame].bytes;
  bytes.resize(wire::kMaxUdpHeaderBytes + datagram.size());
  bytes.resize(wire::encode_udp_frame(bytes, kPath, datagram));
  std::memcpy(bytes.data(), &address, sizeof address);
  pool_[frame].priority = priority;
  if (options_.check_values && link == up_link(address.server, port_of(place_of(address))) &&
      address.to_appliance)
    check_contribution(address, datagram);
  pass(link, address, frame, datagram, now);
}

void BcubeWorld::pass(std::uint32_t link, const Address& address, FrameIndex frame,
                      std::span<const std::uint8_t> datagram, TimeNs now) {
  const std::uint32_t server = link / 2 / options_.levels, level = link / 2 % options_.levels;
  const Part::Kind way = link % 2 == 0 ? Part::Kind::kOut : Part::Kind::kIn;
  if (is_away({Part::Kind::kCable, server, level}, now) || is_away({way, server, level}, now))
    return pool_.give_back(frame);
  const client::Role of = place_of(address).role;
  if (of < client::Role::kRendezvous ||
      of == client::Role::kStandby)  // the others are no gradients
    links_[link].data_bytes += data_bytes_of(datagram);
  const std::size_t frame_bytes = pool_[frame].bytes.size();
  links_[link].wire_bytes += frame_bytes;
  trace_hash_ = mix(trace_hash_, now, link, frame_bytes);
  links_[link].link.send(frame, pool_, random_, events_, now);
}

// The receiver at the end of a cable drops a corrupt frame.
void BcubeWorld::arrive(std::uint32_t link, FrameIndex frame, TimeNs now) {
  links_[link].link.arrived();
  wire::Frame view;
  const Verdict why = wire::parse_frame(pool_[frame].bytes, wire::UdpChecksums::kVerify, view);
  const std::uint32_t server = link / 2 / options_.levels;
  if (!ok(why)) frame_verdicts_.count(why);
  if (!ok(why) || (link % 2 != 0 && is_away({Part::Kind::kServer, server}, now)))
    return pool_.give_back(frame);
  Address address;
  std::memcpy(&address, pool_[frame].bytes.data(), sizeof address);
  if (const std::optional<std::uint32_t> next = next_link(link, address))
    return pass(*next, address, frame, view.payload, now);
  deliver(address, wire::datagram_of(view), now);
  pool_.give_back(frame);
}

// Where who is at the end of this link passes it on; none: it is there. Links of a server's port
// are even to the switch, odd from it. To another switch than its own a server's datagrams go by
// way of its neighbour at another level, and back.
std::optional<std::uint32_t> BcubeWorld::next_link(std::uint32_t link,
                                                   const Address& address) const {
  const client::LegAddress& place = place_of(address);
  const bool at_switch = link % 2 == 0;
  const bool direct = place.role < client::Role::kStates;
  const std::uint32_t port = port_of(place);
  const std::uint32_t neighbour =
      direct ? address.server : bcube_.detour_neighbour(address.server, place.level);
  if (at_switch && !direct && link / 2 % options_.levels == port)  // between the two
    return up_link(address.to_appliance ? neighbour : address.server, port) + 1;
  if (at_switch && address.to_appliance)
    return plain() ? std::optional(up_link(address.appliance, place.level) + 1) : std::nullopt;
  if (at_switch) return up_link(neighbour, place.level) + 1;
  const std::uint32_t server = link / 2 / options_.levels;
  if (direct || server != neighbour) return {};
  if (!address.to_appliance) return up_link(neighbour, port);
  if (plain() && address.appliance == neighbour) return {};
  return up_link(neighbour, place.level);
}

void BcubeWorld::deliver(const Address& address, const wire::Datagram& datagram, TimeNs now) {
  if (address.to_appliance) return to_box(address, datagram, now);
  if (is_away({Part::Kind::kServer, address.server}, now)) return;
  Server& server = servers_[address.server];
  (void)server.relay->legs()[address.lane].session.handle_datagram(datagram.payload, now);
  server.idle.wake(address.lane);
  pump_server(address.server, now);
}

void BcubeWorld::drain_local(TimeNs now) {
  while (!local_.empty()) {
    const auto [address, datagram] = std::move(local_.front());
    local_.pop_front();
    deliver(address, {datagram}, now);
  }
}

// ---- appliances ----

void BcubeWorld::to_box(const Address& address, const wire::Datagram& datagram, TimeNs now) {
  if (is_away_box(address.appliance, now)) return;
  Box& box = boxes_[address.appliance];
  wire::Packet packet;
  const Verdict why = wire::parse(datagram.payload, packet);
  if (!ok(why)) return frame_verdicts_.count(why);
  if (address.port_offset != 0) {
    box.core->handle_data(static_cast<std::uint16_t>(address.port_offset - 1), packet,
                          datagram.marked, now);
  } else {
    const std::string printable =
        std::to_string(address.server) + ":" + std::to_string(address.lane);
    const agg::Origin origin{.address = printable, .max_datagram_bytes = kMaxDatagramBytes};
    std::vector<std::uint8_t> reply(kMaxDatagramBytes);
    const agg::ControlResult result = box.core->handle_control(packet, origin, reply, now);
    Address back = address;
    back.to_appliance = false;
    if (result.bind) box.paths[{result.job.value, result.rank.value}] = back;
    if (result.reply_bytes != 0)
      send_from_box(address.appliance, back, std::span(reply).first(result.reply_bytes), 0, now);
  }
  pump_box(address.appliance, now);
}

void BcubeWorld::pump_box(std::uint32_t index, TimeNs now) {
  if (is_away_box(index, now)) return;
  Box& box = boxes_[index];
  box.core->pump(now, [&](const agg::Transmit& to, std::span<const std::uint8_t> datagram) {
    const auto path = box.paths.find({to.job.value, to.rank.value});
    if (path != box.paths.end()) send_from_box(index, path->second, datagram, to.priority, now);
  });
}

void BcubeWorld::send_from_box(std::uint32_t box, const Address& to,
                               std::span<const std::uint8_t> datagram, Priority priority,
                               TimeNs now) {
  const client::LegAddress& place = place_of(to);
  const std::uint32_t level = place.level;
  const bool direct = place.role < client::Role::kStates;
  const std::uint32_t server = direct ? to.server : bcube_.detour_neighbour(to.server, place.level);
  if (!plain()) return put(up_link(server, level) + 1, to, datagram, priority, now);
  if (box == server && !direct)
    return put(up_link(server, port_of(place)), to, datagram, priority, now);
  if (box == to.server)
    local_.emplace_back(to, std::vector<std::uint8_t>(datagram.begin(), datagram.end()));
  else
    put(up_link(box, level), to, datagram, priority, now);
}

// ---- servers ----

void BcubeWorld::pump_server(std::uint32_t index, TimeNs now) {
  if (is_away({Part::Kind::kServer, index}, now)) return;
  Server& server = servers_[index];
  for (bool again = true; again;) {
    while (server.relay->act_on_call(now)) server.idle.wake_all();
    if ((again = run_app(index, now))) server.idle.wake_all();
    while (server.relay->act_on_call(now)) server.idle.wake_all();
    server.idle.look_at(server.relay->legs());
    again |= transmit(index, now);
  }
  const TimeNs next = std::min(server.submitting ? std::max(server.due_ns, now + 1) : kNever,
                               server.idle.next_timeout(server.relay->legs(), now));
  if (next == kNever || server.timer_at <= next) return;
  server.timer_at = next;
  events_.push(next, EventKind::kWorkerTimeout, index);
}

bool BcubeWorld::transmit(std::uint32_t index, TimeNs now) {
  bool any = false;
  Server& server = servers_[index];
  client::Relay& relay = *server.relay;
  for (const std::uint32_t lane_index : relay.send_order()) {
    if (server.idle.is_idle(lane_index, now)) continue;
    client::Leg& lane = relay.legs()[lane_index];
    const client::LegAddress& place = lane.address;
    const std::uint32_t host = bcube_.server_at(place.level, place.switch_index, place.host);
    const std::uint32_t appliance =
        plain() ? host : place.level * bcube_.switches_per_level() + place.switch_index;
    client::Transmit transmit;
    const bool local = plain() && host == index;
    for (std::size_t sent = 0; sent < relay.turn(); ++sent) {
      if (!local && !has_room(up_link(index, port_of(place)))) break;
      if (!server.idle.poll(lane_index, lane, transmit, buffer_, now)) break;
      any = true;
      const Address address{.appliance = static_cast<std::uint16_t>(appliance),
                            .server = static_cast<std::uint16_t>(index),
                            .lane = static_cast<std::uint16_t>(lane_index),
                            .to_appliance = true,
                            .port_offset = transmit.port_offset};
      const std::span<const std::uint8_t> datagram = client::gather(transmit, buffer_);
      if (local)
        local_.emplace_back(address, std::vector<std::uint8_t>(datagram.begin(), datagram.end()));
      else
        put(up_link(index, port_of(place)), address, datagram, transmit.priority, now);
    }
  }
  return any;
}

}  // namespace sluice::sim
