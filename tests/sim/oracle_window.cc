// The ranks that are known to be inside the window when a step opens. They decide whether the step
// waits for two.
#include <algorithm>

#include "tests/sim/oracle.h"

namespace sluice::sim {

// A rank at a step has the results of all before.
void Oracle::on_worker_packet_arrived(const Party& from, const wire::Packet& packet) {
  Run& run = *runs_[from.run];
  if (!run.plan->tolerates_stragglers()) return;
  Step step = 0;
  if (packet.type() == wire::PacketType::kContribution)
    step = packet.body<wire::Contribution>().step;
  if (packet.type() == wire::PacketType::kProbe &&
      packet.body<wire::Probe>().stream == StreamId::kGradients)
    step = packet.body<wire::Probe>().step;
  if (packet.type() == wire::PacketType::kFinished) step = packet.body<wire::Finished>().step;
  if (packet.type() == wire::PacketType::kJoin) step = packet.body<wire::Join>().resume_step;
  Step& reached = run.reached[from.rank.value];
  reached = std::max(reached, step);
}

void Oracle::note_open_step(Run& run, Step open_step) {
  if (!run.plan->tolerates_stragglers() || open_step == 0) return;
  if (run.resumes) {  // which ranks it could know of, their joins have said
    run.resumes = false;
    run.open_step = open_step;
    run.strict_from = open_step + 2;
    run.heard_at.erase(run.heard_at.lower_bound(open_step), run.heard_at.end());
    bool is_known = false;  // the k that the lost appliance had chosen for it
    for (ChunkIndex chunk = 0; chunk < run.layout->chunk_count(); ++chunk) {
      const auto found = run.summed.find(slot_key(StreamId::kGradients, open_step, chunk));
      is_known |= found != run.summed.end() && !found->second.users.empty();
    }
    if (!is_known) run.step_k.erase(open_step);
  }
  if (open_step < run.open_step) return;
  while (run.open_step < open_step)
    run.heard_at[++run.open_step] = {.before = run.reported, .after = run.reached};
  run.reported = run.reached;
}

// How many ranks have, when the step after `step` opens, all results that are not kept then, as the
// appliance knew when it opened `step`. `surely`: at least so many; else at most.
int Oracle::keeping_up(const Run& run, Step step, bool surely) const {
  const auto found = run.heard_at.find(step);
  if (found == run.heard_at.end()) return surely ? 0 : run.plan->world_size();
  const std::vector<Step>& reached = surely ? found->second.before : found->second.after;
  int count = 0;
  for (std::uint16_t rank = 0; rank < reached.size(); ++rank) {
    const RankPlan& plan = run.plan->ranks[rank];
    const bool leaves = plan.ending == Ending::kLeave || plan.ending == Ending::kAbnormal;
    const bool doubtful = run.unreliable.has(Rank{rank}) || (leaves && step > plan.last_step);
    if (surely && doubtful) continue;
    count += reached[rank] + run.window >= step + 2;
  }
  return count;
}

}  // namespace sluice::sim
