// Proof of a job's secret: HMAC-SHA256 (RFC 2104, FIPS 180-4, from libcrypto) over the two nonces
// and what is asked for. It keeps strangers out; someone who can read the path can replay a cookie.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "aggregator/wire/packet.h"

namespace sluice::wire {

using Digest = std::array<std::uint8_t, kProofBytes>;

// HMAC-SHA256 of `message` under `key` (an empty key is a legal, worthless secret).
Digest hmac_sha256(std::span<const std::uint8_t> key,
                   std::span<const std::uint8_t> message) noexcept;

// The proof that belongs in `join.proof`: covers the rank, both nonces and every field of the
// request.
Digest join_proof(std::string_view secret, std::uint16_t rank, const Join& join) noexcept;

// Compares in constant time.
bool same_digest(std::span<const std::uint8_t> left, std::span<const std::uint8_t> right) noexcept;

}  // namespace sluice::wire
