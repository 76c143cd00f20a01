#include "aggregator/wire/auth.h"

#include <algorithm>
#include <cstring>

namespace sluice::wire {
namespace {

static_assert(std::tuple_size_v<Digest> == Sha256::kDigestBytes);

constexpr std::uint8_t kInnerPad = 0x36;  // RFC 2104, section 2
constexpr std::uint8_t kOuterPad = 0x5c;
using Block = std::array<std::uint8_t, Sha256::kBlockBytes>;

// Writes that the compiler must not leave out, although nobody reads the block again.
void wipe(Block& block) noexcept {
  for (volatile std::uint8_t& byte : block) byte = 0;
}

void absorb(Sha256& state, Block key, std::uint8_t pad) noexcept {
  for (std::uint8_t& byte : key) byte ^= pad;
  state.update(key);
  wipe(key);
}

}  // namespace

HmacKey::HmacKey(std::span<const std::uint8_t> key) {
  Block block{};
  if (key.size() > block.size()) {
    Sha256 hash;
    hash.update(key);
    std::ranges::copy(hash.finish(), block.begin());
  } else {
    std::ranges::copy(key, block.begin());
  }
  absorb(inner_, block, kInnerPad);
  absorb(outer_, block, kOuterPad);
  wipe(block);
}

Digest HmacKey::digest(std::span<const std::uint8_t> message) const noexcept {
  Sha256 inner = inner_;
  inner.update(message);
  Sha256 outer = outer_;
  outer.update(inner.finish());
  return outer.finish();
}

Digest hmac_sha256(std::span<const std::uint8_t> key,
                   std::span<const std::uint8_t> message) noexcept {
  return HmacKey(key).digest(message);
}

Digest join_proof(const HmacKey& secret, std::uint16_t rank, const Join& join) noexcept {
  Join covered = join;
  std::memset(covered.proof, 0, sizeof(covered.proof));
  std::array<std::uint8_t, sizeof(rank) + sizeof(Join)> message;
  std::memcpy(message.data(), &rank, sizeof(rank));
  std::memcpy(message.data() + sizeof(rank), &covered, sizeof(covered));
  return secret.digest(message);
}

Digest join_proof(std::string_view secret, std::uint16_t rank, const Join& join) noexcept {
  return join_proof(HmacKey(secret), rank, join);
}

bool same_digest(std::span<const std::uint8_t> left, std::span<const std::uint8_t> right) noexcept {
  if (left.size() != right.size()) return false;
  volatile std::uint8_t different = 0;  // or the compiler may stop at the first difference
  for (std::size_t i = 0; i < left.size(); ++i) different = different | (left[i] ^ right[i]);
  return different == 0;
}

}  // namespace sluice::wire
