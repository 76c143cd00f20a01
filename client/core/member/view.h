// Which ranks a store goes on without, as its members agree about it.
//
// Each rank that is lost, leaves or is taken by a new process makes a new view. The appliance acts
// on one when every member that it has there knows of it (aggregator/jobs/views.cc). So a process
// with values that were made without some rank can name that rank at the next appliance, and a
// process without which the others went on is known by its older view.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "aggregator/base/limits.h"
#include "aggregator/wire/packet.h"

namespace sluice::client {

struct View {
  std::uint32_t number = 0;   // 0: all ranks are there, as at the beginning
  std::uint32_t settled = 0;  // the newest on which the appliance is known to have acted
  std::array<std::uint64_t, kMaskWords> absent{};

  // What a status of the running store says. An older one, which comes late, says nothing.
  void take(const wire::Packet& status) noexcept {
    const auto& body = status.body<wire::Status>();
    settled = std::max(settled, std::uint32_t{body.settled_view});
    if (body.view <= number) return;
    number = body.view;
    for (std::size_t word = 0; word < absent.size(); ++word)
      absent[word] = word < status.mask_word_count() ? status.mask_word(word) : 0;
  }
};

}  // namespace sluice::client
