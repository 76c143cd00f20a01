// Proof that a worker knows the appliance's secret: HMAC-SHA256 (RFC 2104, FIPS 180-4, from
// libcrypto) over both nonces and the request. It keeps out senders without the secret; an attacker
// who can read the path can replay a cookie.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "aggregator/wire/packet.h"

struct evp_md_ctx_st;  // libcrypto's EVP_MD_CTX

namespace sluice::wire {

using Digest = std::array<std::uint8_t, kProofBytes>;

// A key whose two hash states are prepared once: setting up the one-shot function for each message
// costs ten times as much as hashing a join. One thread at a time, even though digest() is const.
class HmacKey {
 public:
  explicit HmacKey(std::span<const std::uint8_t> key);
  explicit HmacKey(std::string_view key)
      : HmacKey(std::span(reinterpret_cast<const std::uint8_t*>(key.data()), key.size())) {}

  // HMAC-SHA256 of `message` (an empty key is a legal, worthless secret).
  Digest digest(std::span<const std::uint8_t> message) const noexcept;

 private:
  struct Release {
    void operator()(evp_md_ctx_st* context) const noexcept;
  };
  using Context = std::unique_ptr<evp_md_ctx_st, Release>;

  Context inner_;  // the state after the key's first block
  Context outer_;
  Context work_;  // a copy of either while a message is hashed
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
