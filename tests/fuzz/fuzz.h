// What a fuzz target is: the function that libFuzzer calls, and the inputs that it starts from.
//
// driver.cc runs targets built by any compiler; with clang, `-fsanitize=fuzzer` replaces it. One
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace sluice::fuzz {

using Bytes = std::vector<std::uint8_t>;

struct Seed {
  std::string name;
  Bytes bytes;
};

// Well-formed inputs of the target, to be mutated.
std::vector<Seed> seeds();

// Stops the process with the failed property; the driver's or libFuzzer's handler keeps the input.
[[noreturn]] void property_failed(const char* property, const char* file, int line);

}  // namespace sluice::fuzz

#define REQUIRE_PROPERTY(condition)                                                    \
  do {                                                                                 \
    if (!(condition)) ::sluice::fuzz::property_failed(#condition, __FILE__, __LINE__); \
  } while (false)
