#include "aggregator/wire/packet.h"

#include <bit>
#include <cstring>

#include "aggregator/base/block.h"
#include "aggregator/wire/in_place.h"
#include "aggregator/wire/packet_checks.h"
#include "aggregator/wire/sparse.h"

namespace sluice::wire {
namespace {

bool valid_stream(StreamId stream) noexcept {
  return static_cast<std::size_t>(stream) < kStreamCount;
}

bool valid_store(const StoreOptions& store) noexcept {
  return store.update.rule <= UpdateRule::kAdam && store.update.nesterov <= 1 &&
         store.update.interpolates <= 1;
}

bool valid_prune(const PruneOptions& prune) noexcept {
  return prune.rule <= PruneRule::kDynamicRaw;
}

// As many fingerprints as the tensors need, or none.
bool valid_prints(const Join& body) noexcept {
  if (body.print_count == 0) return true;
  return body.print_tensors != 0 &&
         body.print_count ==
             (std::uint64_t{body.tensor_count} + body.print_tensors - 1) / body.print_tensors;
}

bool valid_policy(const PolicyOptions& policy) noexcept {
  return is_known(policy.kind) && is_known(policy.late) && policy.reserved == 0;
}

// Checks a packet of a sum: its element count and the NIL flag must agree.
template <class Body>
Verdict check_elems(const Body& body, std::uint8_t flags, Tail& tail) noexcept {
  if (!is_summed(body.dtype)) return Verdict::kBadField;
  const bool nil = flags & kFlagNil;
  const bool sparse = flags & kFlagSparse;
  if (nil && (sparse || body.dtype != Dtype{})) return Verdict::kBadField;  // of several tensors
  tail.chunks = chunk_bit(body.chunk);
  tail.list_words = sparse ? 2 : nil ? 1 : 0;
  tail.elem_count = body.elem_count;
  tail.dtype = body.dtype;
  tail.payload_bytes = payload_bytes(body.dtype, body.elem_count);
  return nil == (body.elem_count == 0) && tail.payload_bytes <= kMaxChunkBytes
             ? Verdict::kAccepted
             : Verdict::kBadLength;
}

// All kinds but a barrier have a size. The job decides how many chunks it makes.
Verdict check_operation(const Operation& operation, std::uint16_t payload_bytes,
                        Tail& tail) noexcept {
  if (operation.kind > CollectiveKind::kTransfer) return Verdict::kBadField;
  tail.payload_bytes = payload_bytes;
  const bool sized = operation.kind != CollectiveKind::kBarrier;
  return sized == (operation.size_bytes != 0) && payload_bytes <= kMaxChunkBytes &&
                 payload_bytes <= operation.size_bytes
             ? Verdict::kAccepted
             : Verdict::kBadLength;
}

Verdict check_text(std::uint16_t text_bytes, Tail& tail) noexcept {
  tail.payload_bytes = text_bytes;
  return text_bytes <= kMaxTextBytes ? Verdict::kAccepted : Verdict::kBadLength;
}

Verdict check(const Contribution& body, Tail& tail) noexcept {
  const bool rounded = body.flow.flags & kFlagRounded;
  if (rounded ? !is_narrow(body.dtype) : body.dtype == Dtype::kInt8) return Verdict::kBadField;
  const bool other = body.result != 0;
  if ((body.flow.flags & kFlagNil) && (other || (body.flow.flags & kFlagMean)))
    return Verdict::kBadField;
  if (other && (!is_summed(body.result_dtype()) || body.result_dtype() == body.dtype))
    return Verdict::kBadField;
  return check_elems(body, body.flow.flags, tail);
}

Verdict check(const ResultHeader& body, Tail& tail) noexcept {
  const Verdict verdict = check_mask(body.mask_words, tail);
  return verdict == Verdict::kAccepted ? check_elems(body, body.feedback.flags, tail) : verdict;
}

Verdict check(const Held& body, Tail& tail) noexcept {
  const Verdict verdict = check_mask(body.mask_words, tail);
  return verdict == Verdict::kAccepted ? check_elems(body, body.flow.flags, tail) : verdict;
}

Verdict check(const Piece& body, Tail& tail) noexcept {
  return check_operation(body.operation, body.payload_bytes, tail);
}

Verdict check(const PieceResult& body, Tail& tail) noexcept {
  const Verdict verdict = check_mask(body.mask_words, tail);
  return verdict == Verdict::kAccepted ? check_operation(body.operation, body.payload_bytes, tail)
                                       : verdict;
}

Verdict check(const Probe& body, Tail&) noexcept {
  return valid_stream(body.stream) ? Verdict::kAccepted : Verdict::kBadStream;
}

Verdict check(const Finished& body, Tail&) noexcept { return field_if(body.step != 0); }

Verdict check(const Answer& body, Tail& tail) noexcept {
  if (!valid_stream(body.stream)) return Verdict::kBadStream;
  if (body.status > AnswerStatus::kNotOpen) return Verdict::kBadField;
  if (body.age_count > kMaxMissingAges) return Verdict::kBadLength;
  tail.payload_bytes = body.age_count * sizeof(MissingAge);
  return check_mask(body.mask_words, tail);
}

// ---- groups ----

Verdict check_group(const GroupHeader& group) noexcept {
  return field_if(group.sequence <= Sequence::kSmall && group.reserved == 0);
}
Verdict check_group(const GroupState& group) noexcept {
  return field_if(group.sequence <= Sequence::kSmall);
}

Verdict check(const Call& body, Tail&) noexcept {
  if (!is_possible(body.what) || body.request > CallRequest::kCancel ||
      body.heard > OutcomeCode::kNoMemory)
    return Verdict::kBadField;
  return check_group(body.group);
}

Verdict check_data(Dtype wire, std::uint16_t payload_bytes, Tail& tail) noexcept {
  tail.payload_bytes = payload_bytes;
  return payload_bytes <= kMaxChunkBytes && payload_bytes % dtype_bytes(wire) == 0
             ? Verdict::kAccepted
             : Verdict::kBadLength;
}

Verdict check(const Part& body, Tail& tail) noexcept {
  if (body.kind > OperationKind::kBarrier || body.wire > Dtype::kBytes || body.given > 1 ||
      body.reduction > Reduction::kMean || has_owner(body.kind) != (body.owner < kMaxWorkers) ||
      is_reduction(body.kind) == (body.wire == Dtype::kBytes))
    return Verdict::kBadField;
  const Verdict verdict = check_group(body.group);
  return ok(verdict) ? check_data(body.wire, body.payload_bytes, tail) : verdict;
}

Verdict check(const Floors& body, Tail&) noexcept {
  return body.stopped > 1 || body.reserved != 0 ? Verdict::kBadField : check_group(body.group);
}

Verdict check(const PartProbe& body, Tail&) noexcept { return check_group(body.group); }

Verdict check(const PartResult& body, Tail& tail) noexcept {
  const Verdict verdict = check_group(body.group);
  return ok(verdict) ? check_data(Dtype::kBytes, body.payload_bytes, tail) : verdict;
}

Verdict check(const PartAnswer& body, Tail&) noexcept { return check_group(body.group); }

Verdict check(const Floor& body, Tail&) noexcept {
  return body.stopped > 1 || body.reserved != 0 ? Verdict::kBadField : check_group(body.group);
}

Verdict check(const Outcome& body, Tail& tail) noexcept {
  if (!is_possible(body.expected) || body.code > OutcomeCode::kNoMemory ||
      (body.code == OutcomeCode::kDiffers && !is_possible(body.actual)))
    return Verdict::kBadField;
  if (body.behind_count > kMaxBehind) return Verdict::kBadLength;
  tail.payload_bytes = body.behind_count * sizeof(Behind);
  return check_group(body.group);
}

bool valid_position(const GroupPosition& position) noexcept {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;  // far from where numbers wrap
  for (std::size_t i = 0; i < kSequenceCount; ++i)
    if (position.floors[i] > kMost || position.group_floors[i] > position.floors[i]) return false;
  if (position.over_number > kMost || position.first_number > position.over_number) return false;
  switch (position.broken) {
    case OutcomeCode::kOpen: return true;
    case OutcomeCode::kLost: return position.rank < kMaxWorkers;
    case OutcomeCode::kDiffers:
      return is_possible(position.expected) && is_possible(position.actual);
    default: return false;
  }
}

Verdict check(const Join& body, Tail& tail) noexcept {
  if (body.has_proof > 1 || body.allow_nil > 1 || body.has_policy > 1 ||
      !valid_policy(body.policy) || !valid_prune(body.prune) ||
      body.averaging > AveragingChoice::kSum || !is_summed(body.wire) ||
      body.kind > JobKind::kOperations || !valid_store(body.store) ||
      body.keep > StoreKeep::kTake || body.was_member > 1 ||
      ((body.resume_step != 0 || body.resume_calls != 0 || body.resume_k != 0 ||
        body.exchange_over != 0 || body.exchange_entered != 0) &&
       body.was_member == 0))
    return Verdict::kBadField;
  if (body.has_standby > 1 || body.settled_view > body.view) return Verdict::kBadField;
  if (body.name_bytes == 0 || body.name_bytes > kMaxJobNameBytes || !valid_prints(body))
    return Verdict::kBadLength;
  if (const Verdict verdict = check_mask(body.mask_words, tail); !ok(verdict)) return verdict;
  tail.payload_bytes = body.print_count * sizeof(std::uint32_t);
  tail.padding_allowed = true;
  return Verdict::kAccepted;
}

Verdict check(const Status& body, Tail& tail) noexcept {
  const bool possible = body.state <= JobState::kEnded && body.drain <= Drain::kBegun &&
                        body.needs_state <= 1 && body.settled_view <= body.view;
  return possible ? check_mask(body.mask_words, tail) : Verdict::kBadField;
}

Verdict check(const Refuse& body, Tail& tail) noexcept { return check_text(body.text_bytes, tail); }
Verdict check(const Differs& body, Tail& tail) noexcept {
  return body.print_tensors == 0 ? Verdict::kBadField : check_text(body.text_bytes, tail);
}
Verdict check(const Notice& body, Tail& tail) noexcept { return check_text(body.text_bytes, tail); }
Verdict check(const Leave& body, Tail& tail) noexcept {
  if (body.reason > LeaveReason::kMoved) return Verdict::kBadField;
  if (body.text_bytes > kMaxReasonBytes) return Verdict::kBadLength;
  return check_text(body.text_bytes, tail);
}
Verdict check(const Resync& body, Tail&) noexcept {
  return field_if(body.done <= 1 && body.number != 0);
}
Verdict check(const MakeGroup& body, Tail& tail) noexcept {
  if (body.request > GroupRequest::kAbort || body.mask_words == 0 || body.resumes > 1 ||
      (body.resumes == 1 && !valid_position(body.position)))
    return Verdict::kBadField;
  if (body.name_bytes == 0 || body.name_bytes > kMaxGroupNameBytes) return Verdict::kBadLength;
  return check_mask(body.mask_words, tail);
}
Verdict check(const GroupMade& body, Tail& tail) noexcept {
  if (body.request > GroupRequest::kAbort || body.group >= kMaxGroups) return Verdict::kBadField;
  return check_text(body.text_bytes, tail);
}
Verdict check(const Preparing& body, Tail&) noexcept { return field_if(body.percent <= 100); }
Verdict check(const Accept& body, Tail&) noexcept { return field_if(valid_policy(body.policy)); }
Verdict check(const Credit&, Tail&) noexcept { return Verdict::kAccepted; }
Verdict check(const Feedback&, Tail&) noexcept { return Verdict::kAccepted; }
Verdict check(const Challenge&, Tail&) noexcept { return Verdict::kAccepted; }
Verdict check(const Keepalive&, Tail&) noexcept { return Verdict::kAccepted; }
Verdict check(const Ping&, Tail&) noexcept { return Verdict::kAccepted; }

template <class Body>
bool has_known_flags(const Body& body) noexcept {
  if constexpr (is_worker_data(Body::kType))
    return (body.flow.flags & ~Body::kFlags) == 0;
  else if constexpr (is_appliance_data(Body::kType))
    return (body.feedback.flags & ~Body::kFlags) == 0;
  else
    return true;
}

template <class Body>
Verdict check_body(std::span<const std::uint8_t> bytes, std::size_t& body_bytes,
                   Tail& tail) noexcept {
  body_bytes = sizeof(Body);
  if (bytes.size() < sizeof(CommonHeader) + sizeof(Body)) return Verdict::kTruncated;
  const Body& body = *reinterpret_cast<const Body*>(bytes.data() + sizeof(CommonHeader));
  return has_known_flags(body) ? check(body, tail) : Verdict::kBadField;
}

// Checks the packet as the one of `Bodies` that has its type.
template <class... Bodies>
Verdict check_one_of(PacketType type, std::span<const std::uint8_t> bytes, std::size_t& body_bytes,
                     Tail& tail) noexcept {
  Verdict verdict = Verdict::kBadType;
  static_cast<void>(
      ((type == Bodies::kType && (verdict = check_body<Bodies>(bytes, body_bytes, tail), true)) ||
       ...));
  return verdict;
}

}  // namespace

Verdict parse(std::span<const std::uint8_t> bytes, Packet& packet) noexcept {
  if (bytes.size() < sizeof(CommonHeader)) return Verdict::kTruncated;
  const auto& common = *reinterpret_cast<const CommonHeader*>(bytes.data());
  if (common.magic != kMagic) return Verdict::kBadMagic;
  if (common.version != kVersion && common.type != PacketType::kRefuse) return Verdict::kBadVersion;

  std::size_t body_bytes = 0;
  Tail tail;
  // The types of the packet path come first.
  const Verdict verdict =
      check_one_of<Contribution, ResultHeader, Part, PartResult, Piece, PieceResult, Push, Pull,
                   Values, Probe, Credit, Finished, Feedback, Answer, Call, Floors, Floor, Outcome,
                   PartProbe, PartAnswer, Held, Copies, Copy, Join, Challenge, Accept, Refuse,
                   Leave, Keepalive, Status, Ping, Notice, Resync, Preparing, Differs, MakeGroup,
                   GroupMade>(common.type, bytes, body_bytes, tail);
  if (!ok(verdict)) return verdict;

  const std::size_t mask_offset_bytes = sizeof(CommonHeader) + body_bytes;
  const std::size_t list_offset_bytes = mask_offset_bytes + 8 * tail.mask_word_count;
  const std::size_t payload_offset_bytes = list_offset_bytes + 8 * tail.list_words;
  const bool sparse = tail.list_words == 2;
  if (sparse) {  // its length follows from what is in it
    const std::size_t rest_bytes =
        bytes.size() < payload_offset_bytes ? 0 : bytes.size() - payload_offset_bytes;
    if (kSparseHeadBytes + rest_bytes > kMaxChunkBytes) return Verdict::kBadLength;
    tail.payload_bytes = rest_bytes;
  }
  const std::size_t total_bytes = payload_offset_bytes + tail.payload_bytes;
  if (bytes.size() < total_bytes) return Verdict::kTruncated;
  if (bytes.size() > total_bytes && !tail.padding_allowed) return Verdict::kBadLength;

  if (tail.list_words != 0) {
    const std::uint64_t first = tail.chunks;
    std::memcpy(&tail.chunks, &bytes[list_offset_bytes], sizeof tail.chunks);
    if ((tail.chunks & -tail.chunks) != first) return Verdict::kBadField;
  }
  const auto payload = bytes.subspan(payload_offset_bytes, tail.payload_bytes);
  std::uint64_t filled = 0;
  if (sparse) {
    std::memcpy(&filled, &bytes[list_offset_bytes + sizeof filled], sizeof filled);
    if ((filled & ~tail.chunks) != 0) return Verdict::kBadField;
    const auto entry_count = static_cast<std::size_t>(std::popcount(filled));
    const Verdict entries = check_entries(payload, entry_count, tail.elem_count, tail.dtype);
    if (!ok(entries)) return entries;
  }

  packet.bytes_ = bytes;
  packet.payload_ = payload;
  packet.mask_offset_bytes_ = mask_offset_bytes;
  packet.mask_word_count_ = tail.mask_word_count;
  packet.chunks_ = tail.chunks;
  packet.filled_ = filled;
  return Verdict::kAccepted;
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

Behind Packet::behind(std::size_t index) const noexcept {
  Behind behind;
  std::memcpy(&behind, payload_.data() + index * sizeof(behind), sizeof(behind));
  return behind;
}

std::size_t encode_bytes(std::span<std::uint8_t> out, PacketType type, const Sender& sender,
                         std::span<const std::uint8_t> body, std::span<const std::uint64_t> mask,
                         std::span<const std::uint8_t> payload) noexcept {
  if (out.size() < packet_bytes(body.size(), mask.size(), payload.size())) return 0;
  std::memcpy(begin(out, type, sender), body.data(), body.size());
  return finish(out, body.size(), mask, payload);
}

}  // namespace sluice::wire
