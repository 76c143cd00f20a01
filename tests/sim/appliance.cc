#include "tests/sim/appliance.h"

#include "aggregator/wire/packet.h"
#include "tests/sim/alloc_guard.h"
#include "tests/sim/world.h"

namespace sluice::sim {
namespace {

std::string printable(const wire::IpAddress& address, std::uint16_t port) {
  std::string text;
  for (std::size_t i = 0; i < address.size(); ++i)
    text += (i == 0 ? "" : ".") + std::to_string(address.bytes[i]);
  return text + ":" + std::to_string(port);
}

std::uint64_t total(const VerdictCounters& counters) {
  std::uint64_t sum = 0;
  for (const Counter& counter : counters.by_verdict) sum += counter.read();
  return sum;
}

}  // namespace

Appliance::Appliance(World& world, ApplianceOptions options, const wire::IpAddress& address)
    : world_(world), options_(std::move(options)), address_(address), buffer_(kMaxDatagramBytes) {
  mac_.bytes = {2, 0, 0, 0, 0, 1};
  jobs_ = std::make_unique<agg::Jobs>(options_.jobs);
  shards_.resize(options_.jobs.shard_count);
  for (std::uint16_t i = 0; i < options_.jobs.shard_count; ++i)
    shards_[i].shard = std::make_unique<agg::Shard>(ShardId{i});
}

void Appliance::wake_control(TimeNs now) {
  if (control_awake_) return;
  control_awake_ = true;
  world_.events().push(now + world_.draw_delay(options_.service_delay_ns),
                       EventKind::kControlService, 0);
}

void Appliance::wake_shard(std::uint16_t shard, TimeNs now) {
  if (shards_[shard].awake) return;
  shards_[shard].awake = true;
  world_.events().push(now + world_.draw_delay(options_.service_delay_ns), EventKind::kShardService,
                       shard);
}

void Appliance::receive(FrameIndex frame, TimeNs now) {
  ++frames_in_;
  wire::Frame view;
  const auto refused =
      wire::parse_frame(world_.pool()[frame].bytes, wire::UdpChecksums::kVerify, view);
  Verdict why = refused.value_or(Verdict::kNotOurs);
  if (!refused && view.kind == wire::FrameKind::kUdp && view.dst == address_) {
    const std::uint32_t offset = std::uint32_t{view.dst_port} - options_.port;
    if (offset == 0) {
      control_received_.push_back(frame);
      return wake_control(now);
    }
    if (offset <= options_.jobs.shard_count) {
      shards_[offset - 1].received.push_back(frame);
      return wake_shard(static_cast<std::uint16_t>(offset - 1), now);
    }
    why = Verdict::kUnsupported;
  }
  frame_verdicts_.count(why);
  world_.pool().give_back(frame);
}

void Appliance::handle_control(FrameIndex frame, TimeNs now) {
  wire::Frame view;
  (void)wire::parse_frame(world_.pool()[frame].bytes, wire::UdpChecksums::kTrust, view);
  wire::Packet packet;
  Verdict why{};
  if (!wire::parse(view.payload, packet, why)) return frame_verdicts_.count(why);
  ++control_handled_;
  const std::string address = printable(view.src, view.src_port);
  const wire::UdpPath back = wire::reply_path(view, mac_);
  const agg::Origin origin{.path = agg::path_key(back, 0),
                           .address = address,
                           .max_datagram_bytes = options_.max_datagram_bytes};
  agg::ControlResult result = jobs_->handle(packet, origin, buffer_, now);
  if (options_.memory_bytes_per_second == 0 && agg::carry_out_all(*jobs_, now)) {
    ++control_repeated_;  // as if it had asked again
    result = jobs_->handle(packet, origin, buffer_, now);
  }
  if (result.bind) paths_[{result.job.value, result.rank.value}] = back;
  if (result.reply_bytes == 0) return;
  send(back, {buffer_.data(), result.reply_bytes}, 0, now);
}

void Appliance::receive_control(std::size_t frames, TimeNs now) {
  for (; frames != 0 && !control_received_.empty(); --frames) {
    const FrameIndex frame = control_received_.front();
    control_received_.pop_front();
    handle_control(frame, now);
    world_.pool().give_back(frame);
  }
}

void Appliance::service_control(TimeNs now) {
  if (now < control_back_ns_)
    return world_.events().push(control_back_ns_, EventKind::kControlService, 0);
  control_awake_ = false;
  // One loop of the control thread: whatever stood in its ring before it judges anybody.
  receive_control(tick_missed_ ? control_received_.size() : options_.burst, now);
  if (tick_missed_) jobs_->tick(now);
  tick_missed_ = false;
  flush_control(now);
  if (!control_received_.empty()) wake_control(now);
}

void Appliance::pause_shard(std::uint16_t shard, TimeNs until) {
  shards_[shard].back_ns = std::max(shards_[shard].back_ns, until);
}

// The helper thread, in virtual time: one order after the other.
void Appliance::order_memory(TimeNs now) {
  if (options_.memory_bytes_per_second == 0) {
    agg::carry_out_all(*jobs_, now);
    return;
  }
  for (agg::MemoryOrder order; jobs_->poll_memory(order);) {
    const TimeNs started_ns = making_.empty() ? now : making_.back().done_ns;
    const double seconds =
        static_cast<double>(order.bytes) / static_cast<double>(options_.memory_bytes_per_second);
    const auto taken_ns = static_cast<DurationNs>(seconds * static_cast<double>(kSecond));
    making_.push_back({std::move(order), started_ns, started_ns + taken_ns});
  }
}

void Appliance::deliver_memory(TimeNs now) {
  while (!making_.empty() && making_.front().done_ns <= now) {
    Making making = std::move(making_.front());
    making_.pop_front();
    if (making.order.progress != nullptr) making.order.progress->bytes = 0;
    agg::carry_out(making.order);
    jobs_->handle_memory(std::move(making.order), now);
  }
  if (making_.empty() || making_.front().order.progress == nullptr) return;
  Making& making = making_.front();
  if (making.order.progress->unwanted) {
    making.done_ns = now;
    return deliver_memory(now);
  }
  const double part = static_cast<double>(now - making.started_ns) /
                      static_cast<double>(making.done_ns - making.started_ns);
  if (now > making.started_ns)
    making.order.progress->bytes =
        static_cast<std::size_t>(part * static_cast<double>(making.order.bytes));
}

void Appliance::flush_control(TimeNs now) {
  order_memory(now);
  agg::Transmit transmit;
  for (std::uint32_t i = 0; jobs_->poll_transmit(transmit, buffer_, now); ++i) {
    if (i > 100'000) return world_.oracle().violation("Jobs::poll_transmit() never ends");
    const auto path = path_of(transmit.job, transmit.rank, options_.port);
    if (path) send(*path, {buffer_.data(), transmit.bytes}, transmit.priority, now);
  }
  agg::ShardCommand command;
  while (jobs_->poll_command(command)) {
    for (std::uint16_t i = 0; i < shards_.size(); ++i) {
      shards_[i].commands.push_back(command);
      world_.events().push(now + world_.draw_delay(options_.command_delay_ns),
                           EventKind::kShardCommand, i);
    }
  }
}

void Appliance::handle_data(ShardBox& box, FrameIndex frame, TimeNs now) {
  wire::Frame view;
  (void)wire::parse_frame(world_.pool()[frame].bytes, wire::UdpChecksums::kTrust, view);
  wire::Packet packet;
  Verdict why{};
  if (!wire::parse(view.payload, packet, why)) return frame_verdicts_.count(why);
  ++box.handled;
  world_.on_shard_heard(view.src_port, packet);
  const bool marked = (view.traffic_class & wire::kEcnMask) == wire::kEcnCongested;
  const AllocationWatch watch;
  (void)box.shard->handle(packet, marked, now);
  if (watch.count() != 0) world_.oracle().violation("I5: Shard::handle() allocated memory");
}

void Appliance::service_shard(std::uint16_t index, TimeNs now) {
  ShardBox& box = shards_[index];
  if (now < box.back_ns) return world_.events().push(box.back_ns, EventKind::kShardService, index);
  box.awake = false;
  for (std::uint32_t i = 0; i < options_.burst && !box.received.empty(); ++i) {
    const FrameIndex frame = box.received.front();
    box.received.pop_front();
    handle_data(box, frame, now);
    world_.pool().give_back(frame);
  }
  bool more = box.shard->poll_work(now);
  agg::Transmit transmit;
  std::uint32_t sent = 0;
  for (; sent < 2 * options_.burst; ++sent) {
    const AllocationWatch watch;
    if (!box.shard->poll_transmit(transmit, buffer_, now)) break;
    if (watch.count() != 0)
      world_.oracle().violation("I5: Shard::poll_transmit() allocated memory");
    const auto path =
        path_of(transmit.job, transmit.rank, static_cast<std::uint16_t>(options_.port + 1 + index));
    if (!path) {
      world_.oracle().violation("a shard sends to a rank whose path was never proven");
      continue;
    }
    world_.on_shard_sent(index, path->dst_port, {buffer_.data(), transmit.bytes});
    send(*path, {buffer_.data(), transmit.bytes}, transmit.priority, now);
  }
  more = more || sent == 2 * options_.burst || !box.received.empty();
  agg::ShardEvent event;
  while (box.shard->poll_event(event)) {
    box.events.push_back(event);
    world_.events().push(now + world_.draw_delay(options_.command_delay_ns), EventKind::kShardEvent,
                         index);
  }
  if (more) wake_shard(index, now);
}

void Appliance::deliver_command(std::uint16_t shard, TimeNs now) {
  ShardBox& box = shards_[shard];
  if (now < box.back_ns) return world_.events().push(box.back_ns, EventKind::kShardCommand, shard);
  if (box.commands.empty()) return;
  box.shard->handle_command(box.commands.front(), now);
  box.commands.pop_front();
  wake_shard(shard, now);
}

void Appliance::deliver_event(std::uint16_t shard, TimeNs now) {
  ShardBox& box = shards_[shard];
  if (now < control_back_ns_)
    return world_.events().push(control_back_ns_, EventKind::kShardEvent, shard);
  if (box.events.empty()) return;
  jobs_->handle_event(box.events.front(), now);
  box.events.pop_front();
  wake_control(now);
}

void Appliance::tick(TimeNs now) {
  if (now < control_back_ns_) {
    tick_missed_ = true;
    wake_control(now);
  } else {
    deliver_memory(now);
    jobs_->tick(now);
    flush_control(now);
  }
  // An lcore polls without a reason; once a tick is enough to find what nobody announced.
  for (std::uint16_t i = 0; i < shards_.size(); ++i) wake_shard(i, now);
  if (jobs_->memory_bytes() > options_.jobs.max_total_memory_bytes)
    world_.oracle().violation("I5: jobs take " + std::to_string(jobs_->memory_bytes()) +
                              " bytes of " + std::to_string(options_.jobs.max_total_memory_bytes));
}

void Appliance::shutdown(TimeNs now) {
  jobs_->shutdown(now);
  flush_control(now);
}

void Appliance::quoted_unreachable(const wire::CommonHeader& quoted, TimeNs now) {
  if (now < control_back_ns_)
    return world_.at(control_back_ns_, [&world = world_, quoted] {
      world.appliance().quoted_unreachable(quoted, world.now());
    });
  (void)jobs_->suspect_quoted(quoted, now);
  flush_control(now);
}

void Appliance::unreachable(std::uint16_t worker_port, TimeNs now) {
  if (now < control_back_ns_)
    return world_.at(control_back_ns_, [&world = world_, worker_port] {
      world.appliance().unreachable(worker_port, world.now());
    });
  for (const auto& [member, path] : paths_)
    if (path.dst_port == worker_port) jobs_->suspect(JobId{member.first}, Rank{member.second}, now);
  flush_control(now);
}

std::optional<wire::UdpPath> Appliance::path_of(JobId job, Rank rank,
                                                std::uint16_t source_port) const {
  const auto found = paths_.find({job.value, rank.value});
  if (found == paths_.end()) return std::nullopt;
  wire::UdpPath path = found->second;
  path.src_port = source_port;
  return path;
}

void Appliance::send(const wire::UdpPath& path, std::span<const std::uint8_t> bytes,
                     Priority priority, TimeNs now) {
  const FrameIndex index = world_.pool().take();
  SimFrame& frame = world_.pool()[index];
  frame.bytes.resize(wire::kMaxUdpHeaderBytes + bytes.size());
  frame.bytes.resize(wire::encode_udp_frame(frame.bytes, path, bytes));
  frame.priority = priority;
  world_.send_to_worker(index, path.dst_port, bytes, now);
}

std::uint64_t Appliance::count(Verdict verdict) const {
  std::uint64_t sum = frame_verdicts_.read(verdict) + jobs_->verdicts().read(verdict);
  for (const ShardBox& box : shards_) sum += box.shard->verdicts().read(verdict);
  return sum;
}

std::size_t Appliance::waiting_frames() const {
  std::size_t waiting = control_received_.size();
  for (const ShardBox& box : shards_) waiting += box.received.size();
  return waiting;
}

std::string Appliance::unbalanced() const {
  std::uint64_t known = total(frame_verdicts_) + control_received_.size() + control_handled_;
  for (const ShardBox& box : shards_) {
    known += box.handled + box.received.size();
    if (box.handled != total(box.shard->verdicts()))
      return "I7: a shard handled " + std::to_string(box.handled) + " packets and counted " +
             std::to_string(total(box.shard->verdicts())) + " verdicts";
  }
  if (control_handled_ + control_repeated_ != total(jobs_->verdicts()))
    return "I7: the control side handled " + std::to_string(control_handled_) +
           " packets and counted " + std::to_string(total(jobs_->verdicts())) + " verdicts";
  if (known != frames_in_)
    return "I7: " + std::to_string(frames_in_) + " frames came in and " + std::to_string(known) +
           " are accounted for";
  return {};
}

}  // namespace sluice::sim
