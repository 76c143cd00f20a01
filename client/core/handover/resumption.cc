#include "client/core/handover/resumption.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aggregator/base/check.h"

namespace sluice::client {
namespace {

struct [[gnu::packed]] Head {  // then the words of results
  std::uint32_t step = 0;
  std::uint32_t calls = 0;
};

}  // namespace

Resumption::Resumption(std::uint16_t members, Rank self, ChunkIndex chunk_count, Step first_step,
                       State own)
    : members_(members),
      self_(self),
      first_step_(first_step),
      own_(std::move(own)),
      buffer_(sizeof(Head) + words(chunk_count) * sizeof(std::uint64_t)),
      held_(words(chunk_count)),
      all_(words(chunk_count), ~std::uint64_t{0}),
      first_here_(words(chunk_count)) {
  CHECK(self.value < members && own_.results.size() == words(chunk_count) && first_step != 0);
  write_own();
}

// Where another member's is next, the buffer is filled in by whoever sends that.
void Resumption::write_own() noexcept {
  if (next_ != self_) return;
  const Head head{.step = own_.step, .calls = own_.calls};
  std::memcpy(buffer_.data(), &head, sizeof head);
  std::memcpy(&buffer_[sizeof head], own_.results.data(),
              own_.results.size() * sizeof(std::uint64_t));
}

bool Resumption::take() noexcept {
  CHECK(!is_over());
  Head head;
  std::memcpy(&head, buffer_.data(), sizeof head);
  least_calls_ = std::min(least_calls_, std::uint32_t{head.calls});
  most_calls_ = std::max(most_calls_, std::uint32_t{head.calls});
  const bool ahead = head.step == first_step_ + 1;
  if ((!ahead && head.step != first_step_) || most_calls_ - least_calls_ > 1) return false;
  for (std::size_t word = 0; word < held_.size(); ++word) {
    std::uint64_t results = ~std::uint64_t{0};
    if (!ahead) std::memcpy(&results, &buffer_[sizeof head + 8 * word], sizeof results);
    if (next_ == self_) first_here_[word] = results & ~held_[word];
    held_[word] |= results;
    all_[word] &= results;
  }
  ++next_.value;
  write_own();
  return true;
}

}  // namespace sluice::client
