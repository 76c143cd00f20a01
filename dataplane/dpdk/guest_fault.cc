#include "dataplane/dpdk/guest_fault.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::dataplane {
namespace {

constexpr std::uint32_t kKept = 64;

// Globals, because a signal handler has no argument for them. `own` is complete before the handler
// is installed; handlers write the rest, on the thread that faulted.
struct State {
  std::vector<AddressRange> own;
  std::array<std::atomic<std::uintptr_t>, kKept> begins{};
  std::array<std::atomic<std::uintptr_t>, kKept> ends{};
  std::atomic<std::uint32_t> taken{0};
  std::atomic<std::uint32_t> noted{0};
};
State state;

// Calls visit(range) for every shared mapping of this process until it returns true. Only system
// calls, so a signal handler may use it: /proc/self/maps has lines like
// "7f0000000000-7f0000200000 rw-s 00000000 00:01 77 /memfd:nohuge (deleted)".
template <class Visit>
bool visit_shared_mappings(Visit&& visit) noexcept {
  const int file = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::array<char, 4096> buffer;
  AddressRange range;
  std::size_t field = 0;  // of the line: begin, end, permissions, the rest
  std::size_t at = 0;     // within the permissions
  bool found = false;
  for (ssize_t count; !found && (count = ::read(file, buffer.data(), buffer.size())) > 0;) {
    for (const char c : std::string_view(buffer.data(), static_cast<std::size_t>(count))) {
      if (c == '\n') {
        field = 0;
        range = {};
      } else if (field < 2) {
        if (c == '-' || c == ' ') {
          ++field;
          at = 0;
          continue;
        }
        const auto digit = static_cast<std::uintptr_t>(c <= '9' ? c - '0' : c - 'a' + 10);
        std::uintptr_t& bound = field == 0 ? range.begin : range.end;
        bound = bound << 4 | digit;
      } else if (field == 2 && at++ == 3) {
        field = 3;
        if (c == 's' && !found) found = visit(range);
      }
    }
  }
  ::close(file);
  return found;
}

bool is_own(std::uintptr_t address) noexcept {
  return std::any_of(state.own.begin(), state.own.end(), [&](const AddressRange& range) {
    return address >= range.begin && address < range.end;
  });
}

void note(const AddressRange& range) noexcept {
  const std::uint32_t number = state.taken.fetch_add(1, std::memory_order_relaxed);
  state.begins[number % kKept].store(range.begin, std::memory_order_relaxed);
  state.ends[number % kKept].store(range.end, std::memory_order_relaxed);
  state.noted.fetch_add(1, std::memory_order_release);
}

bool is_covered(std::uintptr_t address) noexcept {
  for (std::uint32_t number = 0; number < kKept; ++number)
    if (address >= state.begins[number].load(std::memory_order_relaxed) &&
        address < state.ends[number].load(std::memory_order_relaxed))
      return true;
  return false;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const int saved = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  AddressRange range;
  const bool guests = info->si_code == BUS_ADRERR && !is_own(address) &&
                      visit_shared_mappings([&](const AddressRange& one) {
                        range = one;
                        return address >= one.begin && address < one.end;
                      });
  if (guests) note(range);
  // Covers the whole mapping: the rest of it is of no use, and huge pages can't be split.
  if (guests &&
      ::mmap(reinterpret_cast<void*>(range.begin), range.end - range.begin, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED) {
    errno = saved;
    return;
  }
  // Two threads may fault at once: for the later one the mapping is covered already.
  if (!is_covered(address))
    ::signal(SIGBUS, SIG_DFL);  // the fault comes again, and ends the process where it happened
  errno = saved;
}

}  // namespace

Status handle_guest_faults() {
  state.own.clear();
  visit_shared_mappings([](const AddressRange& range) {
    state.own.push_back(range);
    return false;
  });
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  if (::sigaction(SIGBUS, &action, nullptr) != 0)
    return Status(StatusCode::kIoError,
                  std::string("no handler for SIGBUS: ") + std::strerror(errno));
  return Status();
}

std::uint32_t guest_faults() noexcept { return state.noted.load(std::memory_order_acquire); }

AddressRange guest_fault(std::uint32_t number) noexcept {
  return {state.begins[number % kKept].load(std::memory_order_relaxed),
          state.ends[number % kKept].load(std::memory_order_relaxed)};
}

}  // namespace sluice::dataplane
