#include "dataplane/ops/health.h"

#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace sluice::dataplane {
namespace {

double seconds_of(clockid_t clock) noexcept {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

std::vector<std::string> why_not_ready(const CounterBlocks& blocks, bool draining) {
  std::vector<std::string> reasons;
  if (draining) reasons.emplace_back("the box is drained: it takes no new job");
  for (const PortView& port : blocks.ports) {
    const bool up = port.sum([](const PortCounters& lane) { return lane.link_up.read(); }) != 0;
    if (!up && !port.awaits_peer) reasons.push_back("port \"" + port.name + "\" is down");
  }
  return reasons;
}

std::string join_reasons(const std::vector<std::string>& reasons) {
  std::string line;
  for (const std::string& reason : reasons) line += (line.empty() ? "" : "; ") + reason;
  return line;
}

// Field 22 of proc(5)'s stat: ticks since the boot. The name in field 2 may hold spaces.
double process_start_time_s() {
  std::ifstream file("/proc/self/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t behind_name = text.rfind(')');
  if (behind_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(behind_name + 1));
  constexpr int kFirst = 3, kStart = 22;
  std::string field;
  for (int at = kFirst; at <= kStart; ++at) fields >> field;
  const double ticks_s = static_cast<double>(sysconf(_SC_CLK_TCK));
  return seconds_of(CLOCK_REALTIME) - seconds_of(CLOCK_BOOTTIME) +  // style-ok: a date
         std::strtod(field.c_str(), nullptr) / ticks_s;
}

std::string_view version() noexcept { return SLUICE_VERSION; }

void add_box_families(bool ready, double start_time_s, Families& families) {
  FamilyBuilder build("sluice_build_info", "The release that runs here; the value is always 1.");
  build.row({{"version", std::string(version())}}, 1);
  families.push_back(build.take());
  FamilyBuilder start("process_start_time_seconds",
                      "When the appliance started, in seconds since 1970: a change is a restart.");
  start.row({}, start_time_s);
  families.push_back(start.take());
  FamilyBuilder gauge("sluice_ready",
                      "1 while the box can serve; 0 while a port is down or the box is drained "
                      "(/readyz names it).");
  gauge.row({}, ready ? 1 : 0);
  families.push_back(gauge.take());
}

}  // namespace sluice::dataplane
