// The state and the answers of each shard of a store, recomputed from the packets that reached it.
//
// The books are told of every push and pull that a shard has handled, and look at the members after
// every piece of a shard's own work (which changes one member at most, in all of its blocks). They
// keep the same parameters, clocks and rows by the plainest means: no running counts, every number
// is looked up anew. A shard's state and every answer that leaves it must be equal to the last bit.
// So no push counts twice, for another share, in a clock that is not complete, or after its process
// was lost, and no pull is answered before its need. A worker reads only answers that were sent to
// it and that suffice for the read. PyTorch's arithmetic (aggregator/store/optimizer.h) is the one
// part that the books share with the store.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "aggregator/core/job.h"
#include "aggregator/wire/packet.h"
#include "tests/sim/oracle.h"

namespace sluice::sim {

class StoreBooks {
 public:
  explicit StoreBooks(Oracle& oracle) : oracle_(oracle) {}

  // Before the job's shard handles a push or pull: whether its sender is a member.
  static bool is_live(const agg::Job& job, std::uint16_t shard, Rank rank);
  // The shard has handled the packet.
  void handled(const agg::Job& job, std::uint16_t shard, const wire::Packet& packet, bool was_live,
               Verdict verdict);
  // The shard has handled what a member has of a lost appliance. Blocks that are open now hold, in
  // each chunk, initial values (zeros) or values that a worker was sent; how much of whose pushes
  // is in them the oracle of stores knows.
  void resumed(const agg::Job& job, std::uint16_t shard, const wire::Packet& packet);
  std::uint64_t chunks_resumed() const { return chunks_resumed_; }
  // The shard has done work that no packet triggers.
  void look(const agg::Job& job, std::uint16_t shard);
  // The shard sends values to `process`, which is a member.
  void answered(const agg::Job& job, std::uint16_t shard, ProcessIndex process,
                const wire::Packet& packet);
  // A process reads a chunk; it needs at least this clock, and this many of its own iterations.
  struct Read {
    Party party;
    ChunkIndex chunk = 0;
    Step need = 0;
    Step own = 0;
    std::span<const float> values;
  };
  void read(const Read& read);
  std::uint64_t answers_checked() const { return answers_checked_; }

 private:
  struct Push {
    Rank rank;
    std::vector<float> values;
  };
  struct Chunk {
    std::vector<float> parameters;
    std::array<std::vector<float>, 2> states;
    std::uint64_t updates = 0;
    std::vector<Push> gathered;
  };
  struct Row {
    bool present = true;
    Step pushed = 0;
    std::uint64_t counted = 0;  // chunks of the iteration after `clock`
    Step need = 0, own = 0;     // of its last pull
  };
  struct Block {
    bool opened = false;  // of a store that has resumed: see resumed()
    std::uint64_t all = 0, known = 0;
    Step clock = 0;
    bool rate_known = false;
    double rate = 0;
    std::vector<Row> rows;
    std::array<Chunk, kChunksPerBlock> chunks;
  };
  struct Shard {
    JobId job;
    std::map<std::uint32_t, Block> blocks;
  };
  struct Answer {
    std::uint64_t hash = 0;
    Step clock = 0, own = 0;
    auto operator<=>(const Answer&) const = default;
  };

  Shard& shard_of(const agg::Job& job, std::uint16_t shard);
  bool counts(const agg::Job& job, const Block& block, const wire::Push& push, Rank rank) const;
  void count(const agg::Job& job, Block& block, const wire::Push& push, Rank rank,
             std::span<const std::uint8_t> payload);
  void change(const agg::Job& job, Block& block, Rank rank, Step now_pushed);
  void apply_complete(const agg::Job& job, Block& block, std::uint32_t index);
  void advance(Block& block) const;
  void apply(const agg::Job& job, Chunk& chunk, double rate, float divisor,
             std::span<const float> values) const;
  void compare(const agg::Job& job, const agg::StoreShard& store, std::uint32_t index,
               const Block& block, std::uint64_t chunks, const char* after);
  void wrong(const agg::Job& job, std::uint32_t block, const std::string& what);

  Oracle& oracle_;
  // Of each shard of a job, which may be at two appliances at once.
  std::map<std::pair<const agg::Job*, std::uint16_t>, Shard> shards_;
  std::map<std::pair<ProcessIndex, ChunkIndex>, std::vector<Answer>> answers_;
  std::uint64_t answers_checked_ = 0;
  std::uint64_t chunks_resumed_ = 0;  // with values that a worker was sent
};

}  // namespace sluice::sim
