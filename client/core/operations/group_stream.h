// A session's stream in a job of kind operations: the groups that the application has made, and
// what became of the operations that it has called in them.
//
// A group is asked for at the control port and takes calls at once; they begin when the appliance
// has made it. Pure; under the owner's lock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/core/link/stream.h"
#include "client/core/operations/operations.h"

namespace sluice::client {

class GroupStream final : public Stream {
 public:
  GroupStream(const SessionOptions& options, std::size_t chunk_bytes, Link& link);

  // ---- the application's calls, after kStarted ----
  // `index` names the group in this process from now on. `ranks` are in ascending order. The same
  // name again gives the same group.
  Status make(const std::string& name, const std::vector<Rank>& ranks, TimeNs now,
              std::uint32_t& index);
  // This member calls no more in it. kBusy while an operation is open.
  Status leave(std::uint32_t index, TimeNs now);
  // The same in the middle of operations, which end for all members.
  Status abort(std::uint32_t index, TimeNs now);
  Rank own_rank() const noexcept { return Rank{link_.identity.rank}; }
  Status call(std::uint32_t index, OperationCall call, TimeNs now, std::uint64_t& number);
  // Null: this member has left it.
  Group* group(std::uint32_t index) const noexcept { return entries_[index].group; }
  // Gives it up for all members: its event comes soon.
  Status cancel(std::uint32_t index, std::uint64_t number, TimeNs now);
  // Whether it is over, and then how it ended. kInvalidArgument: nobody has called it.
  Status outcome(std::uint32_t index, std::uint64_t number, bool& over) const;
  std::string place_of(std::uint32_t index, std::uint64_t number) const;

  Verdict handle_made(const wire::Packet& packet, TimeNs now);

  // ---- an appliance that is lost ----
  // Whether the job goes on then: not an elastic one, nor without a restart_timeout.
  bool survives() const noexcept { return survives_; }
  // The groups that this member is in there, or has left without an answer.
  std::uint32_t returning_count() const noexcept;
  // This member has joined one that knows none of them, and is told of each when all members have.
  // The link's flows are new.
  void change_appliance();
  std::optional<std::uint16_t> shard_of(const wire::Packet& packet) noexcept {
    return operations_.shard_of(packet);
  }

  // ---- as the session drives every stream ----
  bool owes_others() const noexcept override { return in_progress(); }
  void give_up(const Status& why) override;
  Step current_step() const noexcept override { return 1; }
  bool in_progress() const noexcept override;
  TimeNs last_progress_ns() const noexcept override;
  std::string describe(TimeNs now) const override;
  Verdict handle_result(const wire::Packet& packet, TimeNs now) override;
  Verdict handle_answer(const wire::Packet& packet, TimeNs now) override {
    return handle_result(packet, now);
  }
  bool write_next(Transmit& transmit, std::span<std::uint8_t> out, TimeNs now) override {
    return operations_.write_next(transmit, out, now);
  }
  Priority block_priority(std::uint32_t) const noexcept override { return 0; }
  std::size_t poll_control(std::span<std::uint8_t> out) noexcept override;
  bool uses(std::uint16_t) const noexcept override { return in_progress(); }
  void lose(std::uint16_t shard, std::uint32_t number) override { operations_.lose(shard, number); }
  void work(std::uint16_t shard, TimeNs now) override { operations_.recover(shard, now); }
  bool poll_probe(std::uint16_t shard, Transmit& transmit, std::span<std::uint8_t> out,
                  TimeNs now) override {
    return operations_.poll_probe(shard, transmit, out, now);
  }
  void hint(std::uint16_t shard, const Flow::LossSignals& signals, TimeNs now) noexcept override {
    operations_.hint(shard, signals, now);
  }
  void handle_timeout(TimeNs now) override;
  TimeNs next_timeout() const noexcept override;

 private:
  // kReturning: it was made by an appliance that is lost, and is to go on at this one.
  enum class Phase : std::uint8_t { kAsked, kMade, kReturning, kRefused, kLeaving, kLeft };
  struct Entry {
    std::string name;
    std::vector<Rank> ranks;
    Group* group = nullptr;  // until it is left
    Phase phase = Phase::kAsked;
    bool resumes = false;  // this appliance is told of it, and answers no other question before
    wire::GroupRequest departure{};  // kMake: it has not left
    bool unmade = false;             // it is made before it is left, or others would wait
    Status refusal;
    TimeNs next_ns = 0;  // when it is asked for (again); while kAsked or kLeaving
    std::uint64_t called = 0;
    std::map<std::uint64_t, OperationDone> open;
    std::map<std::uint64_t, Status> failed;  // the newest of those that have failed

    bool is_at_appliance() const noexcept {
      return phase == Phase::kMade || phase == Phase::kReturning ||
             (phase == Phase::kLeaving && !unmade);
    }
  };

  void send_again(std::uint32_t, std::uint64_t) override {}  // Operations does
  Status check_group(std::uint32_t index, const char* call) const;
  bool is_awaited(const Entry& entry) const noexcept;  // something is asked, or to be asked
  void ask(Entry& entry, TimeNs now) noexcept;
  void depart(Entry& entry, wire::GroupRequest how, TimeNs now);
  void note_due() noexcept;
  void drain();

  const SessionOptions& options_;
  const bool survives_;
  Operations operations_;
  std::vector<Entry> entries_;  // by index
  TimeNs now_ns_ = 0;           // of the last call or timeout
};

}  // namespace sluice::client
