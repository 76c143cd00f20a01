// How a job chooses k and what it does with late gradients, as a join asks for it.
//
// The struct travels as it is in memory (wire/control.h), so every field has a fixed size. The
// table in policy_fields.h has the valid values and the names that users know.
#pragma once

#include <cstdint>

namespace sluice {

enum class PolicyKind : std::uint8_t { kSync, kFixed, kSaina, kRamp, kGoodput };
// What becomes of a gradient that is ready after its step is complete: it is dropped, or
// contributed once to the step that is open then.
enum class LateMode : std::uint8_t { kDrop, kRequeue };

inline constexpr std::uint16_t kAllSigns = 1;
inline constexpr std::uint16_t kOneSignIn32 = 32;  // as the published code of SAINA samples

struct [[gnu::packed]] PolicyOptions {
  PolicyKind kind = PolicyKind::kSync;
  LateMode late = LateMode::kDrop;
  std::uint16_t k = 1;                          // fixed: k; saina: k0, the first k
  std::uint16_t sign_threshold_permille = 500;  // saina's s_th
  std::uint16_t count_threshold = 5;            // saina's c_th; 0: equal to k
  std::uint16_t sign_stride = kAllSigns;        // saina: every sign, or one in 32
  std::uint16_t reserved = 0;
  std::uint32_t round_steps = 5;    // saina's detection round
  std::uint32_t planned_steps = 0;  // ramp: length of the training
  std::uint32_t max_staleness = 0;  // requeue: steps between base and target; 0: no bound

  // Whether a step can complete without one of the live ranks.
  bool tolerates_stragglers() const noexcept { return kind != PolicyKind::kSync; }
  friend bool operator==(const PolicyOptions&, const PolicyOptions&) = default;
};
static_assert(sizeof(PolicyOptions) == 24);

constexpr const char* name_of(PolicyKind kind) noexcept {
  switch (kind) {
    case PolicyKind::kSync: return "sync";
    case PolicyKind::kFixed: return "fixed";
    case PolicyKind::kSaina: return "saina";
    case PolicyKind::kRamp: return "ramp";
    case PolicyKind::kGoodput: return "goodput";
  }
  return "?";
}

inline constexpr int kPolicyKindCount = static_cast<int>(PolicyKind::kGoodput) + 1;
inline constexpr int kLateModeCount = static_cast<int>(LateMode::kRequeue) + 1;

constexpr bool is_known(PolicyKind kind) noexcept {
  return static_cast<int>(kind) < kPolicyKindCount;
}
constexpr bool is_known(LateMode late) noexcept { return static_cast<int>(late) < kLateModeCount; }

constexpr const char* name_of(LateMode late) noexcept {
  return late == LateMode::kRequeue ? "requeue" : "drop";
}

}  // namespace sluice
