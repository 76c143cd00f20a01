#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/fuzz.h"

namespace sluice::fuzz {

void property_failed(const char* property, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: property does not hold: %s\n", file, line, property);
  std::abort();
}

}  // namespace sluice::fuzz
