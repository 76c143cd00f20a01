#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "config/loader.h"
#include "config/machine.h"
#include "config/render.h"
#include "config/schema.h"
#include "tests/unit/config/config_file.h"

namespace sluice::config {
namespace {

const HostFacts kHost = {.interfaces = {}, .cpu_count = 64};

Config in_effect(Config config) {
  config.limits = resolved_limits(config, kHost);
  return config;
}

std::string shipped_text() {
  std::ifstream file(SLUICE_CONFIG_DIR "/appliance.toml");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Reference, TheShippedFileIsTheSchemaWrittenOut) {
  EXPECT_EQ(shipped_text(), render_reference())
      << "config/appliance.toml is out of date; it should read:\n"
      << render_reference();
}

TEST(Reference, TheShippedFileEqualsTheDefaults) {
  const auto config = load_config(SLUICE_CONFIG_DIR "/appliance.toml", kHost);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value(), in_effect(default_config()));
}

TEST(Reference, AFileWithOnlyAPortEqualsTheDefaults) {
  const ConfigFile file(
      "[[port]]\nname = \"port0\"\ntype = \"vhost-user\"\npath = \"/run/sluice/port0.sock\"\n");
  const auto config = load_config(file.path(), kHost);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value(), in_effect(default_config()));
}

TEST(Reference, EveryExampleLoads) {
  HostFacts host = kHost;
  for (const char* name : {"s0", "s1", "s2", "s3"}) host.interfaces.push_back({name, {}, {}});
  for (const char* name :
       {"demo.toml", "lab.toml", "parameter_server.toml", "priorities.toml", "stragglers.toml"}) {
    const std::string path = std::string(SLUICE_CONFIG_DIR "/examples/") + name;
    const auto config = load_config(path, host);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config.value().ports.size(), 4u) << name;
    // A secret is the reader's to add; nothing else is to be said about an example.
    for (const std::string& warning : check_config(path, host).warnings)
      EXPECT_NE(warning.find("no secret"), std::string::npos) << warning;
  }
}

TEST(Reference, TheEffectiveConfigReadsBackToTheSameValues) {
  Config config = in_effect(default_config());
  config.appliance.shards = 3;
  config.appliance.address6 = Ipv6Prefix{{0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 64};
  config.appliance.mac = MacAddress{2, 0, 0, 0, 0, 7};
  config.appliance.polling = Polling::kBusy;
  config.limits.member_timeout_s = 2.5;
  config.limits.resync_hold_s = 7.5;
  config.policy = {.kind = PolicyKind::kRamp, .late = LateMode::kRequeue, .planned_steps = 9000};
  config.jobs = {
      {"digits", {.kind = PolicyKind::kSaina, .count_threshold = 0}},
      {"exact", {.kind = PolicyKind::kSync}, true},
      {"a \"b\"", {.k = 3, .sign_threshold_permille = 125, .sign_stride = kOneSignIn32}}};
  config.metrics.address = "";
  config.classes = {{.index = 56, .share = 0.05}, {.index = 63, .share = 0.001}};
  config.rules = {{.egress_class = 3, .dscp = 0, .pcp = 0, .protocol = Protocol::kTcp, .port = 80},
                  {.egress_class = 63, .prefix = Ipv4Prefix{{10, 1, 0, 0}, 16}},
                  {.egress_class = 7, .prefix = Ipv6Prefix{{0xfd}, 8}}};
  config.ports[0].queue_kib = 512;
  config.ports[0].mark_above_kib = 64;
  config.ports[0].fault = {.rx_drop = 0.05, .tx_drop = 1, .duplicate = 0.125, .seed = 42};
  config.ports.push_back(
      {.name = "b", .type = PortType::kAfPacket, .interface = "veth0", .rate_mbps = 200});
  const ConfigFile file(render_effective(config));
  const auto read = load_config(file.path(), kHost);
  ASSERT_TRUE(read.ok()) << read.status().message() << "\n" << render_effective(config);
  EXPECT_EQ(read.value(), config);
}

TEST(Reference, TheEffectiveConfigHidesTheSecret) {
  Config config = default_config();
  config.appliance.secret = "hunter2";
  EXPECT_EQ(render_effective(config).find("hunter2"), std::string::npos);
  EXPECT_NE(render_effective(config).find("# secret: 7 bytes, not shown"), std::string::npos);
}

TEST(Reference, EverySettingOfTheSchemaHasHelpAndAFieldOfItsOwn) {
  Config config;
  PortConfig port;
  JobConfig job;
  ClassConfig egress_class;
  RuleConfig rule;
  std::set<const void*> fields;
  for (const KeySpec& spec : schema()) {
    EXPECT_TRUE(spec.help.ends_with('.')) << spec.key;
    const Field field = spec.field({&config, &port, &job, &egress_class, &rule});
    fields.insert(std::holds_alternative<PolicyOptions*>(field)
                      ? &policy_field(spec)
                      : std::visit([](const auto* value) -> const void* { return value; }, field));
  }
  EXPECT_EQ(fields.size(), schema().size());
}

TEST(Reference, EveryDefaultIsInTheRangeThatTheSchemaStates) {
  Config config = default_config();
  JobConfig job;
  ClassConfig egress_class;
  RuleConfig rule;
  for (const KeySpec& spec : schema()) {
    const Field field = spec.field({&config, &config.ports[0], &job, &egress_class, &rule});
    std::visit(
        [&](const auto* value) {
          if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(*value)>>) {
            if (spec.max == 0) return;  // a boolean
            EXPECT_GE(static_cast<double>(*value), spec.min) << spec.key;
            EXPECT_LE(static_cast<double>(*value), spec.max) << spec.key;
          }
        },
        field);
  }
}

}  // namespace
}  // namespace sluice::config
