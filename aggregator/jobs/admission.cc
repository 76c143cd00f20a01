// The job that a join asks for: whether the request makes sense, agrees with the ranks that came
// before, and fits the appliance's limits.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <exception>

#include "aggregator/jobs/entry.h"
#include "aggregator/jobs/text.h"

namespace sluice::agg {
namespace {

constexpr auto kGradients = static_cast<std::size_t>(StreamId::kGradients);
constexpr auto kCollectives = static_cast<std::size_t>(StreamId::kCollectives);
constexpr auto kState = static_cast<std::size_t>(StreamId::kState);

const char* name_of(AveragingChoice averaging) noexcept {
  switch (averaging) {
    case AveragingChoice::kDefault: return "default";
    case AveragingChoice::kWeight: return "weight";
    case AveragingChoice::kWorld: return "world";
    case AveragingChoice::kSum: return "sum";
  }
  return "?";
}

}  // namespace

// What can be said without looking at other jobs. Limits of the appliance's configuration are named
// by their keys.
bool Jobs::check_request(const Request& request, Refusal& refusal) const {
  using wire::RefuseCode;
  const wire::Join& join = request.join();
  const unsigned rank = request.rank().value;
  const std::string name = printable(request.name());
  const unsigned world_size = join.world_size;
  const unsigned chunk_bytes = join.chunk_bytes;
  const auto no = [&](RefuseCode code, std::string why) {
    refusal = {.code = code, .text = std::move(why)};
    return false;
  };

  if (join.features != 0)
    return no(RefuseCode::kBadVersion,
              text("rank %u of job '%s' asks for features 0x%x, this appliance (protocol version "
                   "%u) knows 0x0: use client and appliance of one release",
                   rank, name.c_str(), join.features, unsigned{wire::kVersion}));
  if (name != request.name())
    return no(RefuseCode::kBadRequest,
              text("job name '%s' holds a byte that is not printable ASCII (shown as ?): choose "
                   "another name",
                   name.c_str()));
  if (world_size == 0 || world_size > std::min(options_.max_workers, kMaxWorkers))
    return no(
        RefuseCode::kLimit,
        text("job '%s' has world size %u, this appliance serves 1 to %zu workers a job: "
             "raise limits.workers_per_job (%zu at most)",
             name.c_str(), world_size, std::min(options_.max_workers, kMaxWorkers), kMaxWorkers));
  const std::size_t max_chunk_bytes = std::min(options_.max_chunk_bytes, kMaxChunkBytes);
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
  if (request.origin.max_datagram_bytes != 0 &&
      join.datagram_bytes > request.origin.max_datagram_bytes)
    return no(RefuseCode::kMtu,
              text("job '%s' needs datagrams of %u bytes, the appliance's port carries %zu: lower "
                   "the chunk size or raise the port's mtu",
                   name.c_str(), unsigned{join.datagram_bytes}, request.origin.max_datagram_bytes));
  if (join.layouts[kGradients].chunk_count == 0 ||
      join.layouts[kGradients].chunk_count > kMaxChunks)
    return no(RefuseCode::kLimit,
              text("job '%s' has %u gradient chunks, a job has 1 to %u: choose bigger chunks",
                   name.c_str(), join.layouts[kGradients].chunk_count, kMaxChunks));
  if (join.layouts[kGradients].max_elems == 0 ||
      join.layouts[kGradients].max_elems > chunk_bytes / dtype_bytes(Dtype::kFloat16))
    return no(RefuseCode::kBadRequest,
              text("job '%s' has up to %u elements in a chunk of %u bytes, possible are 1 to %zu",
                   name.c_str(), join.layouts[kGradients].max_elems, chunk_bytes,
                   chunk_bytes / dtype_bytes(Dtype::kFloat16)));
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
  if (rank >= world_size)
    return no(RefuseCode::kBadRequest,
              text("rank %u is outside job '%s' with world size %u (ranks 0 to %u)", rank,
                   name.c_str(), world_size, world_size - 1));
  return check_policy(request, refusal);
}

// False with a code: refused. False without: `entry` was of another run and is out of the way.
bool Jobs::check_agreement(const Entry& entry, const Request& request, Refusal& refusal) const {
  using wire::RefuseCode;
  const wire::Join& join = request.join();
  const char* name = entry.name.c_str();
  const unsigned rank = request.rank().value;
  const unsigned first = entry.layout_rank.value;
  const auto no = [&](RefuseCode code, std::string why) {
    refusal = {.code = code, .text = std::move(why)};
    return false;
  };

  if (entry.run_id != join.run_id) {
    if (entry.state == wire::JobState::kForming && entry.unclaimed() &&
        request.now - entry.asked_ns <= kTakeoverSilence)
      return no(RefuseCode::kOtherRun,
                text("job '%s' is being prepared for run %016" PRIx64
                     " (rank %u at %s), rank %u at %s belongs to run %016" PRIx64
                     ": stop the other run or choose another job name",
                     name, entry.run_id, first, entry.members[first].address.c_str(), rank,
                     std::string(request.origin.address).c_str(), join.run_id));
    for (std::uint16_t other = 0; other < entry.world_size(); ++other) {
      const Member& member = entry.members[other];
      const DurationNs silent_ns = request.now - last_heard(entry, Rank{other});
      if (entry.state == wire::JobState::kEnded || !member.live() || silent_ns > kTakeoverSilence)
        continue;
      return no(
          RefuseCode::kOtherRun,
          text("job '%s' is in use by run %016" PRIx64 " (rank %u at %s, heard %.1f s ago), "
               "rank %u at %s belongs to run %016" PRIx64
               ": stop the other run or choose another job name",
               name, entry.run_id, unsigned{other}, member.address.c_str(), seconds(silent_ns),
               rank, std::string(request.origin.address).c_str(), join.run_id));
    }
    return false;
  }
  if (!entry.no_memory.empty()) return no(RefuseCode::kLimit, entry.no_memory);
  if (entry.state == wire::JobState::kEnded)
    return no(RefuseCode::kEnded, text("run %016" PRIx64 " of job '%s' has ended: %s", entry.run_id,
                                       name, entry.notice_text.c_str()));
  if (entry.world_size() != join.world_size)
    return no(
        RefuseCode::kWorldSize,
        text("rank %u at %s says world size %u, job '%s' has world size %u (set by rank %u "
             "at %s)",
             rank, std::string(request.origin.address).c_str(), unsigned{join.world_size}, name,
             unsigned{entry.world_size()}, first, entry.members[first].address.c_str()));
  if (entry.spec.chunk_bytes != join.chunk_bytes)
    return no(
        RefuseCode::kLayout,
        text("rank %u cuts chunks of %u bytes, job '%s' has chunks of %u bytes (set by rank "
             "%u)",
             rank, unsigned{join.chunk_bytes}, name, unsigned{entry.spec.chunk_bytes}, first));
  const wire::StreamLayout given = join.layouts[kGradients];
  if (entry.gradients.hash != given.hash || entry.gradients.chunk_count != given.chunk_count ||
      entry.gradients.max_elems != given.max_elems)
    return no(RefuseCode::kLayout,
              text("gradient layout of rank %u (hash %016" PRIx64 ", %u chunks of up to %u "
                   "elements) differs from job '%s' (hash %016" PRIx64 ", %u chunks of up to %u, "
                   "set by rank %u): all ranks need the same tensors in the same order",
                   rank, std::uint64_t{given.hash}, std::uint32_t{given.chunk_count},
                   std::uint32_t{given.max_elems}, name, std::uint64_t{entry.gradients.hash},
                   std::uint32_t{entry.gradients.chunk_count},
                   std::uint32_t{entry.gradients.max_elems}, first));
  if (entry.spec.allow_nil != (join.allow_nil != 0))
    return no(RefuseCode::kBadRequest,
              text("rank %u says allow_nil %u, job '%s' has %u (set by rank %u)", rank,
                   unsigned{join.allow_nil}, name, unsigned{entry.spec.allow_nil}, first));
  if (entry.averaging != join.averaging)
    return no(RefuseCode::kLayout,
              text("rank %u at %s averages by '%s', job '%s' by '%s' (set by rank %u at %s): give "
                   "all ranks the same averaging",
                   rank, std::string(request.origin.address).c_str(), name_of(join.averaging), name,
                   name_of(entry.averaging), first, entry.members[first].address.c_str()));
  return check_policy_agreement(entry, request, refusal);
}

// Whether another job of `needed_bytes` fits. False without a code: it will, as soon as the shards
// have released what is being removed.
bool Jobs::make_room(std::size_t needed_bytes, const Request& request, Refusal& refusal) {
  const std::string name = printable(request.name());
  std::size_t job_count = 0, used_bytes = 0, returning_bytes = 0, returning_jobs = 0;
  for (const auto& entry : entries_) {
    if (entry == nullptr || entry->memory == Entry::Memory::kNone) continue;
    ++job_count;
    used_bytes += entry->memory_bytes;
    returning_jobs += entry->memory_returns();
    returning_bytes += entry->memory_returns() ? entry->memory_bytes : 0;
  }
  refusal.code = wire::RefuseCode::kLimit;
  if (needed_bytes > options_.max_job_memory_bytes) {
    refusal.text =
        text("job '%s' needs %zu MiB, a job may have %zu MiB: raise limits.job_memory_mib to %zu",
             name.c_str(), mebibytes(needed_bytes), options_.max_job_memory_bytes >> 20,
             mebibytes(needed_bytes));
    return false;
  }
  const std::size_t kept_bytes = used_bytes - returning_bytes;
  if (needed_bytes >
      options_.max_total_memory_bytes - std::min(options_.max_total_memory_bytes, kept_bytes)) {
    refusal.text = text(
        "job '%s' needs %zu MiB, %zu of %zu MiB are in use by %zu jobs: raise "
        "limits.total_memory_mib to %zu or wait for a job to end",
        name.c_str(), mebibytes(needed_bytes), mebibytes(kept_bytes),
        options_.max_total_memory_bytes >> 20, job_count - returning_jobs,
        mebibytes(kept_bytes + needed_bytes));
    return false;
  }
  if (job_count - returning_jobs >= options_.max_jobs) {
    refusal.text = text(
        "job '%s' would be job %zu, this appliance serves %zu: raise limits.jobs or wait for a "
        "job to end",
        name.c_str(), job_count - returning_jobs + 1, options_.max_jobs);
    return false;
  }
  refusal.code = {};
  return needed_bytes + used_bytes <= options_.max_total_memory_bytes &&
         job_count < options_.max_jobs;
}

Jobs::Entry* Jobs::create(const Request& request, Refusal& refusal) {
  const wire::Join& join = request.join();
  JobSpec spec{.name = std::string(request.name()),
               .world_size = join.world_size,
               .chunk_bytes = join.chunk_bytes,
               .shard_count = options_.shard_count,
               .allow_nil = join.allow_nil != 0,
               .policy = effective_policy(request)};
  spec.chunk_counts = {join.layouts[kGradients].chunk_count, kCollectiveChunks, 0};
  spec.max_elems = {join.layouts[kGradients].max_elems, 0, 0};
  size_windows(spec);
  const std::size_t needed_bytes = Job::memory_bytes(spec);
  if (!make_room(needed_bytes, request, refusal)) return nullptr;
  if (!pick_id(spec.id)) {
    refusal = {.code = wire::RefuseCode::kLimit,
               .text = text("all %zu job ids of this appliance are in use: wait for a job to end",
                            kMaxJobs)};
    return nullptr;
  }

  auto entry = std::make_unique<Entry>();
  entry->id = spec.id;
  entry->serial = next_serial_++;
  entry->name = spec.name;
  entry->ordinal = join.ordinal;
  entry->run_id = join.run_id;
  entry->gradients = join.layouts[kGradients];
  entry->averaging = join.averaging;
  entry->layout_rank = request.rank();
  entry->datagram_bytes = join.datagram_bytes;
  entry->members.resize(spec.world_size);
  entry->members[request.rank().value].address = request.origin.address;
  entry->memory_bytes = needed_bytes;
  entry->spec = std::move(spec);
  order_job(*entry);
  std::unique_ptr<Entry>& place = entries_[entry->id.value];
  place = std::move(entry);
  return place.get();
}

// All that ask within the next seconds are told; then a join may try again.
void Jobs::note_no_memory(Entry& entry, TimeNs now) {
  entry.no_memory = text(
      "job '%s' needs %zu MiB and the appliance's system has less left: lower "
      "limits.total_memory_mib (%zu) or stop other programs there",
      entry.name.c_str(), mebibytes(entry.memory_bytes), options_.max_total_memory_bytes >> 20);
  entry.state = wire::JobState::kEnded;
  entry.ended_ns = now;
}

Jobs::Entry* Jobs::find(std::string_view name, std::uint16_t ordinal) const noexcept {
  for (const auto& entry : entries_)
    if (entry != nullptr && entry->listed && entry->ordinal == ordinal && entry->name == name)
      return entry.get();
  return nullptr;
}

// Whether this is a late copy of a join whose job is over: it must not found a new one.
bool Jobs::is_echo(const Request& request) const noexcept {
  const wire::Join& join = request.join();
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry != nullptr && !entry->listed && entry->run_id == join.run_id &&
           entry->ordinal == join.ordinal && entry->name == request.name() &&
           request.rank().value < entry->world_size() &&
           entry->members[request.rank().value].nonce == join.nonce &&
           entry->members[request.rank().value].has_left();
  });
}

// Ids go round, so that a late packet of an old job meets no new one. When none is free, the job
// that has been over for longest stops answering questions.
bool Jobs::pick_id(JobId& id) noexcept {
  std::uint16_t oldest = kMaxJobs;
  for (std::size_t tries = 0; tries < kMaxJobs; ++tries) {
    const std::uint16_t candidate = next_id_;
    next_id_ = static_cast<std::uint16_t>((next_id_ + 1) % kMaxJobs);
    const Entry* entry = entries_[candidate].get();
    if (entry == nullptr) {
      id = JobId{candidate};
      return true;
    }
    if (entry->memory == Entry::Memory::kNone &&
        (oldest == kMaxJobs || entry->ended_ns < entries_[oldest]->ended_ns))
      oldest = candidate;
  }
  if (oldest == kMaxJobs) return false;
  entries_[oldest].reset();
  id = JobId{oldest};
  return true;
}

}  // namespace sluice::agg
