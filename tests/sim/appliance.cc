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
  for (const Counter& counter : counters.by_reason) sum += counter.read();
  return sum;
}

// The round of a thread begins; false: it is away, and begins when it is back.
bool begins(World& world, TimeNs back_ns, EventKind kind, std::uint32_t target, std::uint32_t boot,
            TimeNs now) {
  if (now >= back_ns) return true;
  world.events().push(back_ns, kind, target, boot);
  return false;
}

}  // namespace

// Where the control thread's datagrams go.
struct Appliance::ControlOut {
  Appliance& self;
  TimeNs now;
  std::size_t sent = 0;

  std::span<std::uint8_t> tx_buffer() { return self.buffer_; }
  void send(const agg::Transmit& transmit) {
    ++sent;
    const auto path = self.path_of(transmit.job, transmit.rank, self.options_.port);
    if (path) self.send(*path, {self.buffer_.data(), transmit.bytes}, transmit.priority, now);
  }
};

// Where a shard's datagrams go.
struct Appliance::ShardOut {
  Appliance& self;
  std::uint16_t shard;
  TimeNs now;
  AllocationWatch watch{};

  std::span<agg::Transmit> tx_buffers() {
    watch = {};
    return self.tx_buffers_.all();
  }
  void swept() {
    for (const agg::JobView& view : self.jobs().views())
      if (view.job != nullptr && view.job->spec.store) self.world_.books().look(*view.job, shard);
  }
  void send(std::span<const agg::Transmit> burst) {
    if (watch.count() != 0)
      self.world_.oracle().violation("I5: Shard::poll_transmit() allocated memory");
    for (const agg::Transmit& transmit : burst) send(transmit);
  }
  void send(const agg::Transmit& transmit) {
    const auto port = static_cast<std::uint16_t>(self.options_.port + 1 + shard);
    const auto path = self.path_of(transmit.job, transmit.rank, port);
    if (!path)
      return self.world_.oracle().violation("a shard sends to a rank whose path was never proven");
    const std::span<const std::uint8_t> bytes = transmit.datagram();
    self.world_.on_shard_sent(shard, path->dst_port, bytes, self.store_of(transmit.job));
    self.send(*path, bytes, transmit.priority, now);
  }
};

Appliance::Appliance(World& world, ApplianceOptions options, const wire::IpAddress& address,
                     std::uint32_t boot)
    : world_(world),
      boot_(boot),
      options_(std::move(options)),
      address_(address),
      core_({.jobs = options_.jobs,
             .mail = agg::Mail::kDelivered,
             .makes_memory = options_.memory_bytes_per_second == 0}),
      lcores_(options_.jobs.shard_count),
      buffer_(kMaxDatagramBytes) {
  mac_.bytes = {2, 0, 0, 0, 0, 1};
}

void Appliance::wake_control(TimeNs now) {
  if (std::exchange(control_.awake, true)) return;
  world_.events().push(now + world_.draw_delay(options_.service_delay_ns),
                       EventKind::kControlService, 0, boot_);
}

void Appliance::wake_shard(std::uint16_t shard, TimeNs now) {
  if (std::exchange(lcores_[shard].awake, true)) return;
  world_.events().push(now + world_.draw_delay(options_.service_delay_ns), EventKind::kShardService,
                       shard, boot_);
}

void Appliance::receive(FrameIndex frame, TimeNs now) {
  ++frames_in_;
  wire::Frame view;
  Verdict why = wire::parse_frame(world_.pool()[frame].bytes, wire::UdpChecksums::kVerify, view);
  if (ok(why) && (view.kind != wire::FrameKind::kUdp || view.dst != address_))
    why = Verdict::kNotOurs;
  if (ok(why)) {
    const std::uint32_t offset = std::uint32_t{view.dst_port} - options_.port;
    if (offset == 0) {
      control_.received.push_back(frame);
      return wake_control(now);
    }
    if (offset <= options_.jobs.shard_count) {
      lcores_[offset - 1].received.push_back(frame);
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
  const Verdict why = wire::parse(view.payload, packet);
  if (!ok(why)) return frame_verdicts_.count(why);
  ++control_.handled;
  const std::string address = printable(view.src, view.src_port);
  const wire::UdpPath back = wire::reply_path(view, mac_);
  const agg::Origin origin{.path = agg::path_key(back, 0),
                           .address = address,
                           .max_datagram_bytes = options_.max_datagram_bytes};
  const agg::ControlResult result = core_.handle_control(packet, origin, buffer_, now);
  if (result.bind) {
    paths_[{result.job.value, result.rank.value}] = back;
    world_.on_heard(view.src_port, packet);
  }
  if (result.reply_bytes == 0) return;
  send(back, {buffer_.data(), result.reply_bytes}, 0, now);
}

void Appliance::service_control(TimeNs now) {
  if (!begins(world_, control_.back_ns, EventKind::kControlService, 0, boot_, now)) return;
  control_.awake = false;
  for (const FrameIndex frame : std::exchange(control_.received, {})) {
    handle_control(frame, now);
    world_.pool().give_back(frame);
  }
  serve_control(now);
}

void Appliance::serve_control(TimeNs now) {
  deliver_memory(now);
  const std::size_t before = core_.shards().commands(0).under_way();
  ControlOut out{*this, now};
  if (core_.serve_control(out, now) != 0) wake_control(now);
  order_memory(now);
  full_rounds_ = out.sent == agg::kControlDatagrams ? full_rounds_ + 1 : 0;
  if (full_rounds_ > 100) world_.oracle().violation("Jobs::poll_transmit() never ends");
  for (std::size_t at = before; at < core_.shards().commands(0).under_way(); ++at)
    for (std::uint16_t shard = 0; shard < shard_count(); ++shard)
      world_.events().push(now + world_.draw_delay(options_.command_delay_ns),
                           EventKind::kShardCommand, shard, boot_);
}

// The helper thread, in virtual time: one order after the other.
void Appliance::order_memory(TimeNs now) {
  for (agg::MemoryOrder order; jobs().poll_memory(order);) {
    const TimeNs started_ns = making_.empty() ? now : making_.back().done_ns;
    const double seconds =
        static_cast<double>(order.bytes) / static_cast<double>(options_.memory_bytes_per_second);
    const auto taken_ns = static_cast<DurationNs>(seconds * static_cast<double>(kSecond));
    making_.push_back({std::move(order), started_ns, started_ns + taken_ns});
    making_ns_ += taken_ns;
  }
}

void Appliance::deliver_memory(TimeNs now) {
  while (!making_.empty() && making_.front().done_ns <= now) {
    Making making = std::move(making_.front());
    making_.pop_front();
    if (making.order.progress != nullptr) making.order.progress->bytes = 0;
    agg::carry_out(making.order);
    jobs().handle_memory(std::move(making.order), now);
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

void Appliance::handle_data(std::uint16_t shard, FrameIndex frame, TimeNs now) {
  wire::Frame view;
  (void)wire::parse_frame(world_.pool()[frame].bytes, wire::UdpChecksums::kTrust, view);
  wire::Packet packet;
  const Verdict why = wire::parse(view.payload, packet);
  if (!ok(why)) return frame_verdicts_.count(why);
  ++lcores_[shard].handled;
  world_.on_heard(view.src_port, packet);
  const bool marked = (view.traffic_class & wire::kEcnMask) == wire::kEcnCongested;
  const bool resumes =
      packet.type() == wire::PacketType::kCopies || packet.type() == wire::PacketType::kCopy;
  const bool of_store = resumes || packet.type() == wire::PacketType::kPush ||
                        packet.type() == wire::PacketType::kPull;
  const agg::Job* const store = of_store ? store_of(JobId{packet.common().job}) : nullptr;
  const bool is_live =
      store != nullptr && StoreBooks::is_live(*store, shard, Rank{packet.common().rank});
  const AllocationWatch watch;
  const Verdict verdict = core_.handle_data(shard, packet, marked, now);
  if (watch.count() != 0) world_.oracle().violation("I5: Shard::handle() allocated memory");
  if (store != nullptr && resumes)
    world_.books().resumed(*store, shard, packet);
  else if (store != nullptr)
    world_.books().handled(*store, shard, packet, is_live, verdict);
}

void Appliance::service_shard(std::uint16_t shard, TimeNs now) {
  Thread& lcore = lcores_[shard];
  if (!begins(world_, lcore.back_ns, EventKind::kShardService, shard, boot_, now)) return;
  lcore.awake = false;
  for (std::uint32_t i = 0; i < options_.burst && !lcore.received.empty(); ++i) {
    const FrameIndex frame = lcore.received.front();
    lcore.received.pop_front();
    handle_data(shard, frame, now);
    world_.pool().give_back(frame);
  }
  const std::size_t before = core_.shards().events(shard).under_way();
  ShardOut out{*this, shard, now};
  const std::size_t work = core_.serve_shard(shard, out, now);
  for (std::size_t at = before; at < core_.shards().events(shard).under_way(); ++at)
    world_.events().push(now + world_.draw_delay(options_.command_delay_ns), EventKind::kShardEvent,
                         shard, boot_);
  if (work != 0 || !lcore.received.empty()) wake_shard(shard, now);
}

void Appliance::deliver_command(std::uint16_t shard, TimeNs now) {
  core_.shards().commands(shard).deliver();
  wake_shard(shard, now);
}

void Appliance::deliver_event(std::uint16_t shard, TimeNs now) {
  core_.shards().events(shard).deliver();
  wake_control(now);
}

// A thread polls without a reason; once a tick is enough to find what nobody announced.
void Appliance::tick(TimeNs now) {
  wake_control(now);
  for (std::uint16_t shard = 0; shard < shard_count(); ++shard) wake_shard(shard, now);
  if (jobs().memory_bytes() > options_.jobs.max_total_memory_bytes)
    world_.oracle().violation("I5: jobs take " + std::to_string(jobs().memory_bytes()) +
                              " bytes of " + std::to_string(options_.jobs.max_total_memory_bytes));
}

void Appliance::shutdown(TimeNs now) {
  jobs().shutdown(now);
  serve_control(now);
}

void Appliance::drain(TimeNs now) {
  jobs().drain(now);
  serve_control(now);
}

void Appliance::power_off() {
  const auto lose = [this](Thread& thread) {
    frames_in_ -= thread.received.size();
    for (const FrameIndex frame : std::exchange(thread.received, {}))
      world_.pool().give_back(frame);
  };
  lose(control_);
  for (Thread& lcore : lcores_) lose(lcore);
}

void Appliance::quoted_unreachable(const wire::CommonHeader& quoted, TimeNs now) {
  if (now < control_.back_ns)
    return world_.at(control_.back_ns, [&world = world_, quoted] {
      world.appliance().quoted_unreachable(quoted, world.now());
    });
  (void)jobs().suspect_quoted(quoted, now);
  wake_control(now);
}

void Appliance::unreachable(std::uint16_t worker_port, TimeNs now) {
  if (now < control_.back_ns)
    return world_.at(control_.back_ns, [&world = world_, worker_port] {
      world.appliance().unreachable(worker_port, world.now());
    });
  for (const auto& [member, path] : paths_)
    if (path.dst_port == worker_port) jobs().suspect(JobId{member.first}, Rank{member.second}, now);
  wake_control(now);
}

const agg::Job* Appliance::store_of(JobId id) const {
  for (const agg::JobView& view : core_.jobs().views())
    if (view.id.value == id.value)
      return view.job != nullptr && view.job->spec.store ? view.job : nullptr;
  return nullptr;
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
  return frame_verdicts_.read(verdict) + core_.verdicts(verdict);
}

std::size_t Appliance::waiting_frames() const {
  std::size_t waiting = control_.received.size();
  for (const Thread& lcore : lcores_) waiting += lcore.received.size();
  return waiting;
}

std::string Appliance::unbalanced() const {
  std::uint64_t known = total(frame_verdicts_) + control_.handled + waiting_frames();
  for (std::uint16_t shard = 0; shard < shard_count(); ++shard) {
    const std::uint64_t handled = lcores_[shard].handled;
    const std::uint64_t counted = total(core_.shards().shard(shard).verdicts());
    known += handled;
    if (handled != counted)
      return "I7: a shard handled " + std::to_string(handled) + " packets and counted " +
             std::to_string(counted) + " verdicts";
  }
  const std::uint64_t counted = total(core_.jobs().verdicts());
  if (control_.handled + core_.repeated() != counted)
    return "I7: the control side handled " + std::to_string(control_.handled) +
           " packets and counted " + std::to_string(counted) + " verdicts";
  if (known != frames_in_)
    return "I7: " + std::to_string(frames_in_) + " frames came in and " + std::to_string(known) +
           " are accounted for";
  return {};
}

}  // namespace sluice::sim
