// How every error of a worker begins: its job, its rank and the appliance.
#pragma once

#include <string>

namespace sluice::client {

struct SessionOptions;

// "job 'mnist' rank 3 at 10.0.0.1:7700: ".
std::string error_prefix(const SessionOptions& options);

}  // namespace sluice::client
