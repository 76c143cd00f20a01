#include "dataplane/ops/commands.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "dataplane/ops/health.h"
#include "dataplane/ops/log.h"
#include "dataplane/ops/sample.h"

namespace sluice::dataplane {
namespace {

using Arguments = std::span<const std::string>;

using Json = nlohmann::ordered_json;

// ASCII. A name of the wire is any bytes; what is no UTF-8 becomes U+FFFD.
std::string text_of(const Json& answer) {
  return answer.dump(-1, ' ', true, Json::error_handler_t::replace);
}
std::string error(const std::string& what) { return text_of({{"ok", false}, {"error", what}}); }
std::string success(const Json& content) {
  Json answer{{"ok", true}};
  answer.update(content);
  return text_of(answer);
}
std::string done(const Status& status, const std::string& message) {
  return status.ok() ? success({{"message", message}}) : error(status.message());
}
std::string ending() { return error("the box is ending"); }

const char* name_of(wire::JobState state) noexcept {
  switch (state) {
    case wire::JobState::kForming: return "forming";
    case wire::JobState::kRunning: return "running";
    case wire::JobState::kEnded: return "ended";
  }
  return "?";
}

const char* name_of(const agg::MemberView& member) noexcept {
  if (member.joined) return "joined";
  if (member.gone) return "lost";
  return member.left ? "left" : "absent";
}

// The job under a label: the live one, else one that has ended.
std::optional<agg::JobView> find_job(const agg::Jobs& jobs, const std::string& label) {
  std::optional<agg::JobView> found;
  for (const agg::JobView& view : jobs.views())
    if (job_label(view) == label && (!found || view.state != wire::JobState::kEnded)) found = view;
  return found;
}

std::string no_such_job(const agg::Jobs& jobs, const std::string& label) {
  std::string known;
  for (const agg::JobView& view : jobs.views())
    known += (known.empty() ? "" : ", ") + job_label(view);
  return "no job \"" + label + "\" on this box; " +
         (known.empty() ? "there is none" : "there are: " + known);
}

// ---- what is there ----

std::string status(const Box& box, Arguments) {
  const bool draining = box.draining && box.draining();
  const std::vector<std::string> reasons = why_not_ready(box.blocks, draining);
  std::size_t job_count = 0, memory_bytes = 0;
  if (!box.visit([&](const agg::Jobs& jobs, TimeNs) {
        job_count = jobs.jobs().size();
        memory_bytes = jobs.memory_bytes();
      }))
    return ending();
  const BufferUse buffers = box.buffers();
  return success({{"version", version()},
                  {"box", box.summary},
                  {"ready", reasons.empty()},
                  {"reasons", reasons},
                  {"draining", draining},
                  {"started", process_start_time_s()},
                  {"log_level", log_level()},
                  {"jobs", job_count},
                  {"jobs_memory_bytes", memory_bytes},
                  {"buffers_in_use", buffers.in_use},
                  {"buffers_capacity", buffers.capacity}});
}

std::string ports(const Box& box, Arguments) {
  Json rows = Json::array();
  for (const PortView& port : box.blocks.ports) {
    const auto sum = [&port](Counter PortCounters::*counter) {
      return port.sum([&](const PortCounters& lane) { return (lane.*counter).read(); });
    };
    std::uint64_t dropped = 0;
    for (std::size_t reason = 0; reason < kDropReasonCount; ++reason)
      dropped +=
          port.sum([&](const PortCounters& lane) { return lane.drops.by_reason[reason].read(); });
    rows.push_back({{"port", port.name},
                    {"up", sum(&PortCounters::link_up) != 0},
                    {"link_changes", sum(&PortCounters::link_changes)},
                    {"rx_packets", sum(&PortCounters::rx_packets)},
                    {"rx_bytes", sum(&PortCounters::rx_bytes)},
                    {"rx_missed", sum(&PortCounters::rx_missed)},
                    {"tx_packets", sum(&PortCounters::tx_packets)},
                    {"tx_bytes", sum(&PortCounters::tx_bytes)},
                    {"dropped", dropped},
                    {"queue_bytes", sum(&PortCounters::queue_bytes)}});
  }
  return success({{"ports", rows}});
}

std::string jobs_of(const agg::Jobs& jobs, TimeNs now) {
  Json rows = Json::array();
  for (const agg::JobView& view : jobs.views()) {
    const bool has_job = view.job != nullptr;
    rows.push_back(
        {{"job", job_label(view)},
         {"state", name_of(view.state)},
         {"members", view.joined_count},
         {"world_size", view.world_size},
         {"step", has_job ? view.job->windows[0].open_step.load(std::memory_order_relaxed) : 0},
         {"policy", has_job ? sluice::name_of(view.job->spec.policy.kind) : ""},
         {"memory_bytes", has_job ? agg::Job::memory_bytes(view.job->spec) : 0},
         {"waits", jobs.describe_awaited(view.id, now)},
         {"notice", view.notice.empty() ? view.loss : view.notice}});
  }
  return success({{"jobs", rows}});
}

std::string jobs(const Box& box, Arguments) {
  std::string answer;
  return box.visit([&](const agg::Jobs& all, TimeNs now) { answer = jobs_of(all, now); })
             ? answer
             : ending();
}

std::string members_of(const agg::Jobs& jobs, const std::string& label, TimeNs now) {
  const auto view = find_job(jobs, label);
  if (!view) return error(no_such_job(jobs, label));
  Json rows = Json::array();
  std::optional<JobSample> sample;
  if (view->job != nullptr) sample = sample_job(jobs, *view, now);
  for (const agg::MemberView& member : jobs.members(view->id, now)) {
    Json row{{"rank", member.rank.value},
             {"address", member.address},
             {"state", name_of(member)},
             {"silent_s", static_cast<double>(member.silent_ns / kMillisecond) / 1e3}};
    if (sample) {
      const MemberSample& counts = sample->members[member.rank.value];
      row.update({{"missing", counts.awaited},
                  {"included_chunks", counts.included},
                  {"late_chunks", counts.late}});
    }
    rows.push_back(row);
  }
  return success({{"job", label}, {"state", name_of(view->state)}, {"members", rows}});
}

std::string members(const Box& box, Arguments words) {
  std::string answer;
  return box.visit(
             [&](const agg::Jobs& all, TimeNs now) { answer = members_of(all, words[0], now); })
             ? answer
             : ending();
}

// ---- what changes something ----

std::string kick(const Box& box, Arguments words) {
  std::optional<Rank> rank;
  if (words.size() == 2) {
    std::uint16_t value = 0;
    const std::string& text = words[1];
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (wrong != std::errc{} || end != text.data() + text.size())
      return error("kick: \"" + text + "\" is no rank; give a number from 0 on");
    rank = Rank{value};
  }
  Status status;
  const bool visited = box.visit([&](agg::Jobs& all, TimeNs now) {
    const auto view = find_job(all, words[0]);
    status = view ? all.kick(view->id, rank, now)
                  : Status(StatusCode::kNotFound, no_such_job(all, words[0]));
  });
  if (!visited) return ending();
  const std::string what =
      rank ? "rank " + words[1] + " of job \"" + words[0] + "\"" : "job \"" + words[0] + "\"";
  if (status.ok()) spdlog::warn("sluicectl kicked {}", what);
  return done(status, "kicked " + what);
}

std::string drain(const Box& box, Arguments) {
  return done(box.drain(),
              "the box asks the workers to move, takes no new job, and ends when they have");
}

std::string reload(const Box& box, Arguments) {
  const auto changes = box.reload();
  if (!changes.ok()) return error(changes.status().message());
  Json rows = Json::array();
  for (const SettingChange& change : changes.value())
    rows.push_back(
        {{"setting", change.setting}, {"before", change.before}, {"after", change.after}});
  return success({{"changes", rows}});
}

std::string change_log_level(const Box& box, Arguments words) {
  return done(box.set_log_level(words[0]), "the log level is " + words[0]);
}

struct Command {
  std::string_view name;
  std::string_view arguments;  // as the error shows them
  std::size_t least = 0;
  std::size_t most = 0;
  std::string (*run)(const Box&, Arguments);
  bool (*there)(const Box&) = [](const Box&) { return true; };
};

constexpr Command kCommands[] = {
    {"status", "", 0, 0, status},
    {"jobs", "", 0, 0, jobs},
    {"members", " JOB", 1, 1, members},
    {"ports", "", 0, 0, ports},
    {"kick", " JOB [RANK]", 1, 2, kick},
    {"drain", "", 0, 0, drain, [](const Box& box) { return bool{box.drain}; }},
    {"reload", "", 0, 0, reload, [](const Box& box) { return bool{box.reload}; }},
    {"log-level", " LEVEL", 1, 1, change_log_level,
     [](const Box& box) { return bool{box.set_log_level}; }},
};

}  // namespace

std::string answer_command(const Box& box, std::span<const std::string> words) {
  const std::string name = words.empty() ? "" : words[0];
  const auto found = std::ranges::find(kCommands, name, &Command::name);
  if (found == std::end(kCommands) || !found->there(box)) {
    std::string known;
    for (const Command& command : kCommands)
      if (command.there(box)) known += (known.empty() ? "" : ", ") + std::string(command.name);
    return error("no command \"" + name + "\"; there are: " + known);
  }
  const Arguments arguments = words.subspan(1);
  if (arguments.size() < found->least || arguments.size() > found->most)
    return error("wrong number of arguments; give " + name + std::string(found->arguments));
  return found->run(box, arguments);
}

}  // namespace sluice::dataplane
