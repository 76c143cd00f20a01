// One check of a policy's options: the C interface, its text form in Python, the configuration and
// the appliance accept the same values and use the same names.
#include <sluice/sluice.h>

#include <cstdio>
#include <string>

#include "aggregator/base/policy_text.h"
#include "tests/unit/config/config_file.h"
#include "tests/unit/jobs/control_fixture.h"

namespace sluice::agg {
namespace {

constexpr std::uint16_t kWorld = 4;
constexpr std::uint32_t kBorders[] = {0,    1,    2,    3,      4,      5,      31,     32,
                                      33,   500,  999,  1000,   1001,   1023,   1024,   1025,
                                      4095, 4096, 9999, 65'534, 65'535, 65'536, 65'537, UINT32_MAX};

using PolicyValues = ControlTest;

// Makes sense under every policy.
PolicyOptions base_of(PolicyKind kind, LateMode late) {
  return {.kind = kind, .late = late, .k = 2, .planned_steps = 100};
}

bool c_accepts(const PolicyOptions& policy, std::string_view member, std::uint32_t value) {
  sluice_options options{.struct_size = sizeof options};
  sluice_options_init(&options);
  options.address = "nowhere://x";  // looked at after the options
  options.job_name = "job";
  options.world_size = kWorld;
  options.policy.kind = static_cast<std::int32_t>(policy.kind);
  options.policy.late = static_cast<std::int32_t>(policy.late);
  options.policy.k = policy.k;
  options.policy.planned_steps = policy.planned_steps;
#define X(name, field, ...) \
  if (member == #field) options.policy.field = static_cast<decltype(options.policy.field)>(value);
  SLUICE_POLICY_FIELDS(X)
#undef X
  const sluice_tensor tensor{.struct_size = sizeof tensor, .elem_count = 8};
  sluice_job* job = nullptr;
  EXPECT_EQ(sluice_join(&options, &tensor, 1, &job), SLUICE_INVALID_ARGUMENT);
  const std::string text = sluice_last_error(nullptr);
  if (text.find("unknown scheme") != std::string::npos) return true;
  EXPECT_THAT(text, testing::HasSubstr("options.policy." + std::string(member) + " is"));
  return false;
}

std::string literal(const PolicyField& field, std::uint32_t value) {
  if (field.name == "signs" && value == kAllSigns) return "\"all\"";
  if (field.name == "signs" && value == kOneSignIn32) return "\"one-in-32\"";
  if (field.name == "count_threshold" && value == 0) return "\"k\"";
  if (field.name != "sign_threshold") return std::to_string(value);
  char share[32];
  std::snprintf(share, sizeof share, "%.3f", value / 1000.0);
  return share;
}

bool config_accepts(const PolicyOptions& policy, const PolicyField& field, std::uint32_t value) {
  std::string text = config::kGoodPort + "[limits]\nworkers_per_job = 4\n[policy]\npolicy = \"" +
                     name_of(policy.kind) + "\"\nlate = \"" + name_of(policy.late) + "\"\n";
  if (field.name != "k") text += "k = 2\n";
  if (field.name != "planned_steps") text += "planned_steps = 100\n";
  text += std::string(field.name) + " = " + literal(field, value) + "\n";
  const std::vector<std::string> errors = config::ConfigFile(text).errors();
  if (!errors.empty()) {
    EXPECT_THAT(errors[0], testing::HasSubstr(std::string(field.name)));
  }
  return errors.empty();
}

// What Python asks: every option is text.
bool text_accepts(const PolicyOptions& policy, const PolicyField& field, std::uint32_t value) {
  sluice_options options{.struct_size = sizeof options};
  sluice_options_init(&options);
  options.world_size = kWorld;
  std::vector<std::string> texts(kPolicyFields.size());
  std::vector<const char*> values;
  for (std::size_t i = 0; i < kPolicyFields.size(); ++i) {
    const PolicyField& one = kPolicyFields[i];
    const bool given = &one == &field || (i < 2 ? is_read(one, policy.kind, policy.late)
                                                : one.get(policy) != one.get(PolicyOptions{}));
    texts[i] = &one == &field ? literal(field, value) : policy_text(one, one.get(policy));
    std::erase(texts[i], '"');
    values.push_back(given && is_read(one, policy.kind, policy.late) ? texts[i].c_str() : nullptr);
  }
  std::size_t wrong = SIZE_MAX;
  if (sluice_set_policy(&options, values.data(), values.size(), &wrong) == SLUICE_OK) {
    EXPECT_EQ(options.policy.kind, static_cast<std::int32_t>(policy.kind));
    return true;
  }
  EXPECT_EQ(sluice_policy_option_name(wrong), field.name);
  return false;
}

TEST_F(PolicyValues, AreAcceptedByTheCInterfacePythonTheConfigurationAndTheApplianceAlike) {
  int refused = 0;
  for (int kind = 0; kind <= static_cast<int>(PolicyKind::kGoodput); ++kind) {
    for (const LateMode late : {LateMode::kDrop, LateMode::kRequeue}) {
      const PolicyOptions base = base_of(static_cast<PolicyKind>(kind), late);
      for (const PolicyField& field : kPolicyFields) {
        if (field.name == "late" || field.name == "policy") continue;  // words
        const bool read = is_read(field, base.kind, late);
        for (const std::uint32_t value : kBorders) {
          SCOPED_TRACE(std::string(field.name) + " = " + std::to_string(value) + " of " +
                       name_of(base.kind) + ", late " + name_of(late));
          const bool c = c_accepts(base, field.member, value);
          if (!read) {
            EXPECT_TRUE(c);
          } else {
            EXPECT_EQ(c, config_accepts(base, field, value));
            EXPECT_EQ(c, text_accepts(base, field, value));
          }
          refused += !c;
          if (value > field.most) continue;  // does not travel
          restart(options());
          Worker worker{.world_size = kWorld};
          worker.join.has_policy = 1;
          worker.join.policy = base;
          field.set(worker.join.policy, value);
          EXPECT_EQ(c, join(worker).is(wire::PacketType::kAccept));
        }
      }
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace sluice::agg
