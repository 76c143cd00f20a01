// Tensor times as events, and their way into a file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <thread>

#include "client/trace_events.h"
#include "client/trace_file.h"

namespace sluice::client {
namespace {

constexpr TimeNs kNow = 1'000 * kSecond;

TraceIdentity identity_of(std::uint16_t rank) {
  return {.job_name = "cnn", .run_id = 255, .rank = Rank{rank}, .world_size = 4, .machine = "m"};
}

// In microseconds after kNow: ready 0, queued 1, sent 3 to 5, contributions 4 to 8, result 10.
TensorTimes times_of(std::uint32_t tensor, Step step) {
  return {.tensor = tensor,
          .step = step,
          .priority = 2,
          .contributes = true,
          .k = 4,
          .packets = 3,
          .ready_ns = kNow,
          .queued_ns = kNow + 1 * kMicrosecond,
          .first_sent_ns = kNow + 3 * kMicrosecond,
          .last_sent_ns = kNow + 5 * kMicrosecond,
          .first_contribution_ns = kNow + 4 * kMicrosecond,
          .kth_contribution_ns = kNow + 8 * kMicrosecond,
          .result_ns = kNow + 10 * kMicrosecond,
          .smallest_round_trip_ns = 2 * kMicrosecond};
}

// Eight tensors of 400 bytes; of the last one parts go two ways.
TraceTracks tracks() {
  TraceTracks tracks;
  for (const char digit : {'0', '1', '2', '3', '4', '5', '6', '7'})
    tracks.tensors.push_back({std::string("fc") + digit, 100});
  tracks.parts = {{.tensor = 7, .elem_count = 60, .way = "turn", .name = "thread 0"},
                  {.tensor = 7,
                   .elem_count = 40,
                   .thread = 1,
                   .stage = 2,
                   .level = 3,
                   .way = "up",
                   .name = "thread 1"}};
  return tracks;
}

std::string events_of(const TensorTimes& times) {
  std::string out;
  append_tensor(out, identity_of(1), tracks(), times);
  return out;
}

// "waits in the queue 1000000001.000 2.000" for each slice below the step's own.
std::vector<std::string> phases_of(const TensorTimes& times) {
  std::vector<std::string> found;
  std::istringstream lines(events_of(times));
  for (std::string line; std::getline(lines, line);) {
    if (line.find("\"ph\":\"X\"") == std::string::npos ||
        line.find("\"name\":\"step ") != std::string::npos)
      continue;
    const auto field = [&](const std::string& key) {
      const std::size_t at = line.find("\"" + key + "\":") + key.size() + 3;
      std::string value = line.substr(at, line.find_first_of(",}", at) - at);
      std::erase(value, '"');
      return value;
    };
    found.push_back(field("name") + " " + field("ts") + " " + field("dur"));
  }
  return found;
}

TEST(TraceEvents, WriteAStepOfATensorAsOneSliceWithItsPhasesBelow) {
  TensorTimes times = times_of(7, 12);
  times.applied_ns = kNow + 11 * kMicrosecond;
  const std::string out = events_of(times);
  EXPECT_EQ(out.substr(0, out.find('\n', 2)),
            ",\n{\"ph\":\"X\",\"pid\":2,\"tid\":200007,\"cat\":\"sluice\",\"name\":\"step 12\","
            "\"ts\":1000000000.000,\"dur\":11.000,\"args\":{\"tensor\":7,\"step\":12,\"bytes\":400,"
            "\"priority\":2,\"k\":4,\"packets\":3,\"sent_again\":0,\"contributes\":true,"
            "\"queued_us\":1.000,\"first_sent_us\":3.000,\"last_sent_us\":5.000,"
            "\"first_contribution_us\":4.000,\"kth_contribution_us\":8.000,\"result_us\":10.000,"
            "\"applied_us\":11.000,\"smallest_round_trip_us\":2.000}},");
  EXPECT_EQ(
      phases_of(times),
      (std::vector<std::string>{
          "waits to be queued 1000000000.000 1.000", "waits in the queue 1000000001.000 2.000",
          "on the wire 1000000003.000 3.000", "waits for other ranks 1000000006.000 2.000",
          "result on its way 1000000008.000 2.000", "waits to be applied 1000000010.000 1.000"}));
}

TEST(TraceEvents, LeaveOutWhatDidNotHappen) {
  TensorTimes times = times_of(0, 1);  // complete before this rank had sent anything
  times.packets = 0;
  times.first_sent_ns = times.last_sent_ns = 0;
  times.first_contribution_ns = kNow - 5 * kMicrosecond;
  times.kth_contribution_ns = kNow - 2 * kMicrosecond;
  EXPECT_EQ(phases_of(times), (std::vector<std::string>{"waits to be queued 1000000000.000 1.000",
                                                        "result on its way 1000000001.000 9.000"}));
  const std::string out = events_of(times);
  EXPECT_EQ(out.find("sent_us"), std::string::npos);
  EXPECT_EQ(out.find("applied_us"), std::string::npos);
  EXPECT_NE(out.find("\"kth_contribution_us\":-2.000"), std::string::npos);
}

TEST(TraceEvents, KeepPhasesApartWhereTimesOverlap) {
  TensorTimes times = times_of(0, 1);  // sent again after others had completed it
  times.last_sent_ns = kNow + 9 * kMicrosecond;
  EXPECT_EQ(phases_of(times), (std::vector<std::string>{"waits to be queued 1000000000.000 1.000",
                                                        "waits in the queue 1000000001.000 2.000",
                                                        "on the wire 1000000003.000 5.000",
                                                        "result on its way 1000000008.000 2.000"}));
}

TEST(TraceEvents, ShowAPartOnATrackOfItsOwnWithWhereItWent) {
  TensorTimes times = times_of(7, 12);
  times.part = 2;
  times.switch_index = 5;
  const std::string out = events_of(times);
  const std::string place =
      ",\"thread\":1,\"stage\":2,\"way\":\"up\",\"level\":3,\"switch\":5,\"detoured\":false,";
  EXPECT_NE(out.find("\"tid\":200009,\"cat\":\"sluice\",\"name\":\"step 12\""), std::string::npos);
  EXPECT_NE(out.find("\"tensor\":7,\"step\":12,\"bytes\":160,"), std::string::npos);
  EXPECT_NE(out.find(place), std::string::npos) << out;
  times.detoured = true;
  const std::string detoured = events_of(times);
  EXPECT_NE(detoured.find("\"name\":\"step 12, detoured\""), std::string::npos);
  EXPECT_NE(detoured.find("\"detoured\":true"), std::string::npos);
}

// It knows when its sender heard that it is counted, and not when the sum was complete.
TEST(TraceEvents, ShowAPartWhoseSumIsNotWantedUntilItIsCounted) {
  TensorTimes times = times_of(7, 12);
  times.part = 1;
  times.k = 0;
  times.first_contribution_ns = times.kth_contribution_ns = 0;
  EXPECT_EQ(
      phases_of(times),
      (std::vector<std::string>{
          "waits to be queued 1000000000.000 1.000", "waits in the queue 1000000001.000 2.000",
          "on the wire 1000000003.000 3.000", "waits to be counted 1000000006.000 4.000"}));
}

TEST(TraceEvents, MarkWhatHappenedToTheRank) {
  std::string out;
  append_mark(out, identity_of(1),
              {.name = "detour", .text = "level 0", .step = 9, .at_ns = kNow + kMicrosecond});
  EXPECT_EQ(out,
            ",\n{\"ph\":\"i\",\"pid\":2,\"tid\":2,\"cat\":\"sluice\",\"name\":\"detour\","
            "\"ts\":1000000001.000,\"s\":\"p\",\"args\":{\"step\":9,\"text\":\"level 0\"}}");
}

TEST(TraceEvents, NameTracksInTheOrderOfTensorsAndOfTheirWays) {
  std::string out;
  append_trace_start(out, identity_of(3), tracks(), kNow);
  for (const char* part : {"400007,\"name\":\"thread_name\",\"args\":{\"name\":\"fc7\"}",
                           "400009,\"name\":\"thread_name\",\"args\":{\"name\":\"fc7: thread 1\"}",
                           "400009,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":9}"})
    EXPECT_NE(out.find(part), std::string::npos) << part << " is not in " << out;
}

TEST(TraceEvents, NameProcessAndLanesOnce) {
  std::string out;
  append_trace_start(out, identity_of(3), {.tensors = {{"fc1", 1}, {"fc2", 1}}, .parts = {}}, kNow);
  append_trace_end(out);
  EXPECT_EQ(out.find("[\n{"), 0u);
  EXPECT_EQ(out.substr(out.size() - 4), "}\n]\n");
  EXPECT_NE(out.find("\"name\":\"process_name\",\"args\":{\"name\":\"rank 3 of cnn\"}}"),
            std::string::npos);
  EXPECT_NE(
      out.find("\"pid\":4,\"tid\":400001,\"name\":\"thread_name\",\"args\":{\"name\":\"fc2\"}}"),
      std::string::npos);
  EXPECT_NE(out.find("\"run_id\":\"00000000000000ff\""), std::string::npos);
}

TEST(TraceEvents, EscapeEveryNameIntoValidJson) {
  EXPECT_EQ(json_text("fc1.weight"), "\"fc1.weight\"");
  EXPECT_EQ(json_text("a\"b\\c/d"), "\"a\\\"b\\\\c/d\"");
  EXPECT_EQ(json_text(std::string_view("\n\t\0\x7f", 4)), "\"\\u000a\\u0009\\u0000\\u007f\"");
  EXPECT_EQ(json_text("Gr\xc3\xb6\xc3\x9f\x65 \xf0\x9f\x90\xa2"),
            "\"Gr\xc3\xb6\xc3\x9f\x65 \xf0\x9f\x90\xa2\"");
  EXPECT_EQ(json_text("\xc3"), "\"\\ufffd\"");             // cut off
  EXPECT_EQ(json_text("\x80z"), "\"\\ufffdz\"");           // no lead byte
  EXPECT_EQ(json_text("\xc0\x80"), "\"\\ufffd\\ufffd\"");  // overlong
  EXPECT_EQ(json_text("\xe0\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\"");
  EXPECT_EQ(json_text("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");  // a surrogate
  EXPECT_EQ(json_text("\xf4\x90\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
}

TEST(TraceEvents, NameFilesByJobModelAndRank) {
  TraceIdentity identity = identity_of(3);
  EXPECT_EQ(trace_file_name(identity), "sluice-cnn-rank3.json");
  identity.ordinal = 1;
  identity.job_name = "../my job";
  EXPECT_EQ(trace_file_name(identity), "sluice-.._my_job-1-rank3.json");
}

// ---- the file ----

class TraceFileTest : public testing::Test {
 protected:
  TraceFileTest() {
    std::string pattern = testing::TempDir() + "trace-XXXXXX";
    root_ = folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/" + trace_file_name(identity_of(0));
  }
  ~TraceFileTest() override { std::filesystem::remove_all(root_); }

  Result<std::unique_ptr<TraceFile>> open(std::uint64_t limit_bytes = 1 << 20) {
    const LogSink sink{.write =
                           [](void* user, sluice_log_level, const char* text) {
                             static_cast<std::string*>(user)->append(text).append("\n");
                           },
                       .user = &log_};
    return TraceFile::open({.folder = folder_,
                            .identity = identity_of(0),
                            .tracks = {.tensors = {{"a", 100}, {"b", 100}}, .parts = parts_},
                            .limit_bytes = limit_bytes},
                           Log(sink), kNow);
  }
  std::string text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  }

  std::string root_, folder_, path_;
  std::vector<TracePart> parts_;
  std::string log_;  // the writer's until the file is closed
};

TEST_F(TraceFileTest, WritesEachTensorOnceWithTheTimeItWasApplied) {
  auto file = open();
  ASSERT_TRUE(file.ok()) << file.status().message();
  TraceFile& trace = *file.value();
  trace.done(times_of(0, 1));
  trace.returned(0, kNow + 20 * kMicrosecond);
  trace.returned(0, kNow + 30 * kMicrosecond);  // asked again: it has been in use since
  trace.next(0);
  trace.done(times_of(0, 2));
  trace.returned(0, kNow + 20 * kMicrosecond);
  trace.applied(0, kNow + 50 * kMicrosecond);  // who says so knows better
  trace.next(0);
  trace.applied(0, kNow + 60 * kMicrosecond);  // in flight: not about the last result
  trace.done(times_of(1, 1));
  trace.done(times_of(0, 3));
  trace.all_returned(kNow + 40 * kMicrosecond);
  file.value().reset();
  const std::string written = text();
  EXPECT_EQ(count(written, "\"name\":\"step "), 4u);
  EXPECT_EQ(count(written, "\"applied_us\":20.000"), 1u);
  EXPECT_EQ(count(written, "\"applied_us\":50.000"), 1u);
  EXPECT_EQ(count(written, "\"applied_us\":40.000"), 2u);
  EXPECT_EQ(written.substr(written.size() - 4), "}\n]\n");
  EXPECT_EQ(log_, "");
}

TEST_F(TraceFileTest, WritesPartsAndMarksWithoutWaitingForAnybodyToUseThem) {
  parts_ = {{.tensor = 0, .elem_count = 10, .way = "turn"}};
  auto file = open();
  ASSERT_TRUE(file.ok()) << file.status().message();
  TensorTimes part = times_of(0, 1);
  part.part = 1;
  file.value()->done(part);
  file.value()->done(times_of(0, 1));  // does not replace it
  file.value()->mark({.name = "detour", .text = "why", .step = 1, .at_ns = kNow});
  file.value().reset();
  const std::string written = text();
  EXPECT_EQ(count(written, "\"name\":\"step 1\""), 2u);
  EXPECT_EQ(count(written, "\"bytes\":40,"), 1u);
  EXPECT_EQ(count(written, "\"name\":\"detour\""), 1u);
}

TEST_F(TraceFileTest, SaysThatItLeavesPartsOutWhereTheyWouldBeTooManyTracks) {
  parts_.resize(kMaxTracks, {.tensor = 0, .elem_count = 10});
  auto file = open();
  ASSERT_TRUE(file.ok()) << file.status().message();
  TensorTimes part = times_of(0, 1);
  part.part = 7;
  file.value()->done(part);
  file.value().reset();
  const std::string written = text();
  EXPECT_EQ(count(written, "\"name\":\"step "), 0u);
  EXPECT_EQ(count(written, "more than 100000 tracks"), 1u);
}

TEST_F(TraceFileTest, LeavesWholeEventsBehindWhenTheProcessDies) {
  auto file = open();
  ASSERT_TRUE(file.ok());
  const std::string written = text();  // as if it died now
  EXPECT_EQ(written.front(), '[');
  EXPECT_EQ(written.back(), '}');
}

TEST_F(TraceFileTest, ASecondProcessOfTheRankLeavesTheFirstOnesFileWhole) {
  auto first = open();
  ASSERT_TRUE(first.ok());
  std::ifstream held(path_);
  ASSERT_TRUE(open().ok());
  first.value()->done(times_of(0, 1));
  first.value().reset();
  const std::string written{std::istreambuf_iterator<char>(held), {}};
  EXPECT_EQ(written.front(), '[');
  EXPECT_EQ(count(written, "\"name\":\"step "), 1u);
  EXPECT_EQ(written.substr(written.size() - 4), "}\n]\n");
}

TEST_F(TraceFileTest, MakesItsFolder) {
  folder_ += "/several/levels";
  path_ = folder_ + "/" + trace_file_name(identity_of(0));
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(TraceFileTest, SaysWhatItCannotWriteAndWhatToDo) {
  std::filesystem::create_symlink("/dev/full", path_);
  const Status full = open().status();
  EXPECT_EQ(full.code(), StatusCode::kIoError);
  EXPECT_NE(full.message().find("cannot write '" + path_ + "': No space left"), std::string::npos)
      << full.message();
  folder_ = "/dev/null/trace";
  const Status none = open().status();
  EXPECT_NE(
      none.message().find("'/dev/null/trace': cannot make it: Not a directory; give a folder"),
      std::string::npos)
      << none.message();
}

TEST_F(TraceFileTest, EndsWhenItIsFullAndSaysSoOnce) {
  constexpr std::uint64_t kLimit = 16 << 10;
  auto file = open(kLimit);
  ASSERT_TRUE(file.ok());
  for (Step step = 1; step <= 100; ++step) {
    file.value()->done(times_of(0, step));
    file.value()->next(0);
  }
  file.value().reset();
  const std::string written = text();
  EXPECT_LE(written.size(), kLimit);
  EXPECT_GT(written.size(), kLimit / 2);
  EXPECT_EQ(written.substr(written.size() - 4), "}\n]\n");
  EXPECT_EQ(count(written, "the rest of the run is not in it"), 1u);
  EXPECT_EQ(count(log_, "the rest of the run is not in it"), 1u) << log_;
}

TEST_F(TraceFileTest, CountsWhatASlowDiskLoses) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const int reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  auto file = open(1 << 30);
  ASSERT_TRUE(file.ok());
  constexpr Step kSteps = 40'000;  // more than the pipe and both buffers hold
  for (Step step = 1; step <= kSteps; ++step) {
    file.value()->done(times_of(0, step));
    file.value()->next(0);
  }
  std::string written;
  std::thread drain([&] {
    ::fcntl(reader, F_SETFL, 0);
    std::array<char, 65536> part;
    for (ssize_t got; (got = ::read(reader, part.data(), part.size())) > 0;)
      written.append(part.data(), static_cast<std::size_t>(got));
  });
  file.value().reset();
  drain.join();
  ::close(reader);
  // The writer may have found records lost more than once.
  std::size_t lost = 0;
  const std::regex remark("\"([0-9]+) tensors' times were lost");
  for (std::sregex_iterator it(written.begin(), written.end(), remark), end; it != end; ++it)
    lost += std::stoul((*it)[1]);
  EXPECT_GT(lost, 0u);
  EXPECT_EQ(count(written, "\"name\":\"step ") + lost, kSteps);
  EXPECT_NE(log_, "");
  EXPECT_EQ(written.substr(written.size() - 4), "}\n]\n");
}

}  // namespace
}  // namespace sluice::client
