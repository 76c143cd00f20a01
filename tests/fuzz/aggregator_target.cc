// Strangers, hostile members and hostile joiners against control side and shards, while an honest
// job's sums stay exact and every packet is counted once.
//
// The first byte of an input says who sends it where; the rest is the datagram.
#include <algorithm>
#include <iterator>

#include "aggregator/base/block.h"
#include "aggregator/core/sparse.h"
#include "aggregator/wire/auth.h"
#include "tests/fuzz/resumed_packets.h"
#include "tests/fuzz/world.h"

using namespace sluice;

namespace {

enum class Role : std::uint8_t { kStranger, kMember, kJoiner };

struct Envelope {
  Role role;
  std::size_t port;  // 0 control, 1 + shard
  bool marked;
  bool raw;  // the datagram stays as it is; otherwise its form is repaired
  std::size_t path;
};

constexpr std::uint8_t seal(Role role, std::size_t port, bool marked = false,
                            std::size_t path = 0) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(role) | port << 2 | marked << 4 |
                                   path << 6);
}

Envelope open_envelope(std::uint8_t byte) {
  return {.role = static_cast<Role>(std::min(byte & 3, 2)),
          .port = std::size_t{byte} / 4 % 4 % (1 + fuzz::kShards),
          .marked = (byte >> 4 & 1) != 0,
          .raw = (byte >> 5 & 1) != 0,
          .path = std::size_t{byte} >> 6};
}

using fuzz::body_in;

// Makes a contribution one without data, of its chunk and of others behind it.
void list_chunks(fuzz::Bytes& bytes) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Contribution);
  std::uint64_t chunks = 0;
  bytes.resize(kFixedBytes + sizeof chunks);
  auto& body = body_in<wire::Contribution>(bytes);
  body.flow.flags |= wire::kFlagNil;
  body.elem_count = 0;
  body.dtype = {};
  std::memcpy(&chunks, &bytes[kFixedBytes], sizeof chunks);
  const std::uint64_t first = chunk_bit(body.chunk);
  chunks = (chunks & ~(first - 1)) | first;
  std::memcpy(&bytes[kFixedBytes], &chunks, sizeof chunks);
}

// Makes a contribution a sparse one, of its chunk and of others behind it, whose values are where
// the datagram has bytes.
void make_sparse(fuzz::Bytes& bytes) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Contribution);
  bytes.resize(std::max(bytes.size(), kFixedBytes + wire::kSparseHeadBytes));
  const fuzz::Bytes drawn(bytes.begin() + kFixedBytes, bytes.end());
  auto& body = body_in<wire::Contribution>(bytes);
  body.elem_count = static_cast<std::uint16_t>(1 + body.elem_count % 300);
  const std::uint16_t elem_count = body.elem_count;
  const Dtype dtype = body.dtype;
  std::uint64_t words[2];
  std::memcpy(words, drawn.data(), sizeof words);
  const std::uint64_t first = chunk_bit(body.chunk);
  words[0] = (words[0] & ~(first - 1)) | first;
  words[1] &= words[0];
  fuzz::Bytes dense(payload_bytes(dtype, elem_count));
  fuzz::Bytes entries(kMaxChunkBytes - wire::kSparseHeadBytes);
  std::size_t used = 0;
  for (std::uint64_t rest = words[1]; rest != 0; rest &= rest - 1) {
    const auto seed = static_cast<std::size_t>(std::countr_zero(rest));
    std::fill(dense.begin(), dense.end(), std::uint8_t{0});
    for (std::size_t i = seed % 3; i < std::min(drawn.size(), dense.size()); i += 1 + seed % 7)
      dense[(i * (1 + seed)) % dense.size()] = drawn[i];
    const std::size_t added =
        agg::compress(dense.data(), elem_count, dtype, std::span(entries).subspan(used));
    if (added == 0 || added == agg::kNotCompressed)
      words[1] &= ~(rest & -rest);
    else
      used += added;
  }
  bytes.resize(kFixedBytes);
  bytes.insert(bytes.end(), reinterpret_cast<const std::uint8_t*>(words),
               reinterpret_cast<const std::uint8_t*>(words) + sizeof words);
  bytes.insert(bytes.end(), entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(used));
}

void repair_contribution(fuzz::Bytes& bytes) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Contribution);
  auto& body = body_in<wire::Contribution>(bytes);
  constexpr Dtype kTypes[] = {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8};
  body.flow.flags &= body.kFlags;
  if (body.flow.flags & wire::kFlagNil)
    body.flow.flags &= static_cast<std::uint8_t>(~(wire::kFlagRounded | wire::kFlagSparse));
  const bool rounded = body.flow.flags & wire::kFlagRounded;
  const auto drawn = static_cast<unsigned>(body.dtype);
  body.dtype = rounded ? kTypes[1 + drawn % 3] : kTypes[drawn % 3];
  if (body.flow.flags & wire::kFlagNil) {
    body.dtype = {};
    body.flow.flags &= static_cast<std::uint8_t>(~wire::kFlagMean);
  }
  const Dtype result = kTypes[body.result % 4];
  body.result = body.flow.flags & wire::kFlagNil ? 0 : wire::result_code(body.dtype, result);
  body.chunk %= 256;
  body.step %= 8;
  if (body.flow.flags & wire::kFlagSparse) return make_sparse(bytes);
  const std::size_t room = std::min(bytes.size() - kFixedBytes, kMaxChunkBytes);
  const bool nil = body.flow.flags & wire::kFlagNil;
  const std::size_t scale_bytes = body.dtype == Dtype::kInt8 ? kScaleBytes : 0;
  body.elem_count = static_cast<std::uint16_t>(
      nil || room <= scale_bytes ? 0 : (room - scale_bytes) / dtype_bytes(body.dtype));
  if (body.elem_count == 0) {
    body.flow.flags &= static_cast<std::uint8_t>(~(wire::kFlagRounded | wire::kFlagMean));
    body.dtype = {};
    body.result = 0;
  }
  bytes.resize(kFixedBytes + payload_bytes(body.dtype, body.elem_count));
  if (body.elem_count == 0) list_chunks(bytes);
}

void repair_piece(fuzz::Bytes& bytes) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Piece);
  auto& body = body_in<wire::Piece>(bytes);
  wire::Operation& operation = body.operation;
  operation.kind = static_cast<CollectiveKind>(static_cast<unsigned>(operation.kind) % 3);
  if (operation.kind == CollectiveKind::kBarrier) operation.size_bytes = 0;
  if (operation.kind != CollectiveKind::kBarrier && operation.size_bytes == 0)
    operation.size_bytes = 1;
  body.flow.flags &= body.kFlags;
  body.chunk %= 64;
  body.step %= 8;
  const std::size_t room = std::min(bytes.size() - kFixedBytes, kMaxChunkBytes);
  body.payload_bytes =
      static_cast<std::uint16_t>(std::min<std::size_t>(room, operation.size_bytes));
  bytes.resize(kFixedBytes + body.payload_bytes);
}

void repair_push(fuzz::Bytes& bytes) {
  constexpr std::size_t kFixedBytes = sizeof(wire::CommonHeader) + sizeof(wire::Push);
  bytes.resize(std::max(bytes.size(), kFixedBytes + sizeof(float)));
  auto& body = body_in<wire::Push>(bytes);
  body.flow.flags &= body.kFlags;
  body.iteration %= 6;
  body.block_chunks = static_cast<std::uint8_t>(1 + body.block_chunks % 3);
  body.chunk = body.chunk / kChunksPerBlock % 4 * kChunksPerBlock + body.chunk % body.block_chunks;
  body.reserved = 0;
  const std::size_t room = std::min(bytes.size() - kFixedBytes, kMaxChunkBytes);
  body.elem_count = static_cast<std::uint16_t>(room / sizeof(float));
  bytes.resize(kFixedBytes + body.elem_count * sizeof(float));
}

// Makes a mutated datagram one that parses, so that mutations reach what lies behind the parser.
void repair(fuzz::Bytes& bytes) {
  using wire::PacketType;
  static constexpr PacketType kOfWorkers[] = {
      PacketType::kJoin,  PacketType::kLeave,  PacketType::kKeepalive, PacketType::kContribution,
      PacketType::kProbe, PacketType::kCredit, PacketType::kFinished,  PacketType::kResync,
      PacketType::kPiece, PacketType::kPush,   PacketType::kPull,      PacketType::kMakeGroup,
      PacketType::kCall,  PacketType::kPart,   PacketType::kFloors,    PacketType::kPartProbe,
      PacketType::kHeld,  PacketType::kCopies, PacketType::kCopy};
  bytes.resize(std::max(bytes.size(), sizeof(wire::CommonHeader)));
  auto& common = *reinterpret_cast<wire::CommonHeader*>(bytes.data());
  common.magic = wire::kMagic;
  common.version = wire::kVersion;
  if (std::find(std::begin(kOfWorkers), std::end(kOfWorkers), common.type) == std::end(kOfWorkers))
    common.type = kOfWorkers[static_cast<unsigned>(common.type) % std::size(kOfWorkers)];
  const PacketType type = common.type;
  const auto cut_to = [&](std::size_t body_bytes) {
    bytes.resize(sizeof(wire::CommonHeader) + body_bytes);
  };
  switch (type) {
    case PacketType::kJoin: {
      auto& body = body_in<wire::Join>(bytes);
      body.has_proof &= 1;
      body.allow_nil &= 1;
      body.features &= wire::kKnownFeatures;
      body.has_policy &= 1;
      if (!is_summed(body.wire)) body.wire = {};
      body.averaging =
          static_cast<AveragingChoice>(static_cast<unsigned>(body.averaging) %
                                       (static_cast<unsigned>(AveragingChoice::kSum) + 1));
      if (body.policy.kind > PolicyKind::kGoodput) body.policy = {};
      if (body.policy.late > LateMode::kRequeue) body.policy.late = LateMode::kDrop;
      body.kind = static_cast<JobKind>(static_cast<unsigned>(body.kind) % 3);
      UpdateOptions& update = body.store.update;
      update.rule = static_cast<UpdateRule>(static_cast<unsigned>(update.rule) % 3);
      update.nesterov &= 1;
      update.interpolates &= 1;
      fuzz::repair_resume(body);
      body.prune.rule = static_cast<PruneRule>(static_cast<unsigned>(body.prune.rule) % 6);
      const std::size_t room = bytes.size() - sizeof(wire::CommonHeader) - sizeof(wire::Join);
      body.has_standby &= 1;
      body.settled_view = std::min<std::uint32_t>(body.settled_view, body.view);
      body.mask_words = 0;
      body.print_tensors = 1;
      body.print_count = static_cast<std::uint16_t>(
          std::min<std::size_t>(body.print_count % 8, room / sizeof(std::uint32_t)));
      body.tensor_count = body.print_count;
      body.name_bytes = static_cast<std::uint8_t>(1 + body.name_bytes % kMaxJobNameBytes);
      break;
    }
    case PacketType::kLeave: {
      auto& body = body_in<wire::Leave>(bytes);
      body.reason = static_cast<wire::LeaveReason>(static_cast<unsigned>(body.reason) % 3);
      cut_to(sizeof(wire::Leave));
      break;
    }
    case PacketType::kKeepalive: cut_to(sizeof(wire::Keepalive)); break;
    case PacketType::kProbe: {
      auto& body = body_in<wire::Probe>(bytes);
      body.stream = static_cast<StreamId>(static_cast<unsigned>(body.stream) % kStreamCount);
      body.flow.flags &= body.kFlags;
      body.step %= 8;
      cut_to(sizeof(wire::Probe));
      break;
    }
    case PacketType::kCredit:
      body_in<wire::Credit>(bytes).flow.flags &= wire::Credit::kFlags;
      cut_to(sizeof(wire::Credit));
      break;
    case PacketType::kFinished: {
      auto& body = body_in<wire::Finished>(bytes);
      body.flow.flags &= body.kFlags;
      body.step = 1 + body.step % 8;
      cut_to(sizeof(wire::Finished));
      break;
    }
    case PacketType::kResync: {
      auto& body = body_in<wire::Resync>(bytes);
      body.done &= 1;
      body.number = 1 + body.number % 3;
      cut_to(sizeof(wire::Resync));
      break;
    }
    case PacketType::kPiece: repair_piece(bytes); break;
    case PacketType::kMakeGroup: fuzz::repair_make_group(bytes); break;
    case PacketType::kCall:
    case PacketType::kPart:
    case PacketType::kFloors:
    case PacketType::kPartProbe: fuzz::repair_group_packet(bytes, type); break;
    case PacketType::kHeld: fuzz::repair_held(bytes); break;
    case PacketType::kCopies: fuzz::repair_copies(bytes); break;
    case PacketType::kCopy: fuzz::repair_copy(bytes); break;
    case PacketType::kPush: repair_push(bytes); break;
    case PacketType::kPull: {
      auto& body = body_in<wire::Pull>(bytes);
      body.flow.flags &= body.kFlags;
      body.block %= 4;
      body.chunks |= 1;
      body.need %= 8;
      body.own %= 8;
      cut_to(sizeof(wire::Pull));
      break;
    }
    default: repair_contribution(bytes); break;
  }
}

// Gradients of a member and its probes: mostly of steps around the open one, on time or late.
// Keepalives: with a token that it can know.
void aim(const fuzz::World& world, fuzz::Bytes& bytes, std::size_t path) {
  wire::Packet packet;
  if (!ok(wire::parse(bytes, packet))) return;
  if (packet.type() == wire::PacketType::kKeepalive) {
    auto& body = body_in<wire::Keepalive>(bytes);
    body.token = world.token_to_echo(packet.common().cookie, path, body.token);
    return;
  }
  if (fuzz::is_of_group(packet.type()))
    return fuzz::aim_at_group(bytes, packet.type(), world.hostile_group());
  const Step open = world.hostile_step();
  if (packet.type() == wire::PacketType::kFinished) {
    auto& body = body_in<wire::Finished>(bytes);
    body.step = std::max<Step>(1, open + 1 - body.step % 3);
  } else if (packet.type() == wire::PacketType::kProbe) {
    auto& body = body_in<wire::Probe>(bytes);
    if (body.stream == StreamId::kGradients)
      body.step = std::max<Step>(1, open + 1 - body.step % 4);
  } else if (packet.type() == wire::PacketType::kPush) {
    auto& body = body_in<wire::Push>(bytes);
    body.elem_count = std::min<std::uint16_t>(body.elem_count, fuzz::kHonestElems);
    bytes.resize(sizeof(wire::CommonHeader) + sizeof(wire::Push) + body.elem_count * 4u);
  } else if (packet.type() == wire::PacketType::kHeld) {
    auto& body = body_in<wire::Held>(bytes);
    body.step = std::max<Step>(1, open + 1 - body.step % 4);
    body.elem_count = std::min<std::uint16_t>(body.elem_count, fuzz::kHonestElems);
    bytes.resize(sizeof(wire::CommonHeader) + sizeof(wire::Held) + 8 +
                 (body.elem_count == 0 ? 8 : payload_bytes(body.dtype, body.elem_count)));
  } else if (packet.type() == wire::PacketType::kCopy) {
    auto& body = body_in<wire::Copy>(bytes);
    body.elem_count = std::min<std::uint16_t>(body.elem_count, fuzz::kHonestElems);
    bytes.resize(sizeof(wire::CommonHeader) + sizeof(wire::Copy) + 8 + body.elem_count * 4u);
  } else if (packet.type() == wire::PacketType::kContribution) {
    auto& body = body_in<wire::Contribution>(bytes);
    if (body.weight % 4 == 0) return;
    body.step = std::max<Step>(1, open + 1 - body.step % 4);
    body.base_step = body.step - std::min(Step{body.step}, body.base_step % 3);
    body.chunk %= fuzz::kHostileChunks;
    if (body.flow.flags & wire::kFlagNil) list_chunks(bytes);
    if (body.flow.flags & wire::kFlagSparse) make_sparse(bytes);
  }
}

// Lets a mutated datagram be what its sender could really send. False: it stays a stranger's.
bool authenticate(fuzz::World& world, const Envelope& envelope, fuzz::Bytes& bytes) {
  const Role role = envelope.role;
  if (bytes.size() < sizeof(wire::CommonHeader)) return false;
  auto& common = *reinterpret_cast<wire::CommonHeader*>(bytes.data());
  if (role == Role::kMember) {
    common.rank = common.rank % fuzz::kHostileRanks;
    const fuzz::Membership& member = world.hostile()[common.rank];
    common.job = member.job;
    common.cookie = member.cookie;
    aim(world, bytes, envelope.path);
    return member.cookie != 0;
  }
  wire::Packet packet;
  if (role != Role::kJoiner || !ok(wire::parse(bytes, packet)) ||
      packet.type() != wire::PacketType::kJoin)
    return false;
  auto& join = *reinterpret_cast<wire::Join*>(bytes.data() + sizeof(wire::CommonHeader));
  if (!world.challenge_for(join, common.rank, join.server_nonce)) return false;
  join.has_proof = 1;
  const wire::Digest proof = wire::join_proof(fuzz::kSecret, common.rank, join);
  std::memcpy(join.proof, proof.data(), proof.size());
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::World& world = *new fuzz::World;
  static unsigned turn = 0;
  if (size == 0) return 0;
  const Envelope envelope = open_envelope(data[0]);
  fuzz::Bytes bytes(data + 1, data + size);
  if (!envelope.raw) repair(bytes);
  const bool proven = authenticate(world, envelope, bytes);
  if (!proven && bytes.size() >= sizeof(wire::CommonHeader)) {
    // A tool that watches comparisons could read a cookie out of memory; a stranger cannot.
    auto& common = *reinterpret_cast<wire::CommonHeader*>(bytes.data());
    bool known = world.is_honest_cookie(common.cookie);
    for (const fuzz::Membership& member : world.hostile()) known |= member.cookie == common.cookie;
    if (known) common.cookie = 0;
  }
  bytes.shrink_to_fit();
  do {
    world.receive(bytes, {envelope.port, envelope.path}, envelope.marked, proven);
  } while (world.comes_again());
  world.advance_honest();
  if (++turn % 64 == 0) {
    world.pass(50 * kMillisecond);
    world.keep_hostile_job();
  }
  return 0;
}

std::vector<fuzz::Seed> fuzz::seeds() {
  std::vector<Seed> all;
  const auto add = [&](const std::string& who, std::uint8_t envelope, const Seed& packet) {
    Bytes input{envelope};
    input.insert(input.end(), packet.bytes.begin(), packet.bytes.end());
    all.push_back({who + "_" + packet.name, std::move(input)});
  };
  for (const Seed& packet : packet_seeds({.job = 1, .rank = 1, .cookie = 5})) {
    add("stranger_control", seal(Role::kStranger, 0), packet);
    add("stranger_data", seal(Role::kStranger, 1), packet);
    add("member_control", seal(Role::kMember, 0), packet);
    add("member_elsewhere", seal(Role::kMember, 0, false, 1), packet);
    add("member_data", seal(Role::kMember, 1, true), packet);
    add("member_other_shard", seal(Role::kMember, 2), packet);
  }
  for (const auto& [name, world_size] :
       {std::pair{"honest", fuzz::kHonestRanks}, std::pair{"hostile0", fuzz::kHostileRanks},
        std::pair{"fuzz", std::uint16_t{2}}})
    add("joiner", seal(Role::kJoiner, 0),
        {name, packet_bytes({.rank = 1}, join_body(fuzz::kHonestElems * 4, world_size,
                                                   fuzz::kHonestChunks, name))});
  for (const std::uint16_t rank : {std::uint16_t{1}, kAnyRank.value})
    add("joiner", seal(Role::kJoiner, 0),
        {rank == 1 ? "operations" : "elastic",
         packet_bytes({.rank = rank}, fuzz::operations_body(fuzz::kHonestElems * 4, 2, "fuzz"))});
  return all;
}
