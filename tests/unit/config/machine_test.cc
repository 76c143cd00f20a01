// Limits that follow the machine's memory and the ports' MTU, and the readers of a secret.
#include "config/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "config/render.h"
#include "tests/unit/config/config_file.h"

namespace sluice::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

HostFacts machine_of(std::uint64_t usable_mib, std::uint64_t available_mib) {
  return {.interfaces = {},
          .cpu_count = 4,
          .memory = {.usable_mib = usable_mib, .available_mib = available_mib}};
}

LimitsConfig limits_of(const std::string& text, const HostFacts& host) {
  const ConfigFile file(text);
  const auto config = load_config(file.path(), host);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? config.value().limits : LimitsConfig{};
}

TEST(Machine, LimitsOfMemoryFollowWhatIsFree) {
  const LimitsConfig limits = limits_of(kGoodPort, machine_of(64'000, 40'512));
  EXPECT_EQ(limits.total_memory_mib, 30'000u);  // three quarters beside 512 MiB for packets
  EXPECT_EQ(limits.job_memory_mib, 30'000u);
  const LimitsConfig huge =
      limits_of("[appliance]\nhugepages = true\n" + kGoodPort, machine_of(64'000, 40'000));
  EXPECT_EQ(huge.total_memory_mib, 30'000u);  // the packets lie in pages that are not free
  EXPECT_EQ(limits_of(kGoodPort, machine_of(0, 0)).total_memory_mib, 2048u);  // unknown
  EXPECT_EQ(limits_of(kGoodPort, machine_of(2000, 300)).total_memory_mib, 64u);
}

TEST(Machine, LimitsThatAreGivenStay) {
  const HostFacts host = machine_of(64'000, 40'512);
  const LimitsConfig job = limits_of(kGoodPort + "[limits]\njob_memory_mib = 100\n", host);
  EXPECT_EQ(job.job_memory_mib, 100u);
  EXPECT_EQ(job.total_memory_mib, 30'000u);
  const LimitsConfig total = limits_of(kGoodPort + "[limits]\ntotal_memory_mib = 100\n", host);
  EXPECT_EQ(total.job_memory_mib, 100u);
  EXPECT_EQ(total.total_memory_mib, 100u);
  const LimitsConfig big = limits_of(kGoodPort + "[limits]\njob_memory_mib = 50000\n", host);
  EXPECT_EQ(big.total_memory_mib, 50'000u);
}

TEST(Machine, ChunksFollowTheSmallestPort) {
  const HostFacts host = machine_of(0, 0);
  EXPECT_EQ(limits_of(kGoodPort, host).chunk_bytes_max, 1344u);
  EXPECT_EQ(limits_of(kGoodPort + "mtu = 9000\n", host).chunk_bytes_max, 8832u);
  EXPECT_EQ(limits_of("[appliance]\naddress6 = \"fd00::1/64\"\n" + kGoodPort + "mtu = 9000\n", host)
                .chunk_bytes_max,
            8832u);
  EXPECT_EQ(limits_of(kGoodPort + "mtu = 576\n", host).chunk_bytes_max, 448u);
  const std::string second =
      "[[port]]\nname = \"q\"\ntype = \"vhost-user\"\npath = \"q.sock\"\nmtu = ";
  EXPECT_EQ(limits_of(kGoodPort + "mtu = 9000\n" + second + "4000\n", host).chunk_bytes_max, 3840u);
  EXPECT_EQ(
      limits_of(kGoodPort + "mtu = 9000\n[limits]\nchunk_bytes_max = 640\n", host).chunk_bytes_max,
      640u);
  // A world of 1,024 needs more room for masks; smaller ones need not pay for it.
  EXPECT_EQ(limits_of(kGoodPort + "[limits]\nworkers_per_job = 1024\n", host).chunk_bytes_max,
            1344u);
}

TEST(Machine, TheEffectiveConfigShowsTheValues) {
  const ConfigFile file(kGoodPort + "mtu = 9000\n");
  const auto config = load_config(file.path(), machine_of(64'000, 40'512));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(render_effective(config.value()),
              AllOf(HasSubstr("job_memory_mib = 30000"), HasSubstr("total_memory_mib = 30000"),
                    HasSubstr("chunk_bytes_max = 8832")));
}

TEST(Machine, LimitsBeyondItsMemoryAreErrors) {
  const HostFacts host = machine_of(4000, 3000);
  EXPECT_THAT(ConfigFile(kGoodPort + "[limits]\ntotal_memory_mib = 3500\n").errors(host),
              ElementsAre("a.toml:6: the limits allow more memory than this machine has: 512 MiB "
                          "for packets and 3500 for jobs, of 4000; lower limits.total_memory_mib "
                          "to 3488 at most"));
  EXPECT_THAT(ConfigFile(kGoodPort + "[limits]\ntotal_memory_mib = 3488\n").errors(host),
              IsEmpty());
  EXPECT_THAT(
      ConfigFile(kGoodPort + "[limits]\njobs = 1\njob_memory_mib = 8000\n").errors(host),
      ElementsAre(AllOf(StartsWith("a.toml:7: "), HasSubstr("512 MiB for packets and 8000 for "
                                                            "jobs, of 4000; lower "
                                                            "limits.job_memory_mib to 3488"))));
  EXPECT_THAT(ConfigFile("[appliance]\nmemory_mib = 3990\n" + kGoodPort).errors(host),
              ElementsAre(AllOf(StartsWith("a.toml:2: "), HasSubstr("3990 MiB for packets"),
                                HasSubstr("lower appliance.memory_mib to 3936"))));
}

// A machine in a folder: /proc and /sys/fs/cgroup below it.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-root-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  MemoryFacts read() const { return read_memory(root_.string()); }

 private:
  std::filesystem::path root_;
};

constexpr char kMeminfo[] =
    "MemTotal:       65536000 kB\nMemFree:         1024 kB\nMemAvailable:   40960000 kB\n"
    "Hugetlb:         1024000 kB\nDirectMap4k:  3 kB\n";

TEST(Machine, ItsMemoryIsWhatTheKernelSaysWithoutReservedHugepages) {
  const Folder folder;
  folder.write("proc/meminfo", kMeminfo);
  EXPECT_EQ(folder.read().usable_mib, 63'000u);
  EXPECT_EQ(folder.read().available_mib, 40'000u);
  EXPECT_EQ(folder.read().hugepages_mib, std::optional<std::uint64_t>(1000));
  EXPECT_EQ(Folder().read().usable_mib, 0u);
  EXPECT_EQ(Folder().read().hugepages_mib, std::nullopt);
}

TEST(Machine, ALimitOfAControlGroupAboveCountsInEitherVersion) {
  const Folder unified;
  unified.write("proc/meminfo", kMeminfo);
  unified.write("proc/self/cgroup", "0::/system.slice/sluiced.service\n");
  unified.write("sys/fs/cgroup/system.slice/memory.max", "8589934592\n");
  unified.write("sys/fs/cgroup/system.slice/sluiced.service/memory.max", "max\n");
  EXPECT_EQ(unified.read().usable_mib, 8192u);
  EXPECT_EQ(unified.read().available_mib, 8192u);

  const Folder legacy;
  legacy.write("proc/meminfo", kMeminfo);
  legacy.write("proc/self/cgroup", "5:cpu,memory:/box\n1:name=systemd:/\n");
  legacy.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1073741824\n");
  legacy.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(legacy.read().usable_mib, 1024u);
}

TEST(Secrets, InAFileThatEveryoneCanReadAreErrors) {
  const ConfigFile file("[appliance]\nsecret = \"sesame\"\n" + kGoodPort);
  EXPECT_THAT(file.errors(), IsEmpty());
  file.write("a.toml", "[appliance]\nsecret = \"sesame\"\n" + kGoodPort, 0644);
  EXPECT_THAT(file.errors(),
              ElementsAre("a.toml:2: the secret stands in a file that everyone on this host can "
                          "read: \"a.toml\"; chmod o-r it, or give a secret_file"));
  file.write("a.toml", "[appliance]\nsecret = \"sesame\"\n" + kGoodPort, 0640);
  EXPECT_THAT(file.errors(), IsEmpty());
  file.write("a.toml", kGoodPort, 0644);
  EXPECT_THAT(file.errors(), IsEmpty());
}

TEST(Secrets, AreMissedWhereWorkersComeFromANetwork) {
  const std::string network = "[[port]]\nname = \"n\"\ntype = \"af_packet\"\ninterface = \"e0\"\n";
  EXPECT_THAT(ConfigFile(kGoodPort + network).warnings(),
              ElementsAre(StartsWith("a.toml:7: no secret, and workers come from a network: \"n\"; "
                                     "whoever reaches the port may join")));
  EXPECT_THAT(ConfigFile(kGoodPort).warnings(), IsEmpty());
  EXPECT_THAT(ConfigFile("[appliance]\nsecret = \"sesame\"\n" + network).warnings(), IsEmpty());
}

}  // namespace
}  // namespace sluice::config
