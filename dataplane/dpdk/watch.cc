// The control thread's watching and logging: links, hints of dead processes, joins and ends of
// jobs.

#include <spdlog/spdlog.h>

#include "aggregator/base/text.h"
#include "dataplane/dpdk/control.h"
#include "dataplane/dpdk/send.h"
#include "dataplane/host/answer.h"
#include "dataplane/host/unreachable.h"

namespace sluice::dataplane {
namespace {

constexpr int kLogsPerSecond = 5;
constexpr DurationNs kProbeInterval = 10 * kSecond;
constexpr DurationNs kDrainReport = 5 * kSecond;
constexpr DurationNs kDrainGrace = 5 * kSecond;  // members move within one

// The text of a notice without the job's name in front, which the log line has already.
std::string without_name(const agg::JobView& view, std::string_view notice) {
  const std::string name = "job '" + std::string(view.name) + "': ";
  return std::string(notice.substr(notice.starts_with(name) ? name.size() : 0));
}

// `awaited`: the missing ranks of a forming job, once none has joined for a while.
std::string describe(const agg::JobView& view, const std::string& awaited) {
  const std::string name =
      "job \"" + std::string(view.name) + "\"" +
      (view.ordinal == 0 ? "" : " (model " + std::to_string(view.ordinal) + ")");
  switch (view.state) {
    case wire::JobState::kForming:
      return name + (view.preparing ? " waits for its memory to be made" : " is forming") +
             (awaited.empty() ? "" : ": " + awaited);
    case wire::JobState::kRunning: {
      const std::string workers = name + " runs with ";
      if (view.loss.empty())
        return workers + std::to_string(view.world_size) + " workers" +
               (view.was_kept ? " on the parameters that earlier ones have left" : "");
      return workers + std::to_string(view.joined_count) + " of " +
             std::to_string(view.world_size) + " workers: " + without_name(view, view.loss);
    }
    case wire::JobState::kEnded:
      return name + " has ended" +
             (view.notice.empty() ? "" : ": " + without_name(view, view.notice));
  }
  return name;
}

// Its members neither move nor wait for the next one.
bool needs_this_process(const agg::Job* job) {
  if (job == nullptr) return false;
  const agg::JobSpec& spec = job->spec;
  if (spec.operations) return spec.operations->elastic;
  return spec.store.has_value();
}

}  // namespace

bool Control::LogLimit::allow(TimeNs now, int per_second) noexcept {
  if (now - window_start >= kSecond) {
    window_start = now;
    count = 0;
  }
  return ++count <= per_second;
}

void Control::note_result(const agg::ControlResult& result, const std::string& address,
                          TimeNs now) {
  if (result.verdict != Verdict::kJoinRefused || !refusals_.allow(now, kLogsPerSecond)) return;
  wire::Packet reply;
  const bool readable = result.reply_bytes != 0 &&
                        ok(wire::parse(wire::Bytes(reply_).first(result.reply_bytes), reply)) &&
                        reply.type() == wire::PacketType::kRefuse;
  spdlog::warn("refused a join from {}: {}", address,
               readable ? std::string(reply.text()) : "no reason given to a stranger");
}

void Control::handle_unreachable(const wire::Frame& frame, TimeNs now) {
  const auto hint = parse_unreachable(frame, context_.own);
  if (!hint) return;
  if (hint->kind == UnreachableKind::kTooBig) {
    if (conflicts_.allow(now, 1))
      spdlog::warn(
          "a router says that the path to a worker (UDP port {}) does not carry our "
          "datagrams; lower the workers' chunk size or raise that path's MTU",
          hint->member_port);
    return;
  }
  if (hint->kind != UnreachableKind::kPort || !hint->quoted) return;
  const Verdict why = jobs_.suspect_quoted(*hint->quoted, now);
  if (!ok(why)) verdicts_.count(why);
}

void Control::handle_conflict(const wire::Frame& frame, Port& port, TimeNs now) {
  if (!conflicts_.allow(now, 1)) return;
  const auto& mac = frame.ethernet.src.bytes;
  if (frame.ethernet.src == context_.own.mac)
    return spdlog::error(
        "frames with the appliance's own MAC come in on port \"{}\": another appliance has its "
        "address, or two of its ports are on one network; give it another address, or pull one",
        port.config().name);
  spdlog::error(
      "another host ({:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x} on port \"{}\") claims the "
      "appliance's address; give one of the two another address",
      mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], port.config().name);
}

// Asks on every network who has the appliance's address: the answers are conflicts. At the other
// end of a vhost-user port is a process of this machine.
void Control::watch_address(TimeNs now) {
  if (now < next_probe_ns_) return;
  next_probe_ns_ = now + kProbeInterval;
  for (const auto& port : context_.ports) {
    if (!port->up() || port->config().type == config::PortType::kVhostUser) continue;
    rte_mbuf* packet = rte_pktmbuf_alloc(context_.pool.get());
    if (packet == nullptr) return drops_.count(DropReason::kNoBuffer);
    set_frame_bytes(packet, write_probe(context_.own, room_of(packet)));
    meta_of(packet) = {.kind = PacketMeta::Kind::kEgress,
                       .port = port->index(),
                       .egress_class = Classifier::of_control()};
    if (!context_.owner_of(port->index()).hand_over(packet)) {
      drops_.count(DropReason::kHandover);
      rte_pktmbuf_free(packet);
    }
  }
}

void Control::suspect_behind(PortIndex port, TimeNs now) {
  for (std::uint16_t job = 0; job < context_.paths->job_count(); ++job) {
    for (std::uint16_t rank = 0; rank < context_.paths->workers_per_job(); ++rank) {
      const MemberPath path = context_.paths->read(JobId{job}, Rank{rank});
      if (path.bound && path.port == port) jobs_.suspect(JobId{job}, Rank{rank}, now);
    }
  }
}

// The closed socket of a vhost-user port means that its process has ended, also if a socket was
// opened again between two looks. The loss of another link tells nothing of the members behind it:
// they are pinged after a second of silence, as all members, and the host of a dead process answers
// then.
void Control::watch_ports(TimeNs now) {
  for (std::size_t index = 0; index < context_.ports.size(); ++index) {
    Port& port = *context_.ports[index];
    const std::uint64_t changes = port.link_changes();
    const std::uint64_t before = link_changes_[index];
    if (changes == before) continue;
    link_changes_[index] = changes;
    if (port.config().type != config::PortType::kVhostUser) continue;
    if (!port.up() || changes - before > 1) suspect_behind(port.index(), now);
  }
}

void Control::watch_jobs(TimeNs now) {
  std::map<std::uint16_t, std::string> seen;
  for (const agg::JobView& view : jobs_.views()) {
    std::string text = describe(view, jobs_.describe_awaited(view.id, now));
    const auto old = announced_.find(view.id.value);
    // Of a forming job the log has only the ranks that are still missing, not every rank that
    // joins.
    if (old != announced_.end() && view.state == wire::JobState::kForming &&
        old->second.starts_with(text))
      text = old->second;
    if (old == announced_.end() || old->second != text)
      spdlog::log(
          view.notice.empty() && view.loss.empty() ? spdlog::level::info : spdlog::level::warn,
          "{}", text);
    seen.emplace(view.id.value, std::move(text));
  }
  announced_.swap(seen);
}

// A job that could move and has not by now has no other appliance, or does not reach it, or has
// lost a rank of a group. It waits for the next process here, as after SIGTERM.
void Control::watch_drain(TimeNs now) {
  if (drained_told_ns_ == 0) {
    jobs_.drain(now);
    drain_since_ns_ = drained_told_ns_ = now;
  }
  std::string stays;
  bool waits = false;
  for (const agg::JobView& view : jobs_.views()) {
    if (view.state == wire::JobState::kEnded || view.joined_count == 0) continue;
    waits |= needs_this_process(view.job) || now - drain_since_ns_ < kDrainGrace;
    stays += text("%s%u of %u workers of job \"%s\"", stays.empty() ? "" : ", ", view.joined_count,
                  view.world_size, std::string(view.name).c_str());
  }
  if (is_drained()) return;
  if (!waits) {
    spdlog::info("drained: {}", stays.empty() ? "no worker is a member of any job"
                                              : stays + " wait for the next process here");
    return drained_.store(true, std::memory_order_relaxed);
  }
  if (now - drained_told_ns_ < kDrainReport) return;
  drained_told_ns_ = now;
  spdlog::info("draining: still here are {}", stays);
}

}  // namespace sluice::dataplane
