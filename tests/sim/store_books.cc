#include "tests/sim/store_books.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "aggregator/base/block.h"
#include "aggregator/store/optimizer.h"

namespace sluice::sim {
namespace {

constexpr Step kAbsent = UINT32_MAX;  // what StoreShard::pushed() says of who is no member

std::vector<float> floats(std::span<const std::uint8_t> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

bool same_bits(std::span<const float> left, std::span<const float> right) {
  return left.size() == right.size() &&
         std::memcmp(left.data(), right.data(), left.size_bytes()) == 0;
}

std::uint64_t hash_of(std::span<const float> values) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const float value : values)
    hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3;
  return hash;
}

}  // namespace

bool StoreBooks::is_live(const agg::Job& job, std::uint16_t shard, Rank rank) {
  return rank.value < job.spec.world_size &&
         job.slices[shard].store->state(rank) == agg::StoreShard::MemberState::kLive;
}

void StoreBooks::wrong(const agg::Job& job, std::uint32_t block, const std::string& what) {
  oracle_.violation("books: job " + job.spec.name + " block " + std::to_string(block) + ": " +
                    what);
}

// A job's first packet makes its books anew: another may have had its memory.
StoreBooks::Shard& StoreBooks::shard_of(const agg::Job& job, std::uint16_t shard) {
  Shard& found = shards_[{&job, shard}];
  const agg::StoreShard& store = *job.slices[shard].store;
  const bool knows_nothing = store.gauges().initial_chunks.load() == 0;
  const bool has_any =
      std::ranges::any_of(found.blocks, [](const auto& each) { return each.second.known != 0; });
  if (!found.blocks.empty() && found.job == job.spec.id && !(knows_nothing && has_any))
    return found;
  found = {.job = job.spec.id};
  for (std::uint32_t block = shard; block < job.spec.store->block_count;
       block += job.spec.shard_count)
    found.blocks[block].rows.resize(job.spec.world_size);
  return found;
}

// ---- what a push does ----

bool StoreBooks::counts(const agg::Job& job, const Block& block, const wire::Push& push,
                        Rank rank) const {
  const std::uint64_t bit = chunk_bit(push.chunk);
  if (push.iteration == 0) return (block.known & bit) == 0;
  const Row& row = block.rows[rank.value];
  const Step bound = job.spec.store->bound;
  return block.all != 0 && block.known == block.all && (block.all & bit) != 0 && row.present &&
         push.iteration == row.pushed + 1 && (row.counted & bit) == 0 &&
         (bound == kNoBound || push.iteration - 1 <= block.clock + bound);
}

void StoreBooks::count(const agg::Job& job, Block& block, const wire::Push& push, Rank rank,
                       std::span<const std::uint8_t> payload) {
  const std::uint32_t index = push.chunk % kChunksPerBlock;
  Chunk& chunk = block.chunks[index];
  if (push.iteration == 0) {
    block.all = ~std::uint64_t{0} >> (kChunksPerBlock - push.block_chunks);
    block.known |= std::uint64_t{1} << index;
    chunk.parameters = floats(payload);
    for (auto& state : chunk.states) state.resize(chunk.parameters.size());
    return;
  }
  Row& row = block.rows[rank.value];
  row.counted |= std::uint64_t{1} << index;
  if (job.spec.store->bound == 0) {
    if (!block.rate_known) block.rate = push.rate;
    block.rate_known = true;
    chunk.gathered.push_back({rank, floats(payload)});
    apply_complete(job, block, index);
  } else {
    apply(job, chunk, push.rate,
          static_cast<float>(std::ranges::count(block.rows, true, &Row::present)), floats(payload));
  }
  if (row.counted != block.all) return;
  row.counted = 0;
  row.pushed = push.iteration;
  advance(block);
}

// With bound 0: all members at the clock are in.
void StoreBooks::apply_complete(const agg::Job& job, Block& block, std::uint32_t index) {
  Chunk& chunk = block.chunks[index];
  const auto misses = [&](const Row& row) {
    return row.present && row.pushed == block.clock && (row.counted >> index & 1) == 0;
  };
  if (chunk.gathered.empty() || std::ranges::any_of(block.rows, misses)) return;
  const auto add = [](std::vector<float>& sum, const std::vector<float>& more) {
    if (sum.empty()) {
      sum = more;
      return;
    }
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  };
  std::vector<float> sum;
  std::map<std::uint16_t, std::vector<float>>
      by_rank;  // a lost process's and its successor's together
  for (const Push& push : chunk.gathered)
    add(job.spec.store->in_rank_order ? by_rank[push.rank.value] : sum, push.values);
  for (const auto& [rank, values] : by_rank) add(sum, values);
  apply(job, chunk, block.rate, static_cast<float>(chunk.gathered.size()), sum);
  chunk.gathered.clear();
}

void StoreBooks::apply(const agg::Job& job, Chunk& chunk, double rate, float divisor,
                       std::span<const float> values) const {
  std::array<float*, 2> states{chunk.states[0].data(), chunk.states[1].data()};
  const UpdateOptions& update = job.spec.store->update;
  agg::apply_update(update, {.divisor = divisor, .rate = rate, .ordinal = ++chunk.updates},
                    chunk.parameters.data(), std::span(states).first(update.state_count()),
                    reinterpret_cast<const std::uint8_t*>(values.data()), values.size());
}

void StoreBooks::advance(Block& block) const {
  std::optional<Step> least;
  for (const Row& row : block.rows)
    if (row.present) least = std::min(row.pushed, least.value_or(row.pushed));
  if (!least || *least == block.clock) return;
  block.clock = *least;
  block.rate_known = false;
}

// ---- a store that goes on from a lost appliance ----

void StoreBooks::resumed(const agg::Job& job, std::uint16_t shard, const wire::Packet& packet) {
  const agg::StoreShard& store = *job.slices[shard].store;
  if (job.resumed_step() == 0) return;
  auto& blocks = shard_of(job, shard).blocks;
  if (packet.type() == wire::PacketType::kCopies) {
    const auto& body = packet.body<wire::Copies>();
    if (const auto found = blocks.find(body.block); found != blocks.end())
      found->second.all = ~std::uint64_t{0} >> (kChunksPerBlock - body.block_chunks);
  }
  for (auto& [index, block] : blocks) {
    const auto is_member = [&, at = index](std::uint16_t rank) {
      return store.pushed(at, Rank{rank}) != kAbsent;
    };
    bool any = false;
    for (std::uint16_t rank = 0; rank < job.spec.world_size; ++rank) any |= is_member(rank);
    if (block.opened || !any) continue;
    block.opened = true;
    block.clock = store.clock(index);
    for (std::uint16_t rank = 0; rank < job.spec.world_size; ++rank) {
      Row& row = block.rows[rank] = {.present = is_member(rank)};
      if (!row.present) continue;
      row.pushed = store.pushed(index, Rank{rank});
      row.counted = store.counted(index, Rank{rank}, row.pushed + 1);
      block.known = store.counted(index, Rank{rank}, 0);
    }
    for (std::uint64_t rest = block.known; rest != 0; rest &= rest - 1) {
      const auto chunk = static_cast<std::uint32_t>(std::countr_zero(rest));
      const ChunkIndex number = index * kChunksPerBlock + chunk;
      const std::span<const float> found = store.parameters(number);
      block.chunks[chunk].parameters.assign(found.begin(), found.end());
      for (auto& state : block.chunks[chunk].states) state.resize(found.size());
      const std::uint64_t hash = hash_of(found);
      const bool was_sent = std::ranges::any_of(answers_, [&](const auto& each) {
        return each.first.second == number &&
               std::ranges::find(each.second, hash, &Answer::hash) != each.second.end();
      });
      chunks_resumed_ += was_sent;
      if (!was_sent && std::ranges::any_of(found, [](float value) { return value != 0; }))
        wrong(job, index, "chunk " + std::to_string(chunk) + " resumes with what nobody was sent");
    }
  }
}

// ---- members ----

void StoreBooks::change(const agg::Job& job, Block& block, Rank rank, Step now_pushed) {
  Row& row = block.rows[rank.value];
  if (now_pushed == kAbsent)
    row = {.present = false};
  else if (!row.present)
    row = {.pushed = block.clock};
  else
    row.pushed = now_pushed;  // it starts
  if (std::ranges::none_of(block.rows, &Row::present)) return;
  for (std::uint32_t index = 0; index < kChunksPerBlock; ++index) apply_complete(job, block, index);
  advance(block);
}

void StoreBooks::look(const agg::Job& job, std::uint16_t shard) {
  const agg::StoreShard& store = *job.slices[shard].store;
  if (store.resumes()) return;
  std::optional<Rank> changed;
  for (auto& [index, block] : shard_of(job, shard).blocks)
    for (std::uint16_t rank = 0; rank < job.spec.world_size; ++rank) {
      const Step now_pushed = store.pushed(index, Rank{rank});
      const Row& row = block.rows[rank];
      if (row.present ? row.pushed == now_pushed : now_pushed == kAbsent) continue;
      if (changed.value_or(Rank{rank}) != Rank{rank})
        return wrong(job, index, "two members have changed at once");
      changed = Rank{rank};
      change(job, block, Rank{rank}, now_pushed);
      compare(job, store, index, block, block.known, "a member's change");
    }
}

// ---- what the shard has, and says ----

void StoreBooks::compare(const agg::Job& job, const agg::StoreShard& store, std::uint32_t index,
                         const Block& block, std::uint64_t chunks, const char* after) {
  const auto differs = [&](const std::string& what, std::uint64_t found, std::uint64_t expected) {
    if (found != expected)
      wrong(job, index,
            std::string("after ") + after + " " + what + " is " + std::to_string(found) +
                " and not " + std::to_string(expected));
    return found != expected;
  };
  const auto holds = [&](const Row& row) { return row.present && row.pushed == block.clock; };
  if (differs("its clock", store.clock(index), block.clock) ||
      differs("the number of members at the clock", store.at_clock(index),
              static_cast<std::uint64_t>(std::ranges::count_if(block.rows, holds))))
    return;
  for (std::uint16_t rank = 0; rank < block.rows.size(); ++rank) {
    const Row& row = block.rows[rank];
    const std::string of = " of rank " + std::to_string(rank);
    if (differs("v" + of, store.pushed(index, Rank{rank}), row.present ? row.pushed : kAbsent))
      return;
    if (row.present && differs("what is counted" + of,
                               store.counted(index, Rank{rank}, row.pushed + 1), row.counted))
      return;
  }
  for (; chunks != 0; chunks &= chunks - 1) {
    const auto chunk = static_cast<std::uint32_t>(std::countr_zero(chunks));
    const std::vector<float>& expected = block.chunks[chunk].parameters;
    const std::span<const float> found = store.parameters(index * kChunksPerBlock + chunk);
    if (!same_bits(found, expected))
      return wrong(job, index,
                   std::string("after ") + after + " chunk " + std::to_string(chunk) +
                       " begins with " + std::to_string(found[0]) + " and not " +
                       std::to_string(expected[0]));
  }
}

void StoreBooks::handled(const agg::Job& job, std::uint16_t shard, const wire::Packet& packet,
                         bool was_live, Verdict verdict) {
  const agg::StoreShard& store = *job.slices[shard].store;
  const Rank rank{packet.common().rank};
  if (packet.type() == wire::PacketType::kPull) {
    const auto& pull = packet.body<wire::Pull>();
    if (verdict != Verdict::kProbe) return;
    Row& row = shard_of(job, shard).blocks.at(pull.block).rows[rank.value];
    row.need = pull.need;
    row.own = pull.own;
    return;
  }
  const auto& push = packet.body<wire::Push>();
  const std::uint32_t index = push.chunk / kChunksPerBlock;
  const auto found = shard_of(job, shard).blocks.find(index);
  if (found == shard_of(job, shard).blocks.end()) return;
  Block& block = found->second;
  const bool is_counted = verdict == Verdict::kFolded || verdict == Verdict::kCompleted;
  const bool should_count = was_live && counts(job, block, push, rank);
  if (is_counted && !should_count)
    return wrong(job, index,
                 "a push of rank " + std::to_string(rank.value) + " in iteration " +
                     std::to_string(push.iteration) + " counts and must not");
  if (!is_counted && should_count &&
      (verdict == Verdict::kDuplicate || verdict == Verdict::kTooNew))
    return wrong(job, index,
                 "a push of rank " + std::to_string(rank.value) + " in iteration " +
                     std::to_string(push.iteration) + " must count and does not");
  if (is_counted) count(job, block, push, rank, packet.payload());
  const std::uint64_t bit = chunk_bit(push.chunk);
  compare(job, store, index, block, block.known & bit, "a push");
}

void StoreBooks::answered(const agg::Job& job, std::uint16_t shard, ProcessIndex process,
                          const wire::Packet& packet) {
  const auto& body = packet.body<wire::Values>();
  const std::uint32_t index = body.chunk / kChunksPerBlock;
  const Block& block = shard_of(job, shard).blocks.at(index);
  const Row& row = block.rows[packet.common().rank];
  const std::vector<float> values = floats(packet.payload());
  ++answers_checked_;
  const std::string to = "an answer to rank " + std::to_string(packet.common().rank);
  if (!same_bits(values, block.chunks[body.chunk % kChunksPerBlock].parameters))
    wrong(job, index, to + " has other values than the pushes make");
  if (body.clock != block.clock || !row.present || body.own != row.pushed)
    wrong(job, index,
          to + " has the clocks " + std::to_string(body.clock) + " and " +
              std::to_string(body.own) + " (own), not " + std::to_string(block.clock) + " and " +
              std::to_string(row.pushed));
  if (block.clock < row.need || row.pushed < row.own)
    wrong(job, index,
          to + " comes before clock " + std::to_string(row.need) + " and its own " +
              std::to_string(row.own));
  std::vector<Answer>& sent = answers_[{process, body.chunk}];
  const Answer answer{hash_of(values), body.clock, body.own};
  if (std::ranges::find(sent, answer) == sent.end()) sent.push_back(answer);
}

void StoreBooks::read(const Read& read) {
  const std::uint64_t hash = hash_of(read.values);
  const auto does = [&](const Answer& answer) {
    return answer.hash == hash && answer.clock >= read.need && answer.own >= read.own;
  };
  if (!std::ranges::any_of(answers_[{read.party.process, read.chunk}], does))
    oracle_.violation("books: rank " + std::to_string(read.party.rank.value) + " reads chunk " +
                      std::to_string(read.chunk) + " for clock " + std::to_string(read.need) +
                      " and its own " + std::to_string(read.own) +
                      " as no answer that it was sent has it");
}

}  // namespace sluice::sim
