// A small synchronous job whose appliance dies once, in any state, and comes back without its
// memory; for the search through all its states.
//
// The appliances are production's, and so is what decides after the death: JobEntry::resumed()
// names the step, Resumption the fate of each chunk, HandedOver when a worker is done with its
// part. A worker is modelled: which results it has, what its memory holds, how far it has joined.
// Sums are in place: a result overwrites the worker's own part.
//
// The network may hold a copy of every packet that was ever sent. So parts arrive at any time, once
// more, or never, those for the dead appliance at the new one, and results of the dead one at
// workers that have not joined the new one yet.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/core/handover/resumption.h"
#include "client/core/sums/handed_over.h"
#include "tests/unit/restarts/box.h"

namespace sluice::exhaustive {

struct RestartEvent {
  enum class Kind : std::uint8_t {
    kPart,     // a part of the worker arrives at the appliance that lives
    kOldPart,  // one that was sent to the dead appliance does
    kResult,   // a result arrives at the worker, of the appliance that it is at
    kProbe,    // a question of the worker about a chunk, and the answer
    kDie,      // the appliance dies, and the next one is there
    kJoin,     // the worker's join arrives at that one, and names the worker's step
    kAccept,   // the worker learns that it has a place there
    kLearn,    // the worker has read what all have stated, and goes on
  };
  Kind kind{};
  std::uint16_t rank = 0;
  Step step = 0;
  std::size_t chunk = 0;
  bool lost = false;  // for the search; here a packet that never arrives is lost
  bool is_fault() const noexcept { return kind == Kind::kDie; }
};

std::string describe(const RestartEvent& event);

class RestartModel {
 public:
  explicit RestartModel(const RestartConfig& config);

  std::vector<RestartEvent> events() const;  // that can happen now
  // Empty, or the rule that was broken.
  std::string play(const RestartEvent& event);
  bool answered() const noexcept { return false; }  // results are taken by events of their own
  bool finished() const;
  int progress() const;
  std::string key() const;

 private:
  using Kind = RestartEvent::Kind;
  using Mutation = RestartConfig::Mutation;
  enum class Place : std::uint8_t {
    kFirst,     // at the appliance that it began with, dead or not
    kJoining,   // its join has arrived at the next one
    kAccepted,  // it takes nothing of the first one any more, and has stated what it has
    kKnows,     // it has read all states
  };
  struct Worker {
    Place place{};
    Step step = 1;                     // that it is in
    Step joined_in = 0;                // as its join said
    std::vector<std::uint8_t> has;     // by chunk, of its step
    std::vector<Step> kept;            // by chunk, the step of the newest result
    std::vector<std::uint8_t> closed;  // by chunk: of which it has the result, closed again
    client::HandedOver handed;
  };

  bool mutated(Mutation mutation) const noexcept { return config_.mutation == mutation; }
  bool all_at(Place place) const noexcept;  // or further
  Step on_wire(const Worker& worker) const noexcept {
    return worker.handed.any() ? worker.handed.step() : worker.step;
  }
  bool may_send(const Worker& worker, Step step) const noexcept;
  bool may_take(std::uint16_t rank, Step step, std::size_t chunk) const noexcept;
  Sum memory_of(std::uint16_t rank, Step step, std::size_t chunk) const noexcept;
  Sum offer_of(std::uint16_t rank, Step step, std::size_t chunk) const noexcept;
  Sum expected(Step step, std::size_t chunk) const noexcept;
  std::string part(const RestartEvent& event);
  std::string old_part(const RestartEvent& event);
  std::string probe(const RestartEvent& event);
  std::string take_sent(const SentResult& result);
  std::string start();
  void take(const RestartEvent& event);
  void learn(std::uint16_t rank);
  void advance(Worker& worker) const noexcept;

  const RestartConfig config_;
  std::unique_ptr<RestartBox> box_;
  bool has_died_ = false;
  std::vector<Worker> workers_;
  // Results that an appliance has sent, by step and chunk: of the first one, and of the next.
  std::array<std::vector<std::uint8_t>, 2> sent_;
  std::vector<std::unique_ptr<client::Resumption>> states_;  // by rank, once all are accepted
};

}  // namespace sluice::exhaustive
