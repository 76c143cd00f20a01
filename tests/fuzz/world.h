// An appliance without a network, with one honest job whose sums are always checked, and one job
// whose members do all that a fuzzer says.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aggregator/appliance/appliance.h"
#include "tests/fuzz/fuzz.h"

namespace sluice::fuzz {

inline constexpr std::uint16_t kShards = 2;
inline constexpr std::uint16_t kHonestRanks = 3;
inline constexpr std::size_t kHonestKind = 3;  // of a job, see World::join(): sync
inline constexpr std::string_view kFuzzerAddress = "10.66.6.6:666";
inline constexpr std::uint16_t kHostileRanks = 2;
inline constexpr std::uint32_t kHonestChunks = 70;  // a whole block and a part: on both shards
inline constexpr std::uint16_t kHonestElems = 16;
inline constexpr std::uint32_t kHostileChunks = 3;
inline constexpr std::size_t kHostilePaths = 4;  // path 0 is the one by which members join
inline agg::PathKey hostile_path(std::size_t number) {
  return {2, static_cast<std::uint8_t>(number)};
}
inline constexpr char kSecret[] = "sesame";
inline constexpr std::size_t kDrainLimit = 100'000;  // datagrams; more: an endless exchange

struct Membership {
  std::uint16_t job = 0;
  Cookie cookie = 0;
};

class World {
 public:
  World();

  struct Way {
    std::size_t port = 0;  // 0 control, 1 + shard
    std::size_t path = 0;  // one of the fuzzer's; see kHostilePaths
  };
  // Handles any bytes from the fuzzer. Checks that the packet is counted under exactly one verdict,
  // that the reply is not longer than the packet unless `proven`, and that a member's reply is
  // longer only on a path that has answered.
  void receive(std::span<const std::uint8_t> bytes, Way way, bool marked, bool proven);

  // Handles the next contribution of the honest job. Checks its verdict and every result that comes
  // back.
  void advance_honest();
  // Carries all messages between control side, shards and members, and checks the datagrams that
  // leave: all of them, or `most` of the shards', as a full network takes them.
  void drain(std::size_t most = kDrainLimit);
  void pass(DurationNs duration);
  // Whether the network brings the last packet once more. Some datagrams leave before.
  bool comes_again();
  // Makes the hostile job anew when its members have ended it, or goes on to the next policy's job.
  void keep_hostile_job();

  bool is_honest_cookie(Cookie cookie) const noexcept;
  Step hostile_step() const noexcept;  // the step of the hostile job's gradients
  const std::array<Membership, kHostileRanks>& hostile() const noexcept { return hostile_; }
  // The newest group of the hostile members, where their job is of operations.
  const wire::GroupMade& hostile_group() const noexcept { return hostile_group_; }
  // The token in a keepalive of a member that comes by `path`, as `draw` says: the token that was
  // sent there, one that was sent to another path, one that was never sent, or none.
  std::uint64_t token_to_echo(Cookie cookie, std::size_t path, std::uint64_t draw) const noexcept;
  // The server nonce for a join from the fuzzer's address.
  bool challenge_for(const wire::Join& join, std::uint16_t rank,
                     std::uint8_t (&server_nonce)[wire::kNonceBytes]);

 private:
  std::uint64_t draw(std::uint64_t bound) noexcept;
  std::uint64_t counted() const noexcept;
  // The ping of a member's path: the last token sent, and the answer. The appliance computes the
  // token; this class keeps it.
  struct Shown {
    std::uint64_t token = 0;  // of the last ping
    std::uint64_t token_before = 0;
    bool answered = false;
  };
  using Paths = std::array<Shown, kHostilePaths>;

  agg::ControlResult control(std::span<const std::uint8_t> bytes, std::string_view address,
                             const agg::PathKey& path);
  void check_path(const wire::Packet& request, const agg::ControlResult& result, std::size_t path);
  Membership join(const char* name, std::uint16_t rank, std::uint16_t world_size,
                  std::uint32_t chunk_count, std::uint64_t run_id, std::string_view address,
                  const agg::PathKey& path, std::size_t kind);
  void join_hostile();
  void make_hostile_group();
  void check_result(const agg::Transmit& transmit, const wire::Packet& packet);
  void keep_alive();

  agg::Appliance appliance_;
  TimeNs now_ = 1000 * kSecond;
  std::array<Membership, kHonestRanks> honest_;
  std::array<Membership, kHostileRanks> hostile_;
  wire::GroupMade hostile_group_;
  static constexpr std::size_t kHostileKinds = 10;  // policies, stores, operations: see aim_at()
  static constexpr std::uint32_t kTurnsPerJob = 16;
  std::array<std::uint64_t, kHostileKinds> hostile_runs_{};
  std::size_t hostile_kind_ = 0;
  std::uint32_t hostile_turns_ = 0;
  std::uint64_t next_nonce_ = 0x9E3779B97F4A7C15;
  Step step_ = 1;
  std::uint32_t next_contribution_ = 0;  // rank-major within a step
  std::uint64_t network_ = 1;            // the state of draw()
  std::array<std::uint32_t, kHonestRanks> results_{};
  std::array<std::array<std::uint32_t, kShards>, kHonestRanks> numbers_{};
  std::map<Cookie, Paths> paths_;  // of hostile members
  Bytes reply_;
};

}  // namespace sluice::fuzz
