#include "aggregator/wire/packet.h"

#include <cstring>

namespace sluice::wire {
namespace {

// What follows a body: how many mask words, how many payload bytes, and whether padding may follow.
struct Tail {
  std::size_t mask_word_count = 0;
  std::size_t payload_bytes = 0;
  bool padding_allowed = false;
};

bool reject(Verdict& why, Verdict reason) noexcept {
  why = reason;
  return false;
}

bool valid_stream(StreamId stream) noexcept {
  return static_cast<std::size_t>(stream) < kStreamCount;
}
bool valid_dtype(Dtype dtype) noexcept { return dtype <= Dtype::kBytes; }
bool valid_flags(std::uint8_t flags) noexcept { return (flags & ~kKnownFlags) == 0; }

// Element count, byte count and the NIL flag must tell one story.
bool consistent_shape(std::uint16_t elem_count, std::uint16_t payload_bytes, Dtype dtype,
                      bool nil) noexcept {
  if (nil) return elem_count == 0 && payload_bytes == 0;
  return elem_count > 0 && payload_bytes <= kMaxChunkBytes &&
         elem_count * dtype_bytes(dtype) == payload_bytes;
}

bool check(const Contribution& body, Tail& tail, Verdict& why) noexcept {
  if (!valid_stream(body.stream)) return reject(why, Verdict::kBadStream);
  if (!valid_dtype(body.dtype) || !valid_flags(body.flags) || body.tag != 0)
    return reject(why, Verdict::kBadField);
  if (!consistent_shape(body.elem_count, body.payload_bytes, body.dtype, body.flags & kFlagNil))
    return reject(why, Verdict::kBadLength);
  tail.payload_bytes = body.payload_bytes;
  return true;
}

bool check(const ResultHeader& body, Tail& tail, Verdict& why) noexcept {
  if (!valid_stream(body.stream)) return reject(why, Verdict::kBadStream);
  if (!valid_dtype(body.dtype) || !valid_flags(body.flags) || body.tag != 0)
    return reject(why, Verdict::kBadField);
  if (body.mask_words > kMaskWords ||
      !consistent_shape(body.elem_count, body.payload_bytes, body.dtype, body.flags & kFlagNil))
    return reject(why, Verdict::kBadLength);
  tail.mask_word_count = body.mask_words;
  tail.payload_bytes = body.payload_bytes;
  return true;
}

bool check(const Probe& body, Tail&, Verdict& why) noexcept {
  if (!valid_stream(body.stream)) return reject(why, Verdict::kBadStream);
  return valid_flags(body.flags) || reject(why, Verdict::kBadField);
}

bool check(const Credit& body, Tail&, Verdict& why) noexcept {
  return valid_flags(body.flags) || reject(why, Verdict::kBadField);
}

bool check(const Finished& body, Tail&, Verdict& why) noexcept {
  return (valid_flags(body.flags) && body.step != 0) || reject(why, Verdict::kBadField);
}

bool check(const Answer& body, Tail& tail, Verdict& why) noexcept {
  if (!valid_stream(body.stream)) return reject(why, Verdict::kBadStream);
  if (body.status > AnswerStatus::kNotOpen) return reject(why, Verdict::kBadField);
  if (body.mask_words > kMaskWords || body.age_count > kMaxMissingAges)
    return reject(why, Verdict::kBadLength);
  tail.mask_word_count = body.mask_words;
  tail.payload_bytes = body.age_count * sizeof(MissingAge);
  return true;
}

bool check(const Join& body, Tail& tail, Verdict& why) noexcept {
  if (body.has_proof > 1 || body.allow_nil > 1 || body.has_policy > 1 ||
      body.policy.kind > PolicyKind::kGoodput || body.policy.late > LateMode::kRequeue)
    return reject(why, Verdict::kBadField);
  if (body.averaging > AveragingChoice::kSum || body.reserved != 0)
    return reject(why, Verdict::kBadField);
  if (body.name_bytes == 0 || body.name_bytes > kMaxJobNameBytes)
    return reject(why, Verdict::kBadLength);
  tail.padding_allowed = true;
  return true;
}

bool check(const Refuse& body, Tail& tail, Verdict& why) noexcept {
  if (body.text_bytes > kMaxTextBytes) return reject(why, Verdict::kBadLength);
  tail.payload_bytes = body.text_bytes;
  return true;
}

bool check(const Notice& body, Tail& tail, Verdict& why) noexcept {
  if (body.text_bytes > kMaxTextBytes) return reject(why, Verdict::kBadLength);
  tail.payload_bytes = body.text_bytes;
  return true;
}

bool check(const Leave& body, Tail&, Verdict& why) noexcept {
  return body.reason <= LeaveReason::kUneven || reject(why, Verdict::kBadField);
}

bool check(const Resync& body, Tail&, Verdict& why) noexcept {
  return (body.done <= 1 && body.number != 0) || reject(why, Verdict::kBadField);
}

bool check(const Status& body, Tail& tail, Verdict& why) noexcept {
  if (body.state > JobState::kEnded) return reject(why, Verdict::kBadField);
  if (body.mask_words > kMaskWords) return reject(why, Verdict::kBadLength);
  tail.mask_word_count = body.mask_words;
  return true;
}

bool check(const Preparing& body, Tail&, Verdict& why) noexcept {
  return body.percent <= 100 || reject(why, Verdict::kBadField);
}

bool check(const Challenge&, Tail&, Verdict&) noexcept { return true; }
bool check(const Accept& body, Tail&, Verdict& why) noexcept {
  return (body.policy.kind <= PolicyKind::kGoodput && body.policy.late <= LateMode::kRequeue) ||
         reject(why, Verdict::kBadField);
}
bool check(const Keepalive&, Tail&, Verdict&) noexcept { return true; }
bool check(const Ping&, Tail&, Verdict&) noexcept { return true; }
bool check(const Feedback&, Tail&, Verdict&) noexcept { return true; }

template <class Body>
bool check_body(std::span<const std::uint8_t> bytes, std::size_t& body_bytes, Tail& tail,
                Verdict& why) noexcept {
  body_bytes = sizeof(Body);
  if (bytes.size() < sizeof(CommonHeader) + sizeof(Body)) return reject(why, Verdict::kTruncated);
  return check(*reinterpret_cast<const Body*>(bytes.data() + sizeof(CommonHeader)), tail, why);
}

bool check_type(PacketType type, std::span<const std::uint8_t> bytes, std::size_t& body_bytes,
                Tail& tail, Verdict& why) noexcept {
  switch (type) {
    case PacketType::kContribution: return check_body<Contribution>(bytes, body_bytes, tail, why);
    case PacketType::kResult: return check_body<ResultHeader>(bytes, body_bytes, tail, why);
    case PacketType::kProbe: return check_body<Probe>(bytes, body_bytes, tail, why);
    case PacketType::kCredit: return check_body<Credit>(bytes, body_bytes, tail, why);
    case PacketType::kFinished: return check_body<Finished>(bytes, body_bytes, tail, why);
    case PacketType::kResync: return check_body<Resync>(bytes, body_bytes, tail, why);
    case PacketType::kFeedback: return check_body<Feedback>(bytes, body_bytes, tail, why);
    case PacketType::kAnswer: return check_body<Answer>(bytes, body_bytes, tail, why);
    case PacketType::kJoin: return check_body<Join>(bytes, body_bytes, tail, why);
    case PacketType::kChallenge: return check_body<Challenge>(bytes, body_bytes, tail, why);
    case PacketType::kAccept: return check_body<Accept>(bytes, body_bytes, tail, why);
    case PacketType::kRefuse: return check_body<Refuse>(bytes, body_bytes, tail, why);
    case PacketType::kLeave: return check_body<Leave>(bytes, body_bytes, tail, why);
    case PacketType::kKeepalive: return check_body<Keepalive>(bytes, body_bytes, tail, why);
    case PacketType::kStatus: return check_body<Status>(bytes, body_bytes, tail, why);
    case PacketType::kPreparing: return check_body<Preparing>(bytes, body_bytes, tail, why);
    case PacketType::kPing: return check_body<Ping>(bytes, body_bytes, tail, why);
    case PacketType::kNotice: return check_body<Notice>(bytes, body_bytes, tail, why);
  }
  return reject(why, Verdict::kBadType);
}

}  // namespace

bool parse(std::span<const std::uint8_t> bytes, Packet& packet, Verdict& why) noexcept {
  if (bytes.size() < sizeof(CommonHeader)) return reject(why, Verdict::kTruncated);
  const auto& common = *reinterpret_cast<const CommonHeader*>(bytes.data());
  if (common.magic != kMagic) return reject(why, Verdict::kBadMagic);
  if (common.version != kVersion) return reject(why, Verdict::kBadVersion);

  std::size_t body_bytes = 0;
  Tail tail;
  if (!check_type(common.type, bytes, body_bytes, tail, why)) return false;

  const std::size_t mask_offset_bytes = sizeof(CommonHeader) + body_bytes;
  const std::size_t payload_offset_bytes = mask_offset_bytes + 8 * tail.mask_word_count;
  const std::size_t total_bytes = payload_offset_bytes + tail.payload_bytes;
  if (bytes.size() < total_bytes) return reject(why, Verdict::kTruncated);
  if (bytes.size() > total_bytes && !tail.padding_allowed) return reject(why, Verdict::kBadLength);

  packet.bytes_ = bytes;
  packet.payload_ = bytes.subspan(payload_offset_bytes, tail.payload_bytes);
  packet.mask_offset_bytes_ = mask_offset_bytes;
  packet.mask_word_count_ = tail.mask_word_count;
  return true;
}

std::uint64_t Packet::mask_word(std::size_t index) const noexcept {
  std::uint64_t word;
  std::memcpy(&word, bytes_.data() + mask_offset_bytes_ + 8 * index, sizeof(word));
  return word;
}

MissingAge Packet::missing_age(std::size_t index) const noexcept {
  MissingAge age;
  std::memcpy(&age, payload_.data() + index * sizeof(age), sizeof(age));
  return age;
}

std::size_t encode_bytes(std::span<std::uint8_t> out, PacketType type, const Sender& sender,
                         std::span<const std::uint8_t> body, std::span<const std::uint64_t> mask,
                         std::span<const std::uint8_t> payload) noexcept {
  const std::size_t total_bytes =
      sizeof(CommonHeader) + body.size() + mask.size_bytes() + payload.size();
  if (out.size() < total_bytes) return 0;
  const CommonHeader common{
      .type = type, .job = sender.job, .rank = sender.rank, .cookie = sender.cookie};
  std::uint8_t* at = out.data();
  std::memcpy(at, &common, sizeof(common));
  at += sizeof(common);
  std::memcpy(at, body.data(), body.size());
  at += body.size();
  if (!mask.empty()) std::memcpy(at, mask.data(), mask.size_bytes());
  at += mask.size_bytes();
  if (!payload.empty()) std::memcpy(at, payload.data(), payload.size());
  return total_bytes;
}

}  // namespace sluice::wire
