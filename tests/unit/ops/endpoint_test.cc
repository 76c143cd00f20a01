#include "dataplane/ops/endpoint.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <regex>
#include <set>
#include <string>

#include "tests/unit/ops/metrics_fixture.h"

namespace sluice::dataplane {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(Metrics, EveryVerdictIsExportedAsTheSumOfAllWhoCountIt) {
  for (std::size_t index = 0; index < kVerdictCount; ++index) {
    lcore.verdicts.by_reason[index].add(1000 * (index + 1));
    junk.by_reason[index].add(index);
  }
  const Families families = page();
  const MetricFamily* family = find(families, "sluice_packets_total");
  ASSERT_NE(family, nullptr);
  ASSERT_EQ(family->metric.size(), kVerdictCount);
  for (std::size_t index = 0; index < kVerdictCount; ++index) {
    const std::string reason(kVerdictInfo[index].label);
    const std::string use(sluice::label(kVerdictInfo[index].use));
    EXPECT_EQ(value(families, "sluice_packets_total", {{"reason", reason}, {"use", use}}),
              1000.0 * static_cast<double>(index + 1) + static_cast<double>(index))
        << reason;
    EXPECT_THAT(family->help, HasSubstr(reason + ": " + std::string(kVerdictInfo[index].help)));
  }
}

TEST_F(Metrics, ControlPacketsCountUnderTheirVerdicts) {
  auto workers = running_job(2);
  const Families families = page();
  // Two each, and one that asked again for a job whose memory was being made.
  EXPECT_EQ(value(families, "sluice_packets_total", {{"reason", "join"}}), 5.0);
}

TEST_F(Metrics, DataPacketsOfTheShardCountUnderTheirVerdicts) {
  std::vector<std::uint8_t> bytes(64);
  bytes.resize(wire::encode(bytes, {.job = 9, .cookie = 1}, wire::Credit{}));
  wire::Packet packet;
  ASSERT_EQ(wire::parse(bytes, packet), Verdict::kAccepted);
  shard.handle(packet, false, now);
  EXPECT_EQ(value(page(), "sluice_packets_total", {{"reason", "unknown_job"}}), 1.0);
}

TEST_F(Metrics, EveryDropReasonIsExportedForEveryPort) {
  for (std::size_t reason = 0; reason < kDropReasonCount; ++reason) {
    left.drops.by_reason[reason].add(reason + 1);
    right.drops.by_reason[reason].add(100 + reason);
  }
  const Families families = page();
  const std::string name = "sluice_port_dropped_packets_total";
  EXPECT_EQ(find(families, name)->metric.size(), 2 * kDropReasonCount);
  for (std::size_t index = 0; index < kDropReasonCount; ++index) {
    const std::string reason(kDropReasonInfo[index].label);
    EXPECT_EQ(value(families, name, {{"port", "left"}, {"reason", reason}}), index + 1.0);
    EXPECT_EQ(value(families, name, {{"port", "right"}, {"reason", reason}}), 100.0 + index);
    EXPECT_THAT(find(families, name)->help, HasSubstr(std::string(kDropReasonInfo[index].help)));
  }
}

TEST_F(Metrics, OwnDatagramsThatReachNoPortCountUnderEveryReason) {
  for (std::size_t reason = 0; reason < kDropReasonCount; ++reason) {
    lcore.drops.by_reason[reason].add(1000 * (reason + 1));
    control_drops.by_reason[reason].add(reason);
  }
  lcore.drops.count(DropReason::kNoPath, 5);
  const Families families = page();
  const std::string name = "sluice_own_dropped_packets_total";
  EXPECT_EQ(find(families, name)->metric.size(), kDropReasonCount);
  for (std::size_t index = 0; index < kDropReasonCount; ++index) {
    const std::string reason(kDropReasonInfo[index].label);
    const double more = reason == "no_path" ? 5.0 : 0.0;
    EXPECT_EQ(value(families, name, {{"reason", reason}}),
              1000.0 * (index + 1.0) + static_cast<double>(index) + more)
        << reason;
    EXPECT_THAT(find(families, name)->help, HasSubstr(std::string(kDropReasonInfo[index].help)));
  }
}

TEST_F(Metrics, PortsShowPacketsBytesAndUsedClasses) {
  left.rx_packets.add(5);
  left.rx_bytes.add(500);
  right.tx_packets.add(6);
  right.tx_bytes.add(600);
  right.classes[17].tx_packets.add(4);
  right.link_up.set(1);
  const Families families = page();
  EXPECT_EQ(value(families, "sluice_port_rx_packets_total", {{"port", "left"}}), 5.0);
  EXPECT_EQ(value(families, "sluice_port_rx_bytes_total", {{"port", "left"}}), 500.0);
  EXPECT_EQ(value(families, "sluice_port_tx_packets_total", {{"port", "right"}}), 6.0);
  EXPECT_EQ(value(families, "sluice_port_tx_bytes_total", {{"port", "right"}}), 600.0);
  EXPECT_EQ(value(families, "sluice_port_tx_packets_total", {{"port", "left"}}), 0.0);
  EXPECT_EQ(value(families, "sluice_port_link_up", {{"port", "right"}}), 1.0);
  EXPECT_EQ(find(families, "sluice_port_tx_class_packets_total")->metric.size(), 1u);
  EXPECT_EQ(
      value(families, "sluice_port_tx_class_packets_total", {{"port", "right"}, {"class", "17"}}),
      4.0);
}

TEST_F(Metrics, WhatTheLanesOfAPortCountIsSummed) {
  right.rx_packets.add(5);
  right_too.rx_packets.add(7);
  right.drop(DropReason::kNoPort, 2);
  right_too.drop(DropReason::kNoPort, 4);
  right_too.classes[17].tx_bytes.add(300);
  right_too.classes[17].tx_packets.add(3);
  right.classes[17].waits.add(WaitHistogram::bucket_of(900), 1, 900);
  right_too.classes[17].waits.add(WaitHistogram::bucket_of(900), 2, 1800);
  const Families families = page();
  const std::map<std::string, std::string> row{{"port", "right"}, {"class", "17"}};
  EXPECT_EQ(value(families, "sluice_port_rx_packets_total", {{"port", "right"}}), 12.0);
  EXPECT_EQ(value(families, "sluice_port_dropped_packets_total",
                  {{"port", "right"}, {"reason", "no_port"}}),
            6.0);
  EXPECT_EQ(value(families, "sluice_port_tx_class_bytes_total", row), 300.0);
  const MetricFamily* waits = find(families, "sluice_port_wait_seconds");
  ASSERT_EQ(waits->metric.size(), 1u);
  EXPECT_EQ(waits->metric[0].histogram.sample_count, 3u);
  EXPECT_NEAR(waits->metric[0].histogram.sample_sum, 2700e-9, 1e-12);
}

TEST_F(Metrics, AClassThatWasUsedShowsAllThatIsKnownOfItAndTheOthersNothing) {
  ClassCounters& used = right.classes[5];
  used.tx_packets.add(3);
  used.tx_bytes.add(4500);
  used.drops.add(2);
  used.marked.add(1);
  used.queue_packets.set(7);
  used.queue_bytes.set(700);
  used.waits.add(WaitHistogram::bucket_of(900), 1, 900);
  used.waits.add(WaitHistogram::bucket_of(3000), 2, 6000);
  left.classes[63].drops.add(1);
  const Families families = page();
  const std::map<std::string, std::string> row{{"port", "right"}, {"class", "5"}};
  EXPECT_EQ(value(families, "sluice_port_tx_class_packets_total", row), 3.0);
  EXPECT_EQ(value(families, "sluice_port_tx_class_bytes_total", row), 4500.0);
  EXPECT_EQ(value(families, "sluice_port_dropped_class_packets_total", row), 2.0);
  EXPECT_EQ(value(families, "sluice_port_marked_class_packets_total", row), 1.0);
  EXPECT_EQ(value(families, "sluice_port_queue_class_packets", row), 7.0);
  EXPECT_EQ(value(families, "sluice_port_queue_class_bytes", row), 700.0);
  const MetricFamily* waits = find(families, "sluice_port_wait_seconds");
  ASSERT_EQ(waits->metric.size(), 2u) << "one a used class";
  const auto& wait = waits->metric[1].histogram;
  EXPECT_EQ(label(waits->metric[1], "class"), "5");
  EXPECT_EQ(wait.sample_count, 3u);
  EXPECT_DOUBLE_EQ(wait.sample_sum, 6.9e-6);
  EXPECT_DOUBLE_EQ(wait.bucket[0].upper_bound, 1.024e-6);
  EXPECT_EQ(wait.bucket[0].cumulative_count, 1u);
  EXPECT_EQ(wait.bucket[1].cumulative_count, 1u);
  EXPECT_DOUBLE_EQ(wait.bucket[2].upper_bound, 4.096e-6);
  EXPECT_EQ(wait.bucket[2].cumulative_count, 3u);
  EXPECT_EQ(
      value(families, "sluice_port_tx_class_packets_total", {{"port", "left"}, {"class", "63"}}),
      0.0);
}

TEST_F(Metrics, BusyRatioIsAboutTheTimeSinceThePreviousScrape) {
  const MetricsCollector metrics(source());
  lcore.busy_ns.add(1'000'000);
  lcore.idle_ns.add(3'000'000);
  EXPECT_EQ(value(metrics.Collect(), "sluice_lcore_busy_ratio", {{"lcore", "0"}}), 0.25);
  EXPECT_EQ(value(metrics.Collect(), "sluice_lcore_busy_ratio", {{"lcore", "0"}}), 0.25);
  lcore.busy_ns.add(1'000'000);
  const Families families = metrics.Collect();
  EXPECT_EQ(value(families, "sluice_lcore_busy_ratio", {{"lcore", "0"}}), 1.0);
  EXPECT_DOUBLE_EQ(*value(families, "sluice_lcore_busy_seconds_total", {{"lcore", "0"}}), 0.002);
}

TEST_F(StoreMetrics, NamesUnitsLabelsAndHelpFollowTheRules) {
  pull(0, 1, 1, 1);
  auto of_sums = running_job(2);
  agg::Job* const sums = commands.back().job;
  sums->members[0].finished.store(std::uint64_t{1} << 32 | 1);
  sums->gauges.signs_flipped.store(0.5);
  right.classes[0].tx_packets.add(1);
  right.classes[63].drops.add(1);
  const std::set<std::string> allowed{"port", "class",  "reason", "use",   "lcore",  "job",
                                      "rank", "policy", "late",   "layer", "version"};
  const std::regex name_rule("sluice_[a-z0-9_]+|process_start_time_seconds");
  std::set<std::string> names;
  for (const MetricFamily& family : page()) {
    EXPECT_TRUE(std::regex_match(family.name, name_rule)) << family.name;
    EXPECT_TRUE(names.insert(family.name).second) << family.name << " twice";
    const bool total = family.name.ends_with("_total");
    EXPECT_EQ(total, family.type == MetricType::Counter) << family.name;
    EXPECT_GT(family.help.size(), 10u) << family.name;
    EXPECT_EQ(family.help.find('\n'), std::string::npos) << family.name;
    EXPECT_FALSE(family.metric.empty()) << family.name;
    std::set<std::vector<ClientMetric::Label>> rows;
    for (const ClientMetric& metric : family.metric) {
      EXPECT_TRUE(rows.insert(metric.label).second) << family.name << ": the same labels twice";
      for (const auto& one : metric.label)
        EXPECT_TRUE(allowed.contains(one.name)) << family.name << " has label " << one.name;
    }
  }
}

std::string http_get(std::uint16_t port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {}, .sin_zero = {}};
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  timeval limit{.tv_sec = 5, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: x\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t count; (count = read(fd, buffer, sizeof(buffer))) > 0;)
    answer.append(buffer, static_cast<std::size_t>(count));
  close(fd);
  return answer;
}

TEST_F(Metrics, AreServedOverHttp) {
  auto workers = running_job(2);
  const auto metrics = endpoint();
  const std::string answer = http_get(metrics->port(), "/metrics");
  EXPECT_THAT(
      answer,
      AllOf(HasSubstr("200 OK"),
            HasSubstr("sluice_packets_total{reason=\"join\",use=\"useful\"} 5"),
            HasSubstr("sluice_buffers_in_use_packets 3"),
            HasSubstr("sluice_job_members{job=\"digits\"} 2"),
            HasSubstr("sluice_job_step_duration_seconds_bucket{job=\"digits\",le=\"+Inf\"} 0")));
}

TEST_F(Metrics, ASourceThatIsForgottenIsNotReadAndThePageIsEmpty) {
  const auto metrics = endpoint();
  EXPECT_THAT(http_get(metrics->port(), "/metrics"), HasSubstr("sluice_jobs"));
  metrics->forget_source();
  const std::string answer = http_get(metrics->port(), "/metrics");
  EXPECT_THAT(answer, AllOf(HasSubstr("200 OK"), testing::Not(HasSubstr("sluice_"))));
}

TEST_F(Metrics, AProbeLearnsWhetherTheBoxServesAndWhyNot) {
  const auto metrics = endpoint();
  left.link_up.set(1);
  EXPECT_THAT(http_get(metrics->port(), "/healthz"), AllOf(HasSubstr(" 200 "), HasSubstr("ok")));
  EXPECT_THAT(http_get(metrics->port(), "/readyz"),
              AllOf(HasSubstr(" 503 "), HasSubstr("\nport \"right\" is down\n")));
  EXPECT_THAT(http_get(metrics->port(), "/metrics"), HasSubstr("\nsluice_ready 0\n"));
  right.link_up.set(1);
  EXPECT_THAT(http_get(metrics->port(), "/readyz"), AllOf(HasSubstr(" 200 "), HasSubstr("ready")));
  EXPECT_THAT(http_get(metrics->port(), "/metrics"),
              AllOf(HasSubstr("\nsluice_ready 1\n"), HasSubstr("\nsluice_build_info{version=\""),
                    HasSubstr("\nprocess_start_time_seconds ")));
  EXPECT_THAT(http_get(metrics->port(), "/"), HasSubstr("<p>ready</p>"));
  EXPECT_THAT(http_get(metrics->port(), "/other"), HasSubstr(" 404 "));
  metrics->forget_source();
  EXPECT_THAT(http_get(metrics->port(), "/healthz"), HasSubstr(" 503 "));
  EXPECT_THAT(http_get(metrics->port(), "/readyz"), HasSubstr("the box is ending"));
}

TEST_F(Metrics, AnAddressInUseIsAnErrorThatNamesItAndTheKey) {
  const auto metrics = endpoint();
  const std::string address = "127.0.0.1:" + std::to_string(metrics->port());
  const auto second = MetricsEndpoint::start({.address = address}, source());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kIoError);
  EXPECT_THAT(second.status().message(), AllOf(HasSubstr(address), HasSubstr("metrics.address"),
                                               HasSubstr("Address already in use")));
  EXPECT_EQ(why_not_listening(address), "Address already in use");
  EXPECT_EQ(why_not_listening("127.0.0.1:0"), "");
}

}  // namespace
}  // namespace sluice::dataplane
