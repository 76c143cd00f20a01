// Defects of a host that --check-config reports before sluiced meets them.
#include "config/host_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/config/config_file.h"

namespace sluice::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr char kPciPort[] =
    "[[port]]\nname = \"up\"\ntype = \"pci\"\npci = \"0000:01:00.0\"\n";  // 3 and 4 below a table
const std::string kHuge = "[appliance]\nhugepages = true\n";

HostFacts host_with(std::vector<HostFacts::PciDevice> cards) {
  HostFacts host{.interfaces = {}, .cpu_count = 4};
  host.pci = std::move(cards);
  return host;
}

TEST(HostChecks, APciPortNeedsACardOfThisHostThatDpdkCanHave) {
  const ConfigFile file(kHuge + kPciPort);
  EXPECT_THAT(file.errors(host_with({{"0000:01:00.0", "vfio-pci"}})), IsEmpty());
  EXPECT_THAT(file.errors(host_with({{"0000:01:00.0", "mlx5_core"}})), IsEmpty());
  EXPECT_THAT(file.errors(host_with({{"0000:01:00.0", "e1000e"}})),
              ElementsAre("a.toml:6: the kernel's e1000e has the network card: \"0000:01:00.0\"; "
                          "bind it to vfio-pci: 'dpdk-devbind.py -b vfio-pci 0000:01:00.0'"));
  EXPECT_THAT(file.errors(host_with({{"0000:01:00.0"}})),
              ElementsAre(StartsWith("a.toml:6: no driver has the network card")));
  EXPECT_THAT(
      file.errors(host_with({{"0000:02:00.0", "vfio-pci"}, {"0000:03:00.0", "igb"}})),
      ElementsAre("a.toml:6: no such network card on this host: \"0000:01:00.0\"; there are "
                  "0000:02:00.0, 0000:03:00.0"));
  EXPECT_THAT(file.errors(host_with({})), ElementsAre(HasSubstr("; there are none")));
}

TEST(HostChecks, APciPortGoesWithoutHugepagesOnlyBehindAnIommu) {
  const ConfigFile file(kPciPort);
  EXPECT_THAT(file.errors(host_with({{"0000:01:00.0", "vfio-pci", true}})), IsEmpty());
  const auto refused = ElementsAre(
      "a.toml:3: pci port without hugepages, and no IOMMU is before it: \"0000:01:00.0\"; set "
      "hugepages = true in [appliance] and reserve them on the host, or switch the IOMMU on");
  EXPECT_THAT(file.errors(host_with({{"0000:01:00.0", "vfio-pci", false}})), refused);
  EXPECT_THAT(file.errors(), refused) << "a host that is not known";
}

TEST(HostChecks, HugepagesMustBeReserved) {
  HostFacts host{.interfaces = {}, .cpu_count = 4};
  const ConfigFile file(kHuge + "memory_mib = 301\n" + kGoodPort);
  host.memory.hugepages_mib = 300;
  EXPECT_THAT(file.errors(host),
              ElementsAre("a.toml:2: memory_mib is more than this host has reserved as hugepages: "
                          "301 of 300 MiB; 'sysctl vm.nr_hugepages=151' reserves enough of 2 MiB"));
  host.memory.hugepages_mib = 301;
  EXPECT_THAT(file.errors(host), IsEmpty());
  host.memory.hugepages_mib = 0;
  EXPECT_THAT(ConfigFile(kGoodPort).errors(host), IsEmpty()) << "none are wanted";
}

TEST(HostChecks, AnInterfaceMustTakeThePortsFrames) {
  HostFacts host{.interfaces = {{"eth0", {}, {}, 1500}}, .cpu_count = 4};
  const ConfigFile file(
      "[[port]]\nname = \"a\"\ntype = \"af_packet\"\ninterface = \"eth0\"\nmtu = 1501\n");
  EXPECT_THAT(file.errors(host),
              ElementsAre("a.toml:5: mtu is more than that of eth0: 1501 of 1500; lower it, or 'ip "
                          "link set eth0 mtu 1501'"));
  host.interfaces[0].mtu = 1501;
  EXPECT_THAT(file.errors(host), IsEmpty());
}

TEST(HostChecks, ASocketNeedsAFolder) {
  HostFacts host{.interfaces = {}, .cpu_count = 4};
  host.is_folder = [](const std::string& path) { return path == "/there" || path == "."; };
  const auto port = [](const std::string& path) {
    return ConfigFile("[[port]]\nname = \"a\"\ntype = \"vhost-user\"\npath = \"" + path + "\"\n");
  };
  EXPECT_THAT(port("a.sock").errors(host), IsEmpty());
  EXPECT_THAT(port("/there/a.sock").errors(host), IsEmpty());
  EXPECT_THAT(port("/not/there/a.sock").errors(host),
              ElementsAre("a.toml:4: no folder for the socket: \"/not/there\"; make it, or change "
                          "path"));
  EXPECT_THAT(
      ConfigFile("[control]\nsocket = \"/no/c.sock\"\nmode = \"0888\"\n" + kGoodPort).errors(host),
      ElementsAre("a.toml:2: no folder for the socket: \"/no\"; make it, or change socket",
                  HasSubstr("mode has a wrong value: \"0888\"; give ")));
  EXPECT_THAT(port("/run/sluice/a.sock").errors(host), IsEmpty());
  EXPECT_THAT(port("/run/sluice/a.sock").warnings(host),
              ElementsAre(HasSubstr("make it, unless the service does")));
}

TEST(HostChecks, AMetricsAddressInUseIsWarnedAbout) {
  HostFacts host{.interfaces = {}, .cpu_count = 4};
  host.why_not_listening = [](const std::string& address) {
    return address == "127.0.0.1:9464" ? "Address already in use" : "";
  };
  EXPECT_THAT(ConfigFile(kGoodPort).warnings(host),
              ElementsAre("a.toml:1: metrics.address can't be listened at now (Address already in "
                          "use): \"127.0.0.1:9464\"; end who has it, or choose another"));
  EXPECT_THAT(ConfigFile("[metrics]\naddress = \"127.0.0.1:9465\"\n" + kGoodPort).warnings(host),
              IsEmpty());
  EXPECT_THAT(ConfigFile("[metrics]\naddress = \"\"\n" + kGoodPort).warnings(host), IsEmpty());
}

TEST(HostChecks, ACertificateThatCannotBeUsedIsAnErrorWithItsReason) {
  HostFacts host{.interfaces = {}, .cpu_count = 4};
  host.why_no_tls = [](const std::string& path) { return path == "good" ? "" : "no key; add it"; };
  const auto errors_with = [&](const std::string& metrics) {
    return ConfigFile("[metrics]\n" + metrics + kGoodPort).errors(host);
  };
  EXPECT_THAT(errors_with("certificate = \"good\"\n"), IsEmpty());
  EXPECT_THAT(errors_with("certificate = \"bad\"\n"),
              ElementsAre("a.toml:2: metrics.certificate can't be used: \"bad\": no key; add it"));
  EXPECT_THAT(errors_with("certificate = \"bad\"\naddress = \"\"\n"), IsEmpty());
}

TEST(HostChecks, APasswordThatTravelsInClearIsWarnedAbout) {
  const HostFacts host{.interfaces = {}, .cpu_count = 4};
  ConfigFile file("");
  const std::string secret = file.write("password", "user:password");
  const auto warnings_with = [&](const std::string& address, const std::string& more) {
    file.write("a.toml", "[metrics]\npassword_file = \"" + secret + "\"\naddress = \"" + address +
                             "\"\n" + more + kGoodPort);
    return file.warnings(host);
  };
  EXPECT_THAT(warnings_with("127.0.0.1:9464", ""), IsEmpty());
  EXPECT_THAT(warnings_with("0.0.0.0:9464", "certificate = \"server.pem\"\n"), IsEmpty());
  EXPECT_THAT(warnings_with("0.0.0.0:9464", ""),
              ElementsAre("a.toml:2: the metrics' password travels in clear: \"0.0.0.0:9464\"; set "
                          "metrics.certificate"));
}

}  // namespace
}  // namespace sluice::config
