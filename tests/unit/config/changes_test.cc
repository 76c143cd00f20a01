#include "config/changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "config/render.h"

namespace sluice::config {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<Change> after(void (*edit)(Config&)) {
  Config changed = default_config();
  edit(changed);
  return changes_between(default_config(), changed);
}

TEST(Changes, NothingDiffersBetweenEqualConfigurations) {
  EXPECT_TRUE(after([](Config&) {}).empty());
}

TEST(Changes, EachHasItsNameAndBothValues) {
  const auto changes = after([](Config& config) {
    config.limits.jobs = 3;
    config.ports[0].rate_mbps = 1000;
    config.policy.kind = PolicyKind::kGoodput;
  });
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[0].setting, "limits.jobs");
  EXPECT_EQ(changes[0].before, "16");
  EXPECT_EQ(changes[0].after, "3");
  EXPECT_EQ(changes[1].setting, "policy.policy");
  EXPECT_EQ(changes[1].after, "\"goodput\"");
  EXPECT_EQ(changes[2].setting, "port \"port0\" rate_mbps");
  EXPECT_EQ(why_restart(changes), "");
}

TEST(Changes, WhatIsSizedOrOpenedAtTheStartNeedsARestart) {
  const auto changes = after([](Config& config) {
    config.appliance.shards = 2;
    config.limits.workers_per_job = 8;
    config.ports[0].mtu = 9000;
    config.metrics.address = "";
    config.limits.jobs = 3;
  });
  EXPECT_EQ(why_restart(changes),
            "appliance.shards (1 -> 2), limits.workers_per_job (64 -> 8), metrics.address "
            "(\"127.0.0.1:9464\" -> \"\"), port \"port0\" mtu (1500 -> 9000)");
}

TEST(Changes, AnotherSetOfPortsIsOneChange) {
  const auto changes = after([](Config& config) { config.ports.push_back({.name = "more"}); });
  EXPECT_EQ(why_restart(changes), "[[port]] (port0 -> port0, more)");
}

TEST(Changes, TablesOfRulesClassesAndJobsAreLive) {
  const auto changes = after([](Config& config) {
    config.rules = {{.egress_class = 3, .dscp = 1}};
    config.classes = {{.index = 9}};
    config.jobs = {{.name = "digits"}};
  });
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(why_restart(changes), "");
  EXPECT_EQ(changes[1].setting, "[[rule]]");
  EXPECT_EQ(changes[1].before, "0 tables");
  EXPECT_EQ(changes[1].after, "1 table");
}

TEST(Changes, ASecretIsNeverShown) {
  const auto changes = after([](Config& config) {
    config.appliance.secret = "sesame";
    config.appliance.older_secrets = {"tahini"};
  });
  ASSERT_EQ(changes.size(), 2u);
  for (const Change& change : changes) {
    EXPECT_THAT(change.after, Not(HasSubstr("sesame")));
    EXPECT_THAT(change.after, Not(HasSubstr("tahini")));
  }
  EXPECT_EQ(changes[0].before, "none");
  EXPECT_EQ(why_restart(changes), "");
}

TEST(Changes, NoSettingEscapesTheComparison) {
  const auto count = [](Section section, auto value) {
    return std::ranges::count_if(schema(), [&](const KeySpec& spec) {
      return spec.section == section && is_live(spec) == value;
    });
  };
  EXPECT_EQ(count(Section::kLimits, false), 1) << "workers_per_job";
  EXPECT_EQ(count(Section::kPort, true), 3) << "rate_mbps, queue_kib, mark_above_kib";
  EXPECT_EQ(count(Section::kAppliance, true), 3) << "secret, secret_file, log_level";
  for (const Section section : {Section::kMetrics, Section::kControl, Section::kForwarding})
    EXPECT_EQ(count(section, true), 0);
}

}  // namespace
}  // namespace sluice::config
