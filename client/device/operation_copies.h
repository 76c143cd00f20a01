// Operations whose data are in device memory: between their call, the copy stage, and the event
// that tells of their end.
//
// The stage has a row for each; this knows which operation that is. An operation is over when its
// session has said so and its copies have ended, in whatever order. Pure; under the session's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "client/core/calls/types.h"
#include "client/core/operations/call.h"
#include "client/device/copy_stage.h"

namespace sluice::client {

class OperationCopies {
 public:
  struct Key {
    std::uint32_t group = 0;  // its index in this process
    std::uint64_t number = 0;

    friend auto operator<=>(const Key&, const Key&) = default;
  };

  explicit OperationCopies(CopyStage& stage) noexcept : stage_(stage) {}

  // Where a member's data of the call are, in the memory of a caller who works in place.
  static CopyStage::Place place_of(const OperationCall& call, std::size_t member_count,
                                   std::size_t place, bool is_root) noexcept;

  // The session has the call, which waits for its input. Buffers of `call` are the device's;
  // `title` names it in texts. `fence`: as of CopyStage::accept().
  void begin(Key key, const OperationCall& call, const CopyStage::Place& place, std::string title,
             sluice_device_mark* fence);
  // Whether it is not over.
  bool holds(Key key) const noexcept { return open_.contains(key); }
  bool holds_any(std::uint32_t group) const noexcept {
    const auto next = open_.lower_bound({.group = group});
    return next != open_.end() && next->first.group == group;
  }
  // The operation of a row of the stage.
  Key key_of(std::uint32_t row) const noexcept { return keys_[row]; }

  // Of an operation that its session had completed; ok: its copies ended well, or it is older than
  // the newest few.
  Status failure(Key key) const {
    const auto found = failed_.find(key);
    return found == failed_.end() ? Status() : found->second;
  }

  // The session's event of an operation. False: it is to be told now. True: it waits for copies.
  bool take(Event& event);
  // The copies have ended; `why`: of the device's failure, if it has failed. The event, if it is to
  // be told now.
  std::optional<Event> copied(const CopyStage::Done& done, const Status& why);
  // The events that still wait, when the job is taken down.
  std::vector<Event> take_rest();

 private:
  struct Open {
    std::uint32_t row = 0;
    std::optional<Event> event;
    std::optional<StatusCode> copied;
  };

  CopyStage& stage_;
  std::map<Key, Open> open_;
  std::map<Key, Status> failed_;
  std::vector<Key> keys_;  // by row
};

}  // namespace sluice::client
