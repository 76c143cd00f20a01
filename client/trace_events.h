// Tensor times as events of the Chrome trace event format (the "JSON array" form), which
// chrome://tracing and ui.perfetto.dev show.
//
// Each rank is a process and each tensor a track (a thread) of it; over several appliances there is
// another track for each lane that takes a part of the tensor. A tensor's step is one slice, its
// phases are slices below it, and what happened at the appliance are instants. One event a line,
// each line after the first begun by a comma: a file that ends anywhere between two events still
// loads, because the format does not require the closing bracket. Times are microseconds of the
// worker's CLOCK_MONOTONIC. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/base/limits.h"
#include "client/core/calls/layout.h"
#include "client/core/calls/trace.h"

namespace sluice::client {

struct TraceIdentity {
  std::string job_name;
  std::uint16_t ordinal = 0;
  std::uint64_t run_id = 0;
  Rank rank;
  std::uint16_t world_size = 0;
  std::string machine;  // equal where clocks are the same one
};

// A JSON string with its quotes. What is not UTF-8 becomes U+FFFD.
std::string json_text(std::string_view text);

// "sluice-JOB-rank3.json": what is not a letter, digit, '.', '_' or '-' becomes '_'.
std::string trace_file_name(const TraceIdentity& identity);

struct TraceTracks {
  std::vector<TensorSpec> tensors;
  std::vector<TracePart> parts;  // in the order of tensors
};
inline constexpr std::size_t kMaxTracks = 100'000;

// "[", the names of process and tracks, and an instant that says whose trace this is.
void append_trace_start(std::string& out, const TraceIdentity& identity, const TraceTracks& tracks,
                        TimeNs now);
// Precondition: ready and result are known.
void append_tensor(std::string& out, const TraceIdentity& identity, const TraceTracks& tracks,
                   const TensorTimes& times);
// Something that happened to the rank.
struct TraceMark {
  const char* name = "";
  std::string text;
  Step step = 0;
  TimeNs at_ns = 0;
};
void append_mark(std::string& out, const TraceIdentity& identity, const TraceMark& mark);
// Something about the trace itself, for whoever looks at it.
void append_remark(std::string& out, const TraceIdentity& identity, std::string_view text,
                   TimeNs now);
void append_trace_end(std::string& out);

}  // namespace sluice::client
