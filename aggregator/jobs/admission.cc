// The job that a join asks for: whether the request makes sense, agrees with the ranks that came
// before, and fits the appliance's limits. rank.cc decides about the rank.
#include "aggregator/jobs/admission.h"

#include <algorithm>
#include <cinttypes>

#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

constexpr std::size_t kCollectives = index_of(StreamId::kCollectives);
constexpr std::size_t kState = index_of(StreamId::kState);

const char* name_of(AveragingChoice averaging) noexcept {
  switch (averaging) {
    case AveragingChoice::kDefault: return "default";
    case AveragingChoice::kWeight: return "weight";
    case AveragingChoice::kWorld: return "world";
    case AveragingChoice::kSum: return "sum";
  }
  return "?";
}

const char* name_of(Dtype wire) noexcept {
  switch (wire) {
    case Dtype::kFloat32: return "float32";
    case Dtype::kFloat16: return "float16";
    case Dtype::kBfloat16: return "bfloat16";
    case Dtype::kInt8: return "int8";
    case Dtype::kBytes: break;
  }
  return "?";
}

JobDecision refuse_job(Refusal refusal) {
  CHECK(!refusal.ok());
  return {.kind = JobDecision::Kind::kRefuse, .refusal = std::move(refusal), .spec = {}};
}

JobDecision other_run(const JoinRequest& request, const JobEntry& entry, const std::string& holder,
                      const char* state) {
  return refuse_job(
      no(wire::RefuseCode::kOtherRun,
         text("job '%s' is %s run %016" PRIx64 " (%s), rank %u at %s belongs to run %016" PRIx64
              ": stop the other run or choose another job name",
              entry.name.c_str(), state, entry.run_id, holder.c_str(), unsigned{request.rank.value},
              std::string(request.address).c_str(), request.join.run_id)));
}

// Whether the job of another run makes way: it has no live member, and no process is about to join
// it. A member that was heard a moment ago may have been killed since, so the request is refused
// only when a member speaks after it was asked.
JobDecision decide_rival(const JoinRequest& request, const JobEntry& entry,
                         const PausableClock& clock) {
  using Kind = JobDecision::Kind;
  CHECK(entry.run_id != request.join.run_id);
  const auto address = [&](Rank rank) { return entry.member(rank).address.c_str(); };
  if (entry.forming() && entry.unclaimed() && request.now - entry.asked_ns <= kTakeoverSilence)
    return other_run(
        request, entry,
        text("rank %u at %s", unsigned{entry.layout_rank.value}, address(entry.layout_rank)),
        "being prepared for");
  const bool asked = is_asked(entry, request);
  Kind kind = Kind::kReplace;
  for (std::uint16_t index = 0; index < entry.world_size() && !entry.ended(); ++index) {
    const Rank rank{index};
    const TimeNs heard_ns = entry.last_heard_ns(rank, clock);
    const DurationNs silent_ns = request.now - heard_ns;
    if (!entry.member(rank).live() || silent_ns > kTakeoverSilence) continue;
    kind = Kind::kAskMembers;
    if (asked && heard_ns - entry.rival_ns > kSuspectGrace)
      return other_run(request, entry,
                       text("rank %u at %s, heard %.1f s ago", unsigned{index}, address(rank),
                            seconds(silent_ns)),
                       "in use by");
  }
  return {.kind = kind, .refusal = {}, .spec = {}};
}

// A store that is kept goes on with a run that asks for the same one, and gives way only to one
// that says so.
JobDecision decide_kept(const JoinRequest& request, const JobsOptions& options,
                        const JobEntry& entry) {
  using Kind = JobDecision::Kind;
  const bool of_store = request.join.kind == JobKind::kStore;
  if (of_store && request.join.keep == StoreKeep::kAnew)
    return {.kind = Kind::kReplace, .refusal = {}, .spec = {}};
  Refusal refusal = check_agreement(request, options, entry);
  if (refusal.ok()) return {.kind = Kind::kAdopt, .refusal = {}, .spec = {}};
  refusal.text += "; that store has values that are kept: take another job name";
  if (of_store) refusal.text += ", or say that it gives way (keep=\"anew\")";
  return refuse_job(std::move(refusal));
}

}  // namespace

Refusal no(wire::RefuseCode code, std::string why) {
  CHECK(code != wire::RefuseCode{} && !why.empty());
  return {.code = code, .text = std::move(why)};
}

// The question stands for as long as silent members may take to be given up, with time for a
// refusal to be repeated.
bool is_asked(const JobEntry& entry, const JoinRequest& request) noexcept {
  return entry.rival_run_id == request.join.run_id &&
         request.now - entry.rival_ns <= 2 * kTakeoverSilence;
}

// The checks that need no other job. Limits of the appliance's configuration are named by their
// keys.
Refusal check_request(const JoinRequest& request, const JobsOptions& options) {
  using wire::RefuseCode;
  const wire::Join& join = request.join;
  const unsigned rank = request.rank.value;
  const std::string name = printable(request.name());
  const unsigned world_size = join.world_size;
  const unsigned chunk_bytes = join.chunk_bytes;

  if ((join.features & ~wire::kKnownFeatures) != 0)
    return no(RefuseCode::kBadVersion,
              text("rank %u of job '%s' asks for features 0x%x, this appliance (protocol version "
                   "%u) knows 0x%x: use client and appliance of one release",
                   rank, name.c_str(), join.features, unsigned{wire::kVersion},
                   unsigned{wire::kKnownFeatures}));
  if (name != request.name())
    return no(RefuseCode::kBadRequest,
              text("job name '%s' holds a byte that is not printable ASCII (shown as ?): choose "
                   "another name",
                   name.c_str()));
  if (world_size == 0 || world_size > std::min(options.max_workers, kMaxWorkers))
    return no(
        RefuseCode::kLimit,
        text("job '%s' has world size %u, this appliance serves 1 to %zu workers a job: "
             "raise limits.workers_per_job (%zu at most)",
             name.c_str(), world_size, std::min(options.max_workers, kMaxWorkers), kMaxWorkers));
  if (rank >= world_size && !request.asks_any_rank())
    return no(RefuseCode::kBadRequest,
              text("rank %u is outside job '%s' with world size %u (ranks 0 to %u)", rank,
                   name.c_str(), world_size, world_size - 1));
  const std::size_t max_chunk_bytes = std::min(options.max_chunk_bytes, kMaxChunkBytes);
  if (chunk_bytes < kMinChunkBytes || chunk_bytes > max_chunk_bytes)
    return no(RefuseCode::kLimit,
              text("job '%s' asks for chunks of %u bytes, this appliance takes %zu to %zu: change "
                   "the chunk size, or raise limits.chunk_bytes_max (and the ports' mtu) for them",
                   name.c_str(), chunk_bytes, kMinChunkBytes, max_chunk_bytes));
  if (chunk_bytes % kChunkAlignBytes != 0)
    return no(RefuseCode::kBadRequest,
              text("job '%s' asks for chunks of %u bytes, not a multiple of %zu", name.c_str(),
                   chunk_bytes, kChunkAlignBytes));
  const std::size_t needed_bytes = wire::datagram_bytes(chunk_bytes, world_size);
  if (join.datagram_bytes < needed_bytes || join.datagram_bytes > kMaxDatagramBytes)
    return no(RefuseCode::kBadRequest,
              text("job '%s' tested datagrams of %u bytes; chunks of %u bytes for %u workers need "
                   "%zu, and %zu is the most",
                   name.c_str(), unsigned{join.datagram_bytes}, chunk_bytes, world_size,
                   needed_bytes, kMaxDatagramBytes));
  if (request.max_datagram_bytes != 0 && join.datagram_bytes > request.max_datagram_bytes)
    return no(RefuseCode::kMtu,
              text("job '%s' needs datagrams of %u bytes, the appliance's port carries %zu: lower "
                   "the chunk size or raise the port's mtu",
                   name.c_str(), unsigned{join.datagram_bytes}, request.max_datagram_bytes));
  if (join.kind == JobKind::kOperations) return check_operations_request(request, options);
  if (join.layouts[kTensorStream].chunk_count == 0 ||
      join.layouts[kTensorStream].chunk_count > kMaxChunks)
    return no(RefuseCode::kLimit,
              text("job '%s' has %u gradient chunks, a job has 1 to %u: choose bigger chunks",
                   name.c_str(), join.layouts[kTensorStream].chunk_count, kMaxChunks));
  const std::size_t max_elems = chunk_bytes / (join.wire == Dtype::kInt8 ? 1 : 2);
  if (join.layouts[kTensorStream].max_elems == 0 ||
      join.layouts[kTensorStream].max_elems > max_elems)
    return no(RefuseCode::kBadRequest,
              text("job '%s' has up to %u elements in a chunk of %u bytes, possible are 1 to %zu",
                   name.c_str(), join.layouts[kTensorStream].max_elems, chunk_bytes, max_elems));
  if (join.layouts[kCollectives].chunk_count != 0 &&
      join.layouts[kCollectives].chunk_count != kCollectiveChunks)
    return no(RefuseCode::kBadRequest,
              text("job '%s' asks for %u collective chunks, this appliance gives %u", name.c_str(),
                   join.layouts[kCollectives].chunk_count, kCollectiveChunks));
  if (join.layouts[kState].chunk_count != 0)
    return no(RefuseCode::kBadRequest,
              text("job '%s' asks for a state stream of %u chunks, which only the appliance sizes: "
                   "a join says 0",
                   name.c_str(), join.layouts[kState].chunk_count));
  if (join.kind == JobKind::kStore) return check_store_request(request, options);
  return check_policy(request, options);
}

Refusal check_agreement(const JoinRequest& request, const JobsOptions& options,
                        const JobEntry& entry) {
  using wire::RefuseCode;
  const wire::Join& join = request.join;
  const char* name = entry.name.c_str();
  const unsigned rank = request.rank.value;
  const unsigned first = entry.layout_rank.value;

  CHECK((entry.run_id == join.run_id || entry.is_kept()) && entry.name == request.name());
  if (!entry.no_memory.empty()) return no(RefuseCode::kLimit, entry.no_memory);
  if (entry.ended())
    return no(RefuseCode::kEnded, text("run %016" PRIx64 " of job '%s' has ended: %s", entry.run_id,
                                       name, entry.notice_text.c_str()));
  if (entry.world_size() != join.world_size)
    return no(RefuseCode::kWorldSize,
              text("rank %u at %s says world size %u, job '%s' has world size %u (set by rank %u "
                   "at %s)",
                   rank, std::string(request.address).c_str(), unsigned{join.world_size}, name,
                   unsigned{entry.world_size()}, first, entry.members[first].address.c_str()));
  if (Refusal refusal = check_store_agreement(request, entry); !refusal.ok()) return refusal;
  if (Refusal refusal = check_operations_agreement(request, entry); !refusal.ok()) return refusal;
  if (entry.spec.chunk_bytes != join.chunk_bytes)
    return no(
        RefuseCode::kLayout,
        text("rank %u cuts chunks of %u bytes, job '%s' has chunks of %u bytes (set by rank "
             "%u)",
             rank, unsigned{join.chunk_bytes}, name, unsigned{entry.spec.chunk_bytes}, first));
  if (entry.wire != join.wire)
    return no(
        RefuseCode::kLayout,
        text("float32 of rank %u travels as %s, that of job '%s' as %s (set by rank %u): give "
             "all ranks the same wire format",
             rank, name_of(join.wire), name, name_of(entry.wire), first));
  if (Refusal refusal = check_layout_agreement(request, entry); !refusal.ok()) return refusal;
  if (entry.spec.allow_nil != (join.allow_nil != 0))
    return no(RefuseCode::kBadRequest,
              text("rank %u says allow_nil %u, job '%s' has %u (set by rank %u)", rank,
                   unsigned{join.allow_nil}, name, unsigned{entry.spec.allow_nil}, first));
  if (const bool asked = effective_reproducible(request, options); entry.spec.reproducible != asked)
    return no(RefuseCode::kLayout,
              text("rank %u says reproducible %u, job '%s' has %u (set by rank %u): give all ranks "
                   "the same",
                   rank, unsigned{asked}, name, unsigned{entry.spec.reproducible}, first));
  if (entry.averaging != join.averaging)
    return no(RefuseCode::kLayout,
              text("rank %u at %s averages by '%s', job '%s' by '%s' (set by rank %u at %s): give "
                   "all ranks the same averaging",
                   rank, std::string(request.address).c_str(), name_of(join.averaging), name,
                   name_of(entry.averaging), first, entry.members[first].address.c_str()));
  return check_policy_agreement(request, options, entry);
}

Refusal check_size(const JoinRequest& request, std::size_t arrived_bytes) {
  const unsigned needed_bytes = request.join.datagram_bytes;
  CHECK(request.join.has_proof == 0);
  if (request.max_datagram_bytes != 0 && needed_bytes > request.max_datagram_bytes)
    return no(wire::RefuseCode::kMtu,
              text("this job needs datagrams of %u bytes, the appliance's port carries %zu: "
                   "lower the chunk size or raise the port's mtu",
                   needed_bytes, request.max_datagram_bytes));
  if (arrived_bytes < needed_bytes)
    return no(wire::RefuseCode::kMtu,
              text("datagrams of %zu bytes arrive, those of %u that this job needs do not: "
                   "lower the chunk size or raise the MTU on the path",
                   arrived_bytes, needed_bytes));
  return {};
}

JobDecision decide_job(const JoinRequest& request, const JobsOptions& latest, const JobEntry* entry,
                       const Usage& usage, const PausableClock& clock) {
  using Kind = JobDecision::Kind;
  CHECK(entry == nullptr || entry->listed);
  const bool began = entry != nullptr && entry->run_id == request.join.run_id;
  const JobsOptions& options = began ? *entry->options : latest;
  if (Refusal refusal = check_request(request, options); !refusal.ok())
    return refuse_job(std::move(refusal));
  const bool same_run = entry != nullptr && entry->run_id == request.join.run_id;
  if (same_run && entry->epoch < request.join.epoch)
    return {.kind = Kind::kReplace, .refusal = {}, .spec = {}};
  if (same_run && entry->epoch > request.join.epoch)  // a challenge has told it so
    return {.kind = Kind::kLater, .refusal = {}, .spec = {}};
  if (Refusal refusal = check_resumption(request, options, entry); !refusal.ok())
    return refuse_job(std::move(refusal));
  // A store begins with those that have its values.
  if (same_run && entry->forming() && entry->is_store() && request.join.resume_step != 0 &&
      !entry->spec.store->resumes)
    return {.kind = Kind::kReplace, .refusal = {}, .spec = {}};
  if (entry != nullptr) {
    if (!began && entry->is_kept()) return decide_kept(request, options, *entry);
    if (!began) return decide_rival(request, *entry, clock);
    if (Refusal refusal = check_agreement(request, options, *entry); !refusal.ok())
      return refuse_job(std::move(refusal));
    return {.kind = Kind::kJoin, .refusal = {}, .spec = {}};
  }
  if (request.join.kind == JobKind::kStore && request.join.keep == StoreKeep::kTake &&
      request.join.resume_step == 0)
    return refuse_job(no(wire::RefuseCode::kBadRequest,
                         text("no store is kept under job '%s' for rank %u at %s to take: look at "
                              "its name, and at limits.store_keep_s",
                              printable(request.name()).c_str(), unsigned{request.rank.value},
                              std::string(request.address).c_str())));
  JobDecision decision{.kind = Kind::kLater, .refusal = {}, .spec = {}};
  const wire::Join& join = request.join;
  JobSpec& spec = decision.spec;
  spec = {.name = std::string(request.name()),
          .world_size = join.world_size,
          .chunk_bytes = join.chunk_bytes,
          .shard_count = options.shard_count,
          .allow_nil = join.allow_nil != 0,
          .reproducible = effective_reproducible(request, options),
          .policy = effective_policy(request, options)};
  if (join.kind == JobKind::kStore) spec.store = store_spec(request, options);
  if (join.kind == JobKind::kOperations) spec.operations = operations_spec(request, options);
  const bool sums = join.kind == JobKind::kSums;
  spec.chunk_counts = {sums ? join.layouts[kTensorStream].chunk_count : 0, kCollectiveChunks, 0};
  spec.max_elems = {join.layouts[kTensorStream].max_elems, 0, 0};
  size_windows(spec, options.max_job_memory_bytes);
  CHECK(request.rank.value < spec.world_size || request.asks_any_rank());
  CHECK(sums == (spec.chunk_counts[index_of(StreamId::kGradients)] != 0));
  if (Refusal refusal = check_shares(request, spec, options, usage); !refusal.ok())
    return refuse_job(std::move(refusal));
  if (Refusal refusal = check_room(spec, options, usage); !refusal.ok()) {
    CHECK(usage.yielding_jobs <= usage.jobs && usage.yielding_bytes <= usage.bytes);
    Usage without = usage;
    without.jobs -= usage.yielding_jobs;
    without.bytes -= usage.yielding_bytes;
    if (usage.yielding_jobs == 0 || !check_room(spec, options, without).ok())
      return refuse_job(std::move(refusal));
    decision.kind = Kind::kMakeRoom;
    return decision;
  }
  const bool fits_now = Job::memory_bytes(spec) + usage.bytes <= options.max_total_memory_bytes &&
                        usage.jobs < options.max_jobs;
  if (fits_now) decision.kind = Kind::kFound;
  return decision;
}

}  // namespace sluice::agg
