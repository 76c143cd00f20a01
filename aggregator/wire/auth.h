// Proof that a worker knows the appliance's secret: HMAC-SHA256 (RFC 2104, FIPS 180-4) over both
// nonces and the request. It keeps out senders without the secret; an attacker who can read the
// path can replay a cookie.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "aggregator/wire/packet.h"
#include "aggregator/wire/sha256.h"

namespace sluice::wire {

using Digest = std::array<std::uint8_t, kProofBytes>;

// A key whose two hash states are prepared once, for many messages. Any thread.
class HmacKey {
 public:
  explicit HmacKey(std::span<const std::uint8_t> key);
  explicit HmacKey(std::string_view key)
      : HmacKey(std::span(reinterpret_cast<const std::uint8_t*>(key.data()), key.size())) {}

  // HMAC-SHA256 of `message` (an empty key is a legal, worthless secret).
  Digest digest(std::span<const std::uint8_t> message) const noexcept;

 private:
  Sha256 inner_;  // each after the key's first block
  Sha256 outer_;
};

// HMAC-SHA256 with a key that is used once.
Digest hmac_sha256(std::span<const std::uint8_t> key,
                   std::span<const std::uint8_t> message) noexcept;

// The value of `join.proof`. It covers the rank, both nonces and every field of the request.
Digest join_proof(const HmacKey& secret, std::uint16_t rank, const Join& join) noexcept;
Digest join_proof(std::string_view secret, std::uint16_t rank, const Join& join) noexcept;

// Compares in constant time.
bool same_digest(std::span<const std::uint8_t> left, std::span<const std::uint8_t> right) noexcept;

}  // namespace sluice::wire
