#include "client/abi_policy.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/base/policy_text.h"
#include "aggregator/base/spelling.h"
#include "client/abi_call.h"

namespace sluice::client {
namespace {

static_assert(static_cast<int>(PolicyKind::kSync) == SLUICE_POLICY_SYNC &&
              static_cast<int>(PolicyKind::kFixed) == SLUICE_POLICY_FIXED &&
              static_cast<int>(PolicyKind::kSaina) == SLUICE_POLICY_SAINA &&
              static_cast<int>(PolicyKind::kRamp) == SLUICE_POLICY_RAMP &&
              static_cast<int>(PolicyKind::kGoodput) == SLUICE_POLICY_GOODPUT &&
              static_cast<int>(LateMode::kDrop) == SLUICE_LATE_DROP &&
              static_cast<int>(LateMode::kRequeue) == SLUICE_LATE_REQUEUE);

// The place of each of kPolicyFields in sluice_policy_options, in their order.
struct Member {
  std::int64_t (*get)(const sluice_policy_options&);
  void (*set)(sluice_policy_options&, std::uint32_t);
};
constexpr Member kMembers[] = {
#define X(name, member, ...)                                                                       \
  {[](const sluice_policy_options& options) { return static_cast<std::int64_t>(options.member); }, \
   [](sluice_policy_options& options, std::uint32_t value) {                                       \
     options.member = static_cast<decltype(options.member)>(value);                                \
   }},
    SLUICE_POLICY_FIELDS(X)
#undef X
};

Status bad(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string describe_values(const PolicyField& field, std::uint32_t world_size,
                            std::string_view given) {
  std::vector<std::string_view> words;
  for (const PolicyWord& word : field.words) words.push_back(word.text);
  const std::string_view close = nearest(given, words);
  return "must be " + policy_range(field, world_size, false) +
         (close.empty() ? "" : "; did you mean " + quoted(close) + "?");
}

// The reason why an option with another value than its default would be ignored.
std::string describe_unread(const PolicyField& field, const PolicyOptions& policy) {
  if (is_read(field, policy.kind, LateMode::kRequeue))
    return "needs late='requeue': with 'drop' every late gradient is lost";
  std::string readers;
  for (const PolicyWord& word : kPolicyFields[0].words)
    if (is_read(field, static_cast<PolicyKind>(word.value), LateMode::kRequeue))
      readers += (readers.empty() ? "" : ", ") + quoted(word.text);
  return "is not used by policy " + quoted(name_of(policy.kind)) +
         ": leave it out, or use one of " + readers;
}

// On an error `index` is that of the wrong option.
Status policy_of_text(std::span<const char* const> values, std::uint32_t world_size,
                      PolicyOptions& policy, std::size_t& index) {
  const auto given = [&] { return index < values.size() && values[index] != nullptr; };
  for (index = 0; index < kPolicyFields.size(); ++index) {
    if (!given()) continue;
    if (values[0] == nullptr) return bad("is not used without a policy");
    const PolicyField& field = kPolicyFields[index];
    const auto value = policy_value(field, values[index]);
    if (!value || (field.is_k() && !is_valid(field, *value, world_size)))
      return bad(describe_values(field, world_size, values[index]));
    field.set(policy, *value);
  }
  for (index = 0; index < kPolicyFields.size(); ++index) {
    const PolicyField& field = kPolicyFields[index];
    if (!is_read(field, policy.kind, policy.late)) {
      if (field.get(policy) != field.get(PolicyOptions{}))
        return bad(describe_unread(field, policy));
      continue;
    }
    // The policy `fixed` has no default k that suits every job.
    const bool needed = field.is_k() && policy.kind == PolicyKind::kFixed && !given();
    if (needed || !is_valid(field, field.get(policy), world_size))
      return bad("is needed by policy " + quoted(name_of(policy.kind)) + ": " +
                 policy_range(field, world_size, false));
  }
  return {};
}

}  // namespace

sluice_policy_options policy_of(const PolicyOptions& policy) {
  sluice_policy_options options{};
  for (std::size_t i = 0; i < kPolicyFields.size(); ++i)
    kMembers[i].set(options, kPolicyFields[i].get(policy));
  return options;
}

sluice_policy_options default_policy() {
  sluice_policy_options options = policy_of({});
  options.kind = SLUICE_POLICY_DEFAULT;
  return options;
}

Status read_policy(const sluice_policy_options& options, std::uint32_t world_size,
                   SessionOptions& session) {
  session.has_policy = options.kind != SLUICE_POLICY_DEFAULT;
  if (!session.has_policy) return {};
  session.policy = {};
  for (std::size_t i = 0; i < kPolicyFields.size(); ++i) {
    const PolicyField& field = kPolicyFields[i];
    if (i != 0 && !is_read(field, session.policy.kind, session.policy.late)) continue;
    const std::int64_t asked = kMembers[i].get(options);
    const auto value = static_cast<std::uint32_t>(asked);
    if (value != asked || !is_valid(field, value, world_size))
      return bad("options.policy." + std::string(field.member) + " is " + std::to_string(asked) +
                 "; must be " + policy_range(field, world_size, true));
    field.set(session.policy, value);
  }
  return {};
}

}  // namespace sluice::client

using sluice::kPolicyFields;
using sluice::PolicyOptions;
using sluice::Status;
using sluice::client::bad;
using sluice::client::check_struct;
using sluice::client::copy_text;
using sluice::client::guarded;
using sluice::client::kMembers;

extern "C" {

const char* sluice_policy_option_name(size_t index) {
  return index < kPolicyFields.size() ? kPolicyFields[index].name.data() : nullptr;
}

sluice_status sluice_set_policy(sluice_options* options, const char* const* values, size_t count,
                                size_t* wrong) {
  return guarded([&]() -> Status {
    Status status = check_struct(options, "sluice_options");
    if (status.ok() && values == nullptr) status = bad("values is NULL");
    if (!status.ok()) return status;
    PolicyOptions policy;
    std::size_t index = 0;
    status = sluice::client::policy_of_text({values, count}, options->world_size, policy, index);
    if (wrong != nullptr) *wrong = index;
    if (!status.ok() || count == 0 || values[0] == nullptr) return status;
    options->policy = sluice::client::policy_of(policy);
    return status;
  });
}

sluice_status sluice_get_policy_text(const sluice_policy_info* info, size_t index, char* text,
                                     size_t capacity) {
  return guarded([&]() -> Status {
    Status status = check_struct(info, "sluice_policy_info");
    if (status.ok() && (text == nullptr || capacity == 0 || index >= kPolicyFields.size()))
      status = bad("text is NULL, capacity is 0, or there is no such option");
    if (!status.ok()) return status;
    const auto value = static_cast<std::uint32_t>(kMembers[index].get(info->policy));
    copy_text(sluice::policy_text(kPolicyFields[index], value), text, capacity);
    return status;
  });
}

}  // extern "C"
