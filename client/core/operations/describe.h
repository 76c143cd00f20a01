// Operations in words: "all_reduce of 4096 bytes of float32". Cold.
#pragma once

#include <string>

#include "aggregator/wire/group.h"

namespace sluice::client {

std::string describe(const wire::Description& what);
// ": rank 3 has not called it and is 5 operations behind"; `first` of a list.
std::string describe(const wire::Behind& behind, bool first);

}  // namespace sluice::client
