// What a caller of the C interface asks for at a join, checked and put into a JoinRequest.
// Cold; on the caller's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "client/include/sluice/sluice.h"
#include "client/job.h"

namespace sluice::client {

Status check_size(std::size_t actual, std::size_t known, const char* name);

// A struct of the caller: there, and of this version's size.
template <class Struct>
Status check_struct(const Struct* given, const char* name) {
  if (given == nullptr) return {StatusCode::kInvalidArgument, std::string(name) + " is NULL"};
  return check_size(given->struct_size, sizeof *given, name);
}

Status read_averaging(std::int32_t number, AveragingChoice& averaging);
sluice_options default_options();
// `any_rank`: SLUICE_RANK_ANY is a rank.
Status read_options(const sluice_options* options, JoinRequest& request, bool any_rank = false);
Status read_tensors(const sluice_tensor* tensors, std::size_t count, JoinRequest& request);

}  // namespace sluice::client
