// A small store job, for the search through all its states: the knowledge of its workers, the
// production shard, and the oracle, which recomputes parameters and reads from the pushes that were
// counted.
//
// The network may hold a copy of every packet that was ever sent: pushes and pulls arrive at any
// time, once more, or never, and answers may be lost.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/store/store.h"

namespace sluice::exhaustive {

struct StoreConfig {
  std::uint16_t worker_count = 2;
  std::uint32_t chunk_count = 2;
  Step iterations = 2;
  Step bound = 0;
  bool death = false;   // of rank 0 at any moment
  bool rejoin = false;  // and rank 0 returns
  // Wrong rules laid over the real ones, which the oracle must find.
  enum class Mutation : std::uint8_t { kNone, kAnswerEarly, kPushTwice } mutation{};
};

struct StoreEvent {
  enum class Kind : std::uint8_t { kPush, kPull, kCompute, kDie, kJoin };
  Kind kind{};
  std::uint16_t rank = 0;
  Step iteration = 0;    // of a push; of a pull: the iteration that reads
  ChunkIndex chunk = 0;  // of a push
  bool lost = false;     // the answers to it are lost
  bool is_fault() const noexcept { return lost || kind == Kind::kDie || kind == Kind::kJoin; }
};

class StoreModel {
 public:
  explicit StoreModel(const StoreConfig& config);

  std::vector<StoreEvent> events() const;  // that can happen now
  // Empty, or the rule that was broken.
  std::string play(const StoreEvent& event);

  // The last event has made the shard answer.
  bool answered() const { return answered_; }

  bool finished() const;
  int progress() const;     // grows when the job advances, and only then
  std::string key() const;  // of the state

 private:
  struct Worker {
    Step sent = 0;             // iterations computed: their pushes may arrive
    Step joined = 1;           // first iteration of this process
    std::uint32_t got = 0;     // chunks read for the next iteration
    std::uint32_t parked = 0;  // chunks of a pull that waits in the store
    Step need = 0;             // of its last pull
    Step own = 0;
    bool alive = true;
    std::array<std::uint32_t, 6> counted{};  // by iteration: chunks
  };
  struct Value {
    double value = 0;
    double gathered = 0;
    int pushes = 0;
  };

  Step need_for(Step iteration) const noexcept {
    return iteration - 1 > config_.bound ? iteration - 1 - config_.bound : 0;
  }
  std::uint32_t all() const noexcept { return (1u << config_.chunk_count) - 1; }
  std::string push(const StoreEvent& event);
  std::string pull(const StoreEvent& event);
  std::string take_answers(bool lost);
  std::string check_values();
  void gather(ChunkIndex chunk);
  Step clock() const noexcept;
  Step pushed(const Worker& worker) const noexcept;

  const StoreConfig config_;
  std::unique_ptr<agg::StoreShard> store_;
  std::vector<Worker> workers_;
  std::vector<Value> values_;
  bool died_ = false;
  bool answered_ = false;
  Step passed_clock_ = 0;      // the oracle's: the greatest so far
  std::vector<Step> applied_;  // bound 0: a chunk's last iteration
};

}  // namespace sluice::exhaustive
