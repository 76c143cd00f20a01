// The bodies of control packets, port P: joins, memberships, the state and the end of a job.
//
// Each body names its type. parse() (packet.h) checks lengths and enumerations; jobs/ decides what
// a join may ask for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/base/policy_options.h"
#include "aggregator/base/prune_options.h"
#include "aggregator/base/store_options.h"
#include "aggregator/base/types.h"
#include "aggregator/wire/group.h"
#include "aggregator/wire/header.h"

namespace sluice::wire {

inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kProofBytes = 32;

struct [[gnu::packed]] StreamLayout {
  std::uint64_t hash = 0;         // of the tensors, see layout_hash() in the client
  std::uint32_t chunk_count = 0;  // 0: the stream does not exist (the tensors' must)
  std::uint32_t max_elems = 0;    // elements of its biggest chunk: sizes the accumulators
};

// The job asks for sums in the order of ranks.
inline constexpr std::uint32_t kFeatureReproducible = 1 << 0;
inline constexpr std::uint32_t kKnownFeatures = kFeatureReproducible;
constexpr bool asks_reproducible(std::uint32_t features) noexcept {
  return (features & kFeatureReproducible) != 0;
}

// Followed by print_count u32: the fingerprints of the tensors, or of groups of print_tensors
// neighbours where the datagram has no room for all. The layout's hash decides whether two ranks
// agree; fingerprints tell where they do not. A join is padded to the size of a full result
// datagram of the job, which tests the path, or not padded.
struct [[gnu::packed]] Join {
  static constexpr PacketType kType = PacketType::kJoin;
  std::uint64_t nonce = 0;   // drawn once for each join; the same nonce gets the same answer
  std::uint64_t run_id = 0;  // of the launch; every rank of one run has the same
  StreamLayout layouts[kStreamsOfJob];  // in the order of streams_of(kind)
  std::uint32_t features = 0;           // bits, kFeature...; the others must be 0
  std::uint16_t world_size = 0;
  std::uint16_t ordinal = 0;  // which model of this process
  std::uint16_t chunk_bytes = 0;
  std::uint16_t datagram_bytes = 0;  // this worker's biggest packets; also the padded size
  PolicyOptions policy;              // all defaults unless has_policy
  std::uint8_t has_policy = 0;       // 0: that of the appliance's configuration for this job
  std::uint8_t has_proof = 0;
  std::uint8_t allow_nil = 1;
  std::uint8_t name_bytes = 0;
  AveragingChoice averaging{};  // the choice as the application made it, kDefault included
  Dtype wire{};                 // the format in which float32 travels
  JobKind kind{};
  StoreOptions store;  // all defaults unless the job is a store
  StoreKeep keep{};    // the default unless the job is a store
  PruneOptions prune;  // all defaults unless its rule prunes
  std::uint32_t tensor_count = 0;
  std::uint32_t print_tensors = 0;  // neighbouring tensors that share a fingerprint
  std::uint16_t print_count = 0;
  // Of a process that an appliance which is lost had admitted to this run; 0: a new process.
  std::uint8_t was_member = 0;
  // The gradient step that it was in there; of a job of operations, one more than the groups that
  // it was in. 0: the job had not started for it, or it needs another rank's state.
  std::uint32_t resume_step = 0;
  // Collective calls that it has ended; with k < n and of a store the steps of these calls.
  std::uint32_t resume_calls = 0;
  std::uint16_t resume_k = 0;  // of the newest step of which it has a result; 0: it has none
  // With k < n, exchanges of results at appliances that went on from a lost one; 0: none. The
  // newest that is over, as far as the process knows, and the newest that it has taken part in. Of
  // a job of operations the latter is one more than the epoch with which it ran last.
  std::uint64_t exchange_over = 0;
  std::uint64_t exchange_entered = 0;
  // How often this run has moved to another appliance, as far as the process knows.
  std::uint32_t epoch = 0;
  std::uint8_t has_standby = 0;  // 1: it may move, and has further addresses for that
  // Of a store with a standby: what the last status said, whose ranks follow as mask_words u64.
  std::uint32_t view = 0;
  std::uint32_t settled_view = 0;
  std::uint8_t mask_words = 0;
  char name[kMaxJobNameBytes] = {};
  std::uint8_t server_nonce[kNonceBytes] = {};
  std::uint8_t proof[kProofBytes] = {};
};

struct [[gnu::packed]] Challenge {
  static constexpr PacketType kType = PacketType::kChallenge;
  std::uint64_t nonce = 0;
  // With which members of the run have joined here; 0 if none has. A process with a lower one
  // follows them.
  std::uint32_t epoch = 0;
  std::uint8_t server_nonce[kNonceBytes] = {};
};

// The job's memory is being allocated, which takes long for a big job. The worker asks again; its
// time limit starts anew whenever `percent` has grown.
struct [[gnu::packed]] Preparing {
  static constexpr PacketType kType = PacketType::kPreparing;
  std::uint64_t nonce = 0;
  std::uint8_t percent = 0;  // of the memory, 0 .. 100
};

struct [[gnu::packed]] Accept {
  static constexpr PacketType kType = PacketType::kAccept;
  std::uint64_t nonce = 0;
  // In the order of streams_of() the job's kind. Where each stream stands: 1 in a new job.
  std::uint32_t open_steps[kStreamsOfJob] = {};
  std::uint32_t first_steps[kStreamsOfJob] = {};  // first of each that this worker contributes to
  PolicyOptions policy;                           // that the job runs
  std::uint32_t member_timeout_ms = 0;
  std::uint32_t resync_hold_ms = 0;
  std::uint16_t shards = 0;
  std::uint16_t window = 0;  // steps retained
  std::uint16_t world_size = 0;
  std::uint16_t joined_count = 0;
  std::uint8_t rejoined = 0;  // 1: the job runs already; resync before the first contribution
  // 1: a store that was retained when all its workers left: it has values, and initial ones are
  // ignored
  std::uint8_t kept = 0;
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
  kDraining = 12,
};

struct [[gnu::packed]] Refuse {  // then text_bytes of UTF-8
  static constexpr PacketType kType = PacketType::kRefuse;
  std::uint64_t nonce = 0;
  RefuseCode code{};
  std::uint16_t text_bytes = 0;
};

// Sent instead of a REFUSE with kLayout to a worker whose tensors differ. The worker adds the names
// of tensors, which the appliance does not know.
struct [[gnu::packed]] Differs {  // then text_bytes of UTF-8
  static constexpr PacketType kType = PacketType::kDiffers;
  std::uint64_t nonce = 0;
  std::uint32_t first_tensor = 0;   // the first that differs is this one
  std::uint32_t print_tensors = 0;  // number of neighbours of which one differs
  std::uint16_t text_bytes = 0;
  std::uint32_t job_tensor_count = 0;
  std::uint32_t job_print = 0;  // the job's fingerprint there, if it has one
};

enum class LeaveReason : std::uint8_t {
  kFinished =
      0,  // in order; in a synchronous job an error if other ranks contribute to later steps
  kAbnormal = 1,
  kUneven = 2,   // in order; the ranks are meant to end at different steps
  kAborted = 3,  // ends the job for all, with the text
  kMoved = 4,    // the job goes on at another appliance
};

struct [[gnu::packed]] Leave {  // then text_bytes of UTF-8: why, of kAborted
  static constexpr PacketType kType = PacketType::kLeave;
  std::uint32_t first_steps[kStreamsOfJob] = {};  // first step of each stream not contributed to
  LeaveReason reason{};
  std::uint16_t text_bytes = 0;
};

struct [[gnu::packed]] Keepalive {
  static constexpr PacketType kType = PacketType::kKeepalive;
  std::uint32_t timestamp_us = 0;
  std::uint64_t token = 0;  // of the last ping: proves that the sender receives packets
  // Metrics of a store's worker: the time for which it has waited for layers, and by how many
  // iterations its oldest request is behind.
  std::uint64_t suspended_ns = 0;
  std::uint32_t oldest_request_iterations = 0;
  std::uint32_t view = 0;  // the newest that the worker has been told, see Status
};

// Sent again every 250 ms with the same number until a status names the transfer.
struct [[gnu::packed]] Resync {
  static constexpr PacketType kType = PacketType::kResync;
  std::uint32_t number = 0;  // of the request in this process, from 1
  std::uint8_t done = 0;     // 1: the state has arrived, the window may move on
};

enum class GroupRequest : std::uint8_t {
  kMake,   // the group is made, or the member takes part in one that another member has made
  kLeave,  // the member calls no more in it
  kAbort,  // nor does it complete what it has called: the group is broken for all members
};

// Of a member of a job of kind operations. Members agree about a group by its name. Sent again
// until it is answered. Followed by mask_words u64: the group's ranks.
struct [[gnu::packed]] MakeGroup {
  static constexpr PacketType kType = PacketType::kMakeGroup;
  std::uint32_t number = 0;  // the group's in the member's process
  std::uint32_t called = 0;  // operations that the member has called in it, modulo 2^32
  GroupRequest request{};
  std::uint8_t mask_words = 0;
  std::uint8_t name_bytes = 0;
  char name[kMaxGroupNameBytes] = {};
  // 1: the member was in the group at an appliance that is lost, and is at `position` there.
  std::uint8_t resumes = 0;
  GroupPosition position;
};

struct [[gnu::packed]] GroupMade {  // then text_bytes of UTF-8: why there is no such group
  static constexpr PacketType kType = PacketType::kGroupMade;
  std::uint32_t number = 0;  // as in the request
  std::uint32_t generation = 0;
  std::uint16_t group = 0;
  std::uint16_t text_bytes = 0;
  GroupRequest request{};                     // as asked
  std::uint64_t floors[kSequenceCount] = {};  // with which the group begins here
};

enum class JobState : std::uint8_t { kForming = 0, kRunning = 1, kEnded = 2 };

// Whether an appliance is to end, so that its members move to another one.
enum class Drain : std::uint8_t {
  kNone = 0,
  kAsked = 1,  // each member moves when its step is over
  kBegun = 2,  // a member has moved: of a synchronous job no step is completed here any more
};

// Followed by mask_words u64: the ranks that have not joined (forming) or are gone (running).
struct [[gnu::packed]] Status {
  static constexpr PacketType kType = PacketType::kStatus;
  std::uint32_t echo_timestamp_us = 0;
  std::uint16_t joined_count = 0;
  std::uint16_t world_size = 0;
  JobState state{};
  std::uint8_t mask_words = 0;
  std::uint8_t left = 0;  // 1: this worker's own leave has been carried out
  // The transfer of state under way; transfer_step 0: none.
  std::uint32_t transfer_step = 0;    // first step of stream kState that belongs to it
  std::uint32_t transfer_number = 0;  // of the Resync that asked for it
  std::uint32_t hold_left_ms = 0;     // how much longer the window waits
  std::uint16_t transfer_source = 0;  // rank that gives its state
  std::uint16_t transfer_target = 0;  // rank that gets it
  // The gradient step with which the job begins here, of a job that goes on from an appliance that
  // is lost; 0: the job is new.
  std::uint32_t resume_step = 0;
  // Of such a job with k < n: the oldest step of which a member lacks results that others may have,
  // and how far members have come at most with collectives, see Join.
  std::uint32_t resume_from = 0;
  std::uint32_t resume_calls = 0;
  // The exchange of results here, and the newest that was over before.
  std::uint64_t exchange = 0;
  std::uint64_t exchange_over = 0;
  std::uint8_t needs_state = 0;  // 1: this member needs another one's state before it goes on
  Drain drain{};
  // Of a store with a standby: how often a rank has been lost, has left, or has been taken by a new
  // process. The ranks that follow are those without which the store is in that view. The newest
  // view that all of its members had heard of, so that it holds.
  std::uint32_t view = 0;
  std::uint32_t settled_view = 0;
};

struct [[gnu::packed]] Ping {
  static constexpr PacketType kType = PacketType::kPing;
  std::uint32_t timestamp_us = 0;
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
  kMoved = 9,         // the run has moved on, and this member has not heard of it
};

struct [[gnu::packed]] Notice {  // then text_bytes of UTF-8
  static constexpr PacketType kType = PacketType::kNotice;
  NoticeCode code{};
  std::uint16_t rank = 0;  // the rank that it is about
  std::uint16_t text_bytes = 0;
};

}  // namespace sluice::wire
