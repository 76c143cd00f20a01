// SHA-256 (FIPS 180-4), so that neither end needs a cryptographic library for one hash of a join.
// Portable and cold: some hundred megabytes a second. No table and no branch depends on the data,
// so the time does not tell it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::wire {

// The state of one hash. A copy goes on by itself: HMAC prepares a key once that way.
class Sha256 {
 public:
  static constexpr std::size_t kBlockBytes = 64;
  static constexpr std::size_t kDigestBytes = 32;
  using Value = std::array<std::uint8_t, kDigestBytes>;

  // Appends to the message.
  void update(std::span<const std::uint8_t> bytes) noexcept;
  // The hash of all that was appended. The object must not be used afterwards.
  Value finish() noexcept;

 private:
  void compress(const std::uint8_t* block) noexcept;

  // FIPS 180-4, 5.3.3: the first 32 bits of the fractional parts of the square roots of the first
  // eight primes.
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, kBlockBytes> rest_{};  // the message's last total_bytes_ % 64 bytes
  std::uint64_t total_bytes_ = 0;
};

}  // namespace sluice::wire
