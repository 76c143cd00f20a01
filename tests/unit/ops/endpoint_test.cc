#include "dataplane/ops/endpoint.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <regex>
#include <set>
#include <string>

#include "tests/unit/jobs/control_fixture.h"

namespace sluice::dataplane {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using testing::AllOf;
using testing::HasSubstr;

class Metrics : public agg::ControlTest {
 protected:
  PortCounters left, right;
  LcoreCounters lcore;
  agg::Shard shard{ShardId{0}};
  VerdictCounters junk;
  DropCounters control_drops;

  MetricsSource source() {
    return {.blocks = {.ports = {{"left", &left}, {"right", &right}},
                       .lcores = {{&lcore, &shard}},
                       .control_junk = &junk,
                       .control_drops = &control_drops},
            .buffers = [] { return BufferUse{.in_use = 3, .capacity = 8}; },
            .inspect =
                [this](const MetricsSource::Inspection& inspection) {
                  inspection(jobs, now);
                  return true;
                }};
  }

  std::unique_ptr<MetricsEndpoint> endpoint() {
    auto started = MetricsEndpoint::start("127.0.0.1:0", source());
    EXPECT_TRUE(started.ok()) << started.status().message();
    return std::move(started).value();
  }

  Families page() { return MetricsCollector(source()).Collect(); }

  static const MetricFamily* find(const Families& families, const std::string& name) {
    for (const MetricFamily& family : families)
      if (family.name == name) return &family;
    ADD_FAILURE() << "no family " << name;
    return nullptr;
  }

  static std::string label(const ClientMetric& metric, const std::string& name) {
    for (const auto& one : metric.label)
      if (one.name == name) return one.value;
    return {};
  }

  // The value of the row with all these labels, or nothing.
  static std::optional<double> value(const Families& families, const std::string& name,
                                     const std::map<std::string, std::string>& labels = {}) {
    const MetricFamily* family = find(families, name);
    if (family == nullptr) return {};
    for (const ClientMetric& metric : family->metric) {
      bool same = true;
      for (const auto& [key, wanted] : labels) same &= label(metric, key) == wanted;
      if (same)
        return family->type == MetricType::Counter ? metric.counter.value : metric.gauge.value;
    }
    return {};
  }
};

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
  Verdict why{};
  ASSERT_TRUE(wire::parse(bytes, packet, why));
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

TEST_F(Metrics, JobsShowTheirCountersMembersAndHistograms) {
  auto workers = running_job(2);
  agg::Job* job = commands[0].job;
  job->slices[0].contributions.add(7);
  job->slices[1].contributions.add(8);
  job->slices[0].results_sent.add(3);
  job->slices[1].results_deferred.add(2);
  job->slices[1].results_pulled.add(1);
  job->slices[0].slots_in_use.add(4);
  job->slices[0].step_duration.observe(15'000);
  job->slices[1].step_duration.observe(3 * kSecond);
  job->slices[0].flows[1].lag.observe(5'000);
  pass(2 * kSecond, {&workers[0]});
  const Families families = page();
  const std::map<std::string, std::string> digits{{"job", "digits"}};
  EXPECT_EQ(value(families, "sluice_job_contributions_total", digits), 15.0);
  EXPECT_EQ(value(families, "sluice_job_results_total", digits), 3.0);
  EXPECT_EQ(value(families, "sluice_job_results_deferred_total", digits), 2.0);
  EXPECT_EQ(value(families, "sluice_job_results_pulled_total", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_slots_in_use", digits), 4.0);
  EXPECT_EQ(value(families, "sluice_job_members", digits), 2.0);
  EXPECT_EQ(value(families, "sluice_job_running", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_step", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_memory_bytes", digits), jobs.memory_bytes());
  EXPECT_EQ(value(families, "sluice_job_member_silent_seconds", {{"job", "digits"}, {"rank", "1"}}),
            2.0);

  const MetricFamily* duration = find(families, "sluice_job_step_duration_seconds");
  ASSERT_EQ(duration->metric.size(), 1u);
  const auto& steps = duration->metric[0].histogram;
  EXPECT_EQ(steps.sample_count, 2u);
  EXPECT_DOUBLE_EQ(steps.sample_sum, 3.000015);
  EXPECT_EQ(steps.bucket[0].cumulative_count, 0u);
  EXPECT_DOUBLE_EQ(steps.bucket[1].upper_bound, 20e-6);
  EXPECT_EQ(steps.bucket[1].cumulative_count, 1u);
  EXPECT_EQ(steps.bucket.back().cumulative_count, 2u);
  EXPECT_EQ(find(families, "sluice_job_arrival_lag_seconds")->metric.size(), 2u);
}

TEST_F(Metrics, RanksShowWhatBecameOfTheirChunksOverAllShards) {
  auto workers = running_job(2);
  agg::Job* job = commands[0].job;
  for (std::size_t index = 0; index < 2; ++index) {
    job->slices[index].flows[1].included.add(10 + index);
    job->slices[index].flows[1].late.add(20 + index);
    job->slices[index].flows[1].requeued.add(30 + index);
  }
  job->members[1].finished.store(std::uint64_t{7} << 32 | 250'000);
  const Families families = page();
  const std::map<std::string, std::string> rank_0{{"job", "digits"}, {"rank", "0"}};
  const std::map<std::string, std::string> rank_1{{"job", "digits"}, {"rank", "1"}};
  EXPECT_EQ(value(families, "sluice_job_included_chunks_total", rank_1), 21.0);
  EXPECT_EQ(value(families, "sluice_job_late_chunks_total", rank_1), 41.0);
  EXPECT_EQ(value(families, "sluice_job_requeued_chunks_total", rank_1), 61.0);
  EXPECT_EQ(value(families, "sluice_job_late_chunks_total", rank_0), 0.0);
  EXPECT_EQ(value(families, "sluice_job_gradient_seconds", rank_1), 0.25);
  EXPECT_EQ(value(families, "sluice_job_gradient_step", rank_1), 7.0);
  EXPECT_EQ(value(families, "sluice_job_gradient_seconds", rank_0), std::nullopt)
      << "a duration that is not known has no row";
}

TEST_F(Metrics, ARankIsMissingOnlyFromTheStepThatIsOpen) {
  auto workers = running_job(2);
  agg::Job* job = commands[0].job;
  const auto missing = [&](const std::string& rank) {
    return value(page(), "sluice_job_missing", {{"job", "digits"}, {"rank", rank}});
  };
  EXPECT_EQ(missing("0"), 0.0);
  EXPECT_EQ(missing("1"), 0.0);
  job->slices[1].awaited.ranks[0].store(0b10);
  job->slices[1].awaited.step.store(1);
  EXPECT_EQ(missing("0"), 0.0);
  EXPECT_EQ(missing("1"), 1.0);
  job->windows[0].open_step.store(2);
  EXPECT_EQ(missing("1"), 0.0) << "the step that it was missing from is closed";
}

TEST_F(Metrics, TheStepThatHasNotStartedMissesNobody) {
  agg::Worker first;
  ASSERT_TRUE(join(first).is(wire::PacketType::kAccept));
  agg::Job* job = commands[0].job;
  job->slices[0].awaited.ranks[0].store(1);
  EXPECT_EQ(value(page(), "sluice_job_missing", {{"rank", "0"}}), 0.0);
}

TEST_F(Metrics, RanksThatAreNotThereHaveNoRows) {
  auto workers = running_job(3);
  leave(workers[2], wire::LeaveReason::kFinished);
  const Families families = page();
  for (const char* name : {"sluice_job_included_chunks_total", "sluice_job_late_chunks_total",
                           "sluice_job_requeued_chunks_total", "sluice_job_missing",
                           "sluice_job_arrival_lag_seconds", "sluice_job_member_silent_seconds"}) {
    const MetricFamily* family = find(families, name);
    ASSERT_NE(family, nullptr);
    EXPECT_EQ(family->metric.size(), 2u) << name;
    for (const ClientMetric& metric : family->metric) EXPECT_NE(label(metric, "rank"), "2") << name;
  }
}

TEST_F(Metrics, JobsShowTheirPolicyAndWhatItSaw) {
  auto workers = running_job(2);
  agg::Job* job = commands[0].job;
  const std::map<std::string, std::string> digits{{"job", "digits"}};
  Families families = page();
  EXPECT_EQ(value(families, "sluice_job_policy_info",
                  {{"job", "digits"}, {"policy", "sync"}, {"late", "drop"}}),
            1.0);
  EXPECT_EQ(value(families, "sluice_job_k", digits), 2.0);
  EXPECT_EQ(value(families, "sluice_job_chunks", digits), 130.0);
  EXPECT_EQ(value(families, "sluice_job_noise_scale_valid", digits), 0.0);
  EXPECT_EQ(value(families, "sluice_job_signs_flipped_ratio", digits), std::nullopt);
  job->gauges.k.store(1);
  job->gauges.noise_scale.store(3.5);
  job->gauges.noise_scale_valid.store(true);
  job->gauges.signs_flipped.store(0.0);
  families = page();
  EXPECT_EQ(value(families, "sluice_job_k", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_noise_scale", digits), 3.5);
  EXPECT_EQ(value(families, "sluice_job_noise_scale_valid", digits), 1.0);
  EXPECT_EQ(value(families, "sluice_job_signs_flipped_ratio", digits), 0.0);
}

TEST_F(Metrics, AJobUnderAReusedNameIsOneRow) {
  auto old = running_job(2);
  leave(old[1], wire::LeaveReason::kAbnormal);
  shards_answer = false;  // the old job's memory stays for a while
  agg::Worker next{.nonce = 700};
  next.join.run_id = 8;
  ASSERT_TRUE(join(next).is(wire::PacketType::kAccept));
  ASSERT_EQ(jobs.jobs().size(), 2u);
  agg::Worker second{.nonce = 701};
  second.join.ordinal = 1;
  ASSERT_TRUE(join(second).is(wire::PacketType::kAccept));
  const Families families = page();
  EXPECT_EQ(find(families, "sluice_job_members")->metric.size(), 2u);
  EXPECT_EQ(value(families, "sluice_job_members", {{"job", "digits"}}), 1.0);
  EXPECT_EQ(value(families, "sluice_job_members", {{"job", "digits/1"}}), 1.0);
}

TEST_F(Metrics, NamesUnitsLabelsAndHelpFollowTheRules) {
  auto workers = running_job(2);
  commands[0].job->members[0].finished.store(std::uint64_t{1} << 32 | 1);
  commands[0].job->gauges.signs_flipped.store(0.5);
  right.classes[0].tx_packets.add(1);
  right.classes[63].drops.add(1);
  const std::set<std::string> allowed{"port", "class", "reason", "use", "lcore",
                                      "job",  "rank",  "policy", "late"};
  const std::regex name_rule("sluice_[a-z0-9_]+");
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

TEST_F(Metrics, AnAddressInUseIsAnErrorThatNamesItAndTheKey) {
  const auto metrics = endpoint();
  const std::string address = "127.0.0.1:" + std::to_string(metrics->port());
  const auto second = MetricsEndpoint::start(address, source());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kIoError);
  EXPECT_THAT(second.status().message(), AllOf(HasSubstr(address), HasSubstr("metrics.address")));
}

}  // namespace
}  // namespace sluice::dataplane
