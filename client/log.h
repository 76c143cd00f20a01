// Where the library's few log lines go: a callback, standard error when SLUICE_LOG asks, or
// nowhere.
//
// Copied into each job at its join. Any thread. Never on the path of a packet.
#pragma once

#include <string>

#include "client/include/sluice/sluice.h"

namespace sluice::client {

struct LogSink {
  sluice_log_fn write = nullptr;
  void* user = nullptr;
  sluice_log_level level = SLUICE_LOG_INFO;
};

class Log {
 public:
  Log() = default;
  // `own` when it has a function, else the process-wide sink; and standard error as SLUICE_LOG
  // says.
  explicit Log(const LogSink& own);

  bool wants(sluice_log_level level) const noexcept;
  void write(sluice_log_level level, const std::string& text) const noexcept;
  // To standard error only: the application has the text already.
  void echo(sluice_log_level level, const std::string& text) const noexcept;

 private:
  LogSink sink_;
  int stderr_level_ = -1;
};

// The sink of jobs without one of their own (sluice_set_log).
void set_process_log(const LogSink& sink);

}  // namespace sluice::client
