// The options of a policy in one table: their names for users, the policies that read them, their
// valid values and their effect.
//
// The wire, the configuration, the C interface (with Python above it) and the appliance read, check
// and print options by this table (as text: policy_text.h). An option that a policy does not read
// is ignored everywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "aggregator/base/limits.h"
#include "aggregator/base/policy_options.h"

namespace sluice {

// A word that users write for a value.
struct PolicyWord {
  std::string_view text;
  std::uint32_t value;
};

struct PolicyField {
  std::string_view name;              // in files, in Python, in the appliance's messages
  std::string_view member;            // of PolicyOptions and of sluice_policy_options
  std::uint8_t kinds;                 // bit `1 << kind` of each policy that reads it
  bool only_requeue;                  // read only where late gradients are requeued
  bool thousandths;                   // users write 0.5 for 500
  std::uint32_t least;                // as a number
  std::uint32_t most;                 // below `least`: words only
  std::span<const PolicyWord> words;  // also valid, in place of numbers
  std::string_view help;
  std::uint32_t (*get)(const PolicyOptions&);
  void (*set)(PolicyOptions&, std::uint32_t);

  constexpr bool is_k() const noexcept { return name == "k"; }
};

constexpr std::uint8_t bit_of(PolicyKind kind) noexcept {
  return static_cast<std::uint8_t>(1 << static_cast<int>(kind));
}

namespace policy_table {

inline constexpr std::uint8_t kFixed = bit_of(PolicyKind::kFixed);
inline constexpr std::uint8_t kSaina = bit_of(PolicyKind::kSaina);
inline constexpr std::uint8_t kRamp = bit_of(PolicyKind::kRamp);
inline constexpr std::uint8_t kTolerant = kFixed | kSaina | kRamp | bit_of(PolicyKind::kGoodput);
inline constexpr std::uint8_t kEvery = kTolerant | bit_of(PolicyKind::kSync);

inline constexpr std::span<const PolicyWord> kNone{};
inline constexpr PolicyWord kKinds[] = {
    {name_of(PolicyKind::kSync), 0},    {name_of(PolicyKind::kFixed), 1},
    {name_of(PolicyKind::kSaina), 2},   {name_of(PolicyKind::kRamp), 3},
    {name_of(PolicyKind::kGoodput), 4},
};
inline constexpr PolicyWord kLateModes[] = {{name_of(LateMode::kDrop), 0},
                                            {name_of(LateMode::kRequeue), 1}};
static_assert(std::size(kKinds) == kPolicyKindCount && std::size(kLateModes) == kLateModeCount);
inline constexpr PolicyWord kSigns[] = {{"all", kAllSigns}, {"one-in-32", kOneSignIn32}};
inline constexpr PolicyWord kAsManyAsK[] = {{"k", 0}};

}  // namespace policy_table

// X(name, member of PolicyOptions and of sluice_policy_options, type, kinds, only requeue,
// thousandths, least, most, words, help). The first row chooses the policy.
#define SLUICE_POLICY_FIELDS(X)                                                                    \
  X("policy", kind, PolicyKind, kEvery, false, false, 1, 0, kKinds,                                \
    "What chooses k, the contributions that complete a step, in jobs whose workers leave it to "   \
    "the appliance. sync: all workers. fixed: `k`. saina: `k` at first, one more whenever enough " \
    "signs of the sum flip. ramp: more and more over `planned_steps`. goodput: by the gradients' " \
    "noise and the workers' times.")                                                               \
  X("k", k, std::uint16_t, kFixed | kSaina, false, false, 1, kMaxWorkers, kNone,                   \
    "fixed: contributions that complete a step. saina: those that it starts with.")                \
  X("sign_threshold", sign_threshold_permille, std::uint16_t, kSaina, false, true, 0, 1000, kNone, \
    "saina: a detection round counts when at least this share of the sum's signs has flipped, "    \
    "and takes one back otherwise.")                                                               \
  X("count_threshold", count_threshold, std::uint16_t, kSaina, false, false, 1, UINT16_MAX,        \
    kAsManyAsK, "saina: counted rounds at which k grows by one. \"k\": as many as k is.")          \
  X("signs", sign_stride, std::uint16_t, kSaina, false, false, 1, 0, kSigns,                       \
    "saina: compare all signs, or one in 32 as the published code does.")                          \
  X("round_steps", round_steps, std::uint32_t, kSaina, false, false, 1, UINT32_MAX, kNone,         \
    "saina: steps of a detection round.")                                                          \
  X("planned_steps", planned_steps, std::uint32_t, kRamp, false, false, 1, UINT32_MAX, kNone,      \
    "ramp: steps that the training will take. 0: not known, and ramp is refused.")                 \
  X("late", late, LateMode, kTolerant, false, false, 1, 0, kLateModes,                             \
    "A gradient that is ready after its step: drop loses it, requeue contributes it to the step "  \
    "that is open then. For all policies but sync.")                                               \
  X("max_staleness", max_staleness, std::uint32_t, kTolerant, true, false, 0, UINT32_MAX, kNone,   \
    "requeue: steps that a gradient may be late; an older one is dropped. 0: no bound.")

namespace policy_table {

inline constexpr PolicyField kFields[] = {
#define X(name, member, type, kinds, only_requeue, thousandths, least, most, words, help)   \
  {name,                                                                                    \
   #member,                                                                                 \
   kinds,                                                                                   \
   only_requeue,                                                                            \
   thousandths,                                                                             \
   least,                                                                                   \
   most,                                                                                    \
   words,                                                                                   \
   help,                                                                                    \
   [](const PolicyOptions& options) { return static_cast<std::uint32_t>(options.member); }, \
   [](PolicyOptions& options, std::uint32_t value) {                                        \
     options.member = static_cast<type>(value);                                             \
   }},
    SLUICE_POLICY_FIELDS(X)
#undef X
};

}  // namespace policy_table

inline constexpr std::span<const PolicyField> kPolicyFields = policy_table::kFields;
inline constexpr std::size_t kPolicyFieldCount = std::size(policy_table::kFields);

constexpr bool is_read(const PolicyField& field, PolicyKind kind, LateMode late) noexcept {
  return is_known(kind) && (field.kinds & bit_of(kind)) != 0 &&
         (!field.only_requeue || late == LateMode::kRequeue);
}

// Whether the value is valid in a policy that reads the field, in a job of so many workers.
constexpr bool is_valid(const PolicyField& field, std::uint32_t value,
                        std::uint32_t worker_count) noexcept {
  const std::uint32_t most = field.is_k() ? std::min(field.most, worker_count) : field.most;
  return (field.least <= value && value <= most) ||
         std::any_of(field.words.begin(), field.words.end(),
                     [&](const PolicyWord& word) { return word.value == value; });
}

// The first field with a value that is not valid for so many workers; null: there is none.
constexpr const PolicyField* wrong_field(const PolicyOptions& options,
                                         std::uint32_t worker_count) noexcept {
  for (const PolicyField& field : kPolicyFields) {
    const bool always = field.kinds == policy_table::kEvery;
    if ((always || is_read(field, options.kind, options.late)) &&
        !is_valid(field, field.get(options), worker_count))
      return &field;
  }
  return nullptr;
}

// The options that the policy reads; the others have their defaults.
constexpr PolicyOptions without_unread(const PolicyOptions& options) noexcept {
  PolicyOptions used;
  for (const PolicyField& field : kPolicyFields)
    if (is_read(field, options.kind, options.late)) field.set(used, field.get(options));
  return used;
}

}  // namespace sluice
