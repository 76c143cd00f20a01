// The packet format of Sluice: one UDP payload is one packet.
//
// A packet is a CommonHeader (header.h), the body of its type (data.h, group.h, control.h), then
// the words of a member mask (results, answer, status, group) and the payload. Everything is
// little-endian and packed. Both ends use the same structs: the sender fills one and calls
// encode(), the receiver calls parse(), which is the only code that reads unvalidated bytes.
// Control packets (join, leave, keepalive, ...) travel on port P, data packets on port P + 1 +
// shard. Ethernet, IP and UDP are in inet.h, the meaning of a step in core/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "aggregator/base/check.h"
#include "aggregator/base/verdict.h"
#include "aggregator/wire/control.h"
#include "aggregator/wire/data.h"
#include "aggregator/wire/group.h"
#include "aggregator/wire/header.h"

namespace sluice::wire {

// A validated packet: a view of the caller's bytes, valid as long as they are. The body of its type
// is complete, enumerations have known values, lengths agree, and mask and payload lie inside the
// bytes.
class Packet {
 public:
  const CommonHeader& common() const noexcept {
    return *reinterpret_cast<const CommonHeader*>(bytes_.data());
  }
  PacketType type() const noexcept { return common().type; }

  // The body as the struct of its type.
  template <class Body>
  const Body& body() const noexcept {
    DCHECK(type() == Body::kType);
    return *reinterpret_cast<const Body*>(bytes_.data() + sizeof(CommonHeader));
  }
  // The header of a data packet of a worker, and of the appliance.
  const FlowHeader& flow() const noexcept {
    DCHECK(is_worker_data(type()));
    return *reinterpret_cast<const FlowHeader*>(bytes_.data() + sizeof(CommonHeader));
  }
  const FeedbackHeader& feedback() const noexcept {
    DCHECK(is_appliance_data(type()));
    return *reinterpret_cast<const FeedbackHeader*>(bytes_.data() + sizeof(CommonHeader));
  }

  // Mask word i (results, answer, status, make group).
  std::uint64_t mask_word(std::size_t index) const noexcept;
  std::size_t mask_word_count() const noexcept { return mask_word_count_; }
  // Contribution, piece, results: the chunk's data, or the entries of a sparse packet. Refuse,
  // differs, notice, leave, group made: the text. Answer: the ages. Outcome: who is behind. Join:
  // the fingerprints.
  std::span<const std::uint8_t> payload() const noexcept { return payload_; }
  std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(payload_.data()), payload_.size()};
  }
  // The chunks of a contribution or a result: bit i is chunk i of its block of 64. Several chunks
  // have no data or are sparse.
  std::uint64_t chunks() const noexcept { return chunks_; }
  // The chunks of a sparse packet that have an entry in the payload, which are in this order.
  std::uint64_t filled() const noexcept { return filled_; }
  MissingAge missing_age(std::size_t index) const noexcept;
  Behind behind(std::size_t index) const noexcept;  // of an outcome
  std::span<const std::uint8_t> bytes() const noexcept { return bytes_; }

 private:
  friend Verdict parse(std::span<const std::uint8_t> bytes, Packet& packet) noexcept;
  std::span<const std::uint8_t> bytes_;
  std::span<const std::uint8_t> payload_;
  std::size_t mask_offset_bytes_ = 0;
  std::size_t mask_word_count_ = 0;
  std::uint64_t chunks_ = 0;
  std::uint64_t filled_ = 0;
};

// Validates `bytes`. kAccepted: `packet` is a view of them. Else the verdict is the reason, and
// `packet` is unchanged. Trailing bytes are allowed only after a join (padding).
[[nodiscard]] Verdict parse(std::span<const std::uint8_t> bytes, Packet& packet) noexcept;

// The worker to whose flow a packet belongs, in both directions: its job, rank and cookie.
struct Sender {
  std::uint16_t job = 0;
  std::uint16_t rank = 0;
  Cookie cookie = 0;
};

// The size of a packet.
constexpr std::size_t packet_bytes(std::size_t body_bytes, std::size_t mask_word_count,
                                   std::size_t payload_bytes) noexcept {
  return sizeof(CommonHeader) + body_bytes + 8 * mask_word_count + payload_bytes;
}

// Writes a packet into `out` and returns its size, or 0 when it does not fit. `mask` and `payload`
// follow the body; the caller has set the body's length fields to match.
std::size_t encode_bytes(std::span<std::uint8_t> out, PacketType type, const Sender& sender,
                         std::span<const std::uint8_t> body, std::span<const std::uint64_t> mask,
                         std::span<const std::uint8_t> payload) noexcept;

template <class Body>
std::size_t encode(std::span<std::uint8_t> out, const Sender& sender, const Body& body,
                   std::span<const std::uint64_t> mask = {},
                   std::span<const std::uint8_t> payload = {}) noexcept {
  return encode_bytes(out, Body::kType, sender,
                      {reinterpret_cast<const std::uint8_t*>(&body), sizeof(Body)}, mask, payload);
}

}  // namespace sluice::wire
