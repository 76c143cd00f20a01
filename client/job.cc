#include "client/job.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"
#include "client/address.h"
#include "client/core/join.h"
#include "client/transport/open.h"

namespace sluice::client {
namespace {

constexpr DurationNs kLeaveLimit = 950 * kMillisecond;
constexpr std::int32_t kJoinGraceMs = 1000;  // for the session's own, better error to arrive

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

ClientJob::ClientJob(const JoinRequest& request)
    : pid_(::getpid()),
      world_size_(request.session.world_size),
      rank_(request.session.rank),
      interrupted_(request.interrupted),
      uneven_limit_ns_(request.session.silence_timeout_ns + kLeaveLimit),
      log_(request.log),
      board_(request.tensors, request.session.allow_nil, place_of(request.session)) {}

ClientJob::~ClientJob() {
  if (progress_ == nullptr) return;
  leave(board_.idle() ? wire::LeaveReason::kFinished : wire::LeaveReason::kAbnormal);
  progress_.reset();
}

Outcome ClientJob::join(JoinRequest request, std::unique_ptr<ClientJob>& job) {
  request.session.appliance_address = request.address;
  std::unique_ptr<ClientJob> made(new ClientJob(request));
  Outcome outcome = made->start(request);
  if (outcome.ok()) outcome = made->wait_for_others(request);
  if (outcome.ok()) {
    made->log_.write(SLUICE_LOG_INFO, "job \"" + request.session.job_name + "\" at " +
                                          request.address + ": rank " +
                                          std::to_string(made->rank_.value) + " of " +
                                          std::to_string(made->world_size_) + " has joined");
    job = std::move(made);
  }
  return outcome;
}

Outcome ClientJob::start(JoinRequest& request) {
  const Result<Address> address = parse_address(request.address);
  if (!address.ok()) return address.status();
  chunk_bytes_ = request.chunk_bytes != 0 ? request.chunk_bytes
                                          : chunk_bytes_for(request.mtu_bytes, world_size_);
  if (Status status = check_chunk_bytes(request, chunk_bytes_); !status.ok())
    return at_place(request, status);
  Result<Layout> layout = Layout::create(request.tensors, chunk_bytes_);
  if (!layout.ok()) return at_place(request, layout.status());
  if (Status status = open_trace(request); !status.ok()) return at_place(request, status);
  Result<std::unique_ptr<Transport>> transport =
      open_transport({.address = address.value(),
                      .local_address = request.local_address,
                      .secret = request.session.secret,
                      .mtu_bytes = request.mtu_bytes,
                      .rank = request.session.rank},
                     log_);
  if (!transport.ok()) return at_place(request, transport.status());
  const TransportFacts facts = transport.value()->facts();
  board_.mutable_counters().receive_credit_packets.set(facts.receive_credit_packets);
  log_.write(SLUICE_LOG_DEBUG, request.address + ": open, local address " + facts.local_address +
                                   ", receive credit " +
                                   std::to_string(facts.receive_credit_packets) + " packets");
  SessionOptions options = request.session;
  options.nonce = draw_nonce();
  options.trace = trace_ != nullptr;
  options.receive_credit_packets = facts.receive_credit_packets;
  options.path_datagram_bytes = facts.path_datagram_bytes;
  options.max_state_bytes = machine_memory_bytes();
  auto session =
      std::make_unique<Session>(std::move(options), std::move(layout).value(), monotonic_now());
  progress_ = std::make_unique<Progress>(
      board_, std::move(transport).value(), std::move(session), std::move(request.callbacks), log_,
      "job '" + request.session.job_name + "' rank " + std::to_string(rank_.value), trace_.get());
  progress_->start();
  return {};
}

Status ClientJob::open_trace(const JoinRequest& request) {
  if (request.trace_dir.empty()) return {};
  Result<std::unique_ptr<TraceFile>> file =
      TraceFile::open({.folder = request.trace_dir,
                       .identity = {.job_name = request.session.job_name,
                                    .ordinal = request.session.ordinal,
                                    .run_id = request.session.run_id,
                                    .rank = rank_,
                                    .world_size = world_size_,
                                    .machine = boot_id()},
                       .tensors = request.tensors,
                       .on_start = [this] { board_.set_trace_thread(); }},
                      log_, monotonic_now());
  if (!file.ok()) return file.status();
  trace_ = std::move(file).value();
  board_.set_trace(trace_.get());
  return {};
}

Outcome ClientJob::wait_for_others(const JoinRequest& request) {
  const DurationNs limit = request.session.connect_timeout_ns + request.session.join_timeout_ns;
  const auto limit_ms = static_cast<std::int32_t>(
      std::min<DurationNs>(limit / kMillisecond + kJoinGraceMs, INT32_MAX));
  Outcome outcome = board_.wait_started(wait_options(limit_ms));
  if (outcome.code == SLUICE_INTERRUPTED) leave(wire::LeaveReason::kFinished);
  return outcome;
}

bool ClientJob::is_forked() const noexcept { return ::getpid() != pid_; }

void ClientJob::leave(wire::LeaveReason reason) {
  board_.request_leave(reason);
  board_.wait_ended(reason == wire::LeaveReason::kUneven ? uneven_limit_ns_ : kLeaveLimit);
}

}  // namespace sluice::client
