// The enumerations of sluice.h that options hold: what each number means to the client. A policy's
// are in aggregator/base/policy_fields.h. Included by abi_options.cc only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "client/include/sluice/sluice.h"
#include "client/job.h"

namespace sluice::client {

template <class Meaning>
struct Enumerator {
  std::int32_t number;
  Meaning meaning;
};
template <class Enumeration>
inline constexpr int kEnumerators = 0;
template <>
inline constexpr auto kEnumerators<sluice_averaging> =
    std::to_array<Enumerator<AveragingChoice>>({{SLUICE_AVERAGE_DEFAULT, AveragingChoice::kDefault},
                                                {SLUICE_AVERAGE_WEIGHT, AveragingChoice::kWeight},
                                                {SLUICE_AVERAGE_WORLD, AveragingChoice::kWorld},
                                                {SLUICE_AVERAGE_SUM, AveragingChoice::kSum}});
template <>
inline constexpr auto kEnumerators<sluice_wire> =
    std::to_array<Enumerator<Dtype>>({{SLUICE_WIRE_FLOAT32, Dtype::kFloat32},
                                      {SLUICE_WIRE_FLOAT16, Dtype::kFloat16},
                                      {SLUICE_WIRE_BFLOAT16, Dtype::kBfloat16},
                                      {SLUICE_WIRE_INT8, Dtype::kInt8}});
template <>
inline constexpr auto kEnumerators<sluice_prune_rule> =
    std::to_array<Enumerator<PruneRule>>({{SLUICE_PRUNE_OFF, PruneRule::kOff},
                                          {SLUICE_PRUNE_STATIC, PruneRule::kStatic},
                                          {SLUICE_PRUNE_SAMPLED, PruneRule::kSampled},
                                          {SLUICE_PRUNE_SIGMA, PruneRule::kSigma},
                                          {SLUICE_PRUNE_DYNAMIC, PruneRule::kDynamic},
                                          {SLUICE_PRUNE_DYNAMIC_RAW, PruneRule::kDynamicRaw}});
template <>
inline constexpr auto kEnumerators<sluice_memory> =
    std::to_array<Enumerator<Memory>>({{SLUICE_MEMORY_HOST, Memory::kHost},
                                       {SLUICE_MEMORY_DEVICE, Memory::kDevice},
                                       {SLUICE_MEMORY_PINNED, Memory::kPinned},
                                       {SLUICE_MEMORY_PINNED_ZERO_COPY, Memory::kZeroCopy},
                                       {SLUICE_MEMORY_GPUDIRECT, Memory::kDirect}});
template <>
inline constexpr auto kEnumerators<sluice_schedule_kind> =
    std::to_array<Enumerator<Schedule>>({{SLUICE_SCHEDULE_STRICT, Schedule::kStrict},
                                         {SLUICE_SCHEDULE_CREDIT, Schedule::kCredit},
                                         {SLUICE_SCHEDULE_PROPHET, Schedule::kProphet},
                                         {SLUICE_SCHEDULE_FIFO, Schedule::kFifo}});
template <>
inline constexpr auto kEnumerators<sluice_update> =
    std::to_array<Enumerator<UpdateRule>>({{SLUICE_UPDATE_DELTA, UpdateRule::kDelta},
                                           {SLUICE_UPDATE_SGD, UpdateRule::kSgd},
                                           {SLUICE_UPDATE_ADAM, UpdateRule::kAdam}});
template <>
inline constexpr auto kEnumerators<sluice_keep> =
    std::to_array<Enumerator<StoreKeep>>({{SLUICE_STORE_KEEP, StoreKeep::kKeep},
                                          {SLUICE_STORE_END, StoreKeep::kEnd},
                                          {SLUICE_STORE_ANEW, StoreKeep::kAnew},
                                          {SLUICE_STORE_TAKE, StoreKeep::kTake}});
template <>
inline constexpr auto kEnumerators<sluice_requests> =
    std::to_array<Enumerator<RequestPolicy>>({{SLUICE_REQUESTS_STALEST, RequestPolicy::kStalest},
                                              {SLUICE_REQUESTS_FIFO, RequestPolicy::kFifo},
                                              {SLUICE_REQUESTS_FILO, RequestPolicy::kFilo}});

// Null for a number that the enumeration does not have.
template <class Enumerators>
auto find_enumerator(const Enumerators& enumerators, std::int32_t number) {
  const auto* const found =
      std::ranges::find(enumerators, number, &Enumerators::value_type::number);
  return found == enumerators.end() ? nullptr : found;
}

}  // namespace sluice::client
