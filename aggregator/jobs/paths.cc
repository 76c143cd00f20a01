#include "aggregator/jobs/paths.h"

#include <algorithm>
#include <cstring>

#include "aggregator/base/check.h"

namespace sluice::agg {
namespace {

std::uint64_t token_of(const wire::HmacKey& key, Cookie cookie, const PathKey& path,
                       std::uint64_t epoch) noexcept {
  CHECK(cookie != 0);  // nobody's token
  struct [[gnu::packed]] {
    char purpose[4] = {'p', 'a', 't', 'h'};
    Cookie cookie;
    std::uint64_t epoch;
    PathKey path;
  } message{.cookie = cookie, .epoch = epoch, .path = path};
  const wire::Digest digest =
      key.digest({reinterpret_cast<const std::uint8_t*>(&message), sizeof message});
  std::uint64_t token;
  std::memcpy(&token, digest.data(), sizeof token);
  return token == 0 ? 1 : token;
}

std::uint64_t epoch_of(TimeNs now) noexcept {
  return static_cast<std::uint64_t>(now) / static_cast<std::uint64_t>(kTokenEpoch);
}

}  // namespace

PathKey path_key(const wire::UdpPath& back, std::uint8_t port) noexcept {
  PathKey key{};
  auto at = key.begin();
  const auto put = [&](const auto& bytes) { at = std::copy(bytes.begin(), bytes.end(), at); };
  const auto put16 = [&](std::uint16_t value) {
    *at++ = static_cast<std::uint8_t>(value >> 8);
    *at++ = static_cast<std::uint8_t>(value);
  };
  *at++ = static_cast<std::uint8_t>(1 + static_cast<unsigned>(back.dst.family));  // never all zero
  *at++ = port;
  put(back.dst_mac.bytes);
  put(back.dst.bytes);
  put(back.src.bytes);
  put16(back.dst_port);
  put16(back.vlan_tci);
  CHECK(at <= key.end());
  return key;
}

std::uint64_t path_token(const wire::HmacKey& key, Cookie cookie, const PathKey& path,
                         TimeNs now) noexcept {
  return token_of(key, cookie, path, epoch_of(now));
}

bool is_path_token(std::uint64_t token, const wire::HmacKey& key, Cookie cookie,
                   const PathKey& path, TimeNs now) noexcept {
  if (token == 0) return false;
  const std::uint64_t epoch = epoch_of(now);
  return token == token_of(key, cookie, path, epoch) ||
         token == token_of(key, cookie, path, epoch - 1);
}

MemberPaths::Event* MemberPaths::find(Events& events, const PathKey& path) noexcept {
  for (Event& event : events)
    if (event.set && event.path == path) return &event;
  return nullptr;
}

MemberPaths::Event& MemberPaths::oldest(Events& events) noexcept {
  return *std::min_element(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.set != b.set ? b.set : a.at_ns < b.at_ns;
  });
}

bool MemberPaths::join(Cookie cookie, const PathKey& path, TimeNs now) noexcept {
  CHECK(cookie != 0);
  if (cookie == cookie_) return path == current_;
  cookie_ = cookie;
  current_ = path;
  proofs_ = {};
  questions_ = {};
  proofs_[0] = {.path = path, .at_ns = now, .set = true};
  return true;
}

MemberPaths::Validation MemberPaths::judge(const PathKey& path, bool echoed, TimeNs now) noexcept {
  CHECK(cookie_ != 0);  // a member has joined
  CHECK(!echoed || path != PathKey{});
  if (path == current_ || path == PathKey{}) return Validation::kProven;
  Event* proof = find(proofs_, path);
  if (echoed) {
    if (proof == nullptr) proof = &oldest(proofs_);
    *proof = {.path = path, .at_ns = now, .set = true};
  }
  if (proof != nullptr && now - proof->at_ns <= kProofLasts) {
    current_ = path;
    return Validation::kProven;
  }
  Event* question = find(questions_, path);
  if (question == nullptr) question = &oldest(questions_);
  if (question->set && now - question->at_ns < kCandidatePing) return Validation::kAsked;
  *question = {.path = path, .at_ns = now, .set = true};
  return Validation::kAsk;
}

}  // namespace sluice::agg
