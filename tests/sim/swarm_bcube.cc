#include "tests/sim/swarm_bcube.h"

#include <algorithm>
#include <array>
#include <sstream>

namespace sluice::sim {
namespace {

using Part = BcubeWorld::Part;

// As of the other jobs of a swarm.
constexpr DurationNs kStepBound = kSecond;
constexpr DurationNs kRecoveryBound = 10 * kSecond;
constexpr DurationNs kJoinTimeout = 8 * kSecond;
// From the return of what was lost, and the silence that tells of a loss, until it is used again.
constexpr DurationNs kWayBackBound = 35 * kSecond;

template <class T, std::size_t N>
T pick(Random& random, const std::array<T, N>& choices) {
  return choices[random.below(N)];
}

struct Shape {
  std::uint32_t switch_ports, levels;
};

// The big ones take long and so come seldom: more often by dice of their own.
Shape draw_shape(std::uint64_t seed, Random& random) {
  const std::array big{Shape{3, 3}, Shape{2, 4}};
  const Shape shape = random.one_in(10)
                          ? pick(random, big)
                          : pick(random, std::array{Shape{2, 2}, Shape{3, 2}, Shape{4, 2},
                                                    Shape{2, 3}, Shape{3, 1}});
  Random own(mix(seed, 0xBC0BE, 4));
  return own.one_in(16) ? pick(own, big) : shape;
}

void draw_link(Random& random, LinkOptions& link) {
  link.loss_ppm = pick(random, std::array{0u, 0u, 1'000u, 20'000u, 100'000u});
  link.duplicate_ppm = pick(random, std::array{0u, 1'000u, 50'000u});
  link.reorder_ppm = pick(random, std::array{0u, 1'000u, 100'000u});
  link.delay_ns = pick(random, std::array{2 * kMicrosecond, 50 * kMicrosecond, kMillisecond});
  link.jitter_ns = pick(random, std::array{DurationNs{0}, DurationNs{0}, 200 * kMicrosecond});
  link.bytes_per_second = pick(random, std::array{125'000'000u, 1'250'000'000u});
  link.queue_frames = pick(random, std::array{64u, 256u, 1024u});
  link.mark_above_frames = pick(random, std::array{0u, 20u});
}

void draw_application(Random& random, BcubeOptions& options, std::uint32_t servers) {
  options.steps = static_cast<Step>(1 + random.below(6));
  options.chunk_bytes = static_cast<std::uint16_t>(64 * pick(random, std::array{1, 4, 16, 21}));
  const std::uint64_t chunk_elems = options.chunk_bytes / 4;
  for (std::uint64_t tensor = 1 + random.below(6); tensor > 0; --tensor)
    options.elem_counts.push_back(1 +
                                  random.below(chunk_elems * (random.one_in(4) ? 3 * servers : 8)));
  options.compute_max_ns =
      pick(random, std::array{DurationNs{0}, 100 * kMicrosecond, kMillisecond});
  options.start_max_ns = pick(random, std::array{DurationNs{0}, 20 * kMillisecond, kSecond});
  options.begin_together = false;
  options.random_order = !random.one_in(3);
  options.in_place = random.one_in(3);
  options.pipelined = random.one_in(4);
  options.call_end_step = random.one_in(2);
  options.zero_weights = random.one_in(6);
  options.averaging = pick(random, std::array{AveragingChoice::kDefault, AveragingChoice::kSum,
                                              AveragingChoice::kWeight});
  if (options.pipelined) return;
  options.nil_ppm = !options.zero_weights && random.one_in(3) ? 300'000 : 0;
  options.nil_output = random.one_in(2);
  for (std::uint64_t i = random.below(4); i > 0; --i)
    options.collectives.push_back(
        {.before_step = static_cast<Step>(1 + random.below(options.steps)),
         .kind = random.one_in(2) ? CollectiveKind::kBarrier : CollectiveKind::kBroadcast,
         .root = Rank{static_cast<std::uint16_t>(random.below(servers))},
         .size_bytes = static_cast<std::uint32_t>(1 + random.below(20'000))});
  std::ranges::stable_sort(options.collectives, {}, &CollectivePlan::before_step);
}

// By dice of its own, as all that follows: what a seed drew before there was a choice stays.
void draw_offloads(std::uint64_t seed, LinkOptions& link) {
  Random random(mix(seed, 0xBC0BE, 3));
  link.corrupt_ppm = pick(random, std::array{0u, 0u, 5'000u});
  if (!random.one_in(3)) return;
  link.train_frames = pick(random, std::array{2u, 8u, 45u});
  link.train_loss_ppm = pick(random, std::array{0u, 2'000u, 20'000u, 100'000u});
}

void draw_losses(std::uint64_t seed, BcubeOptions& options) {
  Random random(mix(seed, 0xBC0BE, 2));
  options.wire = pick(random, std::array{Dtype::kFloat32, Dtype::kFloat32, Dtype::kFloat16,
                                         Dtype::kBfloat16, Dtype::kInt8});
  options.last_exact = random.one_in(4);
  if (!random.one_in(4)) return;
  options.prune.rule =
      pick(random, std::array{client::PruneRule::kStatic, client::PruneRule::kSigma,
                              client::PruneRule::kDynamic});
  options.prune.fraction = pick(random, std::array{0.01, 0.1, 0.5});
  options.prune.sigmas = 1;
  options.prune.min_elems = 50;
}

Part draw_part(Random& random, const BcubeOptions& options, std::uint32_t servers) {
  Part part{.kind = static_cast<Part::Kind>(random.below(3)),
            .index = static_cast<std::uint32_t>(random.below(servers))};
  const bool plain = options.mode == client::BcubeMode::kPlain;
  if (part.kind == Part::Kind::kBox && !plain)
    part.index %= options.levels * (servers / options.switch_ports);
  if (part.kind == Part::Kind::kCable)
    part.level = static_cast<std::uint32_t>(random.below(options.levels));
  return part;
}

// Of gradients, that the servers' ports send for all steps when nothing is lost or left out.
std::uint64_t due_bytes(const BcubeOptions& options, const client::Bcube& bcube) {
  const std::uint64_t n = bcube.switch_ports();
  std::uint64_t copies = 0;  // of each element
  std::uint64_t holders = bcube.servers();
  for (std::uint32_t stage = 0; stage < bcube.levels(); ++stage, holders /= n)
    copies += options.mode == client::BcubeMode::kPlain ? 2 * (holders - holders / n) : holders;
  std::uint64_t elems = 0;
  for (const std::uint64_t count : options.elem_counts) elems += count;
  return 4 * elems * copies * options.steps;
}

// Somebody finds it again.
bool may_return(const BcubeOptions& options, const BcubeWorld::Death& death) {
  return options.levels > 1 && death.parts.front().kind != Part::Kind::kServer;
}

// Of half of the cables one way is lost, and the other goes on.
void draw_one_way(std::uint64_t seed, BcubeSwarm& swarm) {
  Random random(mix(seed, 0xBC0BE, 6));
  const auto narrow = [&](Part& part) {
    const std::uint64_t die = random.below(4);
    if (part.kind == Part::Kind::kCable && die < 2)
      part.kind = die == 0 ? Part::Kind::kOut : Part::Kind::kIn;
  };
  for (BcubeWorld::Absence& absence : swarm.absences) narrow(absence.part);
  if (swarm.death) narrow(swarm.death->parts.front());
}

// So that much can be lost and found in mid-run.
void make_long(BcubeOptions& options) {
  options.steps += 30;
  options.elem_counts.resize(std::max<std::size_t>(options.elem_counts.size(), 2), 300);
  const auto pauses = static_cast<DurationNs>(options.elem_counts.size() - 1);  // of a step
  options.compute_max_ns = 3 * kSecond / pauses;
}

// What dies is a switch, or the way to it, and then who forwards for one of its servers.
void draw_forwarder(std::uint64_t seed, BcubeSwarm& swarm) {
  BcubeOptions& options = swarm.options;
  Random random(mix(seed, 0xBC0BE, 5));
  if (options.levels == 1 || options.pipelined || !random.one_in(10)) return;
  const client::Bcube bcube = client::Bcube::create(options.switch_ports, options.levels).value();
  const auto level = static_cast<std::uint32_t>(random.below(options.levels));
  const auto server = static_cast<std::uint32_t>(random.below(bcube.servers()));
  Part lost{.kind = Part::Kind::kCable, .index = server, .level = level};
  if (options.mode == client::BcubeMode::kAggregated && random.one_in(2))
    lost = {.kind = Part::Kind::kBox,
            .index = level * bcube.switches_per_level() + bcube.switch_of(server, level)};
  swarm.death = {.parts = {lost},
                 .after_ns = random.between(0, 100 * kMillisecond),
                 .then_server = bcube.detour_neighbour(server, level),
                 .then_after_ns = random.between(0, 15 * kSecond)};
  if (options.steps <= 30) make_long(options);
}

}  // namespace

BcubeSwarm draw_bcube(std::uint64_t seed) {
  Random random(mix(seed, 0xBC0BE));
  BcubeSwarm swarm;
  BcubeOptions& options = swarm.options;
  const Shape shape = draw_shape(seed, random);
  options.seed = mix(seed, 0xBC0BE, 1);
  options.switch_ports = shape.switch_ports;
  options.levels = shape.levels;
  options.mode = random.one_in(2) ? client::BcubeMode::kPlain : client::BcubeMode::kAggregated;
  options.shards = static_cast<std::uint16_t>(1 + random.below(3));
  options.receive_credit_packets = pick(random, std::array{16u, 64u, 1024u});
  options.member_timeout_ns = random.one_in(4) ? 8 * kSecond : 3 * kSecond;
  options.join_timeout_ns = kJoinTimeout;
  draw_link(random, options.link);
  draw_offloads(seed, options.link);
  const std::uint32_t servers =
      client::Bcube::create(shape.switch_ports, shape.levels).value().servers();
  draw_application(random, options, servers);
  draw_losses(seed, options);
  swarm.faults_stop_at = random.between(100 * kMillisecond, 2 * kSecond);
  for (std::uint64_t i = random.below(3); i > 0; --i) {
    BcubeWorld::Absence absence{draw_part(random, options, servers)};
    absence.from = random.between(0, swarm.faults_stop_at);
    absence.until = absence.from + random.between(kMillisecond, 1500 * kMillisecond);
    // Two of one part could add up to more than it survives.
    const bool again = std::ranges::any_of(
        swarm.absences, [&](const auto& other) { return other.part.index == absence.part.index; });
    if (!again) swarm.absences.push_back(absence);
  }
  if (random.one_in(3))
    swarm.death = {
        {draw_part(random, options, servers)},
        0,
        random.one_in(2) ? random.between(0, 2 * kSecond) : random.between(0, 100 * kMillisecond)};
  // At those times most jobs join or are over.
  if (swarm.death && !random.one_in(3))
    swarm.death = {swarm.death->parts, random.between(0, swarm.options.steps * 5 * kMillisecond)};
  if (swarm.death && may_return(options, *swarm.death) && random.one_in(2)) {
    swarm.death->for_ns = random.between(10 * kMillisecond, 9 * kSecond);
    if (!options.pipelined && !random.one_in(3)) make_long(options);  // it is back in mid-run
  }
  draw_forwarder(seed, swarm);
  draw_one_way(seed, swarm);
  return swarm;
}

std::string describe(const BcubeSwarm& swarm) {
  const auto name_of = [](const Part& part) {
    constexpr const char* kNames[] = {"server", "box", "cable", "out", "in"};
    return std::string(kNames[static_cast<int>(part.kind)]) + ' ' + std::to_string(part.index) +
           (part.kind >= Part::Kind::kCable ? '.' + std::to_string(part.level) : "");
  };
  const BcubeOptions& options = swarm.options;
  const LinkOptions& link = options.link;
  std::ostringstream out;
  out << "  bcube(" << options.switch_ports << ',' << options.levels << ')'
      << (options.mode == client::BcubeMode::kPlain ? " plain" : " aggregated")
      << " steps=" << options.steps << " chunk_bytes=" << options.chunk_bytes
      << " shards=" << options.shards << " credit=" << options.receive_credit_packets
      << " nil_ppm=" << options.nil_ppm << " nil_output=" << options.nil_output
      << " pipelined=" << options.pipelined << " in_place=" << options.in_place
      << " end_step=" << options.call_end_step << " zero_weights=" << options.zero_weights
      << " averaging=" << static_cast<int>(options.averaging)
      << " wire=" << static_cast<int>(options.wire) << " last_exact=" << options.last_exact
      << " prune=" << static_cast<int>(options.prune.rule) << '/' << options.prune.fraction
      << " collectives=" << options.collectives.size()
      << " compute_us=" << options.compute_max_ns / kMicrosecond
      << " start_ms=" << options.start_max_ns / kMillisecond
      << " member_timeout_s=" << options.member_timeout_ns / kSecond << " loss=" << link.loss_ppm
      << " dup=" << link.duplicate_ppm << " reorder=" << link.reorder_ppm
      << " delay_us=" << link.delay_ns / kMicrosecond
      << " jitter_us=" << link.jitter_ns / kMicrosecond
      << " MBps=" << link.bytes_per_second / 1'000'000 << " queue=" << link.queue_frames
      << " mark=" << link.mark_above_frames << " corrupt=" << link.corrupt_ppm
      << " train=" << link.train_frames << '/' << link.train_loss_ppm
      << " faults_stop_ms=" << swarm.faults_stop_at / kMillisecond << " elems=";
  for (const std::uint64_t elems : options.elem_counts) out << elems << ',';
  for (const BcubeWorld::Absence& absence : swarm.absences)
    out << "\n   " << name_of(absence.part) << " away at_ms=" << absence.from / kMillisecond
        << " for_ms=" << (absence.until - absence.from) / kMillisecond;
  if (swarm.death)
    out << "\n   " << name_of(swarm.death->parts.front())
        << (swarm.death->at == kNever
                ? " dies after_us=" + std::to_string(swarm.death->after_ns / kMicrosecond)
                : " dies at_us=" + std::to_string(swarm.death->at / kMicrosecond))
        << " for_ms=" << swarm.death->for_ns / kMillisecond;
  if (swarm.death && swarm.death->then_server)
    out << "\n   server " << *swarm.death->then_server
        << " dies then_after_ms=" << swarm.death->then_after_ns / kMillisecond;
  return out.str();
}

void run_bcube(const BcubeSwarm& swarm, SwarmOutcome& outcome) {
  const BcubeOptions& options = swarm.options;
  BcubeWorld world(options);
  world.heal_at(swarm.faults_stop_at);
  for (const BcubeWorld::Absence& absence : swarm.absences) world.interrupt(absence);
  if (swarm.death) world.kill(*swarm.death);
  const auto rounds = static_cast<DurationNs>(options.steps + options.collectives.size() + 1);
  const DurationNs compute_ns =
      options.compute_max_ns * static_cast<DurationNs>(options.elem_counts.size());
  const TimeNs deadline =
      std::max(swarm.faults_stop_at, options.start_max_ns) + 1500 * kMillisecond + kRecoveryBound +
      rounds * (compute_ns + kStepBound) + 2 * options.member_timeout_ns + kJoinTimeout;
  const bool over = world.run(deadline);
  for (const std::string& text : world.violations()) outcome.violations += "bcube: " + text + "\n";
  if (!over) outcome.violations += "bcube: I4: not over\n" + world.describe_stall();
  std::uint64_t sent = 0;
  for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
    for (std::uint32_t level = 0; level < world.bcube().levels(); ++level)
      sent += world.sent_bytes(server, level);
  const std::uint64_t due = due_bytes(options, world.bcube());
  std::uint32_t moves = 0;
  for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
    moves += world.relay(server).detours();
  bool any_failed = false;
  for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
    any_failed |= !world.failure(server).text.empty();
  std::uint64_t detours = 0;
  for (std::uint32_t server = 0; server < world.bcube().servers(); ++server)
    detours += world.relay(server).counters().detours;
  const TimeNs back_ns = world.returned_ns();
  if (moves != 0 && !any_failed && back_ns != kNever && world.now() > back_ns + kWayBackBound)
    outcome.violations += "bcube: what was lost is back, and not used again\n";
  // Recovery must not feed on itself. By way of a neighbour bytes use two ports, and three.
  if (sent > (detours == 0 ? 3 : 6) * due + 300u * options.chunk_bytes)
    outcome.violations += "bcube: I4: " + std::to_string(sent) + " bytes of gradients were sent, " +
                          std::to_string(due) + " were needed\n";
  if (swarm.death) outcome.violations += check_failures(swarm, world);
  outcome.ok &= outcome.violations.empty();
  outcome.trace_hash = mix(outcome.trace_hash, world.trace_hash());
  outcome.events += world.event_count();
  outcome.results_checked += world.averages();
  outcome.virtual_time_ns = std::max(outcome.virtual_time_ns, world.now());
  ++(any_failed ? outcome.jobs_failed_as_promised : outcome.jobs_completed);
}

}  // namespace sluice::sim
