#include "config/traffic_checks.h"

#include <algorithm>
#include <map>
#include <string>

#include "config/text.h"

namespace sluice::config {
namespace {

std::string number(std::size_t value) { return std::to_string(value); }

template <class Prefix>
Prefix without_host_bits(Prefix prefix) {
  for (std::size_t bit = prefix.prefix_length; bit < prefix.octets.size() * 8; ++bit)
    prefix.octets[bit / 8] &= static_cast<std::uint8_t>(~(0x80u >> bit % 8));
  return prefix;
}

IpPrefix without_host_bits(const IpPrefix& prefix) {
  return std::visit([](const auto& either) -> IpPrefix { return without_host_bits(either); },
                    prefix);
}

bool contains(const IpPrefix& outer, const IpPrefix& inner) {
  return std::visit(
      [&](const auto& wide) {
        using Prefix = std::remove_cvref_t<decltype(wide)>;
        const auto* narrow = std::get_if<Prefix>(&inner);
        if (narrow == nullptr || narrow->prefix_length < wide.prefix_length) return false;
        Prefix cut = *narrow;
        cut.prefix_length = wide.prefix_length;
        return without_host_bits(cut) == wide;
      },
      outer);
}

// Whether every frame that fits `later` fits `earlier` as well.
bool covers(const RuleConfig& earlier, const RuleConfig& later) {
  const auto asks_no_more = [](const auto& one, const auto& other) { return !one || one == other; };
  return asks_no_more(earlier.dscp, later.dscp) && asks_no_more(earlier.pcp, later.pcp) &&
         asks_no_more(earlier.protocol, later.protocol) && asks_no_more(earlier.port, later.port) &&
         (!earlier.prefix || (later.prefix && contains(*earlier.prefix, *later.prefix)));
}

bool has_condition(const RuleConfig& rule) {
  return rule.dscp || rule.pcp || rule.protocol || rule.port || rule.prefix;
}

void check_rule(const Config& config, std::size_t index, Report& report) {
  const RuleConfig& rule = config.rules[index];
  const std::string place = "rule[" + number(index) + "]";
  if (!report.sound(place)) return;  // a condition may be missing because it could not be read
  if (!report.has(place + ".class"))
    report.conflict({place + ".class"}, "rule without a class: number " + number(index + 1) +
                                            "; add class = 0 (most urgent) to 63");
  if (!has_condition(rule)) {
    report.conflict({place}, "rule without a condition: number " + number(index + 1) +
                                 "; add dscp, pcp, protocol, port or prefix");
    return;
  }
  if (rule.port && !rule.protocol)
    report.conflict({place + ".port"},
                    "rule with a port but without a protocol: " + number(*rule.port) +
                        "; add protocol = \"udp\" or \"tcp\"");
  if (rule.prefix && without_host_bits(*rule.prefix) != *rule.prefix)
    report.conflict({place + ".prefix"},
                    "prefix is a host's address and not a network's: " + to_text(*rule.prefix) +
                        "; give " + to_text(without_host_bits(*rule.prefix)));
  for (std::size_t earlier = 0; earlier < index; ++earlier) {
    if (!has_condition(config.rules[earlier]) || !covers(config.rules[earlier], rule)) continue;
    report.conflict({place, "rule[" + number(earlier) + "]"},
                    "rule that no frame reaches: number " + number(index + 1) +
                        ", because number " + number(earlier + 1) +
                        " takes all that fits it; remove it or put it first");
    return;
  }
}

void check_classes(const Config& config, Report& report) {
  std::map<std::uint16_t, std::size_t> first_with;
  double sum = 0;
  for (std::size_t i = 0; i < config.classes.size(); ++i) {
    const ClassConfig& egress_class = config.classes[i];
    const std::string place = "class[" + number(i) + "]";
    if (!report.sound(place)) continue;
    if (!report.has(place + ".index")) {
      report.conflict({place + ".index"}, "class without an index: table " + number(i + 1) +
                                              "; add index = 0 (most urgent) to 63");
      continue;
    }
    const auto [twin, is_new] = first_with.try_emplace(egress_class.index, i);
    if (!is_new)
      report.conflict({place + ".index"},
                      "two class tables have the same index: " + number(egress_class.index) +
                          "; tables " + number(twin->second + 1) + " and " + number(i + 1) +
                          " must become one");
    const double before = sum;
    sum += egress_class.share;
    // Less than what rounding leaves, whatever the order of the tables.
    constexpr double kMost = 1 - 1e-9;
    if (before <= kMost && sum > kMost)
      report.conflict({place + ".share", place},
                      "the guaranteed shares leave nothing to urgency: " + to_text(sum) +
                          " together up to here; keep the sum below 1");
  }
}

// What a port's queue means at its rate: a frame at its end waits that long.
void check_queue(const PortConfig& port, const std::string& place, Report& report) {
  constexpr std::uint64_t kLongestMs = 1000;
  constexpr std::uint64_t kAdvisedMs = 200;
  constexpr std::uint64_t kLeastKib = 64;
  if (port.rate_mbps == 0) {
    if (port.mark_above_kib != 0)
      report.warn({place + ".mark_above_kib"},
                  "marks without shaping: " + number(port.mark_above_kib) +
                      " KiB; without rate_mbps the queue stands in the NIC or the next hop and "
                      "seldom here: set rate_mbps to the link's rate");
    return;
  }
  // A megabit a second is 125 bytes a millisecond.
  const std::uint64_t wait_ms = std::uint64_t{port.queue_kib} * 1024 / 125 / port.rate_mbps;
  if (wait_ms <= kLongestMs) return;
  const std::uint64_t advised_kib = std::max(kAdvisedMs * 125 * port.rate_mbps / 1024, kLeastKib);
  if (advised_kib >= port.queue_kib) return;
  report.warn({place + ".queue_kib", place + ".rate_mbps"},
              "a full queue holds a frame for " + to_text(static_cast<double>(wait_ms) / 1000) +
                  " s: " + number(port.queue_kib) + " KiB at " + number(port.rate_mbps) +
                  " Mb/s; lower queue_kib to about " + number(advised_kib));
}

}  // namespace

void check_traffic(const Config& config, Report& report) {
  if (!config.rules.empty() && !config.forwarding.enabled)
    report.warn({"rule[0]", "forwarding.enabled"},
                "rules are about forwarded frames, and forwarding is off: " +
                    number(config.rules.size()) + (config.rules.size() == 1 ? " rule" : " rules") +
                    "; set forwarding.enabled = true or remove them");
  for (std::size_t i = 0; i < config.ports.size(); ++i) {
    const PortConfig& port = config.ports[i];
    const std::string place = "port[" + number(i) + "]";
    check_queue(port, place, report);
    if (port.mark_above_kib >= port.queue_kib)
      report.conflict({place + ".mark_above_kib", place + ".queue_kib"},
                      "no queue grows beyond mark_above_kib: " + number(port.mark_above_kib) +
                          " KiB of " + number(port.queue_kib) +
                          "; lower mark_above_kib or raise queue_kib");
  }
  check_classes(config, report);
  for (std::size_t i = 0; i < config.rules.size(); ++i) check_rule(config, i, report);
}

}  // namespace sluice::config
