// wire::parse(): reads nothing outside the datagram, and what it accepts can be written again.
#include "aggregator/core/sparse.h"
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
  if (packet.type() == wire::PacketType::kOutcome)
    for (std::size_t i = 0; i < packet.body<wire::Outcome>().behind_count; ++i)
      sum += packet.behind(i).operations;
  volatile std::uint64_t sink = sum;
  static_cast<void>(sink);
}

std::uint8_t flags_of(const wire::Packet& packet) {
  if (packet.type() == wire::PacketType::kContribution) return packet.flow().flags;
  return packet.type() == wire::PacketType::kResult ? packet.feedback().flags : std::uint8_t{0};
}

// What stands behind the mask: the payload, behind or in place of the list of chunks.
std::span<const std::uint8_t> content_of(const wire::Packet& packet) {
  const std::size_t list_bytes = (flags_of(packet) & wire::kFlagNil) != 0      ? 8
                                 : (flags_of(packet) & wire::kFlagSparse) != 0 ? 16
                                                                               : 0;
  if (list_bytes == 0) return packet.payload();  // padding may follow
  return packet.bytes().last(list_bytes + packet.payload().size());
}

// The elements of every chunk of a sparse packet, into memory that ends where they must.
template <class Body>
void read_sparse(const wire::Packet& packet) {
  const auto& body = packet.body<Body>();
  fuzz::Bytes dense(sluice::payload_bytes(body.dtype, body.elem_count));
  fuzz::Bytes again(packet.payload().size());
  std::vector<float> sums(body.elem_count);
  std::span<const std::uint8_t> rest = packet.payload();
  for (std::uint64_t filled = packet.filled(); filled != 0; filled &= filled - 1) {
    const wire::SparseEntry entry = wire::take_entry(rest, body.elem_count, body.dtype);
    agg::expand(entry, body.elem_count, body.dtype, dense.data());
    agg::add_sparse(sums.data(), entry, body.elem_count, body.dtype);
    // An entry may tell of zeros, which nobody writes: what is written again is never longer.
    const std::size_t bytes = agg::compress(dense.data(), body.elem_count, body.dtype, again);
    REQUIRE_PROPERTY(body.dtype == Dtype::kInt8 || bytes <= again.size());
  }
  REQUIRE_PROPERTY(rest.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  wire::Packet packet;
  if (const Verdict why = wire::parse({data, size}, packet); !ok(why)) {
    REQUIRE_PROPERTY(static_cast<std::size_t>(why) < kVerdictCount);
    REQUIRE_PROPERTY(packet.bytes().empty());
    return 0;
  }
  read_all(packet);
  if ((flags_of(packet) & wire::kFlagSparse) != 0) {
    if (packet.type() == wire::PacketType::kContribution)
      read_sparse<wire::Contribution>(packet);
    else
      read_sparse<wire::ResultHeader>(packet);
  }

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
  REQUIRE_PROPERTY(written == (join ? sizeof(wire::CommonHeader) + body_bytes + tail_bytes : size));
  const std::uint8_t version = packet.common().version;
  REQUIRE_PROPERTY(version == wire::kVersion || packet.type() == wire::PacketType::kRefuse);
  again[offsetof(wire::CommonHeader, version)] = version;  // it is written with ours
  REQUIRE_PROPERTY(std::memcmp(again.data(), data, written) == 0);
  return 0;
}

std::vector<fuzz::Seed> fuzz::seeds() { return packet_seeds({.job = 1, .rank = 1, .cookie = 5}); }
