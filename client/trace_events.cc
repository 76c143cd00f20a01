#include "client/trace_events.h"

#include <algorithm>
#include <array>
#include <cinttypes>

#include "aggregator/base/text.h"

namespace sluice::client {
namespace {

std::string microseconds(DurationNs ns) {
  return text("%s%" PRId64 ".%03" PRId64, ns < 0 ? "-" : "", std::abs(ns) / kMicrosecond,
              std::abs(ns) % kMicrosecond);
}

// Some viewers take process 0 for the idle process.
std::uint32_t process_of(const TraceIdentity& identity) {
  return 1u + identity.rank.value + std::uint32_t{identity.ordinal} * kMaxWorkers;
}

// Viewers may look a track up by its thread number alone, so a number belongs to one rank only.
std::uint32_t track_of(const TraceIdentity& identity, std::size_t index) {
  return process_of(identity) * std::uint32_t{kMaxTracks} + static_cast<std::uint32_t>(index);
}

void append_metadata(std::string& out, const TraceIdentity& identity, std::uint32_t track,
                     const char* name, const std::string& arguments) {
  out += text(",\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s\",\"args\":{",
              process_of(identity), track, name);
  out += arguments + "}}";
}

struct TraceSlice {
  const char* name;
  TimeNs begin_ns;
  TimeNs end_ns;
};

void append_slice(std::string& out, const TraceIdentity& identity, std::uint32_t track,
                  const TraceSlice& slice) {
  out += text(
      ",\n{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"cat\":\"sluice\",\"name\":\"%s\",\"ts\":%s,"
      "\"dur\":%s",
      process_of(identity), track, slice.name, microseconds(slice.begin_ns).c_str(),
      microseconds(slice.end_ns - slice.begin_ns).c_str());
}

void append_instant(std::string& out, const TraceIdentity& identity, std::uint32_t track,
                    const char* name, TimeNs at_ns, char scope = 't') {
  out += text(
      ",\n{\"ph\":\"i\",\"pid\":%u,\"tid\":%u,\"cat\":\"sluice\",\"name\":\"%s\",\"ts\":%s,"
      "\"s\":\"%c\"",
      process_of(identity), track, name, microseconds(at_ns).c_str(), scope);
}

void append_part(std::string& out, const TracePart& part, const TensorTimes& times) {
  out += text(
      ",\"thread\":%u,\"stage\":%u,\"way\":\"%s\",\"level\":%u,\"switch\":%u,"
      "\"detoured\":%s",
      part.thread, part.stage, part.way, part.level, times.switch_index,
      times.detoured ? "true" : "false");
}

void append_read(std::string& out, const StoreRead& read) {
  out += text(
      ",\"staleness\":%u,\"clock\":%u,\"parked\":%u,\"oldest_request_iterations\":%u,"
      "\"suspended_us\":%s",
      read.staleness, read.clock, read.parked, read.oldest_request_iterations,
      microseconds(read.suspended_ns).c_str());
}

void append_step(std::string& out, Step step) { out += text(",\"args\":{\"step\":%u}}", step); }

void append_offset(std::string& out, const char* name, TimeNs at_ns, TimeNs ready_ns) {
  if (at_ns != 0) out += text(",\"%s\":%s", name, microseconds(at_ns - ready_ns).c_str());
}

// The bytes of the UTF-8 sequence at the start of `text`; 0: it starts with none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xC2 ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  // Overlong forms, surrogates, and beyond U+10FFFF.
  if (length == 3 && ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)))
    return 0;
  if (length == 4 && ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)))
    return 0;
  return length;
}

}  // namespace

std::string json_text(std::string_view words) {
  std::string out = "\"";
  while (!words.empty()) {
    const std::size_t length = utf8_length(words);
    const auto first = static_cast<unsigned char>(words.front());
    if (length == 0) {
      out += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      out += '\\';
      out += words.front();
    } else if (first < 0x20 || first == 0x7F) {
      out += text("\\u%04x", first);
    } else {
      out += words.substr(0, length);
    }
    words.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out + '"';
}

std::string trace_file_name(const TraceIdentity& identity) {
  std::string job = identity.job_name;
  for (char& c : job) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    if (!plain) c = '_';
  }
  std::string name = "sluice-" + job;
  if (identity.ordinal != 0) name += "-" + std::to_string(identity.ordinal);
  return name + "-rank" + std::to_string(identity.rank.value) + ".json";
}

void append_trace_start(std::string& out, const TraceIdentity& identity, const TraceTracks& tracks,
                        TimeNs now) {
  const std::uint32_t process = process_of(identity);
  std::string title = "rank " + std::to_string(identity.rank.value) + " of " + identity.job_name;
  if (identity.ordinal != 0) title += ", model " + std::to_string(identity.ordinal);
  // The first event stands without a comma, so that all others can begin with one.
  out +=
      text("[\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"process_name\",\"args\":{\"name\":",
           process, process);
  out += json_text(title) + "}}";
  append_metadata(out, identity, process, "process_sort_index",
                  "\"sort_index\":" + std::to_string(process));
  std::size_t shown = 0;
  const auto name_track = [&](std::size_t index, const std::string& name) {
    const std::uint32_t track = track_of(identity, index);
    append_metadata(out, identity, track, "thread_name", "\"name\":" + json_text(name));
    append_metadata(out, identity, track, "thread_sort_index",
                    "\"sort_index\":" + std::to_string(shown++));
  };
  std::size_t part = 0;
  for (std::uint32_t tensor = 0; tensor < tracks.tensors.size(); ++tensor) {
    const std::string& name = tracks.tensors[tensor].name;
    name_track(tensor, name);
    for (; part < tracks.parts.size() && tracks.parts[part].tensor == tensor; ++part)
      name_track(tracks.tensors.size() + part, name + ": " + tracks.parts[part].name);
  }
  append_instant(out, identity, process, "trace begins", now, 'p');
  out += ",\"args\":{\"job\":" + json_text(identity.job_name);
  // The run id as text: readers of JSON keep numbers as doubles.
  out += text(",\"ordinal\":%u,\"rank\":%u,\"world_size\":%u,\"run_id\":\"%016" PRIx64
              "\",\"clock\":\"CLOCK_MONOTONIC\",\"machine\":",
              identity.ordinal, identity.rank.value, identity.world_size, identity.run_id);
  out += json_text(identity.machine) + "}}";
}

void append_tensor(std::string& out, const TraceIdentity& identity, const TraceTracks& tracks,
                   const TensorTimes& times) {
  const TensorSpec& tensor = tracks.tensors[times.tensor];
  const TracePart* const part = times.part == 0 ? nullptr : &tracks.parts[times.part - 1];
  const std::uint32_t track =
      track_of(identity, part == nullptr ? times.tensor : tracks.tensors.size() + times.part - 1);
  const std::uint64_t tensor_bytes =
      (part == nullptr ? tensor.elem_count : part->elem_count) * dtype_bytes(tensor.dtype);
  const TimeNs end_ns = std::max(times.result_ns, times.applied_ns);
  const std::string name =
      "step " + std::to_string(times.step) + (times.detoured ? ", detoured" : "");
  append_slice(out, identity, track, {name.c_str(), times.ready_ns, end_ns});
  out += text(",\"args\":{\"tensor\":%u,\"step\":%u,\"bytes\":%" PRIu64
              ",\"priority\":%u,\"k\":%u,\"packets\":%u,\"sent_again\":%u,\"contributes\":%s",
              times.tensor, times.step, tensor_bytes, times.priority, times.k, times.packets,
              times.sent_again, times.contributes ? "true" : "false");
  if (times.of_store) append_read(out, times.read);
  if (part != nullptr) append_part(out, *part, times);
  append_offset(out, "queued_us", times.queued_ns, times.ready_ns);
  append_offset(out, "first_sent_us", times.first_sent_ns, times.ready_ns);
  append_offset(out, "last_sent_us", times.last_sent_ns, times.ready_ns);
  append_offset(out, "first_contribution_us", times.first_contribution_ns, times.ready_ns);
  append_offset(out, "kth_contribution_us", times.kth_contribution_ns, times.ready_ns);
  append_offset(out, "result_us", times.result_ns, times.ready_ns);
  append_offset(out, "applied_us", times.applied_ns, times.ready_ns);
  out +=
      text(",\"smallest_round_trip_us\":%s}}", microseconds(times.smallest_round_trip_ns).c_str());

  // Slices of a track must not overlap. Where chunks of the tensor are in several phases at once, a
  // phase begins when the last of them has left the one before; the instants and the arguments
  // above are as measured. The last packet's time on the way is unknown; this is the least.
  const TimeNs arrived_ns =
      times.packets == 0 ? 0 : times.last_sent_ns + times.smallest_round_trip_ns / 2;
  // No message tells the arrival of the clock that a layer was parked for, nor the completion of a
  // sum that this rank does not want. Such a tensor is done when it is counted.
  const bool of_store = times.of_store;
  const bool unwanted = times.packets != 0 && times.kth_contribution_ns == 0 && !of_store;
  const std::array<std::pair<const char*, TimeNs>, 6> phases{{
      {"waits to be queued", times.queued_ns},
      {"waits in the queue", times.first_sent_ns},
      {"on the wire",
       std::min(arrived_ns, of_store || unwanted ? times.result_ns : times.kth_contribution_ns)},
      {"waits for other ranks", times.kth_contribution_ns},
      {of_store   ? "waits for its clock, and on its way back"
       : unwanted ? "waits to be counted"
                  : "result on its way",
       times.result_ns},
      {"waits to be applied", times.applied_ns},
  }};
  TimeNs begin_ns = times.ready_ns;
  for (const auto& [phase, phase_end_ns] : phases) {
    if (phase_end_ns <= begin_ns) continue;
    append_slice(out, identity, track, {phase, begin_ns, phase_end_ns});
    append_step(out, times.step);
    begin_ns = phase_end_ns;
  }
  if (times.kth_contribution_ns == 0) return;
  append_instant(out, identity, track, "first contribution", times.first_contribution_ns);
  append_step(out, times.step);
  append_instant(out, identity, track, "k-th contribution", times.kth_contribution_ns);
  append_step(out, times.step);
}

void append_mark(std::string& out, const TraceIdentity& identity, const TraceMark& mark) {
  append_instant(out, identity, process_of(identity), mark.name, mark.at_ns, 'p');
  out += text(",\"args\":{\"step\":%u,\"text\":", mark.step);
  out += json_text(mark.text) + "}}";
}

void append_remark(std::string& out, const TraceIdentity& identity, std::string_view text,
                   TimeNs now) {
  append_instant(out, identity, process_of(identity), "remark", now, 'p');
  out += ",\"args\":{\"text\":" + json_text(text) + "}}";
}

void append_trace_end(std::string& out) { out += "\n]\n"; }

}  // namespace sluice::client
