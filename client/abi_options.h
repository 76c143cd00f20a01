// What a caller of the C interface asks for at a join, checked and put into a JoinRequest.
//
// Knows every version of the structs: fields beyond the caller's struct_size get their defaults.
// Cold; on the caller's thread.
#pragma once

#include <cstddef>

#include "client/include/sluice/sluice.h"
#include "client/job.h"

namespace sluice::client {

// The first version's size: the least that a caller can have been compiled with.
inline constexpr std::size_t kFirstOptionsBytes = offsetof(sluice_options, policy);

Status check_struct(std::size_t actual, std::size_t least, const char* what);
Status check_averaging(const char* what, std::int32_t averaging);
sluice_options default_options();
Status read_options(const sluice_options& options, JoinRequest& request);
Status read_tensors(const sluice_tensor* tensors, std::size_t count, JoinRequest& request);

}  // namespace sluice::client
