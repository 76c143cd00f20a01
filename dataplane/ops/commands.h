// What sluicectl asks of the box, and the JSON that it gets.
//
// Every answer has "ok"; one that is not has "error", with the value, the reason and the remedy.
// One thread at a time; a command waits for the control thread's next round.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "aggregator/base/status.h"
#include "aggregator/jobs/jobs.h"
#include "dataplane/core/counters.h"

namespace sluice::dataplane {

// A setting that a reload has changed, with its values as TOML.
struct SettingChange {
  std::string setting;
  std::string before;
  std::string after;
};

// The box as commands see it. All members must live and be callable while commands come; those that
// are not set are commands that this box does not have.
struct Box {
  CounterBlocks blocks;
  std::string summary;  // one line: addresses, ports, shards
  std::function<BufferUse()> buffers;
  // Runs its argument on the control thread and returns when it is done; false: it has ended.
  std::function<bool(const std::function<void(agg::Jobs&, TimeNs)>&)> visit;
  std::function<bool()> draining{};
  std::function<Status()> drain{};
  std::function<Result<std::vector<SettingChange>>()> reload{};
  std::function<Status(const std::string&)> set_log_level{};
};

// The answer to a request of these words: a command's name and its arguments.
std::string answer_command(const Box& box, std::span<const std::string> words);

}  // namespace sluice::dataplane
