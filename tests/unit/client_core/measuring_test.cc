// Pruned tensors whose thresholds another thread finds while the session goes on.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/client_core/scripted.h"

namespace sluice::client {
namespace {

using wire::PacketType;

constexpr std::uint64_t kElems = 1600;  // 100 chunks

// Runs a task when it is told to.
class Later final : public Executor {
 public:
  void execute(Task& task) override { tasks.push_back(&task); }
  void finish(Task& task) override {
    ASSERT_EQ(std::erase(tasks, &task), 1u);
    task.run();
    ++waited_for;
  }
  std::vector<Task*> tasks;
  int waited_for = 0;
};

class Measuring : public testing::Test {
 protected:
  Measuring() : bench(options(), {{"pruned", kElems}, {"whole", 8}}) { bench.start(); }
  ~Measuring() override {
    while (!later.tasks.empty()) later.finish(*later.tasks.front());
  }

  SessionOptions options() {
    SessionOptions options = Scripted::default_options();
    options.prune = {.rule = PruneRule::kStatic, .fraction = 0.1};
    options.executor = &later;
    return options;
  }
  Later later;
  Scripted bench;
  Tensor pruned{1, kElems}, whole{1, 8};
};

TEST_F(Measuring, OthersLeaveMeanwhile) {
  ASSERT_TRUE(bench.session.submit(of(pruned, 0), bench.now).ok());
  ASSERT_TRUE(bench.session.submit(of(whole, 1), bench.now).ok());
  const auto first = bench.sent(PacketType::kContribution);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].body<wire::Contribution>().chunk, kElems / 16);
  EXPECT_FALSE(bench.session.has_call());
  ASSERT_EQ(later.tasks.size(), 1u);
  later.tasks[0]->run();
  later.tasks.clear();
  EXPECT_TRUE(bench.session.has_call());
  EXPECT_GT(bench.sent(PacketType::kContribution).size(), 1u);
  EXPECT_EQ(later.waited_for, 0);
}

TEST_F(Measuring, WhoGetsItsMemoryBackWaits) {
  ASSERT_TRUE(bench.session.submit(of(pruned, 0), bench.now).ok());
  EXPECT_TRUE(bench.sent(PacketType::kContribution).empty());
  bench.session.handle_broken({StatusCode::kExhausted, "out of memory"}, bench.now);
  EXPECT_EQ(later.waited_for, 1);
  EXPECT_TRUE(later.tasks.empty());
  EXPECT_TRUE(bench.saw(Event::Kind::kTensorLost));
}

TEST_F(Measuring, ResidualsAreItsOwnMeanwhile) {
  ASSERT_TRUE(bench.session.submit(of(pruned, 0), bench.now).ok());
  EXPECT_TRUE(bench.sent(PacketType::kContribution).empty());
  Kept kept;
  EXPECT_EQ(bench.session.residual(0, kept).code(), StatusCode::kBusy);
  EXPECT_EQ(later.waited_for, 0);
}

}  // namespace
}  // namespace sluice::client
