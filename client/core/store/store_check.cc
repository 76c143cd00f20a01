// The check that keeps values that are not finite out of a store. At -O3, so that the loop is
// vectorised.
#include <bit>
#include <string>

#include "client/core/calls/error_prefix.h"
#include "client/core/store/store.h"

namespace sluice::client {
namespace {

// By the bits of the exponents.
bool is_finite(std::span<const float> values) noexcept {
  constexpr std::uint32_t kExponent = 0x7f80'0000;
  std::uint32_t found = 0;
  for (const float value : values)
    found |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent;
  return found == 0;
}

}  // namespace

Status Store::check_finite(LayerIndex index, std::span<const float* const> inputs,
                           const char* what) const {
  if (Status status = check(index, inputs.size(), what); !status.ok()) return status;
  for (std::uint32_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& tensor = layout_.tensor(first_tensor(index) + i);
    if (is_finite({inputs[i], tensor.elem_count})) continue;
    return {StatusCode::kInvalidArgument,
            error_prefix(options_) + what + ": tensor '" + tensor.name +
                "' holds a NaN or an infinity, which would stay in everybody's parameters: nothing "
                "of layer " +
                std::to_string(index) + " is pushed; leave this update out, or look at its rate"};
  }
  return {};
}

}  // namespace sluice::client
