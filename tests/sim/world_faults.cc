// The faults that a test adds to a world: processes that die or stop, hosts that are cut off,
// packets of strangers.
#include "tests/sim/world.h"

namespace sluice::sim {
namespace {

constexpr DurationNs kOnItsWay = 500 * kMillisecond;  // longer than any cable's queue

}  // namespace

void World::kill(Worker& worker, bool host_too) {
  worker.kill();
  oracle_.note_unreliable(worker.identity.run, worker.identity.rank);
  if (host_too) {
    host_up_[worker.identity.host] = false;
    note_unreliable(worker.identity.host);
  }
  // What it has sent may arrive, and count, until then.
  at(now_ + kOnItsWay, [this, run = worker.identity.run] { note_over(run); });
}

void World::pause(Worker& worker) {
  oracle_.note_unreliable(worker.identity.run, worker.identity.rank);
  worker.pause();
}

void World::partition(HostIndex host, bool on) {
  note_unreliable(host);
  uplink(host).partitioned = on;
  downlink(host).partitioned = on;
}

void World::cut(HostIndex host, std::size_t box, bool on) {
  note_unreliable(host);
  if (on)
    cuts_.insert({host, box});
  else
    cuts_.erase({host, box});
}

void World::show_port_change(const Worker& worker) {
  for (const Box& box : boxes_)
    if (box.up) box.appliance->unreachable(public_port(worker), now_);
}

void World::block_downlink(HostIndex host, bool on) {
  note_unreliable(host);
  if (on)
    downlink(host).blocked = true;
  else
    downlink(host).unblock(events_, now_);
}

void World::set_link_options(const LinkOptions& up, const LinkOptions& down) {
  options_.uplink = up;
  options_.downlink = down;
  for (std::size_t i = 0; i < links_.size(); ++i) links_[i]->options = i % 2 == 0 ? up : down;
}

void World::inject(const wire::UdpPath& path, std::span<const std::uint8_t> datagram) {
  std::vector<std::uint8_t> frame(wire::kMaxUdpHeaderBytes + datagram.size());
  frame.resize(wire::encode_udp_frame(frame, path, datagram));
  inject_frame(frame);
}

void World::inject_frame(std::span<const std::uint8_t> bytes) {
  const FrameIndex frame = pool_.take();
  pool_[frame].bytes.assign(bytes.begin(), bytes.end());
  boxes_[0].appliance->receive(frame, now_);
}

void World::inject_to_worker(Worker& worker, std::span<const std::uint8_t> datagram) {
  wire::UdpPath path = path_to_appliance(worker, 1);
  std::swap(path.src, path.dst);
  std::swap(path.src_port, path.dst_port);
  const FrameIndex frame = pool_.take();
  pool_[frame].bytes.resize(wire::kMaxUdpHeaderBytes + datagram.size());
  pool_[frame].bytes.resize(wire::encode_udp_frame(pool_[frame].bytes, path, datagram));
  worker.receive(frame, now_);
}

}  // namespace sluice::sim
