// Each combination that can't work has a test that shows its line, its values and its remedy.
#include "config/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/config/config_file.h"

namespace sluice::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::string port(const std::string& name, const std::string& rest) {
  return "[[port]]\nname = \"" + name + "\"\n" + rest + "\n";
}

TEST(Checks, AFileWithAGoodPortHasNoErrors) {
  EXPECT_THAT(ConfigFile(kGoodPort).errors(), IsEmpty());
}

TEST(Checks, NoPorts) {
  EXPECT_THAT(
      ConfigFile("[limits]\njobs = 1\n").errors(),
      ElementsAre("a.toml:1: no ports: 0; add a [[port]] table with name, type and its device"));
}

TEST(Checks, TwoPortsWithOneNameOnePathOneInterfaceOnePciAddress) {
  const std::string text = "[appliance]\nhugepages = true\n" +                      // 1
                           port("a", "type = \"vhost-user\"\npath = \"x\"") +       // 3
                           port("a", "type = \"vhost-user\"\npath = \"x\"") +       // 7
                           port("b", "type = \"af_packet\"\ninterface = \"e0\"") +  // 11
                           port("c", "type = \"af_xdp\"\ninterface = \"e0\"") +     // 15
                           port("d", "type = \"pci\"\npci = \"0000:01:00.0\"") +    // 19
                           port("e", "type = \"pci\"\npci = \"0000:01:00.0\"");     // 23
  EXPECT_THAT(
      ConfigFile(text).errors(),
      ElementsAre(
          "a.toml:8: two ports have the same name: \"a\"; ports 1 and 2 need different ones",
          "a.toml:10: two ports have the same path: \"x\"; ports 1 and 2 need different ones",
          "a.toml:18: two ports have the same interface: \"e0\"; ports 3 and 4 need different ones",
          StartsWith("a.toml:26: two ports have the same pci: \"0000:01:00.0\"")));
}

TEST(Checks, APortNeedsItsOwnDeviceAndNoOther) {
  EXPECT_THAT(
      ConfigFile(port("a", "type = \"af_packet\"\npath = \"x\"")).errors(),
      ElementsAre("a.toml:3: af_packet port without interface: \"a\"; add interface = \"...\"",
                  "a.toml:4: path does not go with a af_packet port: \"x\"; remove it or "
                  "change type"));
}

TEST(Checks, APortNeedsAName) {
  EXPECT_THAT(ConfigFile("[[port]]\ntype = \"vhost-user\"\npath = \"x\"\n").errors(),
              ElementsAre("a.toml:1: port without a name: number 1; add name = \"port0\""));
}

TEST(Checks, TheMtuMustCarryTheLargestChunkToTheLargestJob) {
  // 28 bytes of IPv4 and UDP, 80 of the protocol and a mask word for 64 workers.
  const std::string limits = "[limits]\nchunk_bytes_max = 1344\n";
  EXPECT_THAT(
      ConfigFile(kGoodPort + "mtu = 1465\n" + limits).errors(),
      ElementsAre("a.toml:5: mtu does not carry chunk_bytes_max: 1465 bytes for chunks of 1344 and "
                  "headers of 122; raise mtu to 1466 or lower chunk_bytes_max to 1280"));
  EXPECT_THAT(ConfigFile(kGoodPort + "mtu = 1466\n" + limits).errors(), IsEmpty());
  const std::string v6 = "[appliance]\naddress6 = \"fd00::1/64\"\n" + kGoodPort;
  EXPECT_THAT(ConfigFile(v6 + "mtu = 1485\n" + limits).errors(),
              ElementsAre(HasSubstr("headers of 142; raise mtu to 1486")));
  EXPECT_THAT(ConfigFile(kGoodPort + limits + "workers_per_job = 1024\n").errors(),
              ElementsAre(HasSubstr("headers of 242; raise mtu to 1586")));
  EXPECT_THAT(ConfigFile(kGoodPort + "mtu = 9000\n[limits]\nchunk_bytes_max = 8832\n").errors(),
              IsEmpty());
}

TEST(Checks, TheFramesOfAfXdpPortsFitIntoAPage) {
  const std::string xdp = port("x", "type = \"af_xdp\"\ninterface = \"e0\"");
  EXPECT_THAT(
      ConfigFile(kGoodPort + "mtu = 3361\n" + xdp).errors(),
      ElementsAre("a.toml:5: mtu does not go with af_xdp ports, whose frames must fit into a "
                  "page: 3361; lower mtu to at most 3360 or use other port types"));
  EXPECT_THAT(ConfigFile(kGoodPort + "mtu = 3360\n" + xdp).errors(), IsEmpty());
  EXPECT_THAT(ConfigFile(kGoodPort + "mtu = 9000\n").errors(), IsEmpty());
}

TEST(Checks, ChunkSizesAreMultiplesOf64) {
  EXPECT_THAT(ConfigFile(kGoodPort + "[limits]\nchunk_bytes_max = 1000\n").errors(),
              ElementsAre("a.toml:6: chunk_bytes_max is not a multiple of 64: 1000; give 960"));
}

TEST(Checks, AChunkIsAtLeastTheSmallestOne) {
  EXPECT_THAT(ConfigFile(kGoodPort + "[limits]\nchunk_bytes_max = 32\n").errors(),
              ElementsAre("a.toml:6: chunk_bytes_max is not a multiple of 64: 32; give 64"));
}

TEST(Checks, OneJobCannotHaveMoreMemoryThanAllJobs) {
  EXPECT_THAT(
      ConfigFile(kGoodPort + "[limits]\njob_memory_mib = 64\ntotal_memory_mib = 32\n").errors(),
      ElementsAre("a.toml:6: one job may take more memory than all together: 64 MiB of 32; "
                  "lower job_memory_mib or raise total_memory_mib"));
}

TEST(Checks, KIsAtMostTheLargestWorldSize) {
  const std::string text = "[limits]\nworkers_per_job = 8\n[policy]\npolicy = \"fixed\"\nk = ";
  EXPECT_THAT(
      ConfigFile(text + "9\n" + kGoodPort).errors(),
      ElementsAre("a.toml:5: k is more than the largest job has workers: 9 of 8; lower k or "
                  "raise limits.workers_per_job"));
  EXPECT_THAT(ConfigFile(text + "8\n" + kGoodPort).errors(), IsEmpty());
  const std::string unread = "[limits]\nworkers_per_job = 8\n[policy]\nk = 9\n";
  EXPECT_THAT(ConfigFile(unread + kGoodPort).errors(), IsEmpty());  // sync does not read it
}

TEST(Checks, AKeyThatNoPolicyReadsIsWarnedAbout) {
  EXPECT_THAT(
      ConfigFile("[policy]\nk = 4\n" + kGoodPort).warnings(),
      ElementsAre("a.toml:2: k is given and policy sync does not read it; remove it, or set "
                  "policy to one of fixed, saina"));
  EXPECT_THAT(ConfigFile("[policy]\npolicy = \"fixed\"\nk = 4\n" + kGoodPort).warnings(),
              IsEmpty());
  // A job table takes it over.
  EXPECT_THAT(ConfigFile("[policy]\nk = 4\n[[job]]\nname = \"x\"\npolicy = \"fixed\"\n" + kGoodPort)
                  .warnings(),
              IsEmpty());
  EXPECT_THAT(
      ConfigFile("[[job]]\nname = \"x\"\npolicy = \"goodput\"\nmax_staleness = 3\n" + kGoodPort)
          .warnings(),
      ElementsAre(
          "a.toml:4: max_staleness is given and policy goodput does not read it; remove it, "
          "or set policy to one of fixed, saina, ramp, goodput and late to requeue"));
  EXPECT_THAT(ConfigFile("[policy]\nlate = \"requeue\"\n" + kGoodPort).warnings(),
              ElementsAre(HasSubstr("late is given and policy sync does not read it")));
}

TEST(Checks, RampNeedsTheLengthOfTheTraining) {
  EXPECT_THAT(ConfigFile("[policy]\npolicy = \"ramp\"\n" + kGoodPort).errors(),
              ElementsAre("a.toml:2: policy ramp without planned_steps: 0; add planned_steps = an "
                          "integer from 1 to 4294967295"));
  EXPECT_THAT(ConfigFile("[[job]]\nname = \"x\"\npolicy = \"ramp\"\n" + kGoodPort).errors(),
              ElementsAre(StartsWith("a.toml:3: policy ramp without planned_steps")));
}

TEST(Checks, PolicyFixedNeedsAKThatIsGiven) {
  const auto wrong = [](unsigned line) {
    return ElementsAre("a.toml:" + std::to_string(line) +
                       ": policy fixed without k: steps would end with 1 contribution; add k = an "
                       "integer from 1 to 64");
  };
  const std::string job = "[[job]]\nname = \"x\"\npolicy = \"fixed\"\n";
  EXPECT_THAT(ConfigFile(job + kGoodPort).errors(), wrong(3));
  EXPECT_THAT(ConfigFile(job + "k = 1\n" + kGoodPort).errors(), IsEmpty());
  EXPECT_THAT(ConfigFile("[policy]\nk = 2\n" + job + kGoodPort).errors(), IsEmpty());
  const std::string all = "[policy]\npolicy = \"fixed\"\n";
  EXPECT_THAT(ConfigFile(all + kGoodPort).errors(), wrong(2));
  EXPECT_THAT(ConfigFile(all + "[[job]]\nname = \"x\"\n" + kGoodPort).errors(), wrong(2));
}

TEST(Checks, SignThresholdsHaveStepsOfAThousandth) {
  EXPECT_THAT(
      ConfigFile("[policy]\nsign_threshold = 0.3333\n" + kGoodPort).errors(),
      ElementsAre("a.toml:2: sign_threshold has a wrong value: 0.3333; give a number from 0.0 "
                  "to 1.0 in steps of 0.001"));
}

TEST(Checks, AJobTableNeedsANameOfItsOwn) {
  EXPECT_THAT(
      ConfigFile("[[job]]\nk = 2\n[[job]]\nname = \"x\"\n[[job]]\nname = \"x\"\n" + kGoodPort)
          .errors(),
      ElementsAre(
          "a.toml:1: job without a name: number 1; add name = \"...\" as the workers give it",
          "a.toml:6: two job tables have the same name: \"x\"; tables 2 and 3 must become one"));
}

TEST(Checks, ReproducibleSumsNeedPolicySync) {
  const std::string job = "[[job]]\nname = \"x\"\nreproducible = true\n";
  EXPECT_THAT(ConfigFile(job + kGoodPort).errors(), ElementsAre());
  const std::string fixed = "[policy]\npolicy = \"fixed\"\nk = 2\n" + kGoodPort;
  EXPECT_THAT(ConfigFile(job + fixed).errors(),
              ElementsAre("a.toml:3: reproducible sums do not go with policy fixed: \"x\", who is "
                          "in a sum of k < n is a matter of time; set policy = \"sync\" in this "
                          "table or remove reproducible"));
  EXPECT_THAT(ConfigFile(job + "policy = \"sync\"\n" + fixed).errors(), ElementsAre());
  EXPECT_THAT(ConfigFile("[policy]\nreproducible = true\n" + kGoodPort).errors(),
              ElementsAre(StartsWith("a.toml:2: ")));
}

TEST(Checks, AnErrorOfThePolicyIsNotRepeatedForTheJobsThatTakeItOver) {
  EXPECT_THAT(
      ConfigFile("[policy]\npolicy = \"ramp\"\n[[job]]\nname = \"x\"\n" + kGoodPort).errors(),
      ElementsAre(StartsWith("a.toml:2: policy ramp without planned_steps")));
}

// Clients do not know the number of shards before they have joined.
TEST(Checks, DataPortsOfAnyNumberOfShardsEndAt65535) {
  EXPECT_THAT(ConfigFile("[appliance]\nport = 65520\n" + kGoodPort).errors(),
              ElementsAre("a.toml:2: port has a wrong value: 65520; give an integer from 1 to "
                          "65519"));
  EXPECT_THAT(ConfigFile("[appliance]\nport = 65519\nshards = 2\n" + kGoodPort).errors(),
              IsEmpty());
}

TEST(Checks, BusyPollingNeedsACoreAShard) {
  const std::string text = "[appliance]\nshards = 5\npolling = \"busy\"\n" + kGoodPort;
  EXPECT_THAT(
      ConfigFile(text).errors({.interfaces = {}, .cpu_count = 4}),
      ElementsAre("a.toml:2: more busy-polling shards than cores: 5 on 4; lower shards or set "
                  "polling = \"adaptive\""));
  EXPECT_THAT(ConfigFile(text).errors({.interfaces = {}, .cpu_count = 5}), IsEmpty());
}

TEST(Checks, TheAddressMustBeAHosts) {
  for (const char* address :
       {"0.0.0.0/0", "127.0.0.1/8", "224.0.0.1/24", "10.0.0.0/24", "10.0.0.255/24"})
    EXPECT_THAT(ConfigFile("[appliance]\naddress = \"" + std::string(address) + "\"\n" + kGoodPort)
                    .errors(),
                ElementsAre(AllOf(StartsWith("a.toml:2: address is "), HasSubstr(address))));
  for (const char* address : {"10.0.0.0/31", "10.0.0.255/32", "10.0.0.255/16"})
    EXPECT_THAT(ConfigFile("[appliance]\naddress = \"" + std::string(address) + "\"\n" + kGoodPort)
                    .errors(),
                IsEmpty());
}

TEST(Checks, TheSecondaryAddressesMustBeAHostsToo) {
  EXPECT_THAT(ConfigFile("[appliance]\nmac = \"03:00:00:00:00:01\"\naddress6 = \"ff02::1/64\"\n" +
                         kGoodPort)
                  .errors(),
              ElementsAre(StartsWith("a.toml:2: mac is a group address or zero"),
                          StartsWith("a.toml:3: address6 is not a host's address")));
}

TEST(Checks, TheKernelMustNotOwnTheAppliancesAddress) {
  const HostFacts host = {.interfaces = {{"eth0", {{10, 77, 0, 1}}, {}}, {"eth1", {}, {}}},
                          .cpu_count = 4};
  const auto errors_on = [&](const std::string& interface) {
    return ConfigFile("[appliance]\naddress = \"10.77.0.1/24\"\n" +
                      port("a", "type = \"af_packet\"\ninterface = \"" + interface + "\""))
        .errors(host);
  };
  EXPECT_THAT(
      errors_on("eth0"),
      ElementsAre(StartsWith(
          "a.toml:2: the kernel itself has the appliance's address on eth0: 10.77.0.1/24")));
  EXPECT_THAT(errors_on("eth1"), IsEmpty());
  EXPECT_THAT(
      errors_on("eth2"),
      ElementsAre("a.toml:6: no such interface on this host: \"eth2\"; there are eth0, eth1"));
}

TEST(Checks, ATapPortMakesTheInterfaceThatItNames) {
  const HostFacts host = {.interfaces = {{"eth0", {}, {}}}, .cpu_count = 4};
  const std::string tap = "type = \"tap\"\n";
  EXPECT_THAT(ConfigFile(port("a", tap + "interface = \"new0\"")).errors(host), IsEmpty());
  EXPECT_THAT(ConfigFile(port("a", tap)).errors(host),
              ElementsAre(StartsWith("a.toml:3: tap port without interface: \"a\"")));
}

TEST(Checks, SecretAndSecretFileExcludeEachOther) {
  const ConfigFile file("");
  const std::string secret = file.write("secret", "x");
  file.write("a.toml",
             "[appliance]\nsecret = \"y\"\nsecret_file = \"" + secret + "\"\n" + kGoodPort);
  EXPECT_THAT(file.errors(),
              ElementsAre(StartsWith("a.toml:3: secret and secret_file are both set")));
}

TEST(Checks, AnErrorOfReadingIsNotRepeatedAsAConflict) {
  EXPECT_THAT(
      ConfigFile(kGoodPort + "mtu = \"small\"\n[limits]\nchunk_bytes_max = 4096\n").errors(),
      ElementsAre(StartsWith("a.toml:5: mtu has a wrong value")));
}

}  // namespace
}  // namespace sluice::config
