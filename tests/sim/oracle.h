// The invariants, checked against the plan on every packet that leaves a session or a shard.
//
// I1: a result is the sum of exactly the contributions of the workers in its mask, at least k of
// them and all that must be in. I2: every worker gets the same bytes, weight, mask and k. I3:
// nothing of another step, except a worker's own late gradient, under its base step and once. I5:
// results keep to the credit, numbers do not jump. I8: the fate of every chunk, and of every
// element of a lossy tensor, in books of the oracle's own. All replicas that have applied a step
// are equal. The oracle knows the plan, the packets and the applications' acts, never the inside of
// either end.
//
// oracle.cc: packets and flows; oracle_sums.cc: results; oracle_books.cc: I8 and replicas;
// oracle_window.cc: ranks inside the window of a job that tolerates stragglers.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "aggregator/core/sparse.h"
#include "aggregator/wire/packet.h"
#include "client/core/calls/layout.h"
#include "tests/sim/plan.h"

namespace sluice::sim {

using RunIndex = std::uint32_t;      // a run of a job: a plan and the workers that carry it out
using ProcessIndex = std::uint32_t;  // a rank may be held by several processes, one after another

// The process that acted.
struct Party {
  RunIndex run = 0;
  Rank rank;
  ProcessIndex process = 0;
};

class Oracle {
 public:
  RunIndex add_run(const JobPlan& plan, const client::Layout& layout);

  // ---- packets ----
  // The appliance at the other end of a packet or a call.
  enum class Appliance : std::uint8_t {
    kHere,     // where the run is
    kBefore,   // one that the run has left; ranks that are still there use its results
    kNowhere,  // one that the run has left; the packet only takes a number in its flow
  };
  // A session sent `packet` to data port `shard`. `pump`: which wake-up of the session it was.
  void on_worker_packet(const Party& from, std::uint16_t shard, std::uint64_t pump,
                        const wire::Packet& packet, Appliance at = Appliance::kHere);
  // `packet` of a session has reached its shard.
  void on_worker_packet_arrived(const Party& from, const wire::Packet& packet);
  // A shard sent `packet` to a member.
  void on_appliance_packet(const Party& to, std::uint16_t shard, const wire::Packet& packet,
                           Appliance at = Appliance::kHere);

  // ---- the applications' acts ----
  // The process has taken over another rank's state of this step: it computes anew from there.
  void on_state(const Party& party, Step step);
  // A gradient was submitted and accepted. `velocity`: the tensor's velocity before, where it has
  // one.
  void on_submitted(const Party& party, Step step, std::uint32_t tensor, bool with_data,
                    std::span<const float> velocity = {});
  // A replica has applied everything up to `step`; `replica` is its checksum.
  void on_applied(const Party& party, Step step, std::uint64_t replica);

  // A rank is about to call the collective `index` of its plan, which begins with `step` of the
  // stream: the same step for every rank.
  void on_collective_begun(const Party& party, std::size_t index, Step step,
                           Appliance at = Appliance::kHere);
  // The collective is over. Its outcome is the same for every rank; it fails only when its root is
  // lost.
  void on_collective_done(const Party& party, std::size_t index, const Status& status);
  // The plan's collective that begins with `step`, for a process that took no part in earlier ones.
  std::size_t collective_at(RunIndex run, Step step) const;
  // The number of steps that the appliance keeps.
  void note_window(RunIndex run, Step window) { runs_[run]->window = window; }

  // ---- faults that lower k or raise the number of ranks in a result ----
  // The rank was killed, stopped or cut off at some time.
  void note_unreliable(RunIndex run, Rank rank) { runs_[run]->unreliable.add(rank); }
  // The run's appliance has been killed and is back without its memory, or the run has moved to
  // another. From now on a contribution to a step whose result the one before has sent may be that
  // result, given by one rank, or nothing without weight; and the result is the same, bit for bit.
  void note_restart(RunIndex run);
  // What else is known of a run. kGreedy: it asks for more than it needs, and what is sent to it
  // does not count as traffic. kResyncs: a rank asked for another rank's state, and results may
  // have to wait for the transfer.
  enum class Trait : std::uint8_t { kGreedy, kResyncs };
  void note(RunIndex run, Trait trait) {
    (trait == Trait::kGreedy ? runs_[run]->asks_too_much : runs_[run]->resyncs) = true;
  }
  // A session has used results of the packet. With k < n they bind from then on: other sums may
  // take the place of results that a lost appliance has sent and no rank that is relied on has got.
  void on_result_used(const Party& party, const wire::Packet& packet);

  // ---- the result that everybody got; nothing before it exists ----
  struct Summed {
    std::uint64_t content_hash = 0;
    std::uint64_t weight = 0;
    RankSet mask;
    RankSet receivers;
    RankSet users;  // whose sessions have it; with k < n
    std::uint16_t k = 0;
    std::uint16_t may_count = 0;  // ranks that it could have had
    bool nil = false;             // nobody in it sent data
    std::uint64_t payload_hash = 0;
    std::uint32_t first_boot = 0;  // of the appliance that has made it
    std::uint32_t boot = 0;        // of the one that has sent it last
    std::uint32_t given_boot = 0;  // of the last one at which a rank has given it to others
    Rank given_by{};               // that rank
    std::vector<float> sums;       // of a gradient's elements, as they must be
    std::vector<float> means;  // of a tensor that travels at a loss: what the result says they are
  };
  const Summed* result(RunIndex run, StreamId stream, Step step, ChunkIndex chunk) const;

  // ---- I8 ----
  struct Account {
    std::uint64_t submitted = 0;  // chunks with data
    std::uint64_t delivered = 0;  // counted in their own step
    std::uint64_t requeued = 0;   // counted in a later one
  };
  const Account& account(const Party& party) { return runs_[party.run]->books[party.process].sums; }
  // Checks the values of a lossy tensor that the process has submitted, that no result has counted
  // and that are not in `residual`: the process has given them up or will requeue them, because it
  // fell behind in step `behind`, or because it ends (0). Returns the chunks given up so far.
  std::uint64_t give_up(const Party& party, std::uint32_t tensor, std::span<const float> residual,
                        Step behind);

  void violation(std::string text);
  const std::vector<std::string>& violations() const { return violations_; }
  struct Totals {
    std::uint64_t results_checked = 0;
    std::uint64_t results_sent = 0;  // copies for members
    std::uint64_t results_due = 0;   // one a result and member
    std::uint64_t contributions_seen = 0;
    std::uint64_t first_contributions = 0;
    std::uint64_t requeued_counted = 0;
    std::uint64_t results_without_somebody = 0;
    std::uint64_t results_of_nobody = 0;  // of gradients
    // Results that a rank gave to others after a restart, one a chunk and restart.
    std::uint64_t handed_over = 0;
  };
  const Totals& totals() const { return totals_; }
  std::uint64_t collectives_done() const { return collectives_done_; }  // one a rank
  std::uint64_t collectives_failed() const { return collectives_failed_; }

 private:
  struct Sent {  // a worker's contribution, as first sent
    std::uint64_t content_hash = 0;
    std::uint64_t payload_hash = 0;
    std::uint32_t weight = 0;
    Step base_step = 0;
    ProcessIndex process = 0;
    std::uint32_t states = 0;  // that the process had taken over
    Cookie cookie = 0;         // of a piece
    std::uint32_t boot = 0;    // of the appliance to which it was sent last
    bool nil = false;
    std::vector<float> values;  // of a lossy tensor
  };
  struct Place {  // of a slot
    StreamId stream{};
    Step step = 0;
    ChunkIndex chunk = 0;
  };
  struct Outcome : Place {  // the content of a result of either kind
    std::uint64_t weight = 0;
    std::uint16_t k = 0;          // 0 for a piece of an operation
    std::uint16_t may_count = 0;  // 0 for a piece of an operation
    bool nil = false;
    std::uint8_t flags = 0;
    std::uint16_t elem_count = 0;
    Dtype dtype{};
    wire::Operation operation;
  };
  struct Flow {
    std::uint32_t credit = 0;
    std::uint32_t worker_number = 0;
    std::uint32_t appliance_number = 0;
    std::uint64_t pump = 0;
    Priority last_fresh_priority = 0;
  };
  struct Books {  // of one process
    Account sums;
    std::set<std::pair<Step, std::uint32_t>> submitted;  // step, tensor
    Step submitted_last = 0;
    Step finished_last = 0;
    std::map<std::uint32_t, std::vector<float>> undelivered;  // by tensor: see give_up()
    std::uint64_t given_up_chunks = 0;
    Step given_up_to = 0;  // of gradients up to this step only the residual is left
    // By tensor: the step and the velocity of the last gradient.
    std::map<std::uint32_t, std::pair<Step, std::vector<float>>> velocities;
    // By tensor, of a synchronous job, which delivers all that is sent.
    std::map<std::uint32_t, std::vector<float>> residuals;
    std::unique_ptr<client::Thresholds> thresholds;
    std::map<std::uint32_t, std::pair<Step, float>> limits;  // by tensor: smaller values stay
  };
  // The appliance opened a step between two of its packets. The newest step of each rank that it
  // had heard of by the first packet, and by the second.
  struct Heard {
    std::vector<Step> before;
    std::vector<Step> after;
  };
  struct Run {
    const JobPlan* plan = nullptr;
    const client::Layout* layout = nullptr;
    std::unordered_map<std::uint64_t, Sent> sent;
    std::unordered_map<std::uint64_t, Summed> summed;
    std::map<std::tuple<std::uint16_t, Cookie, std::uint16_t>, Flow> flows;  // rank, cookie, shard
    struct Counted {
      Step step = 0;
      ProcessIndex process = 0;  // whose gradient it is: another process of the rank has its own
    };
    std::unordered_map<std::uint64_t, Counted> counted_in;  // by base step, chunk and rank
    std::map<ProcessIndex, Books> books;
    struct Replica {
      std::uint64_t hash = 0;
      RankSet ranks;  // that have it
    };
    std::map<Step, Replica> replicas;
    std::map<Step, std::uint16_t> step_k;
    struct Call {
      Step step = 0;           // of the stream, with which it begins
      std::uint32_t boot = 0;  // at that appliance
      std::optional<bool> ok;  // once it is over for somebody
    };
    std::map<std::size_t, Call> calls;  // by the collective's place in the plan
    Step window = kAsyncWindow;
    Step open_step = 0;          // newest that the appliance has told of
    std::vector<Step> reached;   // that the appliance can know of every rank
    std::vector<Step> reported;  // the same when it last told its open step
    std::map<Step, Heard> heard_at;
    RankSet unreliable;
    std::map<ProcessIndex, std::uint32_t> states;  // taken over
    bool resyncs = false;
    bool asks_too_much = false;
    bool resumes = false;  // at another appliance, which has not told its open step yet
    Step strict_from = 0;  // before, ranks that were too far back there need not count

    // Killed, stopped or cut off at some time, or it has left before the others.
    bool may_lose(Rank rank) const {
      return unreliable.has(rank) || plan->ranks[rank.value].last_step < plan->steps();
    }
    // A lost appliance had made the result, and only ranks that were away know of it. Returns how
    // many late gradients were in it.
    std::uint64_t take_back(const Summed& result, const Place& place);
  };

  void on_contribution(Run& run, const Party& from, Flow& flow, std::uint64_t pump,
                       const wire::Packet& packet);
  void on_piece(Run& run, const Party& from, const wire::Packet& packet);
  void check_held(Run& run, const Party& from, const wire::Packet& packet);
  bool is_first(Run& run, const Party& from, const Place& place, const Sent& sent);
  bool hands_over(Run& run, const Party& from, const Place& place, const Sent& sent);
  void check_contribution(Run& run, const Party& from, ChunkIndex chunk,
                          const wire::Contribution& body, std::span<const std::uint8_t> payload);
  void check_lossy(Run& run, const Party& from, ChunkIndex chunk, const wire::Contribution& body,
                   std::span<const std::uint8_t> payload);
  bool may_give_up(const Run& run, const Party& party, ChunkIndex chunk,
                   std::span<const float> missing, std::span<const float> residual, Step behind);
  float limit_of(const Run& run, const Party& from, Books& books, std::uint32_t tensor, Step step);
  void next_velocity(Run& run, const Party& party, Step step, std::uint32_t tensor,
                     std::span<const float> now);
  void check_late(const Run& run, const Party& from, ChunkIndex chunk,
                  const wire::Contribution& body);
  void check_finished(Run& run, const Party& from, const wire::Finished& body);
  static Outcome outcome_of(const wire::Packet& packet);
  void on_result(Run& run, const Party& to, const wire::Packet& packet, const Outcome& body,
                 std::span<const std::uint8_t> payload, std::uint32_t boot);
  void check_members(Run& run, const RankSet& mask, const Outcome& body);
  void check_share(const Run& run, const RankSet& mask, const Outcome& body);
  void check_piece_members(const Run& run, const RankSet& mask, const Outcome& body);
  void check_fastest(Run& run, const RankSet& mask, const Outcome& body);
  void note_open_step(Run& run, Step open_step);
  int keeping_up(const Run& run, Step step, bool surely) const;
  RankSet passes(const Run& run, const Outcome& body) const;
  void check_weight(const Run& run, const RankSet& mask, const Outcome& body);
  void check_gradient(const Run& run, Summed& summed, const Outcome& body,
                      std::span<const std::uint8_t> payload);
  void check_piece(const Run& run, const RankSet& mask, const Outcome& body,
                   std::span<const std::uint8_t> payload);
  void account_for(Run& run, const RankSet& mask, const Outcome& body, bool again);
  const Sent* find_sent(const Run& run, StreamId stream, Step step, ChunkIndex chunk,
                        Rank rank) const;
  // False: no rank in the mask sent data.
  bool add_up(const Run& run, const Outcome& body, Summed& summed) const;
  std::string name(const Run& run, const Place& place) const;

  std::vector<std::unique_ptr<Run>> runs_;
  std::vector<std::string> violations_;
  Totals totals_;
  std::uint32_t boot_ = 0;  // of the appliance
  std::uint64_t collectives_done_ = 0;
  std::uint64_t collectives_failed_ = 0;
};

// The key of a chunk of a step in the books of a run.
constexpr std::uint64_t slot_key(StreamId stream, Step step, ChunkIndex chunk) {
  return std::uint64_t{static_cast<std::uint8_t>(stream)} << 60 |
         std::uint64_t{step & 0xfffff} << 40 | std::uint64_t{chunk & 0xffffff} << 16;
}
constexpr std::uint64_t contribution_key(StreamId stream, Step step, ChunkIndex chunk, Rank rank) {
  return slot_key(stream, step, chunk) | rank.value;
}

// Calls `each` for every chunk that a packet of a sum speaks of, with its dense payload.
template <class Body, class Each>
void for_each_chunk(const wire::Packet& packet, const Body& body, std::uint8_t flags,
                    const Each& each) {
  const ChunkIndex block = body.chunk - body.chunk % kChunksPerBlock;
  std::span<const std::uint8_t> payload = packet.payload();
  std::span<const std::uint8_t> entries = packet.payload();
  std::vector<std::uint8_t> expanded(payload_bytes(body.dtype, body.elem_count));
  for (std::uint64_t chunks = packet.chunks(); chunks != 0; chunks &= chunks - 1) {
    if ((flags & wire::kFlagSparse) != 0) {
      wire::SparseEntry entry;
      if ((packet.filled() & chunks & -chunks) != 0)
        entry = wire::take_entry(entries, body.elem_count, body.dtype);
      agg::expand(entry, body.elem_count, body.dtype, expanded.data());
      payload = expanded;
    }
    each(block + static_cast<ChunkIndex>(std::countr_zero(chunks)), payload);
  }
}

// A fast hash of bytes for comparisons and for the trace; not against a hostile sender.
std::uint64_t hash_bytes(std::span<const std::uint8_t> bytes, std::uint64_t seed = 0);
// Of what a payload's elements are worth. The same values have different bytes in int8, as a result
// does that is given again: half the scale, and twice the quanta.
std::uint64_t hash_values(std::span<const std::uint8_t> payload, Dtype dtype,
                          std::size_t elem_count);

}  // namespace sluice::sim
