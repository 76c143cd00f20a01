#include "dataplane/ops/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace sluice::dataplane {
namespace {

struct Level {
  std::string_view name;
  spdlog::level::level_enum level;
};
constexpr std::array<Level, 5> kLevels{{{"trace", spdlog::level::trace},
                                        {"debug", spdlog::level::debug},
                                        {"info", spdlog::level::info},
                                        {"warning", spdlog::level::warn},
                                        {"error", spdlog::level::err}}};

// "<3>" for an error: the priorities of syslog(3).
class Priority : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& to) override {
    char digit = '7';
    if (message.level == spdlog::level::info) digit = '6';
    if (message.level == spdlog::level::warn) digit = '4';
    if (message.level >= spdlog::level::err) digit = '3';
    for (const char letter : {'<', digit, '>'}) to.push_back(letter);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Priority>();
  }
};

}  // namespace

bool is_journal(int descriptor, const char* journal_stream) noexcept {
  struct stat info;
  unsigned long long device = 0, inode = 0;
  if (journal_stream == nullptr || fstat(descriptor, &info) != 0 ||
      std::sscanf(journal_stream, "%llu:%llu", &device, &inode) != 2)
    return false;
  return info.st_dev == device && info.st_ino == inode;
}

void start_log(std::string_view level) {
  auto logger = std::make_shared<spdlog::logger>("sluiced",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  if (is_journal(STDERR_FILENO, std::getenv("JOURNAL_STREAM")))
    formatter->add_flag<Priority>('*').set_pattern("%*%v");  // the journal has its own clock
  else
    formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l: %v");
  logger->set_formatter(std::move(formatter));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  set_log_level(level);
}

bool set_log_level(std::string_view level) {
  for (const Level& one : kLevels) {
    if (one.name != level) continue;
    spdlog::set_level(one.level);
    return true;
  }
  return false;
}

std::string log_level() {
  for (const Level& one : kLevels)
    if (one.level == spdlog::get_level()) return std::string(one.name);
  return {};
}

}  // namespace sluice::dataplane
