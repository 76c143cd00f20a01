// One rank's Chrome trace on its way into a file.
//
// The progress thread hands over what the session has noted and says, application threads when a
// result was used, and a thread of its own writes: nobody who moves packets waits for a disk.
// Memory is bounded (records that the writer is too slow for are counted and lost) and so is the
// file: when it is full that is said once, in the log and in the file, and the rest of the run
// leaves no trace. What is written is written whole, so the file of a process that died still
// loads; it lacks each tensor's last record, which waits for word that the result was used.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/fork.h"
#include "client/log.h"
#include "client/trace_events.h"

namespace sluice::client {

struct TraceFileOptions {
  std::string folder;  // made when it is missing
  TraceIdentity identity;
  TraceTracks tracks;
  std::uint64_t limit_bytes = std::uint64_t{64} << 20;
  std::function<void()> on_start;  // called on the writer's thread, from which the log is called
};

class TraceFile {
 public:
  // Replaces an older file of the same name. Fails when it cannot be written.
  static Result<std::unique_ptr<TraceFile>> open(TraceFileOptions options, Log log, TimeNs now);
  ~TraceFile();  // writes the rest and closes the array

  // ---- progress thread ----
  void done(const TensorTimes& times);
  void mark(TraceMark mark);

  // ---- application threads ----
  // The tensor's result is in use, or has been used: the newest word before the tensor is
  // submitted again counts.
  void applied(std::uint32_t tensor, TimeNs now);
  // As applied(), unless that has been said: the wait for the result has returned.
  // `suspended_ns`: what it took, of a store's layer.
  void returned(std::uint32_t tensor, TimeNs now, DurationNs suspended_ns = 0);
  void all_returned(TimeNs now);
  // It is submitted again: nothing more will be heard of its last result.
  void next(std::uint32_t tensor);

 private:
  TraceFile(TraceFileOptions options, Log log, int fd, std::string path);
  void run();
  bool write_round();                              // false: it was the last one
  void take(std::uint32_t tensor);                 // with the mutex held: its record may be written
  void wait_for_writer(const TensorTimes& times);  // likewise
  void write_records();
  void keep_within_limit(std::size_t before, Step step);
  int write_text();
  void end(const std::string& why);

  const TraceFileOptions options_;
  const Log log_;
  const std::string path_;
  const std::size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<TensorTimes> open_;     // by tensor: done, perhaps not applied; step 0: none
  std::vector<TensorTimes> waiting_;  // to be written
  std::vector<TraceMark> marks_;      // likewise
  std::uint64_t lost_count_ = 0;
  bool stop_ = false;
  // The writer's.
  OwnedFd fd_;
  std::vector<TensorTimes> writing_;
  std::vector<TraceMark> writing_marks_;
  std::string text_;
  std::uint64_t written_bytes_ = 0;
  std::uint64_t told_lost_count_ = 0;
  bool ended_ = false;  // full or broken: nothing more is written
  std::thread thread_;  // last: uses all of the above
};

}  // namespace sluice::client
