#include "client/core/calls/error_prefix.h"

#include "client/core/calls/types.h"

namespace sluice::client {

std::string rank_words(Rank rank) {
  return rank == kAnyRank ? "any rank" : "rank " + std::to_string(rank.value);
}

std::string error_prefix(const SessionOptions& options) {
  std::string place = "job '" + options.job_name + "'";
  if (options.ordinal != 0) place += " (model " + std::to_string(options.ordinal) + ")";
  return place + " " + rank_words(options.rank) + " at " + options.appliance_address + ": ";
}

}  // namespace sluice::client
