// Assertions for bugs, never for input.
//
// CHECK stays on in release builds and ends the process with file, line and the failed condition.
// DCHECK is for per-packet invariants and vanishes when NDEBUG is defined.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace sluice {

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "%s:%d: internal error: CHECK(%s) failed; please report this line\n", file,
               line, condition);
  std::abort();
}

}  // namespace sluice

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      ::sluice::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)

#ifdef NDEBUG
#define DCHECK(condition) \
  do {                    \
  } while (false)
#else
#define DCHECK(condition) CHECK(condition)
#endif
