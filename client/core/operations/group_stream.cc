#include "client/core/operations/group_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/core/calls/error_prefix.h"

namespace sluice::client {
namespace {

constexpr DurationNs kAskAgain = 100 * kMillisecond;
constexpr DurationNs kTellAgain = 20 * kMillisecond;  // of a group that all members wait for
constexpr std::size_t kKeptFailures = 4096;           // of a group

Status refuse(const SessionOptions& options, StatusCode code, const std::string& why) {
  return {code, error_prefix(options) + why};
}

}  // namespace

GroupStream::GroupStream(const SessionOptions& options, std::size_t chunk_bytes, Link& link)
    : Stream(StreamId::kOperations, Flows::kAll, link),
      options_(options),
      survives_(options.restart_timeout_ns != 0 && !asks_any_rank(options)),
      operations_(link, static_cast<std::uint16_t>(chunk_bytes), survives()) {}

// ---- the application's calls ----

Status GroupStream::make(const std::string& name, const std::vector<Rank>& ranks, TimeNs now,
                         std::uint32_t& index) {
  const std::string place = "group '" + name + "': ";
  if (name.empty() || name.size() > kMaxGroupNameBytes)
    return refuse(options_, StatusCode::kInvalidArgument,
                  place + "a name has 1 to " + std::to_string(kMaxGroupNameBytes) + " bytes");
  const auto descends = [](Rank left, Rank right) { return !(left < right); };
  if (ranks.empty() || std::ranges::adjacent_find(ranks, descends) != ranks.end() ||
      !std::ranges::binary_search(ranks, Rank{link_.identity.rank}) ||
      ranks.back().value >= options_.world_size)
    return refuse(options_, StatusCode::kInvalidArgument,
                  place + "its ranks must ascend, be below " + std::to_string(options_.world_size) +
                      " and contain this one, " + std::to_string(link_.identity.rank));
  const auto known = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.name == name && entry.group != nullptr; });
  if (known != entries_.end()) {
    if (known->ranks != ranks)
      return refuse(options_, StatusCode::kInvalidArgument,
                    place + "this rank has made it of other ranks; take another name");
    index = static_cast<std::uint32_t>(known - entries_.begin());
    return {};
  }
  index = static_cast<std::uint32_t>(entries_.size());
  entries_.push_back({.name = name,
                      .ranks = ranks,
                      .group = &operations_.make(name, ranks, error_prefix(options_))});
  ask(entries_.back(), now);
  return {};
}

void GroupStream::ask(Entry& entry, TimeNs now) noexcept {
  now_ns_ = now;
  entry.next_ns = now;
  note_due();
}

// A group is asked for once this member has left the one of its name, or it would get that again.
bool GroupStream::is_awaited(const Entry& entry) const noexcept {
  if (entry.phase == Phase::kLeaving || entry.phase == Phase::kReturning) return true;
  return entry.phase == Phase::kAsked && std::ranges::none_of(entries_, [&](const Entry& other) {
           return other.phase == Phase::kLeaving && other.name == entry.name;
         });
}

// The session asks for a packet as long as one is due, and only then.
void GroupStream::note_due() noexcept {
  send_control_ = std::ranges::any_of(
      entries_, [&](const Entry& one) { return now_ns_ >= one.next_ns && is_awaited(one); });
}

Status GroupStream::check_group(std::uint32_t index, const char* call) const {
  CHECK(index < entries_.size());
  const Entry& entry = entries_[index];
  if (entry.phase == Phase::kRefused) return entry.refusal;
  if (entry.phase != Phase::kLeaving && entry.phase != Phase::kLeft) return {};
  return refuse(options_, StatusCode::kClosed,
                std::string(call) + ": this rank has left group '" + entry.name + "'");
}

Status GroupStream::leave(std::uint32_t index, TimeNs now) {
  if (Status status = check_group(index, "leave_group"); !status.ok()) return status;
  Entry& entry = entries_[index];
  if (!entry.open.empty())
    return refuse(options_, StatusCode::kBusy,
                  "leave_group: group '" + entry.name + "' has " +
                      std::to_string(entry.open.size()) + " open operations; wait for them first");
  // Nobody waits for what it does not send any more.
  const bool owes = entry.phase == Phase::kReturning || (survives_ && entry.group->owes());
  depart(entry, owes ? wire::GroupRequest::kAbort : wire::GroupRequest::kLeave, now);
  return {};
}

Status GroupStream::abort(std::uint32_t index, TimeNs now) {
  if (Status status = check_group(index, "abort_group"); !status.ok()) return status;
  Entry& entry = entries_[index];
  entry.group->give_up(
      refuse(options_, StatusCode::kClosed, "this rank has aborted group '" + entry.name + "'"));
  drain();
  depart(entry, wire::GroupRequest::kAbort, now);
  return {};
}

void GroupStream::depart(Entry& entry, wire::GroupRequest how, TimeNs now) {
  entry.unmade = entry.phase == Phase::kAsked;
  entry.phase = Phase::kLeaving;
  entry.departure = how;
  operations_.remove(*std::exchange(entry.group, nullptr));
  ask(entry, now);
}

Status GroupStream::call(std::uint32_t index, OperationCall call, TimeNs now,
                         std::uint64_t& number) {
  if (Status status = check_group(index, "call"); !status.ok()) return status;
  Entry& entry = entries_[index];
  OperationDone done = std::exchange(call.done, {});
  if (Status status = entry.group->call(call, now, number); !status.ok()) return status;
  CHECK(number == entry.called);
  ++entry.called;
  entry.open.emplace(number, std::move(done));
  return {};
}

Status GroupStream::cancel(std::uint32_t index, std::uint64_t number, TimeNs now) {
  bool over = false;
  Status status = outcome(index, number, over);
  if (over) return {};
  if (status.ok()) entries_[index].group->cancel(number, now);
  return status;
}

Status GroupStream::outcome(std::uint32_t index, std::uint64_t number, bool& over) const {
  CHECK(index < entries_.size());
  const Entry& entry = entries_[index];
  over = false;
  if (number >= entry.called)
    return refuse(options_, StatusCode::kInvalidArgument,
                  "group '" + entry.name + "' has " + std::to_string(entry.called) +
                      " operations, and no ticket " + std::to_string(number));
  over = !entry.open.contains(number);
  if (!over) return {};
  const auto failed = entry.failed.find(number);
  return failed == entry.failed.end() ? Status() : failed->second;
}

std::string GroupStream::place_of(std::uint32_t index, std::uint64_t number) const {
  CHECK(index < entries_.size());
  return "group '" + entries_[index].name + "', operation " + std::to_string(number);
}

// ---- the control port ----

std::size_t GroupStream::poll_control(std::span<std::uint8_t> out) noexcept {
  const auto due = std::ranges::find_if(
      entries_, [&](const Entry& one) { return now_ns_ >= one.next_ns && is_awaited(one); });
  CHECK(due != entries_.end());
  due->next_ns = now_ns_ + (due->resumes ? kTellAgain : kAskAgain);
  note_due();
  std::array<std::uint64_t, kMaskWords> mask{};
  for (const Rank rank : due->ranks) mask[rank.value / 64] |= std::uint64_t{1} << (rank.value % 64);
  const std::size_t words = mask_words(options_.world_size);
  wire::MakeGroup body{.number = static_cast<std::uint32_t>(due - entries_.begin()),
                       .called = static_cast<std::uint32_t>(due->called),
                       .request = due->unmade ? wire::GroupRequest::kMake : due->departure,
                       .mask_words = static_cast<std::uint8_t>(words),
                       .name_bytes = static_cast<std::uint8_t>(due->name.size()),
                       .resumes = due->resumes};
  if (due->resumes && due->group != nullptr) body.position = due->group->position();
  std::memcpy(body.name, due->name.data(), due->name.size());
  return wire::encode(out, link_.identity, body, {mask.data(), words});
}

Verdict GroupStream::handle_made(const wire::Packet& packet, TimeNs now) {
  const auto& body = packet.body<wire::GroupMade>();
  if (body.number >= entries_.size()) return Verdict::kBadField;
  Entry& entry = entries_[body.number];
  const bool asked_to_make = body.request == wire::GroupRequest::kMake;
  if (entry.unmade ? !asked_to_make : body.request != entry.departure) return Verdict::kDuplicate;
  if (entry.phase == Phase::kLeaving && entry.unmade && body.text_bytes == 0) {
    entry.unmade = false;
    ask(entry, now);
  } else if (entry.phase == Phase::kLeaving) {
    entry.phase = Phase::kLeft;
  } else if (entry.phase == Phase::kAsked || entry.phase == Phase::kReturning) {
    if (body.text_bytes == 0 && operations_.find(body.group) != nullptr) return Verdict::kBadField;
    if (body.text_bytes == 0) {
      std::array<std::uint64_t, wire::kSequenceCount> floors{};
      for (std::size_t id = 0; id < floors.size(); ++id) floors[id] = body.floors[id];
      if (entry.phase == Phase::kAsked)
        entry.group->made(body.group, body.generation, now);
      else if (!entry.group->resume(body.group, body.generation, floors, now))
        return Verdict::kBadField;
      entry.phase = Phase::kMade;
      entry.resumes = false;
      drain();
    } else {
      entry.phase = Phase::kRefused;
      entry.refusal = refuse(options_, StatusCode::kRefused, std::string(packet.text()));
      entry.group->give_up(entry.refusal);
      drain();
    }
  } else {
    return Verdict::kDuplicate;
  }
  note_due();
  return Verdict::kGroup;
}

// ---- an appliance that is lost ----

std::uint32_t GroupStream::returning_count() const noexcept {
  return static_cast<std::uint32_t>(std::ranges::count_if(entries_, &Entry::is_at_appliance));
}

void GroupStream::change_appliance() {
  operations_.lose_appliance();
  for (Entry& entry : entries_) {
    entry.resumes = entry.is_at_appliance();
    entry.next_ns = 0;
    if (entry.phase == Phase::kMade) entry.phase = Phase::kReturning;
  }
  note_due();
}

// ---- as the session drives it ----

Verdict GroupStream::handle_result(const wire::Packet& packet, TimeNs now) {
  const std::optional<std::uint16_t> shard = operations_.shard_of(packet);
  if (!shard) return Verdict::kUnknownGroup;
  const Verdict verdict = operations_.handle(packet, *shard, now);
  drain();
  return verdict;
}

void GroupStream::drain() {
  for (OperationEvent event; operations_.poll_event(event);) {
    const auto entry = std::ranges::find(entries_, event.group, &Entry::group);
    CHECK(entry != entries_.end());
    const auto open = entry->open.find(event.number);
    CHECK(open != entry->open.end());
    if (!event.status.ok()) {
      entry->failed.emplace(event.number, event.status);
      if (entry->failed.size() > kKeptFailures) entry->failed.erase(entry->failed.begin());
    }
    link_.events.push({.kind = Event::Kind::kOperationDone,
                       .tensor = static_cast<std::uint32_t>(entry - entries_.begin()),
                       .non_finite = event.non_finite,
                       .status = std::move(event.status),
                       .operation = event.number,
                       .done = std::move(open->second)});
    entry->open.erase(open);
  }
}

void GroupStream::give_up(const Status& why) {
  for (Entry& entry : entries_)
    if (entry.group != nullptr) entry.group->give_up(why);
  drain();
}

bool GroupStream::in_progress() const noexcept {
  return std::ranges::any_of(entries_, [](const Entry& entry) { return !entry.open.empty(); });
}

TimeNs GroupStream::last_progress_ns() const noexcept {
  TimeNs since_ns = kNever;
  for (const Entry& entry : entries_)
    if (entry.group != nullptr) since_ns = std::min(since_ns, entry.group->waiting_since_ns());
  return since_ns;
}

std::string GroupStream::describe(TimeNs now) const {
  std::string text;
  for (const Entry& entry : entries_) {
    if (entry.group == nullptr) continue;
    std::string waits = entry.group->describe_stall(0, now);
    if (waits.empty()) continue;
    waits.erase(0, error_prefix(options_).size());
    text += (text.empty() ? "" : "; ") + waits;
  }
  return text;
}

void GroupStream::handle_timeout(TimeNs now) {
  now_ns_ = now;
  note_due();
  for (Entry& entry : entries_)
    if (entry.group != nullptr) entry.group->handle_timeout(now);
  drain();
}

TimeNs GroupStream::next_timeout() const noexcept {
  TimeNs next_ns = operations_.next_timeout();
  for (const Entry& entry : entries_)
    if (entry.phase != Phase::kMade && is_awaited(entry))
      next_ns = std::min(next_ns, entry.next_ns);
  return next_ns;
}

}  // namespace sluice::client
