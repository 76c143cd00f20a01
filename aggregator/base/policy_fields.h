// The options of a policy as users write them: names, which policies read them, what they may be.
//
// One table for whoever takes them from a user or names them in an error: the C interface, the
// configuration, the appliance. Whether values make sense is one check, invalid_field(); what a
// policy does not read is ignored everywhere.
#pragma once

#include <cstdint>
#include <string_view>

#include "aggregator/base/policy_options.h"

namespace sluice {

struct PolicyField {
  std::string_view name;    // in files and in Python
  std::string_view member;  // of PolicyOptions and of sluice_options
  std::uint8_t kinds;       // bit `1 << kind` of each policy that reads it
  bool only_requeue;        // and only where late gradients are requeued
  std::uint32_t most;       // that the member holds
  std::string_view rule;    // what it may be, after "must be" or "give"
  std::uint32_t (*get)(const PolicyOptions&);
  void (*set)(PolicyOptions&, std::uint32_t);
};

constexpr std::uint8_t bit_of(PolicyKind kind) noexcept {
  return static_cast<std::uint8_t>(1 << static_cast<int>(kind));
}
inline constexpr std::uint8_t kReadByTolerant =
    bit_of(PolicyKind::kFixed) | bit_of(PolicyKind::kSaina) | bit_of(PolicyKind::kRamp) |
    bit_of(PolicyKind::kGoodput);

// X(name, member, type, kinds, only with requeue, rule)
#define SLUICE_POLICY_FIELDS(X)                                                                  \
  X("late", late, LateMode, kReadByTolerant, false, "drop or requeue")                           \
  X("k", k, std::uint16_t, bit_of(PolicyKind::kFixed) | bit_of(PolicyKind::kSaina), false,       \
    "1 to world_size")                                                                           \
  X("sign_threshold", sign_threshold_permille, std::uint16_t, bit_of(PolicyKind::kSaina), false, \
    "0 to 1000 thousandths")                                                                     \
  X("count_threshold", count_threshold, std::uint16_t, bit_of(PolicyKind::kSaina), false,        \
    "below 65536 rounds, 0 for as many as k is")                                                 \
  X("signs", sign_stride, std::uint16_t, bit_of(PolicyKind::kSaina), false,                      \
    "1 (all signs) or 32 (one in 32)")                                                           \
  X("round_steps", round_steps, std::uint32_t, bit_of(PolicyKind::kSaina), false,                \
    "at least 1 step between two decisions")                                                     \
  X("planned_steps", planned_steps, std::uint32_t, bit_of(PolicyKind::kRamp), false,             \
    "the steps that the training will take, at least 1")                                         \
  X("max_staleness", max_staleness, std::uint32_t, kReadByTolerant, true, "steps, 0 for no bound")

inline constexpr PolicyField kPolicyFields[] = {
#define X(name, member, type, kinds, only_requeue, rule)                                    \
  {name,                                                                                    \
   #member,                                                                                 \
   kinds,                                                                                   \
   only_requeue,                                                                            \
   sizeof(PolicyOptions{}.member) == 4 ? UINT32_MAX                                         \
                                       : (1u << 8 * sizeof(PolicyOptions{}.member)) - 1,    \
   rule,                                                                                    \
   [](const PolicyOptions& options) { return static_cast<std::uint32_t>(options.member); }, \
   [](PolicyOptions& options, std::uint32_t value) {                                        \
     options.member = static_cast<type>(value);                                             \
   }},
    SLUICE_POLICY_FIELDS(X)
#undef X
};

constexpr bool is_read(const PolicyField& field, PolicyKind kind, LateMode late) noexcept {
  return kind <= PolicyKind::kGoodput && (field.kinds & bit_of(kind)) != 0 &&
         (!field.only_requeue || late == LateMode::kRequeue);
}

// Null when the options make sense for so many workers, or are of no policy that there is.
constexpr const PolicyField* wrong_field(const PolicyOptions& options,
                                         std::uint16_t worker_count) noexcept {
  const char* const wrong = invalid_field(options, worker_count);
  if (wrong == nullptr) return nullptr;
  for (const PolicyField& field : kPolicyFields)
    if (field.name == wrong || field.member == wrong) return &field;
  return nullptr;
}

// The options that the policy reads, the others as if unset.
constexpr PolicyOptions without_unread(const PolicyOptions& options) noexcept {
  PolicyOptions used{.kind = options.kind};
  for (const PolicyField& field : kPolicyFields)
    if (is_read(field, options.kind, options.late)) field.set(used, field.get(options));
  return used;
}

}  // namespace sluice
