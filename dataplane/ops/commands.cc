#include "dataplane/ops/commands.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "dataplane/ops/health.h"
#include "dataplane/ops/json.h"
#include "dataplane/ops/log.h"
#include "dataplane/ops/sample.h"

namespace sluice::dataplane {
namespace {

using Arguments = std::span<const std::string>;

std::string error(const std::string& what) {
  return JsonObject().add("ok", false).add("error", what).text();
}
JsonObject success() {
  JsonObject object;
  object.add("ok", true);
  return object;
}
std::string done(const Status& status, const std::string& message) {
  return status.ok() ? success().add("message", message).text() : error(status.message());
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
  return success()
      .add("version", version())
      .add("box", box.summary)
      .add("ready", reasons.empty())
      .add_json("reasons", json_strings(reasons))
      .add("draining", draining)
      .add("started", process_start_time_s())
      .add("log_level", log_level())
      .add("jobs", job_count)
      .add("jobs_memory_bytes", memory_bytes)
      .add("buffers_in_use", buffers.in_use)
      .add("buffers_capacity", buffers.capacity)
      .text();
}

std::string ports(const Box& box, Arguments) {
  std::vector<std::string> rows;
  for (const PortView& port : box.blocks.ports) {
    const auto sum = [&port](Counter PortCounters::*counter) {
      return port.sum([&](const PortCounters& lane) { return (lane.*counter).read(); });
    };
    std::uint64_t dropped = 0;
    for (std::size_t reason = 0; reason < kDropReasonCount; ++reason)
      dropped +=
          port.sum([&](const PortCounters& lane) { return lane.drops.by_reason[reason].read(); });
    rows.push_back(JsonObject()
                       .add("port", port.name)
                       .add("up", sum(&PortCounters::link_up) != 0)
                       .add("link_changes", sum(&PortCounters::link_changes))
                       .add("rx_packets", sum(&PortCounters::rx_packets))
                       .add("rx_bytes", sum(&PortCounters::rx_bytes))
                       .add("rx_missed", sum(&PortCounters::rx_missed))
                       .add("tx_packets", sum(&PortCounters::tx_packets))
                       .add("tx_bytes", sum(&PortCounters::tx_bytes))
                       .add("dropped", dropped)
                       .add("queue_bytes", sum(&PortCounters::queue_bytes))
                       .text());
  }
  return success().add_json("ports", json_array(rows)).text();
}

std::string jobs_of(const agg::Jobs& jobs, TimeNs now) {
  std::vector<std::string> rows;
  for (const agg::JobView& view : jobs.views()) {
    const bool has_job = view.job != nullptr;
    rows.push_back(
        JsonObject()
            .add("job", job_label(view))
            .add("state", name_of(view.state))
            .add("members", view.joined_count)
            .add("world_size", view.world_size)
            .add("step",
                 has_job ? view.job->windows[0].open_step.load(std::memory_order_relaxed) : 0)
            .add("policy", has_job ? sluice::name_of(view.job->spec.policy.kind) : "")
            .add("memory_bytes", has_job ? agg::Job::memory_bytes(view.job->spec) : 0)
            .add("waits", jobs.describe_awaited(view.id, now))
            .add("notice", view.notice.empty() ? view.loss : view.notice)
            .text());
  }
  return success().add_json("jobs", json_array(rows)).text();
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
  std::vector<std::string> rows;
  std::optional<JobSample> sample;
  if (view->job != nullptr) sample = sample_job(jobs, *view, now);
  for (const agg::MemberView& member : jobs.members(view->id, now)) {
    JsonObject row;
    row.add("rank", member.rank.value)
        .add("address", member.address)
        .add("state", name_of(member))
        .add("silent_s", static_cast<double>(member.silent_ns / kMillisecond) / 1e3);
    if (sample) {
      const MemberSample& counts = sample->members[member.rank.value];
      row.add("missing", counts.awaited)
          .add("included_chunks", counts.included)
          .add("late_chunks", counts.late);
    }
    rows.push_back(row.text());
  }
  return success()
      .add("job", label)
      .add("state", name_of(view->state))
      .add_json("members", json_array(rows))
      .text();
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
  std::vector<std::string> rows;
  for (const SettingChange& change : changes.value())
    rows.push_back(JsonObject()
                       .add("setting", change.setting)
                       .add("before", change.before)
                       .add("after", change.after)
                       .text());
  return success().add_json("changes", json_array(rows)).text();
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
