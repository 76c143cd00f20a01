// The configuration reader: any file gives a configuration or error lines that name the file.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "config/loader.h"
#include "tests/fuzz/fuzz.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int file = memfd_create("config", MFD_CLOEXEC);
  REQUIRE_PROPERTY(file >= 0);
  REQUIRE_PROPERTY(fchmod(file, 0600) == 0);  // it may hold a secret
  REQUIRE_PROPERTY(write(file, data, size) == static_cast<ssize_t>(size));
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const config::HostFacts host{
      .interfaces = {{.name = "eth0", .ipv4 = {{10, 0, 0, 1}}, .ipv6 = {}}}, .cpu_count = 4};
  const auto loaded = config::load_config(path, host);
  const auto errors = config::check_config(path, host).errors;
  REQUIRE_PROPERTY(loaded.ok() == errors.empty());
  if (!loaded.ok()) {
    REQUIRE_PROPERTY(!loaded.status().message().empty());
  }
  close(file);
  return 0;
}

std::vector<fuzz::Seed> fuzz::seeds() {
  std::vector<Seed> all;
  for (const char* name : {"appliance.toml"}) {
    std::ifstream file(std::string(SLUICE_CONFIG_DIR) + "/" + name, std::ios::binary);
    all.push_back({name, Bytes(std::istreambuf_iterator<char>(file), {})});
    REQUIRE_PROPERTY(!all.back().bytes.empty());
  }
  const std::string small =
      "[appliance]\naddress = \"10.0.0.9/24\"\nshards = 2\nsecret = \"s\"\n"
      "[[port]]\nname = \"a\"\ntype = \"vhost-user\"\npath = \"/tmp/a\"\nmtu = 1500\n"
      "[port.fault]\nrx_drop = 0.1\nseed = 3\n[limits]\njobs = 3\nmember_timeout_s = 2.5\n";
  all.push_back({"small.toml", Bytes(small.begin(), small.end())});
  return all;
}
