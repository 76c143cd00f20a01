#include "dataplane/core/port_plan.h"

#include <algorithm>
#include <array>
#include <vector>

namespace sluice::dataplane {
namespace {

using Cells = std::array<std::string, 8>;

std::string words_of(ChecksumsBy by, const char* reason) {
  constexpr std::array<const char*, 3> kWords{"software", "device", "nobody"};
  const std::string word = kWords[static_cast<std::size_t>(by)];
  return *reason == '\0' ? word : word + " (" + reason + ")";
}

std::string words_of(const DeviceOffers& offers) {
  std::string words = std::to_string(offers.rx_queues) + " rx and " +
                      std::to_string(offers.tx_queues) + " tx queues";
  if (offers.rx_udp_checksum) words += ", rx UDP checksum";
  if (offers.tx_udp_checksum) words += ", tx UDP checksum";
  if (offers.multi_segment) words += ", multi-segment";
  if (offers.rss) words += ", RSS";
  return words;
}

std::string words_of(WokenBy by) {
  constexpr std::array<const char*, 4> kWords{"the clock (no interrupts)", "its descriptor",
                                              "receive interrupts, if they come",
                                              "nobody (busy polling)"};
  return kWords[static_cast<std::size_t>(by)];
}

std::string words_of_queues(const PortPlan& plan) {
  const std::string word = std::to_string(plan.queues);
  if (plan.queues > 1)
    return word + (plan.steered_by_device ? " (steered by the device)" : " (steered in software)");
  return *plan.queues_reason == '\0' ? word : word + " (" + plan.queues_reason + ")";
}

// One worker serves a shaped port, so that it alone decides which frame is sent first.
void plan_queues(const DeviceOffers& offers, const DeviceKind& kind, PortPlan& plan) noexcept {
  if (kind.workers == 1) return;
  if (kind.shaped)
    plan.queues_reason = "shaped";
  else if (std::min(offers.rx_queues, offers.tx_queues) < kind.workers)
    plan.queues_reason = "not a pair for each worker";
  else
    plan.queues = kind.workers;
}

}  // namespace

PortPlan plan_port(const DeviceOffers& offers, const DeviceKind& kind) noexcept {
  // vhost's driver copies frames anyway, those of a single buffer four at a time into packed rings.
  PortPlan plan{.shares_payloads = offers.multi_segment && !kind.shared_memory};
  plan_queues(offers, kind, plan);
  if (kind.shared_memory) {
    plan.rx = ChecksumsBy::kNobody;
    plan.rx_reason = "shared memory";
    // There the driver would compute the checksum on the worker's own core, once for each member of
    // a job.
    plan.tx_reason = "one sum serves all members";
    return plan;
  }
  if (!offers.rx_udp_checksum)
    plan.rx_reason = "not offered";
  else if (kind.partial_checksums)
    plan.rx_reason = "the device may leave frames incomplete";
  else
    plan.rx = ChecksumsBy::kDevice;
  if (offers.tx_udp_checksum)
    plan.tx = ChecksumsBy::kDevice;
  else
    plan.tx_reason = "not offered";
  return plan;
}

std::string table_of(std::span<const PortRow> rows) {
  std::vector<Cells> lines{{"port", "device", "checks rx checksums", "makes tx checksums",
                            "queues in use", "payloads of results", "workers woken by",
                            "the device offers"}};
  for (const PortRow& row : rows)
    lines.push_back({row.name, row.device, words_of(row.plan.rx, row.plan.rx_reason),
                     words_of(row.plan.tx, row.plan.tx_reason), words_of_queues(row.plan),
                     row.plan.shares_payloads ? "one buffer for all members" : "a copy a member",
                     words_of(row.plan.woken_by), words_of(row.offers)});
  std::array<std::size_t, std::tuple_size_v<Cells>> widths{};
  for (const Cells& line : lines)
    for (std::size_t at = 0; at < line.size(); ++at)
      widths[at] = std::max(widths[at], line[at].size());
  std::string text;
  for (Cells& line : lines) {
    for (std::size_t at = 0; at + 1 < line.size(); ++at) {
      line[at].resize(widths[at] + 2, ' ');
      text += line[at];
    }
    text += line.back() + "\n";
  }
  return text;
}

}  // namespace sluice::dataplane
