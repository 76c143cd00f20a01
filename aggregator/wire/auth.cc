#include "aggregator/wire/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <cstring>

#include "aggregator/base/check.h"

namespace sluice::wire {
namespace {

constexpr std::size_t kBlockBytes = 64;  // of SHA-256
constexpr std::uint8_t kInnerPad = 0x36;
constexpr std::uint8_t kOuterPad = 0x5c;
using Block = std::array<std::uint8_t, kBlockBytes>;

void finish(EVP_MD_CTX* context, Digest& digest) noexcept {
  unsigned int digest_bytes = 0;
  CHECK(EVP_DigestFinal_ex(context, digest.data(), &digest_bytes) == 1 &&
        digest_bytes == digest.size());
}

// Leaves `context` at the place of the message, or of the inner digest.
void absorb_key(EVP_MD_CTX* context, Block key, std::uint8_t pad) noexcept {
  for (std::uint8_t& byte : key) byte ^= pad;
  CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1 &&
        EVP_DigestUpdate(context, key.data(), key.size()) == 1);
  OPENSSL_cleanse(key.data(), key.size());
}

}  // namespace

void HmacKey::Release::operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }

HmacKey::HmacKey(std::span<const std::uint8_t> key)
    : inner_(EVP_MD_CTX_new()), outer_(EVP_MD_CTX_new()), work_(EVP_MD_CTX_new()) {
  Block block{};
  if (key.size() > block.size()) {
    unsigned int digest_bytes = 0;
    CHECK(EVP_Digest(key.data(), key.size(), block.data(), &digest_bytes, EVP_sha256(), nullptr) ==
          1);
  } else if (!key.empty()) {
    std::memcpy(block.data(), key.data(), key.size());
  }
  absorb_key(inner_.get(), block, kInnerPad);
  absorb_key(outer_.get(), block, kOuterPad);
  OPENSSL_cleanse(block.data(), block.size());
  CHECK(work_ != nullptr);
}

Digest HmacKey::digest(std::span<const std::uint8_t> message) const noexcept {
  Digest digest;
  EVP_MD_CTX* const work = work_.get();
  CHECK(EVP_MD_CTX_copy_ex(work, inner_.get()) == 1 &&
        EVP_DigestUpdate(work, message.data(), message.size()) == 1);
  finish(work, digest);
  CHECK(EVP_MD_CTX_copy_ex(work, outer_.get()) == 1 &&
        EVP_DigestUpdate(work, digest.data(), digest.size()) == 1);
  finish(work, digest);
  return digest;
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
  return left.size() == right.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace sluice::wire
