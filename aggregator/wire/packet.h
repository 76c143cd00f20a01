// The packet format of Sluice: one UDP payload is one packet.
//
// Layout: CommonHeader, then the body of its type, then (contribution, result, answer) member-mask
// words and payload. Everything is little-endian and packed. The same structs serve both ends: the
// sender fills one and calls encode(), the receiver calls parse(), which is the only code that
// looks at unvalidated bytes. Control packets (join, leave, keepalive, ...) travel on port P, data
// packets on port P + 1 + shard. Not here: Ethernet, IP and UDP (inet.h), and the meaning of a step
// (core/).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "aggregator/base/limits.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/base/types.h"
#include "aggregator/base/verdict.h"

namespace sluice::wire {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian, read in place");

inline constexpr std::uint16_t kMagic = 0x51C5;
inline constexpr std::uint8_t kVersion = 3;

enum class PacketType : std::uint8_t {
  // Control, port P.
  kJoin = 1,        // worker: ask to become a member; sent twice, first to get a challenge
  kChallenge = 2,   // appliance: prove the secret over this server nonce
  kAccept = 3,      // appliance: you are a member; here is the cookie
  kRefuse = 4,      // appliance: no, with a code and a text that prints both values
  kLeave = 5,       // worker: I contribute to no step from these on
  kKeepalive = 6,   // worker: I am alive and my path is this one; also the answer to a ping
  kStatus = 7,      // appliance: answer to a keepalive, leave; sent unasked when the job starts
  kPing = 8,        // appliance: are you there?
  kNotice = 9,      // appliance: the job has ended, and why
  kResync = 10,     // worker: I need another one's state; or: I have it
  kPreparing = 11,  // appliance: the job of this proven join is being made; ask again
  // Data, port P + 1 + shard.
  kContribution = 16,  // worker
  kProbe = 17,         // worker: what became of this block of 64 chunks? send the results named
  kCredit = 18,        // worker: only the flow header (credit, report flag)
  kFinished = 19,      // worker, to shard 0: my gradient is finished, whether or not it is sent
  kResult = 32,        // appliance
  kFeedback = 33,      // appliance: only the feedback header
  kAnswer = 34,        // appliance: to a probe
};

// ---- bits ----
inline constexpr std::uint8_t kFlagReport = 1 << 0;  // contribution, credit, probe: send feedback
inline constexpr std::uint8_t kFlagNil = 1 << 1;  // contribution without data; result of NILs only
inline constexpr std::uint8_t kFlagNonFinite = 1 << 2;  // result: some value is NaN or infinite
inline constexpr std::uint8_t kFlagMean = 1 << 3;       // result: payload is sum / weight already
inline constexpr std::uint8_t kFlagPulled = 1 << 4;     // result: sent because a probe asked
inline constexpr std::uint8_t kFlagTrailerReserved = 1 << 7;  // CRC32C trailer, built later
inline constexpr std::uint8_t kKnownFlags =
    kFlagReport | kFlagNil | kFlagNonFinite | kFlagMean | kFlagPulled;

#pragma pack(push, 1)

struct CommonHeader {
  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  PacketType type{};
  std::uint16_t job = 0;   // 0 before the join
  std::uint16_t rank = 0;  // the worker's, in both directions
  Cookie cookie = 0;       // the worker's, in both directions; 0 before the join
};

// On every worker data packet. A flow is (worker, shard).
struct FlowHeader {
  std::uint32_t number = 0;        // of this packet in its flow, from 1
  std::uint32_t timestamp_us = 0;  // echoed by feedback
  std::uint32_t credit = 0;        // highest appliance packet number that the worker can take
};

// On every appliance data packet.
struct FeedbackHeader {
  std::uint32_t number = 0;             // of this packet in the flow's other direction, from 1
  std::uint32_t received_count = 0;     // worker packets that arrived, duplicates too
  std::uint32_t highest_number = 0;     // highest worker packet number that arrived
  std::uint32_t marked_count = 0;       // of those, with the congestion-experienced mark
  std::uint32_t echo_timestamp_us = 0;  // of the packet with the highest number
  std::uint32_t hold_us = 0;            // time since that packet arrived
  std::uint32_t deferred_count = 0;     // results withheld for want of credit, ever
  std::uint32_t open_step = 0;          // of the gradients; 0 before the job starts
};

struct Contribution {
  FlowHeader flow;
  std::uint32_t step = 0;
  std::uint32_t chunk = 0;
  std::uint32_t base_step = 0;  // the step whose parameters it was computed on
  std::uint32_t weight = 0;     // samples; 0 is legal
  std::uint32_t tag = 0;        // reserved for per-packet authentication; 0
  std::uint16_t elem_count = 0;
  std::uint16_t payload_bytes = 0;
  StreamId stream{};
  Dtype dtype{};
  Priority priority = 0;
  std::uint8_t flags = 0;
};

// On stream kCollectives base_step carries the size in bytes and weight carries kind and root.
constexpr std::uint32_t pack_collective(CollectiveKind kind, std::uint16_t root) noexcept {
  return static_cast<std::uint32_t>(kind) << 16 | root;
}
constexpr CollectiveKind collective_kind(std::uint32_t weight) noexcept {
  return static_cast<CollectiveKind>(weight >> 16);
}
constexpr std::uint16_t collective_root(std::uint32_t weight) noexcept {
  return static_cast<std::uint16_t>(weight);
}

struct ResultHeader {  // then mask_words u64, then the payload
  FeedbackHeader feedback;
  std::uint32_t step = 0;
  std::uint32_t chunk = 0;
  std::uint64_t weight = 0;  // total of the contributions in the mask
  std::uint32_t tag = 0;     // reserved
  // How long before this packet was written the chunk's first contribution came, and the one that
  // completed it: for traces.
  std::uint32_t first_age_us = 0;
  std::uint32_t complete_age_us = 0;
  std::uint16_t elem_count = 0;
  std::uint16_t payload_bytes = 0;
  std::uint16_t k = 0;  // the k that this slot was summed with
  std::uint8_t mask_words = 0;
  StreamId stream{};
  Dtype dtype{};
  Priority priority = 0;
  std::uint8_t flags = 0;
  std::uint8_t reserved = 0;
};

struct Probe {
  FlowHeader flow;
  std::uint32_t step = 0;
  std::uint32_t block = 0;
  std::uint64_t want = 0;  // bit i: send the result of chunk 64 * block + i if it is complete
  StreamId stream{};
  std::uint8_t flags = 0;
  Priority priority = 0;  // the least urgent of the chunks it asks about: it must not overtake them
  std::uint8_t reserved = 0;
};

struct Credit {
  FlowHeader flow;
  std::uint8_t flags = 0;
  Priority priority = 0;  // when it asks for feedback: the least urgent of what it asks about
  std::uint8_t reserved[2] = {};
};

// Without it the policy could not see the times that cancelling hides.
struct Finished {
  FlowHeader flow;
  std::uint32_t step = 0;  // whose parameters the gradient was computed on
  std::uint8_t flags = 0;
  std::uint8_t reserved[3] = {};
};

struct Feedback {
  FeedbackHeader feedback;
  std::uint16_t shard = 0;  // whose flow it reports; other packets name a chunk or a block
  std::uint16_t reserved = 0;
};

enum class AnswerStatus : std::uint8_t {
  kOpen = 0,     // the step is open or closed but in the window: the bitmaps are exact
  kGone = 1,     // the step has left the window: nobody knows
  kNotOpen = 2,  // the step is in the future
};

struct MissingAge {
  std::uint16_t rank = 0;
  std::uint16_t reserved = 0;
  std::uint32_t last_heard_ms = 0;
};

struct Answer {  // then mask_words u64 (ranks missing from first_incomplete), then age_count
                 // MissingAge
  FeedbackHeader feedback;
  std::uint32_t step = 0;
  std::uint32_t block = 0;
  std::uint64_t counted = 0;  // bit i: this worker's contribution to chunk 64 * block + i is in
  // bit i: that chunk's result exists and is not about to be sent anyway.
  std::uint64_t complete = 0;
  std::uint32_t probe_number = 0;      // settles every worker packet number up to it
  std::uint32_t open_step = 0;         // of this stream
  std::uint32_t first_incomplete = 0;  // chunk index in this block, or 0xFFFFFFFF
  StreamId stream{};
  AnswerStatus status{};
  std::uint8_t mask_words = 0;
  std::uint8_t age_count = 0;
  Priority priority = 0;  // the least urgent of the results it speaks of: as in a probe
  std::uint8_t reserved[3] = {};
};
inline constexpr std::uint32_t kNoChunk = 0xFFFFFFFF;

inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kProofBytes = 32;

struct StreamLayout {
  std::uint64_t hash = 0;         // of the tensors, see layout_hash() in the client
  std::uint32_t chunk_count = 0;  // 0: the stream does not exist (kGradients must)
  std::uint32_t max_elems = 0;    // elements of its biggest chunk: sizes the accumulators
};

struct Join {  // padded to the size of a full result datagram of this job, or not padded: a size
               // test
  std::uint64_t nonce = 0;   // drawn once a join; same nonce, same answer
  std::uint64_t run_id = 0;  // of the launch; every rank of one run has the same
  StreamLayout layouts[kStreamCount];
  std::uint32_t features = 0;  // bits, none defined: must be 0
  std::uint16_t world_size = 0;
  std::uint16_t ordinal = 0;  // which model of this process
  std::uint16_t chunk_bytes = 0;
  std::uint16_t datagram_bytes =
      0;                        // what this worker's biggest packets need; also the padded size
  PolicyOptions policy;         // all zero but for defaults unless has_policy
  std::uint8_t has_policy = 0;  // 0: whatever the appliance's configuration says for this job
  std::uint8_t has_proof = 0;
  std::uint8_t allow_nil = 1;
  std::uint8_t name_bytes = 0;
  AveragingChoice averaging{};  // as it was made, the default being one of them
  std::uint8_t reserved = 0;
  char name[kMaxJobNameBytes] = {};
  std::uint8_t server_nonce[kNonceBytes] = {};
  std::uint8_t proof[kProofBytes] = {};
};

struct Challenge {
  std::uint64_t nonce = 0;
  std::uint8_t server_nonce[kNonceBytes] = {};
};

// The job's memory is being made, which takes long for a big one. The worker asks again, and its
// patience starts anew whenever `percent` has grown.
struct Preparing {
  std::uint64_t nonce = 0;
  std::uint8_t percent = 0;  // of the memory, 0 .. 100
  std::uint8_t reserved[3] = {};
};

struct Accept {
  std::uint64_t nonce = 0;
  std::uint32_t open_steps[kStreamCount] = {};   // where each stream stands: 1 in a new job
  std::uint32_t first_steps[kStreamCount] = {};  // first of each that this worker contributes to
  PolicyOptions policy;                          // that the job runs
  std::uint32_t member_timeout_ms = 0;
  std::uint32_t resync_hold_ms = 0;
  std::uint16_t shards = 0;
  std::uint16_t window = 0;  // steps retained
  std::uint16_t world_size = 0;
  std::uint16_t joined_count = 0;
  std::uint8_t rejoined = 0;  // 1: the job runs already; resync before the first contribution
  std::uint8_t reserved[3] = {};
};

enum class RefuseCode : std::uint16_t {
  kBadSecret = 1,
  kBadVersion = 2,
  kWorldSize = 3,
  kLayout = 4,
  kRankTaken = 5,
  kOtherRun = 6,
  kLimit = 7,
  kMtu = 8,
  kBadRequest = 9,
  kEnded = 10,
  kPolicy = 11,
};

struct Refuse {  // then text_bytes of UTF-8
  std::uint64_t nonce = 0;
  RefuseCode code{};
  std::uint16_t text_bytes = 0;
};

enum class LeaveReason : std::uint8_t {
  kFinished = 0,  // in order; in a synchronous job an error if others contribute to later steps
  kAbnormal = 1,
  kUneven = 2,  // in order, and the ranks are meant to end at different steps
};

struct Leave {
  std::uint32_t first_steps[kStreamCount] = {};  // first step of each stream not contributed to
  LeaveReason reason{};
  std::uint8_t reserved[3] = {};
};

struct Keepalive {
  std::uint32_t timestamp_us = 0;
  std::uint32_t reserved = 0;
  std::uint64_t token = 0;  // of the last ping: proves that the sender gets what is sent to it
};

// Asked again every 250 ms with the same number until a status names the transfer.
struct Resync {
  std::uint32_t number = 0;  // of the request in this process, from 1
  std::uint8_t done = 0;     // 1: the state has arrived, the window may move on
  std::uint8_t reserved[3] = {};
};

enum class JobState : std::uint8_t { kForming = 0, kRunning = 1, kEnded = 2 };

struct Status {  // then mask_words u64: ranks that have not joined (forming) or are gone (running)
  std::uint32_t echo_timestamp_us = 0;
  std::uint16_t joined_count = 0;
  std::uint16_t world_size = 0;
  JobState state{};
  std::uint8_t mask_words = 0;
  std::uint8_t left = 0;  // 1: this worker's own leave has been carried out
  std::uint8_t reserved = 0;
  // The transfer of state under way; transfer_step 0: none.
  std::uint32_t transfer_step = 0;    // first step of stream kState that belongs to it
  std::uint32_t transfer_number = 0;  // of the Resync that asked for it
  std::uint32_t hold_left_ms = 0;     // how much longer the window waits
  std::uint16_t transfer_source = 0;  // rank that gives its state
  std::uint16_t transfer_target = 0;  // rank that gets it
};

struct Ping {
  std::uint32_t timestamp_us = 0;
  std::uint32_t reserved = 0;
  std::uint64_t token = 0;  // to be echoed by a keepalive from where the ping arrived; 0: none
};

enum class NoticeCode : std::uint16_t {
  kMemberDied = 1,    // the process is gone: socket closed, port unreachable
  kMemberSilent = 2,  // nothing heard for member_timeout
  kMemberLeft = 3,    // left with kAbnormal
  kCollective = 4,    // ranks disagree about a collective
  kShutdown = 5,      // the appliance is ending
  kReplaced = 6,      // a new run took the job's name
  kStepLimit = 7,     // step numbers are used up
  kResyncHold = 8,    // this member's resync took longer than the window could be held
};

struct Notice {  // then text_bytes of UTF-8
  NoticeCode code{};
  std::uint16_t rank = 0;  // whom it is about
  std::uint16_t text_bytes = 0;
  std::uint16_t reserved = 0;
};

#pragma pack(pop)

static_assert(sizeof(CommonHeader) == 16 && sizeof(Contribution) == 40 &&
              sizeof(ResultHeader) == 72);

// Bytes around a chunk's payload in the biggest packet that carries it, for n workers.
constexpr std::size_t result_overhead_bytes(std::size_t worker_count) noexcept {
  return sizeof(CommonHeader) + sizeof(ResultHeader) + 8 * mask_words(worker_count);
}
// The UDP payload that a path must carry for chunks of this size: the padded size of a JOIN.
constexpr std::size_t datagram_bytes(std::size_t chunk_bytes, std::size_t worker_count) noexcept {
  return result_overhead_bytes(worker_count) + chunk_bytes;
}

// A validated packet: a view of the caller's bytes, valid as long as they are.
// For its type, the body is whole, enumerations exist, lengths agree and mask and payload lie
// inside.
class Packet {
 public:
  const CommonHeader& common() const noexcept {
    return *reinterpret_cast<const CommonHeader*>(bytes_.data());
  }
  PacketType type() const noexcept { return common().type; }

  // The body as the struct of its type. Precondition: type() is Body's.
  template <class Body>
  const Body& body() const noexcept {
    return *reinterpret_cast<const Body*>(bytes_.data() + sizeof(CommonHeader));
  }
  // Mask word i (result, answer, status).
  std::uint64_t mask_word(std::size_t index) const noexcept;
  std::size_t mask_word_count() const noexcept { return mask_word_count_; }
  // Contribution, result: the chunk's data. Refuse, notice: the text. Answer: the ages.
  std::span<const std::uint8_t> payload() const noexcept { return payload_; }
  std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(payload_.data()), payload_.size()};
  }
  MissingAge missing_age(std::size_t index) const noexcept;
  std::span<const std::uint8_t> bytes() const noexcept { return bytes_; }

 private:
  friend bool parse(std::span<const std::uint8_t> bytes, Packet& packet, Verdict& why) noexcept;
  std::span<const std::uint8_t> bytes_;
  std::span<const std::uint8_t> payload_;
  std::size_t mask_offset_bytes_ = 0;
  std::size_t mask_word_count_ = 0;
};

// Validates `bytes`. True: `packet` views them. False: `why` is the reason, `packet` is untouched.
// Trailing bytes are allowed after a join (padding) and nowhere else.
bool parse(std::span<const std::uint8_t> bytes, Packet& packet, Verdict& why) noexcept;

// The type that a body struct has on the wire.
template <class Body>
constexpr PacketType type_of() noexcept;
template <>
constexpr PacketType type_of<Join>() noexcept {
  return PacketType::kJoin;
}
template <>
constexpr PacketType type_of<Challenge>() noexcept {
  return PacketType::kChallenge;
}
template <>
constexpr PacketType type_of<Accept>() noexcept {
  return PacketType::kAccept;
}
template <>
constexpr PacketType type_of<Refuse>() noexcept {
  return PacketType::kRefuse;
}
template <>
constexpr PacketType type_of<Leave>() noexcept {
  return PacketType::kLeave;
}
template <>
constexpr PacketType type_of<Keepalive>() noexcept {
  return PacketType::kKeepalive;
}
template <>
constexpr PacketType type_of<Status>() noexcept {
  return PacketType::kStatus;
}
template <>
constexpr PacketType type_of<Ping>() noexcept {
  return PacketType::kPing;
}
template <>
constexpr PacketType type_of<Notice>() noexcept {
  return PacketType::kNotice;
}
template <>
constexpr PacketType type_of<Preparing>() noexcept {
  return PacketType::kPreparing;
}
template <>
constexpr PacketType type_of<Resync>() noexcept {
  return PacketType::kResync;
}
template <>
constexpr PacketType type_of<Finished>() noexcept {
  return PacketType::kFinished;
}
template <>
constexpr PacketType type_of<Contribution>() noexcept {
  return PacketType::kContribution;
}
template <>
constexpr PacketType type_of<Probe>() noexcept {
  return PacketType::kProbe;
}
template <>
constexpr PacketType type_of<Credit>() noexcept {
  return PacketType::kCredit;
}
template <>
constexpr PacketType type_of<ResultHeader>() noexcept {
  return PacketType::kResult;
}
template <>
constexpr PacketType type_of<Feedback>() noexcept {
  return PacketType::kFeedback;
}
template <>
constexpr PacketType type_of<Answer>() noexcept {
  return PacketType::kAnswer;
}

// Whose packet it is: the sender's address, so that neither end takes its own kind for the other's.
struct Sender {
  std::uint16_t job = 0;
  std::uint16_t rank = 0;
  Cookie cookie = 0;
};

// Writes a packet into `out` and returns its size, or 0 when it does not fit. `mask` and `payload`
// follow the body; the caller has set the body's length fields to match.
std::size_t encode_bytes(std::span<std::uint8_t> out, PacketType type, const Sender& sender,
                         std::span<const std::uint8_t> body, std::span<const std::uint64_t> mask,
                         std::span<const std::uint8_t> payload) noexcept;

template <class Body>
std::size_t encode(std::span<std::uint8_t> out, const Sender& sender, const Body& body,
                   std::span<const std::uint64_t> mask = {},
                   std::span<const std::uint8_t> payload = {}) noexcept {
  return encode_bytes(out, type_of<Body>(), sender,
                      {reinterpret_cast<const std::uint8_t*>(&body), sizeof(Body)}, mask, payload);
}

}  // namespace sluice::wire
