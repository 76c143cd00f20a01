#include "client/log.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

namespace sluice::client {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames{"error", "warn", "info", "debug"};

struct ProcessLog {
  std::mutex mutex;
  LogSink sink;
};

ProcessLog& process_log() {
  static ProcessLog instance;
  return instance;
}

int environment_level() noexcept {
  const char* value = std::getenv("SLUICE_LOG");
  if (value == nullptr) return -1;
  for (std::size_t level = 0; level < kLevelNames.size(); ++level) {
    if (kLevelNames[level] == value) return static_cast<int>(level);
  }
  return -1;
}

}  // namespace

Log::Log(const LogSink& own) : sink_(own), stderr_level_(environment_level()) {
  if (sink_.write != nullptr) return;
  const std::lock_guard lock(process_log().mutex);
  sink_ = process_log().sink;
}

bool Log::wants(sluice_log_level level) const noexcept {
  return (sink_.write != nullptr && level <= sink_.level) ||
         static_cast<int>(level) <= stderr_level_;
}

void Log::write(sluice_log_level level, const std::string& text) const noexcept {
  if (sink_.write != nullptr && level <= sink_.level) sink_.write(sink_.user, level, text.c_str());
  echo(level, text);
}

void Log::echo(sluice_log_level level, const std::string& text) const noexcept {
  if (static_cast<int>(level) <= stderr_level_) {
    std::fprintf(stderr, "sluice[%d] %s: %s\n", static_cast<int>(::getpid()),
                 kLevelNames[level].data(), text.c_str());
  }
}

void set_process_log(const LogSink& sink) {
  const std::lock_guard lock(process_log().mutex);
  process_log().sink = sink;
}

}  // namespace sluice::client
