// What the controls of all jobs of an appliance share: its options, the control side's clock and
// keys, and the outbox.
//
// Private to this folder. Jobs owns the one context; each JobControl and its parts refer to it.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "aggregator/jobs/entry.h"

namespace sluice::agg {

// Datagrams, commands and orders that wait until the caller fetches them with Jobs::poll_*().
struct Outbox {
  // A datagram to a member. It is written when it is fetched, so it says how things stand then.
  struct Mail {
    JobId job;
    Rank rank;
    std::uint64_t serial = 0;  // of the entry, so that a job with a reused id gets no old mail
    wire::PacketType type{};
  };

  void send(const JobEntry& entry, Rank rank, wire::PacketType type) {
    CHECK(entry.member(rank).cookie != 0);
    mail.push_back({.job = entry.id, .rank = rank, .serial = entry.serial, .type = type});
  }
  void command(const JobEntry& entry, ShardCommand::Kind kind, Rank rank = {}, Step first = 0) {
    CHECK(entry.job != nullptr && rank.value < entry.world_size());
    commands.push_back({.kind = kind,
                        .job = entry.job.get(),
                        .rank = rank,
                        .admission = entry.member(rank).admission,
                        .first = first});
  }

  std::deque<Mail> mail;
  std::deque<ShardCommand> commands;
  std::deque<MemoryOrder> orders;
};

struct ControlContext {
  explicit ControlContext(JobsOptions given) : boot_key(given.boot_key) { use(std::move(given)); }

  // Jobs that are there keep the options that they hold.
  void use(JobsOptions given) {
    secrets.clear();
    secrets.emplace_back(given.secret);
    for (const std::string& older : given.older_secrets) secrets.emplace_back(older);
    options = std::make_shared<const JobsOptions>(std::move(given));
  }

  std::shared_ptr<const JobsOptions> options;
  PausableClock clock;  // `now` of every function that is private to this folder is active time
  std::vector<wire::HmacKey> secrets;  // each of them is good; the first is the newest
  const wire::HmacKey boot_key;
  Outbox outbox;
  std::uint64_t next_serial = 1;
  bool draining = false;                // no new jobs
  std::uint64_t furthest_searches = 0;  // see Jobs::furthest_searches()
};

}  // namespace sluice::agg
