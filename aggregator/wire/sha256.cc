#include "aggregator/wire/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sluice::wire {
namespace {

constexpr std::size_t kRounds = 64;
constexpr std::size_t kLengthBytes = 8;  // the message's length in bits ends the last block

// FIPS 180-4, 4.2.2: the same of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, kRounds> kRoundConstants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(const std::uint8_t* bytes) noexcept {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | std::uint32_t{bytes[3]};
}

void store_big_endian(std::uint8_t* bytes, std::uint32_t value) noexcept {
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (24 - 8 * i));
}

}  // namespace

// FIPS 180-4, 6.2.2. The letters are the standard's.
void Sha256::compress(const std::uint8_t* block) noexcept {
  std::array<std::uint32_t, kRounds> w;
  for (std::size_t t = 0; t < 16; ++t) w[t] = load_big_endian(block + 4 * t);
  for (std::size_t t = 16; t < kRounds; ++t) {
    const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = s1 + w[t - 7] + s0 + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < kRounds; ++t) {
    const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t choice = (e & f) ^ (~e & g);
    const std::uint32_t t1 = h + sum1 + choice + kRoundConstants[t] + w[t];
    const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const std::array<std::uint32_t, 8> added{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
}

void Sha256::update(std::span<const std::uint8_t> bytes) noexcept {
  while (!bytes.empty()) {
    const std::size_t used = total_bytes_ % kBlockBytes;
    const std::size_t taken = std::min(bytes.size(), kBlockBytes - used);
    std::memcpy(rest_.data() + used, bytes.data(), taken);
    total_bytes_ += taken;
    bytes = bytes.subspan(taken);
    if (used + taken == kBlockBytes) compress(rest_.data());
  }
}

Sha256::Value Sha256::finish() noexcept {
  const std::uint64_t bits = total_bytes_ * 8;
  const std::size_t used = total_bytes_ % kBlockBytes;
  const std::size_t end = used + 1 + kLengthBytes > kBlockBytes ? 2 * kBlockBytes : kBlockBytes;
  std::array<std::uint8_t, 2 * kBlockBytes> padding{0x80};
  store_big_endian(padding.data() + (end - used - 8), static_cast<std::uint32_t>(bits >> 32));
  store_big_endian(padding.data() + (end - used - 4), static_cast<std::uint32_t>(bits));
  update(std::span(padding).first(end - used));
  Value value;
  for (std::size_t i = 0; i < state_.size(); ++i) store_big_endian(value.data() + 4 * i, state_[i]);
  return value;
}

}  // namespace sluice::wire
