#include "aggregator/wire/packet.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "aggregator/wire/sparse.h"
#include "tests/unit/wire/packet_samples.h"

namespace sluice::wire {
namespace {

// The body of an encoded packet, to be spoilt.
template <class Body>
Body& body_of(Buffer& bytes) {
  return *reinterpret_cast<Body*>(bytes.data() + sizeof(CommonHeader));
}
CommonHeader& common_of(Buffer& bytes) { return *reinterpret_cast<CommonHeader*>(bytes.data()); }

// "ok", or the reason's label.
std::string outcome(const Buffer& bytes) {
  // An exact copy, so that a sanitizer sees every read beyond the end.
  const Buffer exact(bytes.begin(), bytes.end());
  Packet packet;
  const Verdict why = parse(exact, packet);
  if (ok(why)) return "ok";
  EXPECT_EQ(kVerdictInfo[static_cast<std::size_t>(why)].use, PacketUse::kMalformed) << label(why);
  return std::string(label(why));
}

// One well-formed packet of every type.
std::vector<Buffer> every_type() {
  return {make(printed_join(2, 5), {}, kEightBytes),
          make(Challenge{}),
          make(Accept{}),
          make(Refuse{.text_bytes = 2}, {}, {'n', 'o'}),
          make(Leave{}),
          make(Leave{.reason = LeaveReason::kAborted, .text_bytes = 2}, {}, {'n', 'o'}),
          make(MakeGroup{.mask_words = 1, .name_bytes = 2}, {3}),
          make(GroupMade{.text_bytes = 2}, {}, {'n', 'o'}),
          make(Keepalive{}),
          make(Status{.mask_words = 1}, {1}),
          make(Ping{}),
          make(Preparing{.nonce = 9, .percent = 50}),
          make(Differs{.nonce = 9, .print_tensors = 1, .text_bytes = 8}, {}, kEightBytes),
          make(Notice{.text_bytes = 2}, {}, {'n', 'o'}),
          make(Resync{.number = 1}),
          make(contribution(), {}, kEightBytes),
          make(sparse_contribution(), {kSparseChunks, kSparseFilled}, sparse_entries()),
          make(Probe{}),
          make(Credit{}),
          make(Finished{.step = 1}),
          make(Held{.chunk = 1, .elem_count = 2, .mask_words = 1}, {1}, kEightBytes),
          make(piece(), {}, kEightBytes),
          make(result(), {1, 2}, kEightBytes),
          make(piece_result(), {1}, kEightBytes),
          make(Feedback{}),
          make(push(), {}, kEightBytes),
          make(Pull{.chunks = 1}),
          make(values(), {1}, kEightBytes),
          make(Copies{.block_chunks = 2}, {}, kEightBytes),
          make(Copy{.version = 2, .elem_count = 2, .mask_words = 1}, {1}, kEightBytes),
          make(answer(), {1}, Buffer(2 * sizeof(MissingAge)))};
}

TEST(Parse, RefusesEveryPrefixOfEveryType) {
  for (const Buffer& whole : every_type()) {
    EXPECT_EQ(outcome(whole), "ok");
    for (std::size_t size = 0; size < whole.size(); ++size)
      EXPECT_EQ(outcome({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}),
                "truncated")
          << "type " << int{whole[3]} << " cut to " << size;
  }
}

TEST(Parse, RefusesTrailingBytesButAfterAJoin) {
  for (Buffer bytes : every_type()) {
    const bool is_join = common_of(bytes).type == PacketType::kJoin;
    bytes.push_back(0);
    EXPECT_EQ(outcome(bytes), is_join ? "ok" : "bad_length") << int{bytes[3]};
  }
}

struct Spoilt {
  const char* what;
  Buffer bytes;
  std::function<void(Buffer&)> spoil;
  const char* reason;
};

class Parse : public testing::TestWithParam<Spoilt> {};

TEST_P(Parse, NamesTheReason) {
  Buffer bytes = GetParam().bytes;
  ASSERT_EQ(outcome(bytes), "ok");
  GetParam().spoil(bytes);
  EXPECT_EQ(outcome(bytes), GetParam().reason);
}

// The flags of a data packet, in the header of its flow.
template <class Body>
std::function<void(Buffer&)> flag(std::uint8_t flags) {
  return [=](Buffer& bytes) {
    if constexpr (is_worker_data(Body::kType))
      body_of<Body>(bytes).flow.flags = flags;
    else
      body_of<Body>(bytes).feedback.flags = flags;
  };
}

std::function<void(Buffer&)> operation(Operation changed) {
  return [=](Buffer& bytes) { body_of<Piece>(bytes).operation = changed; };
}

template <class Body, class Value>
std::function<void(Buffer&)> set(Value Body::*field, Value value) {
  return [=](Buffer& bytes) {
    std::memcpy(reinterpret_cast<std::uint8_t*>(&(body_of<Body>(bytes).*field)), &value,
                sizeof(value));
  };
}

const Buffer kContribution = make(contribution(), {}, kEightBytes);
const Buffer kResult = make(result(), {1, 2}, kEightBytes);
// Without data, of chunks 3 and 5 of the second block.
Buffer absent(std::uint64_t chunks) {
  Contribution body = contribution();
  body.chunk = 64 + 3;
  body.elem_count = 0;
  body.flow.flags = kFlagNil;
  return make(body, {chunks});
}
const Buffer kAbsent = absent(0b101000);
// Four bytes and their scale.
Buffer rounded() {
  Contribution body = contribution();
  body.elem_count = 4;
  body.dtype = Dtype::kInt8;
  body.flow.flags = kFlagRounded;
  return make(body, {}, kEightBytes);
}
const Buffer kRounded = rounded();
const Buffer kSparse =
    make(sparse_contribution(), {kSparseChunks, kSparseFilled}, sparse_entries());
// The byte at `at` behind the two words of the sparse packet's list.
std::function<void(Buffer&)> entry_byte(std::size_t at, std::uint8_t value) {
  return [=](Buffer& bytes) {
    bytes[sizeof(CommonHeader) + sizeof(Contribution) + kSparseHeadBytes + at] = value;
  };
}
const Buffer kPiece = make(piece(), {}, kEightBytes);
const Buffer kPieceResult = make(piece_result(), {1}, kEightBytes);
const Buffer kMakeGroup = make(MakeGroup{.mask_words = 1, .name_bytes = 2}, {3});
const Buffer kAnswer = make(answer(), {1}, Buffer(2 * sizeof(MissingAge)));
const Buffer kPush = make(push(), {}, kEightBytes);
const Buffer kPull = make(Pull{.chunks = 1});
const Buffer kValues = make(values(), {1}, kEightBytes);
const Buffer kCopies = make(Copies{.block_chunks = 2}, {}, kEightBytes);
const Buffer kCopy = make(Copy{.version = 2, .elem_count = 2, .mask_words = 1}, {1}, kEightBytes);
const Buffer kJoin = make(join());
const Buffer kPrintedJoin = make(printed_join(2, 5), {}, kEightBytes);
StoreOptions store_of(UpdateOptions update) { return {.update = update}; }
const Buffer kStatus = make(Status{.mask_words = 1}, {1});

INSTANTIATE_TEST_SUITE_P(
    Rules, Parse,
    testing::Values(
        Spoilt{"magic", kContribution, [](Buffer& b) { common_of(b).magic = 1; }, "bad_magic"},
        Spoilt{"version", kContribution,
               [](Buffer& b) { common_of(b).version = wire::kVersion + 1; }, "bad_version"},
        Spoilt{"type_zero", kContribution, [](Buffer& b) { common_of(b).type = PacketType{0}; },
               "bad_type"},
        Spoilt{"type_unknown", kContribution,
               [](Buffer& b) { common_of(b).type = PacketType{200}; }, "bad_type"},
        Spoilt{"contribution_dtype", kContribution, set(&Contribution::dtype, Dtype::kBytes),
               "bad_field"},
        Spoilt{"contribution_flags", kContribution, flag<Contribution>(kFlagPulled), "bad_field"},
        Spoilt{"contribution_result_as_it_is", kContribution,
               set(&Contribution::result, std::uint8_t{1}), "bad_field"},
        Spoilt{"contribution_result_of_bytes", kContribution,
               set(&Contribution::result, std::uint8_t{4}), "bad_field"},
        Spoilt{"contribution_result_of_no_type", kContribution,
               set(&Contribution::result, std::uint8_t{6}), "bad_field"},
        Spoilt{"contribution_result_of_nothing", kAbsent,
               set(&Contribution::result, std::uint8_t{3}), "bad_field"},
        Spoilt{"contribution_mean_of_nothing", kAbsent, flag<Contribution>(kFlagNil | kFlagMean),
               "bad_field"},
        Spoilt{"contribution_no_elements", kContribution,
               set(&Contribution::elem_count, std::uint16_t{0}), "bad_length"},
        Spoilt{"contribution_more_elements", kContribution,
               set(&Contribution::elem_count, std::uint16_t{3}), "truncated"},
        Spoilt{"contribution_dtype_width", kContribution,
               set(&Contribution::dtype, Dtype::kFloat16), "bad_length"},
        Spoilt{"contribution_nil_with_data", kContribution, flag<Contribution>(kFlagNil),
               "bad_length"},
        Spoilt{"contribution_list", kAbsent, set(&Contribution::chunk, ChunkIndex{64 + 5}),
               "bad_field"},
        Spoilt{"contribution_empty_list", kAbsent,
               [](Buffer& b) { std::fill(b.end() - 8, b.end(), std::uint8_t{0}); }, "bad_field"},
        Spoilt{"contribution_list_dtype", kAbsent, set(&Contribution::dtype, Dtype::kFloat16),
               "bad_field"},
        Spoilt{"contribution_no_list", kAbsent, [](Buffer& b) { b.resize(b.size() - 8); },
               "truncated"},
        Spoilt{"contribution_too_big", kContribution,
               [](Buffer& b) {
                 body_of<Contribution>(b).elem_count = kMaxChunkBytes / 4 + 1;
                 b.resize(b.size() + kMaxChunkBytes);
               },
               "bad_length"},
        Spoilt{"contribution_rounded_nothing", kContribution, flag<Contribution>(kFlagRounded),
               "bad_field"},
        Spoilt{"contribution_rounded_nil", kAbsent, flag<Contribution>(kFlagNil | kFlagRounded),
               "bad_field"},
        Spoilt{"rounded_unsaid", kRounded, flag<Contribution>(0), "bad_field"},
        Spoilt{"rounded_without_scale", kRounded, [](Buffer& b) { b.resize(b.size() - 4); },
               "truncated"},
        Spoilt{"sparse_nil", kSparse, flag<Contribution>(kFlagSparse | kFlagNil), "bad_field"},
        Spoilt{"sparse_list", kSparse, set(&Contribution::chunk, ChunkIndex{6}), "bad_field"},
        Spoilt{"sparse_entry_of_no_chunk", kSparse,
               [](Buffer& b) { b[sizeof(CommonHeader) + sizeof(Contribution) + 8] |= 0x80; },
               "bad_field"},
        Spoilt{"sparse_no_elements", kSparse, set(&Contribution::elem_count, std::uint16_t{0}),
               "bad_length"},
        Spoilt{"sparse_index_outside", kSparse, entry_byte(2, 10), "bad_index"},
        Spoilt{"sparse_index_far_outside", kSparse, entry_byte(3, 0xff), "bad_index"},
        Spoilt{"sparse_entry_of_nothing", kSparse, entry_byte(0, 0), "bad_length"},
        Spoilt{"sparse_more_than_elements", kSparse, entry_byte(0, 11), "bad_length"},
        Spoilt{"sparse_bit_outside", kSparse, entry_byte(11, 4), "bad_index"},
        Spoilt{"sparse_bits_too_many", kSparse, entry_byte(11, 3), "bad_index"},
        Spoilt{"sparse_bits_too_few", kSparse, entry_byte(10, 0x7f), "bad_index"},
        Spoilt{"sparse_behind_the_entries", kSparse, [](Buffer& b) { b.push_back(0); },
               "bad_length"},
        Spoilt{"sparse_too_big", kSparse, [](Buffer& b) { b.resize(b.size() + kMaxChunkBytes); },
               "bad_length"},
        Spoilt{"result_dtype", kResult, set(&ResultHeader::dtype, Dtype{9}), "bad_field"},
        Spoilt{"result_flags", kResult, flag<ResultHeader>(kFlagReport), "bad_field"},
        Spoilt{"result_mask", kResult, set(&ResultHeader::mask_words, std::uint8_t{kMaskWords + 1}),
               "bad_length"},
        Spoilt{"result_shape", kResult, set(&ResultHeader::elem_count, std::uint16_t{3}),
               "bad_length"},
        Spoilt{"piece_kind", kPiece, operation({.size_bytes = 8, .kind = CollectiveKind{3}}),
               "bad_field"},
        Spoilt{"piece_of_nothing", kPiece, operation({.kind = CollectiveKind::kBroadcast}),
               "bad_length"},
        Spoilt{"piece_of_a_barrier", kPiece, operation({.kind = CollectiveKind::kBarrier}),
               "bad_length"},
        Spoilt{"piece_of_less", kPiece,
               operation({.size_bytes = 7, .kind = CollectiveKind::kBroadcast}), "bad_length"},
        Spoilt{"piece_flags", kPiece, flag<Piece>(kFlagNil), "bad_field"},
        Spoilt{"piece_too_big", kPiece,
               [](Buffer& b) {
                 body_of<Piece>(b).operation.size_bytes = UINT32_MAX;
                 body_of<Piece>(b).payload_bytes = kMaxChunkBytes + 1;
                 b.resize(b.size() + kMaxChunkBytes);
               },
               "bad_length"},
        Spoilt{"piece_result_mask", kPieceResult,
               set(&PieceResult::mask_words, std::uint8_t{kMaskWords + 1}), "bad_length"},
        Spoilt{"piece_result_flags", kPieceResult, flag<PieceResult>(kFlagNil), "bad_field"},
        Spoilt{"push_nothing", kPush, set(&Push::elem_count, std::uint16_t{0}), "bad_length"},
        Spoilt{"push_shape", kPush, set(&Push::elem_count, std::uint16_t{1}), "bad_length"},
        Spoilt{"push_beyond_its_block", kPush, set(&Push::block_chunks, std::uint8_t{5}),
               "bad_field"},
        Spoilt{"push_block", kPush, set(&Push::block_chunks, std::uint8_t{65}), "bad_field"},
        Spoilt{"push_iteration", kPush, set(&Push::iteration, UINT32_MAX), "bad_field"},
        Spoilt{"push_reserved", kPush, set(&Push::reserved, std::uint8_t{1}), "bad_field"},
        Spoilt{"push_flags", kPush, flag<Push>(kFlagNil), "bad_field"},
        Spoilt{"pull_nothing", kPull, set(&Pull::chunks, std::uint64_t{0}), "bad_field"},
        Spoilt{"pull_need", kPull, set(&Pull::need, UINT32_MAX), "bad_field"},
        Spoilt{"pull_own", kPull, set(&Pull::own, kLastStep), "bad_field"},
        Spoilt{"values_nothing", kValues, set(&wire::Values::elem_count, std::uint16_t{0}),
               "bad_length"},
        Spoilt{"values_mask", kValues, set(&wire::Values::mask_words, std::uint8_t{17}),
               "bad_length"},
        Spoilt{"values_reserved", kValues, set(&wire::Values::reserved, std::uint8_t{1}),
               "bad_field"},
        Spoilt{"copies_of_no_chunk", kCopies, set(&Copies::block_chunks, std::uint8_t{0}),
               "bad_field"},
        Spoilt{"copies_of_65_chunks", kCopies, set(&Copies::block_chunks, std::uint8_t{65}),
               "bad_field"},
        Spoilt{"copies_shape", kCopies, set(&Copies::block_chunks, std::uint8_t{1}), "bad_length"},
        Spoilt{"copies_pushed", kCopies, set(&Copies::pushed, UINT32_MAX), "bad_field"},
        Spoilt{"copies_base", kCopies, set(&Copies::base, UINT64_MAX), "bad_field"},
        Spoilt{"copy_nothing", kCopy, set(&Copy::elem_count, std::uint16_t{0}), "bad_length"},
        Spoilt{"copy_version", kCopy, set(&Copy::version, std::uint64_t{0}), "bad_field"},
        Spoilt{"copy_clock", kCopy, set(&Copy::clock, UINT32_MAX), "bad_field"},
        Spoilt{"copy_mask", kCopy, set(&Copy::mask_words, std::uint8_t{17}), "bad_length"},
        Spoilt{"values_flags", kValues, flag<wire::Values>(kFlagReport), "bad_field"},
        Spoilt{"join_prune_rule", kJoin, set(&Join::prune, PruneOptions{.rule = PruneRule{6}}),
               "bad_field"},
        Spoilt{"join_prints_of_no_tensors", kPrintedJoin,
               set(&Join::print_tensors, std::uint32_t{0}), "bad_length"},
        Spoilt{"join_prints_of_fewer_tensors", kPrintedJoin,
               set(&Join::tensor_count, std::uint32_t{7}), "bad_length"},
        Spoilt{"differs_by_no_tensors", make(Differs{.print_tensors = 1}),
               set(&Differs::print_tensors, std::uint32_t{0}), "bad_field"},
        Spoilt{"join_kind", kJoin, set(&Join::kind, JobKind{3}), "bad_field"},
        Spoilt{"join_rule", kJoin, set(&Join::store, store_of({.rule = UpdateRule{3}})),
               "bad_field"},
        Spoilt{"join_nesterov", kJoin, set(&Join::store, store_of({.nesterov = 2})), "bad_field"},
        Spoilt{"join_interpolates", kJoin, set(&Join::store, store_of({.interpolates = 2})),
               "bad_field"},
        Spoilt{"feedback_flags", make(Feedback{}), flag<Feedback>(kFlagReport), "bad_field"},
        Spoilt{"answer_flags", kAnswer, flag<Answer>(kFlagPulled), "bad_field"},
        Spoilt{"probe_stream", make(Probe{}), set(&Probe::stream, StreamId{kStreamCount}),
               "bad_stream"},
        Spoilt{"probe_flags", make(Probe{}), flag<Probe>(kFlagNil), "bad_field"},
        Spoilt{"credit_flags", make(Credit{}), flag<Credit>(kFlagNil), "bad_field"},
        Spoilt{"finished_step", make(Finished{.step = 1}), set(&Finished::step, std::uint32_t{0}),
               "bad_field"},
        Spoilt{"finished_flags", make(Finished{.step = 1}), flag<Finished>(kFlagPulled),
               "bad_field"},
        Spoilt{"leave_text", make(Leave{}), set(&Leave::text_bytes, std::uint16_t{257}),
               "bad_length"},
        Spoilt{"make_group_request", kMakeGroup, set(&MakeGroup::request, GroupRequest{3}),
               "bad_field"},
        Spoilt{"make_group_of_no_ranks", kMakeGroup, set(&MakeGroup::mask_words, std::uint8_t{0}),
               "bad_field"},
        Spoilt{"make_group_mask", kMakeGroup,
               set(&MakeGroup::mask_words, std::uint8_t{kMaskWords + 1}), "bad_length"},
        Spoilt{"make_group_no_name", kMakeGroup, set(&MakeGroup::name_bytes, std::uint8_t{0}),
               "bad_length"},
        Spoilt{"make_group_long_name", kMakeGroup,
               set(&MakeGroup::name_bytes, std::uint8_t{kMaxGroupNameBytes + 1}), "bad_length"},
        Spoilt{"group_made_id", make(GroupMade{}),
               set(&GroupMade::group, std::uint16_t{kMaxGroups}), "bad_field"},
        Spoilt{"group_made_request", make(GroupMade{}), set(&GroupMade::request, GroupRequest{3}),
               "bad_field"},
        Spoilt{"resync_number", make(Resync{.number = 1}), set(&Resync::number, std::uint32_t{0}),
               "bad_field"},
        Spoilt{"resync_done", make(Resync{.number = 1}), set(&Resync::done, std::uint8_t{2}),
               "bad_field"},
        Spoilt{"accept_policy", make(Accept{}),
               set(&Accept::policy, PolicyOptions{.kind = PolicyKind{5}}), "bad_field"},
        Spoilt{"accept_late", make(Accept{}),
               set(&Accept::policy, PolicyOptions{.late = LateMode{2}}), "bad_field"},
        Spoilt{"accept_policy_reserved", make(Accept{}),
               set(&Accept::policy, PolicyOptions{.reserved = 1}), "bad_field"},
        Spoilt{"join_policy_reserved", kJoin, set(&Join::policy, PolicyOptions{.reserved = 1}),
               "bad_field"},
        Spoilt{"join_policy_kind", kJoin, set(&Join::policy, PolicyOptions{.kind = PolicyKind{5}}),
               "bad_field"},
        Spoilt{"answer_stream", kAnswer, set(&Answer::stream, StreamId{kStreamCount}),
               "bad_stream"},
        Spoilt{"answer_status", kAnswer, set(&Answer::status, AnswerStatus{3}), "bad_field"},
        Spoilt{"answer_mask", kAnswer, set(&Answer::mask_words, std::uint8_t{kMaskWords + 1}),
               "bad_length"},
        Spoilt{"answer_ages", kAnswer, set(&Answer::age_count, std::uint8_t{kMaxMissingAges + 1}),
               "bad_length"},
        Spoilt{"join_proof_flag", kJoin, set(&Join::has_proof, std::uint8_t{2}), "bad_field"},
        Spoilt{"join_nil_flag", kJoin, set(&Join::allow_nil, std::uint8_t{2}), "bad_field"},
        Spoilt{"join_policy", kJoin, set(&Join::has_policy, std::uint8_t{2}), "bad_field"},
        Spoilt{"join_no_name", kJoin, set(&Join::name_bytes, std::uint8_t{0}), "bad_length"},
        Spoilt{"join_long_name", kJoin, set(&Join::name_bytes, std::uint8_t{kMaxJobNameBytes + 1}),
               "bad_length"},
        Spoilt{"refuse_text", make(Refuse{}),
               set(&Refuse::text_bytes, std::uint16_t{kMaxTextBytes + 1}), "bad_length"},
        Spoilt{"notice_text", make(Notice{}),
               set(&Notice::text_bytes, std::uint16_t{kMaxTextBytes + 1}), "bad_length"},
        Spoilt{"leave_reason", make(Leave{}), set(&Leave::reason, LeaveReason{5}), "bad_field"},
        Spoilt{"join_averaging", kJoin, set(&Join::averaging, AveragingChoice{4}), "bad_field"},
        Spoilt{"preparing_percent", make(Preparing{}), set(&Preparing::percent, std::uint8_t{101}),
               "bad_field"},
        Spoilt{"status_state", kStatus, set(&Status::state, JobState{3}), "bad_field"},
        Spoilt{"status_mask", kStatus, set(&Status::mask_words, std::uint8_t{kMaskWords + 1}),
               "bad_length"}),
    [](const auto& test) { return std::string(test.param.what); });

TEST(Parse, TakesANilContribution) {
  Packet packet;
  ASSERT_EQ(parse(kAbsent, packet), Verdict::kAccepted);
  EXPECT_EQ(packet.chunks(), 0b101000u);
  EXPECT_TRUE(packet.payload().empty());
  ASSERT_EQ(parse(kContribution, packet), Verdict::kAccepted);
  EXPECT_EQ(packet.chunks(), std::uint64_t{1} << (contribution().chunk % 64));
}

TEST(Parse, LeavesThePacketAloneWhenItRefuses) {
  const Buffer good = make(Ping{.timestamp_us = 5});
  Buffer bad = good;
  common_of(bad).magic = 0;
  Packet packet;
  ASSERT_EQ(parse(good, packet), Verdict::kAccepted);
  ASSERT_FALSE(ok(parse(bad, packet)));
  EXPECT_EQ(packet.bytes().data(), good.data());
}

TEST(DatagramBytes, IsTheSizeOfAFullResult) {
  ResultHeader full = result();
  full.elem_count = 256;
  full.dtype = Dtype::kFloat32;
  full.mask_words = 2;
  EXPECT_EQ(make(full, {1, 2}, Buffer(1024)).size(), datagram_bytes(1024, 128));
}

}  // namespace
}  // namespace sluice::wire
