// A main() for fuzz targets without libFuzzer: mutates the target's seeds for a bounded time.
//
//   fuzz_x [--seconds N] [--seed N] [--write-corpus DIR] [FILE...]
//
// With files it runs those and stops. The seed is printed; the same seed gives the same inputs in
// the same order. An input that fails is written to crash-<target>.bin in the working directory.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "tests/fuzz/fuzz.h"

// The sanitizers', where they are linked.
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());

namespace {

using sluice::fuzz::Bytes;
using sluice::fuzz::Seed;

constexpr std::size_t kMaxInputBytes = 9200;
constexpr std::size_t kMaxBredInputs = 4096;

Bytes current_input;
std::string crash_file;

void keep_input() {
  if (std::FILE* file = std::fopen(crash_file.c_str(), "wb")) {
    std::fwrite(current_input.data(), 1, current_input.size(), file);
    std::fclose(file);
    std::fprintf(stderr, "the input is in %s\n", crash_file.c_str());
  }
}

void on_abort(int) {
  keep_input();
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

void run(const Bytes& input) {
  current_input.assign(input.begin(), input.end());
  // An exact copy on the heap: the sanitizer sees every read beyond the end.
  const Bytes exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  Bytes mutate(const std::vector<Bytes>& pool) {
    Bytes input = pool[below(pool.size())];
    for (std::size_t count = 1 + below(6); count > 0; --count) change(input, pool);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  void change(Bytes& input, const std::vector<Bytes>& pool) {
    static constexpr std::uint64_t kInteresting[] = {0,
                                                     1,
                                                     2,
                                                     3,
                                                     63,
                                                     64,
                                                     65,
                                                     127,
                                                     128,
                                                     255,
                                                     256,
                                                     1023,
                                                     1024,
                                                     0x7fff,
                                                     0xffff,
                                                     0x7fffffff,
                                                     0x80000000,
                                                     0xffffffff,
                                                     0xffffffffffffffff};
    const std::size_t at = below(input.size());
    switch (below(9)) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<std::uint8_t>(random_());
        break;
      case 2: {  // a number of 1, 2, 4 or 8 bytes
        const std::size_t width = std::size_t{1} << below(4);
        const std::uint64_t value = kInteresting[below(std::size(kInteresting))];
        if (input.size() >= width)
          std::memcpy(&input[below(input.size() - width + 1)], &value, width);
        break;
      }
      case 3: input.resize(at); break;
      case 4:
        input.resize(input.size() + 1 + below(64), static_cast<std::uint8_t>(random_()));
        break;
      case 5:  // a piece disappears
        if (!input.empty())
          input.erase(
              input.begin() + static_cast<std::ptrdiff_t>(at),
              input.begin() + static_cast<std::ptrdiff_t>(at + 1 + below(input.size() - at)));
        break;
      case 6: {  // the rest comes from another input
        const Bytes& other = pool[below(pool.size())];
        input.resize(at);
        if (other.size() > at)
          input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(at), other.end());
        break;
      }
      case 7:  // plus or minus a little
        if (!input.empty()) input[at] = static_cast<std::uint8_t>(input[at] + below(9) - 4);
        break;
      default:  // noise of a random length
        for (std::size_t i = at, end = std::min(input.size(), at + below(32)); i < end; ++i)
          input[i] = static_cast<std::uint8_t>(random_());
        break;
    }
  }

  std::mt19937_64 random_;
};

int write_corpus(const std::string& folder) {
  for (const Seed& seed : sluice::fuzz::seeds()) {
    std::ofstream file(folder + "/" + seed.name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.bytes.data()),
               static_cast<std::streamsize>(seed.bytes.size()));
    if (!file) {
      std::fprintf(stderr, "cannot write %s/%s\n", folder.c_str(), seed.name.c_str());
      return 1;
    }
  }
  return 0;
}

void fuzz_for(double seconds, std::uint64_t seed) {
  std::vector<Bytes> pool, bred;
  for (const Seed& one : sluice::fuzz::seeds()) pool.push_back(one.bytes);
  for (const Bytes& one : pool) run(one);
  Mutator mutator(seed);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t count = 0;
  while (std::chrono::steady_clock::now() < deadline) {
    for (int burst = 0; burst < 256; ++burst, ++count) {
      Bytes input = mutator.mutate(bred.empty() || mutator.below(2) == 0 ? pool : bred);
      run(input);
      // Some descendants breed, so that inputs move away from the seeds.
      if (mutator.below(64) == 0) {
        if (bred.size() < kMaxBredInputs)
          bred.push_back(std::move(input));
        else
          bred[mutator.below(bred.size())] = std::move(input);
      }
    }
  }
  std::printf("%llu inputs in %.0f s, seed %llu\n", static_cast<unsigned long long>(count), seconds,
              static_cast<unsigned long long>(seed));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string program = argv[0];
  crash_file = "crash-" + program.substr(program.rfind('/') + 1) + ".bin";
  double seconds = 10;
  std::uint64_t seed = 1;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 0);
    } else if (argument == "--write-corpus" && i + 1 < argc) {
      return write_corpus(argv[++i]);
    } else {
      files.push_back(argument);
    }
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_input);
  std::signal(SIGABRT, on_abort);
  for (const std::string& name : files) {
    std::ifstream file(name, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", name.c_str());
      return 1;
    }
    run(Bytes(std::istreambuf_iterator<char>(file), {}));
  }
  if (files.empty()) fuzz_for(seconds, seed);
  return 0;
}
