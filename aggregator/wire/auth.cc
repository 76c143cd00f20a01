#include "aggregator/wire/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>

#include "aggregator/base/check.h"

namespace sluice::wire {

Digest hmac_sha256(std::span<const std::uint8_t> key,
                   std::span<const std::uint8_t> message) noexcept {
  Digest digest;
  unsigned int digest_bytes = 0;
  // HMAC() takes a null key for "the previous key": an empty secret needs a pointer all the same.
  static constexpr std::uint8_t kEmptyKey = 0;
  const void* key_data = key.empty() ? &kEmptyKey : key.data();
  const unsigned char* done = HMAC(EVP_sha256(), key_data, static_cast<int>(key.size()),
                                   message.data(), message.size(), digest.data(), &digest_bytes);
  CHECK(done != nullptr && digest_bytes == digest.size());
  return digest;
}

Digest join_proof(std::string_view secret, std::uint16_t rank, const Join& join) noexcept {
  Join covered = join;
  std::memset(covered.proof, 0, sizeof(covered.proof));
  std::array<std::uint8_t, sizeof(rank) + sizeof(Join)> message;
  std::memcpy(message.data(), &rank, sizeof(rank));
  std::memcpy(message.data() + sizeof(rank), &covered, sizeof(covered));
  return hmac_sha256({reinterpret_cast<const std::uint8_t*>(secret.data()), secret.size()},
                     message);
}

bool same_digest(std::span<const std::uint8_t> left, std::span<const std::uint8_t> right) noexcept {
  return left.size() == right.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace sluice::wire
