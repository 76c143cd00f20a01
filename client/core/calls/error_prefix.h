// How every error of a worker begins: its job, its rank and the appliance.
#pragma once

#include <string>

#include "aggregator/base/types.h"

namespace sluice::client {

struct SessionOptions;

std::string rank_words(Rank rank);  // "rank 3"
// "job 'mnist' rank 3 at 10.0.0.1:7700: ".
std::string error_prefix(const SessionOptions& options);

}  // namespace sluice::client
