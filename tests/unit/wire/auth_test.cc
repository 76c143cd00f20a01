#include "aggregator/wire/auth.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace sluice::wire {
namespace {

using Buffer = std::vector<std::uint8_t>;

Buffer bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

Buffer counting(std::uint8_t first, std::size_t count) {
  Buffer bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(first + i);
  return bytes;
}

Sha256::Value hash(const Buffer& message) {
  Sha256 state;
  state.update(message);
  return state.finish();
}

// NIST's examples for FIPS 180-4, and the lengths around one and two blocks of padding, by Python's
// hashlib.
TEST(Sha256Hash, GivesTheValuesOfTheStandard) {
  EXPECT_EQ(hex(hash({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(hash(bytes_of("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(hash(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(hash(Buffer(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(hex(hash(counting(0, 55))),
            "463eb28e72f82e0a96c0a4cc53690c571281131f672aa229e0d45ae59b598b59");
  EXPECT_EQ(hex(hash(counting(0, 56))),
            "da2ae4d6b36748f2a318f23e7ab1dfdf45acdc9d049bd80e59de82a60895f562");
  EXPECT_EQ(hex(hash(counting(0, 63))),
            "29af2686fd53374a36b0846694cc342177e428d1647515f078784d69cdb9e488");
  EXPECT_EQ(hex(hash(counting(0, 64))),
            "fdeab9acf3710362bd2658cdc9a29e8f9c757fcf9811603a8c447cd1d9151108");
  EXPECT_EQ(hex(hash(counting(0, 119))),
            "da18797ed7c3a777f0847f429724a2d8cd5138e6ed2895c3fa1a6d39d18f7ec6");
  EXPECT_EQ(hex(hash(counting(0, 120))),
            "f52b23db1fbb6ded89ef42a23ce0c8922c45f25c50b568a93bf1c075420bbb7c");
}

TEST(Sha256Hash, DoesNotDependOnHowTheMessageIsCut) {
  const Buffer message = counting(0, 200);
  for (std::size_t cut = 0; cut <= message.size(); ++cut) {
    Sha256 state;
    state.update(std::span(message).first(cut));
    state.update(std::span(message).subspan(cut));
    EXPECT_EQ(state.finish(), hash(message)) << cut;
  }
}

// RFC 4231, section 4. Test case 5 truncates its output to 128 bits.
struct Vector {
  Buffer key;
  Buffer message;
  std::string digest;
};

TEST(HmacSha256, GivesTheValuesOfRfc4231) {
  const Vector vectors[] = {
      {Buffer(20, 0x0b), bytes_of("Hi There"),
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {bytes_of("Jefe"), bytes_of("what do ya want for nothing?"),
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {Buffer(20, 0xaa), Buffer(50, 0xdd),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counting(1, 25), Buffer(50, 0xcd),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {Buffer(20, 0x0c), bytes_of("Test With Truncation"), "a3b6167473100ee06e0c796c2955552b"},
      {Buffer(131, 0xaa), bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"),
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {Buffer(131, 0xaa),
       bytes_of("This is a test using a larger than block-size key and a larger than block-size "
                "data. The key needs to be hashed before being used by the HMAC algorithm."),
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Vector& vector : vectors)
    EXPECT_EQ(hex(hmac_sha256(vector.key, vector.message)).substr(0, vector.digest.size()),
              vector.digest);
}

TEST(HmacSha256, OnePreparedKeyServesManyMessages) {
  const Buffer key(20, 0x0b);
  const HmacKey prepared(key);
  for (std::size_t count : {8u, 0u, 200u, 64u, 8u}) {
    const Buffer message = counting(1, count);
    EXPECT_EQ(prepared.digest(message), hmac_sha256(key, message)) << count;
  }
  EXPECT_EQ(hex(prepared.digest(bytes_of("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

TEST(HmacSha256, TakesAnEmptyKey) {
  EXPECT_EQ(hex(hmac_sha256({}, {})),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

Join request() {
  Join join{.nonce = 1, .run_id = 2, .world_size = 4, .has_proof = 1, .name_bytes = 3};
  std::memcpy(join.name, "job", 3);
  std::memset(join.server_nonce, 9, sizeof(join.server_nonce));
  return join;
}

TEST(JoinProof, CoversTheSecretTheRankAndEveryByteOfTheRequest) {
  const Join join = request();
  const Digest proof = join_proof("secret", 1, join);
  EXPECT_EQ(join_proof("secret", 1, join), proof);
  EXPECT_NE(join_proof("secreT", 1, join), proof);
  EXPECT_NE(join_proof("secret", 2, join), proof);
  EXPECT_NE(join_proof("", 1, join), proof);
  for (std::size_t at = 0; at < offsetof(Join, proof); ++at) {
    Join changed = join;
    reinterpret_cast<std::uint8_t*>(&changed)[at] ^= 1;
    EXPECT_NE(join_proof("secret", 1, changed), proof) << "byte " << at;
  }
}

TEST(JoinProof, DoesNotCoverItself) {
  Join join = request();
  const Digest proof = join_proof("secret", 1, join);
  std::memcpy(join.proof, proof.data(), proof.size());
  EXPECT_EQ(join_proof("secret", 1, join), proof);
}

TEST(SameDigest, ComparesLengthAndBytes) {
  const Buffer four{1, 2, 3, 4}, other{1, 2, 3, 5}, three{1, 2, 3};
  EXPECT_TRUE(same_digest(four, Buffer{1, 2, 3, 4}));
  EXPECT_FALSE(same_digest(four, other));
  EXPECT_FALSE(same_digest(four, three));
}

}  // namespace
}  // namespace sluice::wire
