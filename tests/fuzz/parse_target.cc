// wire::parse(): reads nothing outside the datagram, and what it accepts can be written again.
#include "tests/fuzz/packets.h"

using namespace sluice;

namespace {

// Every byte that a caller may look at.
void read_all(const wire::Packet& packet) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < packet.mask_word_count(); ++i) sum += packet.mask_word(i);
  for (const std::uint8_t byte : packet.payload()) sum += byte;
  if (packet.type() == wire::PacketType::kAnswer)
    for (std::size_t i = 0; i < packet.body<wire::Answer>().age_count; ++i)
      sum += packet.missing_age(i).last_heard_ms;
  volatile std::uint64_t sink = sum;
  static_cast<void>(sink);
}

// What stands behind the mask: the payload, or the list of chunks in its place.
std::span<const std::uint8_t> content_of(const wire::Packet& packet) {
  std::uint8_t flags = 0;
  if (packet.type() == wire::PacketType::kContribution) flags = packet.flow().flags;
  if (packet.type() == wire::PacketType::kResult) flags = packet.feedback().flags;
  return (flags & wire::kFlagNil) != 0 ? packet.bytes().last(8) : packet.payload();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  wire::Packet packet;
  Verdict why{};
  if (!wire::parse({data, size}, packet, why)) {
    REQUIRE_PROPERTY(static_cast<std::size_t>(why) < kVerdictCount);
    REQUIRE_PROPERTY(packet.bytes().empty());
    return 0;
  }
  read_all(packet);

  // The body lies between the header and the mask; what is left is padding, which only a join has.
  const std::span<const std::uint8_t> content = content_of(packet);
  const std::size_t tail_bytes = 8 * packet.mask_word_count() + content.size();
  const bool join = packet.type() == wire::PacketType::kJoin;
  const std::size_t body_bytes =
      join ? sizeof(wire::Join) : size - sizeof(wire::CommonHeader) - tail_bytes;
  std::vector<std::uint64_t> mask;
  for (std::size_t i = 0; i < packet.mask_word_count(); ++i) mask.push_back(packet.mask_word(i));
  fuzz::Bytes again(size);
  const std::size_t written = wire::encode_bytes(
      again, packet.type(), {packet.common().job, packet.common().rank, packet.common().cookie},
      {data + sizeof(wire::CommonHeader), body_bytes}, mask, content);
  REQUIRE_PROPERTY(written == (join ? sizeof(wire::CommonHeader) + sizeof(wire::Join) : size));
  const std::uint8_t version = packet.common().version;
  REQUIRE_PROPERTY(version == wire::kVersion || packet.type() == wire::PacketType::kRefuse);
  again[offsetof(wire::CommonHeader, version)] = version;  // it is written with ours
  REQUIRE_PROPERTY(std::memcmp(again.data(), data, written) == 0);
  return 0;
}

std::vector<fuzz::Seed> fuzz::seeds() { return packet_seeds({.job = 1, .rank = 1, .cookie = 5}); }
