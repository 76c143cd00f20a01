#include "client/opened.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

#include "aggregator/wire/inet.h"
#include "aggregator/wire/packet.h"
#include "client/address.h"
#include "client/bcube/relay.h"
#include "client/clock.h"
#include "client/core/calls/error_prefix.h"
#include "client/cube_address.h"
#include "client/transport/open.h"

namespace sluice::client {
namespace {

std::uint64_t draw_nonce() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

Status check_chunk_bytes(const JoinRequest& request, std::size_t world_size,
                         std::size_t chunk_bytes) {
  const std::size_t most = chunk_bytes_for(request.mtu_bytes, world_size);
  const std::string mtu = "mtu " + std::to_string(request.mtu_bytes);
  if (most == 0) {
    return {StatusCode::kInvalidArgument, mtu + " is too small for any chunk with " +
                                              std::to_string(world_size) +
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

// No state can be larger. UINT64_MAX where the system does not say.
std::uint64_t machine_memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return UINT64_MAX;
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
}

// Adds the place to an error, in the form of the session's texts.
Status at_place(const JoinRequest& request, const Status& status) {
  return {status.code(), error_prefix(request.session) + status.message()};
}

// `world_size`: of the ranks at one appliance.
Result<Layout> make_layout(const JoinRequest& request, std::size_t world_size) {
  const std::size_t chunk_bytes = request.chunk_bytes != 0
                                      ? request.chunk_bytes
                                      : chunk_bytes_for(request.mtu_bytes, world_size);
  if (Status status = check_chunk_bytes(request, world_size, chunk_bytes); !status.ok())
    return at_place(request, status);
  Result<Layout> layout = request.session.operations
                              ? Layout::without_tensors(chunk_bytes)
                              : Layout::create(request.tensors, chunk_bytes, request.wire);
  if (!layout.ok()) return at_place(request, layout.status());
  return layout;
}

// Opens a transport and fills in the options that it decides. `sharers` send through one port;
// `starts_late`: the appliance may start after this.
Result<std::unique_ptr<Transport>> open_line(const JoinRequest& request, const std::string& text,
                                             std::uint32_t sharers, bool starts_late,
                                             SessionOptions& options) {
  const Result<Address> address = parse_address(text);
  if (!address.ok()) return address.status();
  Result<std::unique_ptr<Transport>> transport =
      open_transport({.address = address.value(),
                      .local_address = request.local_address,
                      .secret = request.session.secret,
                      .mtu_bytes = request.mtu_bytes,
                      .rank = request.session.rank,
                      .sharers = sharers,
                      .starts_late = starts_late},
                     request.log);
  if (!transport.ok()) return at_place(request, transport.status());
  const TransportFacts facts = transport.value()->facts();
  request.log.write(SLUICE_LOG_DEBUG,
                    text + ": open, local address " + facts.local_address + ", receive credit " +
                        std::to_string(facts.receive_credit_packets) + " packets, offloads " +
                        (facts.offloads.empty() ? "none" : facts.offloads));
  if (address.value().scheme != Address::Scheme::kUdp) options.restart_timeout_ns = 0;
  if (!address.value().others.empty()) {
    options.addresses = texts_of(address.value());
    options.appliance_address = options.addresses.front();
  }
  options.receive_credit_packets = facts.receive_credit_packets;
  options.more_credit = facts.more_credit;
  options.path_datagram_bytes = facts.path_datagram_bytes;
  return transport;
}

SessionOptions options_of(const JoinRequest& request) {
  SessionOptions options = request.session;
  options.nonce = draw_nonce();
  options.trace = !request.trace_dir.empty();
  options.max_state_bytes = machine_memory_bytes();
  return options;
}

// With a standby its members must agree where the job is: they move all together, and those of a
// store agree about each rank that it goes on without. Those of a job that anybody may join cannot.
Status check_standby(const SessionOptions& options) {
  if (options.addresses.size() < 2) return {};
  std::string why;
  if (asks_any_rank(options)) why = "an elastic job";
  if (!why.empty())
    why += " does not move to another appliance: its members could go on at two places at once";
  else if (options.restart_timeout_ns == 0)
    why = "without a restart_timeout a job does not move to another appliance";
  if (why.empty()) return {};
  return {StatusCode::kInvalidArgument, error_prefix(options) + why + "; give one address"};
}

Result<Opened> open_session(const JoinRequest& request) {
  Result<Layout> layout = make_layout(request, request.session.world_size);
  if (!layout.ok()) return layout.status();
  Opened opened{.options = options_of(request)};
  if (request.session.prune.rule != PruneRule::kOff) {
    opened.pool = std::make_unique<ThreadPool>();
    opened.options.executor = opened.pool.get();
  }
  Result<std::unique_ptr<Transport>> transport =
      open_line(request, request.address, 1, false, opened.options);
  if (!transport.ok()) return transport.status();
  if (Status status = check_standby(opened.options); !status.ok()) return status;
  auto session =
      std::make_unique<Session>(opened.options, std::move(layout).value(), monotonic_now());
  opened.session = session.get();
  opened.lines.push_back({*session, std::move(transport).value()});
  opened.driven = session.get();
  opened.calls = std::move(session);
  return opened;
}

// Mode plain: this worker's appliances, one at each level. Of inproc:// there is nothing to open.
Status serve_neighbours(const JoinRequest& request, const CubePlaces& places,
                        std::vector<std::shared_ptr<Served>>& served) {
  for (std::uint32_t level = 0; level < places.bcube.levels(); ++level) {
    const std::uint32_t own = places.bcube.digit(request.session.rank.value, level);
    const Result<Address> address = parse_address(places.appliances[level][own]);
    if (!address.ok()) return at_place(request, address.status());
    if (address.value().scheme != Address::Scheme::kUdp) continue;
    Result<std::shared_ptr<Served>> opened =
        Served::open({.host = address.value().host,
                      .port = address.value().port,
                      .secret = request.session.secret,
                      .linger_ns = request.session.silence_timeout_ns},
                     request.log);
    if (!opened.ok())
      return at_place(request, {opened.status().code(), "level " + std::to_string(level) + ": " +
                                                            opened.status().message()});
    served.push_back(std::move(opened).value());
  }
  return {};
}

Result<CubePlaces> places_of(const JoinRequest& request) {
  return parse_cube_address(request.address, request.session.rank.value,
                            [](const char* name) -> const char* { return std::getenv(name); });
}

Result<Opened> open_relay(const JoinRequest& request) {
  const Result<CubePlaces> places = places_of(request);
  if (!places.ok()) return places.status();
  const Bcube& bcube = places.value().bcube;
  if (!request.local_address.empty())
    return at_place(request, {StatusCode::kInvalidArgument,
                              "local_address " + request.local_address +
                                  ": over a BCube a worker has one at each level, which the "
                                  "kernel's routes choose; leave it out"});
  Result<Layout> layout = make_layout(request, bcube.switch_ports());
  if (!layout.ok()) return layout.status();
  Opened opened{.options = options_of(request)};
  const bool plain = places.value().mode == BcubeMode::kPlain;
  if (plain)
    if (Status status = serve_neighbours(request, places.value(), opened.served); !status.ok())
      return status;
  std::vector<std::unique_ptr<Transport>> transports;  // of the lanes
  const auto prepare = [&](const LegAddress& place, SessionOptions& options) -> Status {
    const bool spare = place.role >= Role::kStates;
    if (spare && places.value().stand_ins.empty())
      return {StatusCode::kNotFound, "only a file says which appliances there are"};
    const auto& appliances = spare ? places.value().stand_ins : places.value().appliances;
    const std::string& text = appliances[place.level][place.host];
    // A level's lanes: a turn, and each other stage's up and down.
    auto transport = open_line(request, text, 2 * bcube.levels() - 1, place.starts_late, options);
    if (!transport.ok() && spare) {
      request.log.write(SLUICE_LOG_INFO, "no detour for level " + std::to_string(place.level) +
                                             ": " + transport.status().message());
      return {StatusCode::kNotFound, transport.status().message()};
    }
    if (!transport.ok()) return transport.status();
    transports.push_back(std::move(transport).value());
    options.appliance_address = text;
    return {};
  };
  Result<std::unique_ptr<Relay>> made =
      Relay::create(opened.options, bcube, places.value().mode, std::move(layout).value(),
                    monotonic_now(), prepare);
  if (!made.ok()) return made.status();
  std::unique_ptr<Relay> relay = std::move(made).value();
  for (const std::uint32_t lane : relay->send_order())
    opened.lines.push_back(
        {relay->legs()[lane].session, std::move(transports[lane]), relay->turn()});
  opened.session = &relay->legs().front().session;
  opened.driven = relay.get();
  opened.calls = std::move(relay);
  return opened;
}

}  // namespace

std::size_t chunk_bytes_for(std::size_t mtu_bytes, std::size_t world_size) noexcept {
  const std::size_t around =
      wire::kIpv6Bytes + wire::kUdpBytes + wire::result_overhead_bytes(world_size);
  if (mtu_bytes < around + kMinChunkBytes) return 0;
  return std::min((mtu_bytes - around) / kChunkAlignBytes * kChunkAlignBytes, kMaxChunkBytes);
}

Status resolve(JoinRequest& request) {
  request.session.appliance_address = request.address;
  if (!request.address.starts_with(kCubeScheme)) return {};
  const Result<CubePlaces> places = places_of(request);
  if (!places.ok()) return places.status();
  const auto& [bcube, rank, mode, appliances, stand_ins] = places.value();
  request.session.rank = Rank{static_cast<std::uint16_t>(rank)};
  if (Status status = bcube.check_world(request.session.world_size); !status.ok())
    return at_place(request, status);
  if (bcube.levels() == 1 && mode == BcubeMode::kAggregated)
    request.address = request.session.appliance_address = appliances[0][0];
  return {};
}

Result<Opened> open(const JoinRequest& request) {
  return request.address.starts_with(kCubeScheme) ? open_relay(request) : open_session(request);
}

}  // namespace sluice::client
