#include "client/bcube/failover.h"

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

Handover::Kind kind_of(Role role) noexcept {
  CHECK(role < Role::kRendezvous);
  if (role == Role::kUp) return Handover::Kind::kReduce;
  return role == Role::kTurn ? Handover::Kind::kAllReduce : Handover::Kind::kBroadcast;
}

}  // namespace

void Failover::add_row(const Row& row, std::uint32_t owner) {
  CHECK(state() == State::kNone);
  const std::uint32_t index = handover_.add_row(kind_of(row.role), owner);
  CHECK(index == rows_.size());
  rows_.push_back(row);
}

void Failover::set_standbys(const Standbys& standbys) noexcept {
  CHECK(state() == State::kNone && standbys.states_leg != 0);
  standbys_ = standbys;
  has_standbys_ = true;
}

Failover::State Failover::state() const noexcept {
  switch (handover_.state()) {
    case Handover::State::kSettled: break;
    case Handover::State::kExchanging: return State::kExchanging;
    case Handover::State::kKnown: return State::kMoved;
  }
  return has_standbys_ ? State::kReady : State::kNone;
}

void Failover::give_up() noexcept {
  CHECK(state() == State::kReady);
  has_standbys_ = false;
}

void Failover::regain() noexcept {
  CHECK(state() == State::kNone && standbys_.states_leg != 0);
  has_standbys_ = true;
}

void Failover::begin(Step step, std::uint32_t collectives) {
  CHECK(state() == State::kReady);
  handover_.begin(step, collectives);
  ++moves_;
}

void Failover::end_exchange() {
  handover_.end_exchange();
  return_vote_.open(handover_.first_step());
}

void Failover::go_back() noexcept {
  CHECK(state() == State::kMoved && busy_ == 0);
  handover_.settle();
  return_vote_.close();
  ++returns_;
}

void Failover::note_done() noexcept {
  CHECK(in_use() && busy_ != 0);
  --busy_;
}

}  // namespace sluice::client
