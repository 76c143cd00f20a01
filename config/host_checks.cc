#include "config/host_checks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string>

#include "config/text.h"

namespace sluice::config {
namespace {

std::string place_of(std::size_t index) { return "port[" + std::to_string(index) + "]"; }

std::string list_of(const auto& things, auto name_of) {
  std::string names;
  for (const auto& thing : things) names += (names.empty() ? "" : ", ") + name_of(thing);
  return names;
}

// The kernel must not answer for the appliance's address, and the interface must be there and take
// the port's frames.
void check_interface(const Config& config, std::size_t index, const HostFacts& host,
                     Report& report) {
  const PortConfig& port = config.ports[index];
  if (port.interface.empty() || host.interfaces.empty() || port.type == PortType::kTap) return;
  const std::string place = place_of(index) + ".interface";
  const auto found =
      std::ranges::find(host.interfaces, port.interface, &HostFacts::Interface::name);
  if (found == host.interfaces.end()) {
    report.conflict(
        {place}, "no such interface on this host: " + in_quotes(port.interface) + "; there are " +
                     list_of(host.interfaces, [](const auto& one) { return one.name; }));
    return;
  }
  if (found->mtu != 0 && port.mtu > found->mtu)
    report.conflict({place_of(index) + ".mtu", place},
                    "mtu is more than that of " + port.interface + ": " + std::to_string(port.mtu) +
                        " of " + std::to_string(found->mtu) + "; lower it, or 'ip link set " +
                        port.interface + " mtu " + std::to_string(port.mtu) + "'");
  const ApplianceConfig& appliance = config.appliance;
  const std::string remedy =
      "; then both would answer: take an unused address, or remove it with "
      "'ip address del' on " +
      port.interface;
  if (std::ranges::count(found->ipv4, appliance.address.octets) > 0)
    report.conflict({"appliance.address", place},
                    "the kernel itself has the appliance's address on " + port.interface + ": " +
                        to_text(appliance.address) + remedy);
  if (appliance.address6 && std::ranges::count(found->ipv6, appliance.address6->octets) > 0)
    report.conflict({"appliance.address6", place},
                    "the kernel itself has the appliance's address on " + port.interface + ": " +
                        to_text(*appliance.address6) + remedy);
}

// Kernel drivers beside which DPDK can have a device.
constexpr std::array<std::string_view, 6> kDriversForDpdk{
    "vfio-pci", "igb_uio", "uio_pci_generic", "mlx4_core", "mlx5_core", "mana"};

void check_pci(const Config& config, std::size_t index, const HostFacts& host, Report& report) {
  const PortConfig& port = config.ports[index];
  if (port.type != PortType::kPci || port.pci.empty()) return;
  const std::string place = place_of(index) + ".pci";
  std::string address = port.pci;
  for (char& letter : address)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  bool behind_iommu = false;
  if (host.pci) {
    const auto found = std::ranges::find(*host.pci, address, &HostFacts::PciDevice::address);
    if (found == host.pci->end()) {
      const std::string others = list_of(*host.pci, [](const auto& one) { return one.address; });
      report.conflict({place}, "no such network card on this host: " + in_quotes(port.pci) +
                                   "; there " + (others.empty() ? "are none" : "are " + others));
      return;
    }
    if (std::ranges::count(kDriversForDpdk, found->driver) == 0)
      report.conflict(
          {place},
          (found->driver.empty() ? "no driver has the network card"
                                 : "the kernel's " + found->driver + " has the network card") +
              ": " + in_quotes(port.pci) + "; bind it to vfio-pci: 'dpdk-devbind.py -b vfio-pci " +
              address + "'");
    behind_iommu = found->behind_iommu;
  }
  if (!config.appliance.hugepages && !behind_iommu)
    report.conflict(
        {place_of(index) + ".type", "appliance.hugepages"},
        "pci port without hugepages, and no IOMMU is before it: " + in_quotes(port.pci) +
            "; set hugepages = true in [appliance] and reserve them on the host, or "
            "switch the IOMMU on");
}

void check_hugepages(const Config& config, const HostFacts& host, Report& report) {
  const ApplianceConfig& appliance = config.appliance;
  const auto reserved_mib = host.memory.hugepages_mib;
  if (!appliance.hugepages || !reserved_mib || *reserved_mib >= appliance.memory_mib) return;
  report.conflict(
      {"appliance.hugepages", "appliance.memory_mib"},
      "memory_mib is more than this host has reserved as hugepages: " +
          std::to_string(appliance.memory_mib) + " of " + std::to_string(*reserved_mib) +
          " MiB; 'sysctl vm.nr_hugepages=" + std::to_string((appliance.memory_mib + 1) / 2) +
          "' reserves enough of 2 MiB");
}

// A service manager makes folders below /run when it starts the service.
void check_folder(const std::string& place, const std::string& path, const HostFacts& host,
                  Report& report) {
  if (path.empty() || !host.is_folder) return;
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  if (host.is_folder(folder)) return;
  const std::string text = "no folder for the socket: " + in_quotes(folder) + "; make it";
  if (folder.starts_with("/run/"))
    report.warn({place}, text + ", unless the service does");
  else
    report.conflict({place}, text + ", or change " + place.substr(place.rfind('.') + 1));
}

// An appliance that already runs with this file has the address, so checking the file beside it is
// no error.
void check_metrics(const Config& config, const HostFacts& host, Report& report) {
  const std::string& address = config.metrics.address;
  if (address.empty() || !host.why_not_listening) return;
  const std::string why = host.why_not_listening(address);
  if (!why.empty())
    report.warn({"metrics.address"}, "metrics.address can't be listened at now (" + why +
                                         "): " + in_quotes(address) +
                                         "; end who has it, or choose another");
}

// Whoever sees the path learns the password.
void check_password_on_the_wire(const Config& config, Report& report) {
  const MetricsConfig& metrics = config.metrics;
  if (metrics.password_file.empty() || !metrics.certificate.empty() || metrics.address.empty())
    return;
  if (!metrics.address.starts_with("127.") && !metrics.address.starts_with("[::1]"))
    report.warn({"metrics.password_file"},
                "the metrics' password travels in clear: " + in_quotes(metrics.address) +
                    "; set metrics.certificate");
}

void check_certificate(const Config& config, const HostFacts& host, Report& report) {
  const std::string& path = config.metrics.certificate;
  if (path.empty() || config.metrics.address.empty() || !host.why_no_tls) return;
  if (const std::string why = host.why_no_tls(path); !why.empty())
    report.conflict({"metrics.certificate"},
                    "metrics.certificate can't be used: " + in_quotes(path) + ": " + why);
}

}  // namespace

void check_host(const Config& config, const HostFacts& host, Report& report) {
  for (std::size_t index = 0; index < config.ports.size(); ++index) {
    check_interface(config, index, host, report);
    check_pci(config, index, host, report);
    if (config.ports[index].type == PortType::kVhostUser)
      check_folder(place_of(index) + ".path", config.ports[index].path, host, report);
  }
  check_folder("control.socket", config.control.socket, host, report);
  check_hugepages(config, host, report);
  check_metrics(config, host, report);
  check_certificate(config, host, report);
  check_password_on_the_wire(config, report);
}

}  // namespace sluice::config
