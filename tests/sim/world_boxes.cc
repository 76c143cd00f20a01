// The appliances of a world: which one a packet is for, which one lives, and where each run is.
#include <algorithm>
#include <utility>

#include "tests/sim/world.h"

namespace sluice::sim {
namespace {

constexpr std::uint32_t kNowhere = UINT32_MAX;  // a place that the run has left before it was seen

wire::IpAddress appliance_address(bool ipv6, std::size_t box) {
  const auto low = static_cast<std::uint8_t>(1 + box);
  if (!ipv6) return wire::ipv4_address(10, 255, 0, low);
  wire::IpAddress address{wire::Family::kIpv6, {0xfd, 2}};
  address.bytes[15] = low;
  return address;
}

void draw_boot_key(agg::JobsOptions& jobs, std::uint64_t seed) {
  for (std::size_t i = 0; i < jobs.boot_key.size(); ++i)
    jobs.boot_key[i] = static_cast<std::uint8_t>(mix(seed, 0xB007, i));
}

// They need another rank's state, and count in no step before.
void note_far_behind(Oracle& oracle, RunIndex run, const std::vector<WorkerIndex>& ranks,
                     const std::vector<std::unique_ptr<Worker>>& workers) {
  Step newest = 0;
  const auto step_of = [&](WorkerIndex index) {
    const Worker& worker = *workers[index];
    const bool is_in_step = worker.started() && worker.session().behind_status().ok();
    return is_in_step ? worker.session().current_step() : 0;
  };
  for (const WorkerIndex index : ranks) newest = std::max(newest, step_of(index));
  for (const WorkerIndex index : ranks)
    if (step_of(index) + 1 < newest) oracle.note_unreliable(run, workers[index]->identity.rank);
}

}  // namespace

void World::stop_appliance(std::size_t index) {
  Box& box = boxes_[index];
  if (!std::exchange(box.up, false)) return;
  for (RunIndex run = 0; run < runs_.size(); ++run) stores_.note_restart(run);
  box.appliance->power_off();
  // What is on its way to a worker has left it, or is behind its cable.
  for (std::size_t i = 1; boxes_.size() == 1 && i < links_.size(); i += 2)
    links_[i]->power_off(pool_);
  for (RunIndex run = 0; run < runs_.size(); ++run)
    runs_[run]->restarts |= runs_[run]->epoch % boxes_.size() == index;
}

void World::start_appliance(std::uint64_t boot_seed, std::size_t index) {
  stop_appliance(index);
  Box& box = boxes_[index];
  draw_boot_key(options_.appliance.jobs, boot_seed);
  box.boot = boots_++;
  box.appliance = std::make_unique<Appliance>(*this, options_.appliance,
                                              appliance_address(options_.ipv6, index), box.boot);
  box.up = true;
  for (RunIndex run = 0; run < runs_.size(); ++run) {
    const bool restarts = std::exchange(runs_[run]->restarts, false);
    if (restarts && runs_[run]->epoch % boxes_.size() == index) oracle_.note_restart(run);
    if (restarts && runs_[run]->plan.tolerates_stragglers())
      note_far_behind(oracle_, run, runs_[run]->latest, workers_);
  }
}

Appliance* World::booted(std::uint32_t boot) const {
  for (const Box& box : boxes_)
    if (box.boot == boot && box.up) return box.appliance.get();
  return nullptr;
}

std::optional<std::size_t> World::box_at(const wire::IpAddress& address) const {
  for (std::size_t box = 0; box < boxes_.size(); ++box)
    if (boxes_[box].appliance->address() == address) return box;
  return {};
}

bool World::is_cut(HostIndex host, const wire::IpAddress& address) const {
  const std::optional<std::size_t> box = box_at(address);
  return box && cuts_.contains({host, *box});
}

std::uint32_t World::Run::enter(const Place& place) {
  const auto found = std::ranges::find(places, place);
  if (found == places.end() && place.epoch < epoch) return kNowhere;
  if (found != places.end()) return static_cast<std::uint32_t>(found - places.begin());
  places.push_back(place);
  epoch = place.epoch;
  return static_cast<std::uint32_t>(places.size() - 1);
}

// The first packet of the first member at the next place: from here on that counts.
// With k < n a place is a job in a process of an appliance: a death while results are given begins
// it again. Where it can move it is there from its first packet of data on, and counts where it was
// until then. A synchronous job that cannot move has one place in each process.
void World::note_epoch(Worker& worker, const wire::Packet& packet, bool data) {
  const wire::CommonHeader& common = packet.common();
  const RunIndex index = worker.identity.run;
  Run& run = *runs_[index];
  const bool moves = boxes_.size() > 1;
  const bool tolerant = run.plan.tolerates_stragglers();
  if (common.cookie == 0 || (moves && tolerant && !data)) return;
  if (epochs_.contains({index, common.cookie})) return;
  std::uint32_t& at = epochs_[{index, common.cookie}];
  at = worker.session().epoch();
  if (!tolerant) {
    if (!moves) at = boxes_[0].boot;
    if (!moves || at <= run.epoch) return;
    run.epoch = at;
    stores_.note_move(index);
    return oracle_.note_restart(index);
  }
  const std::size_t known = run.places.size();
  const std::uint32_t boot = boxes_[worker.session().address()].boot;
  at = run.enter({.boot = boot, .job = common.job, .epoch = at});
  if (known == 0 || known == run.places.size()) return;
  // Of another process of the appliance where it is the oracle knows.
  const Place& before = run.places[known - 1];
  if (before.epoch == run.epoch && before.boot != boot) return;
  oracle_.note_restart(index);
  if (before.epoch != run.epoch) note_far_behind(oracle_, index, run.latest, workers_);
}

Oracle::Appliance World::appliance_of(RunIndex run, const wire::Packet& packet) const {
  using enum Oracle::Appliance;
  const wire::PacketType type = packet.type();
  const bool is_piece = type == wire::PacketType::kPiece || type == wire::PacketType::kPieceResult;
  const auto found = epochs_.find({run, packet.common().cookie});
  if (runs_[run]->plan.tolerates_stragglers()) {
    if (!is_piece && boxes_.size() == 1) return kHere;
    const bool is_last =
        found != epochs_.end() && found->second + std::size_t{1} == runs_[run]->places.size();
    return is_last ? kHere : kNowhere;
  }
  const std::uint32_t now = boxes_.size() == 1 ? boxes_[0].boot : runs_[run]->epoch;
  const bool is_here =
      found == epochs_.end() ? !is_piece || boxes_.size() == 1 : found->second == now;
  if (is_here) return kHere;
  return is_piece ? kNowhere : kBefore;
}

}  // namespace sluice::sim
