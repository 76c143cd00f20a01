#include "client/job.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"
#include "client/address.h"
#include "client/clock.h"
#include "client/core/join.h"
#include "client/transport/open.h"

namespace sluice::client {
namespace {

constexpr DurationNs kLeaveLimit = 950 * kMillisecond;

std::uint64_t draw_nonce() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

Status check_chunk_bytes(const JoinRequest& request, std::size_t chunk_bytes) {
  const std::size_t most = chunk_bytes_for(request.mtu_bytes, request.session.world_size);
  const std::string mtu = "mtu " + std::to_string(request.mtu_bytes);
  if (most == 0) {
    return {StatusCode::kInvalidArgument, mtu + " is too small for any chunk with " +
                                              std::to_string(request.session.world_size) +
                                              " workers; use 1500 or more"};
  }
  if (chunk_bytes % kChunkAlignBytes != 0 || chunk_bytes == 0 || chunk_bytes > most) {
    return {StatusCode::kInvalidArgument, "chunk_bytes " + std::to_string(chunk_bytes) +
                                              " must be a multiple of " +
                                              std::to_string(kChunkAlignBytes) + " and at most " +
                                              std::to_string(most) + " with " + mtu};
  }
  return {};
}

// Names the machine's clock: CLOCK_MONOTONIC counts from its start.
std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

// No state can be larger. UINT64_MAX where the system does not say.
std::uint64_t machine_memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return UINT64_MAX;
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
}

// Says whose error it is, as the session's texts do.
Status at_place(const JoinRequest& request, const Status& status) {
  return {status.code(), place_of(request.session) + status.message()};
}

}  // namespace

std::size_t chunk_bytes_for(std::size_t mtu_bytes, std::size_t world_size) noexcept {
  const std::size_t around =
      wire::kIpv6Bytes + wire::kUdpBytes + wire::result_overhead_bytes(world_size);
  if (mtu_bytes < around + kMinChunkBytes) return 0;
  return std::min((mtu_bytes - around) / kChunkAlignBytes * kChunkAlignBytes, kMaxChunkBytes);
}

// ---- joining ----

namespace {

// What a join needs before there is a session.
struct Opened {
  SessionOptions options;
  Layout layout;
  std::unique_ptr<Transport> transport;
};

Result<Opened> open(const JoinRequest& request) {
  const Result<Address> address = parse_address(request.address);
  if (!address.ok()) return address.status();
  const std::size_t chunk_bytes =
      request.chunk_bytes != 0 ? request.chunk_bytes
                               : chunk_bytes_for(request.mtu_bytes, request.session.world_size);
  if (Status status = check_chunk_bytes(request, chunk_bytes); !status.ok())
    return at_place(request, status);
  Result<Layout> layout = Layout::create(request.tensors, chunk_bytes, request.wire);
  if (!layout.ok()) return at_place(request, layout.status());
  Result<std::unique_ptr<Transport>> transport =
      open_transport({.address = address.value(),
                      .local_address = request.local_address,
                      .secret = request.session.secret,
                      .mtu_bytes = request.mtu_bytes,
                      .rank = request.session.rank},
                     request.log);
  if (!transport.ok()) return at_place(request, transport.status());
  const TransportFacts facts = transport.value()->facts();
  request.log.write(SLUICE_LOG_DEBUG,
                    request.address + ": open, local address " + facts.local_address +
                        ", receive credit " + std::to_string(facts.receive_credit_packets) +
                        " packets, offloads " + (facts.offloads.empty() ? "none" : facts.offloads));
  SessionOptions options = request.session;
  options.nonce = draw_nonce();
  options.trace = !request.trace_dir.empty();
  options.receive_credit_packets = facts.receive_credit_packets;
  options.path_datagram_bytes = facts.path_datagram_bytes;
  options.max_state_bytes = machine_memory_bytes();
  return Opened{std::move(options), std::move(layout).value(), std::move(transport).value()};
}

}  // namespace

Status Job::join(JoinRequest request, std::unique_ptr<Job>& job) {
  request.session.appliance_address = request.address;
  Result<Opened> opened = open(request);
  if (!opened.ok()) return opened.status();
  Opened& parts = opened.value();
  std::unique_ptr<Job> made(new Job(request, parts.options, std::move(parts.layout)));
  if (Status status = made->open_trace(request); !status.ok()) return at_place(request, status);
  made->progress_ = std::make_unique<Progress>(
      made->shared_, std::move(parts.transport), std::move(request.callbacks), request.log,
      "job '" + request.session.job_name + "' rank " + std::to_string(made->rank_.value),
      made->trace_.get());
  made->progress_->start();
  if (Status status = made->wait_joined(); !status.ok()) return status;
  request.log.write(SLUICE_LOG_INFO,
                    "job \"" + request.session.job_name + "\" at " + request.address + ": rank " +
                        std::to_string(made->rank_.value) + " of " +
                        std::to_string(request.session.world_size) + " has joined");
  job = std::move(made);
  return {};
}

Job::Job(const JoinRequest& request, const SessionOptions& options, Layout layout)
    : pid_(::getpid()),
      rank_(options.rank),
      place_(place_of(options)),
      interrupted_(request.interrupted),
      uneven_limit_ns_(options.silence_timeout_ns + kLeaveLimit),
      shared_(options, std::move(layout), monotonic_now()) {}

Status Job::open_trace(const JoinRequest& request) {
  if (request.trace_dir.empty()) return {};
  Result<std::unique_ptr<TraceFile>> file =
      TraceFile::open({.folder = request.trace_dir,
                       .identity = {.job_name = request.session.job_name,
                                    .ordinal = request.session.ordinal,
                                    .run_id = request.session.run_id,
                                    .rank = rank_,
                                    .world_size = request.session.world_size,
                                    .machine = boot_id()},
                       .tensors = request.tensors,
                       .on_start = [this] { trace_thread_.store(std::this_thread::get_id()); }},
                      request.log, monotonic_now());
  if (!file.ok()) return file.status();
  trace_ = std::move(file).value();
  return {};
}

// ---- leaving ----

Job::~Job() {
  if (progress_ == nullptr) return;
  bool idle = false;
  {
    const Lock lock = shared_.mutex.lock();
    idle = shared_.session.tensors().in_flight_count() == 0 && shared_.collective == nullptr;
  }
  leave(idle ? wire::LeaveReason::kFinished : wire::LeaveReason::kAbnormal);
  progress_.reset();
}

void Job::leave(wire::LeaveReason reason) {
  const bool uneven = reason == wire::LeaveReason::kUneven;
  Lock lock = shared_.mutex.lock();
  shared_.await_burst(lock);  // whoever hears that the job is left has its memory back
  shared_.session.leave(reason, monotonic_now());
  shared_.wake();
  shared_.changed.wait_for(lock, std::chrono::nanoseconds(uneven ? uneven_limit_ns_ : kLeaveLimit),
                           [this] { return shared_.ended(); });
}

bool Job::is_forked() const noexcept { return ::getpid() != pid_; }

bool Job::on_own_thread() const noexcept {
  return progress_->is_this_thread() || trace_thread_.load() == std::this_thread::get_id();
}

}  // namespace sluice::client
