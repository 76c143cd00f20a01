// One well-formed packet of every type, for corpora.
#pragma once

#include <cstring>

#include "aggregator/wire/packet.h"
#include "tests/fuzz/fuzz.h"

namespace sluice::fuzz {

template <class Body>
Bytes packet_bytes(const wire::Sender& sender, const Body& body,
                   const std::vector<std::uint64_t>& mask = {}, const Bytes& payload = {}) {
  Bytes bytes(kMaxDatagramBytes);
  bytes.resize(wire::encode(bytes, sender, body, mask, payload));
  return bytes;
}

inline wire::Join join_body(std::uint16_t chunk_bytes, std::uint16_t world_size,
                            std::uint32_t chunk_count, const char* name) {
  wire::Join body{
      .nonce = 77,
      .run_id = 1,
      .layouts = {{.hash = 5, .chunk_count = chunk_count, .max_elems = chunk_bytes / 4u}, {}, {}},
      .world_size = world_size,
      .chunk_bytes = chunk_bytes};
  body.datagram_bytes = static_cast<std::uint16_t>(wire::datagram_bytes(chunk_bytes, world_size));
  body.name_bytes = static_cast<std::uint8_t>(std::strlen(name));
  std::memcpy(body.name, name, body.name_bytes);
  return body;
}

// Of a job of kind operations.
inline wire::Join operations_body(std::uint16_t chunk_bytes, std::uint16_t world_size,
                                  const char* name) {
  wire::Join body = join_body(chunk_bytes, world_size, 0, name);
  for (wire::StreamLayout& layout : body.layouts) layout = {};
  body.layouts[index_of(StreamId::kCollectives)].chunk_count = kCollectiveChunks;
  body.kind = JobKind::kOperations;
  return body;
}

inline std::vector<Seed> packet_seeds(const wire::Sender& sender) {
  const Bytes data{0, 0, 128, 63, 0, 0, 0, 64};  // 1.0f, 2.0f
  Bytes padded = packet_bytes(sender, join_body(1024, 2, 4, "fuzz"));
  padded.resize(1108);
  wire::Join body = join_body(1024, 2, 4, "fuzz");
  body.tensor_count = body.print_count = 2;
  body.print_tensors = 1;
  Bytes printed = packet_bytes(sender, body, {}, data);
  printed.resize(1108);
  return {
      {"join", padded},
      {"join_fingerprints", printed},
      {"join_unpadded", packet_bytes(sender, join_body(1024, 2, 4, "fuzz"))},
      {"challenge", packet_bytes(sender, wire::Challenge{.nonce = 1})},
      {"accept", packet_bytes(sender, wire::Accept{.open_steps = {1, 1, 1}, .shards = 2})},
      {"refuse", packet_bytes(sender, wire::Refuse{.text_bytes = 8}, {}, data)},
      {"leave", packet_bytes(sender, wire::Leave{.first_steps = {3, 3, 3}})},
      {"leave_abnormal", packet_bytes(sender, wire::Leave{.reason = wire::LeaveReason::kAbnormal})},
      {"leave_uneven", packet_bytes(sender, wire::Leave{.first_steps = {2, 2, 2},
                                                        .reason = wire::LeaveReason::kUneven})},
      {"keepalive", packet_bytes(sender, wire::Keepalive{.timestamp_us = 5})},
      {"keepalive_echo", packet_bytes(sender, wire::Keepalive{.timestamp_us = 5, .token = 4})},
      {"status", packet_bytes(sender, wire::Status{.mask_words = 1}, {3})},
      {"ping", packet_bytes(sender, wire::Ping{})},
      {"ping_token", packet_bytes(sender, wire::Ping{.timestamp_us = 5, .token = 9})},
      {"preparing", packet_bytes(sender, wire::Preparing{.nonce = 1, .percent = 50})},
      {"differs",
       packet_bytes(sender, wire::Differs{.print_tensors = 1, .text_bytes = 8}, {}, data)},
      {"notice", packet_bytes(sender, wire::Notice{.text_bytes = 8}, {}, data)},
      {"contribution",
       packet_bytes(
           sender,
           wire::Contribution{.flow = {.number = 1, .credit = 100, .flags = wire::kFlagReport},
                              .step = 1,
                              .base_step = 1,
                              .weight = 1,
                              .elem_count = 2},
           {}, data)},
      {"contribution_half", packet_bytes(sender,
                                         wire::Contribution{.flow = {.number = 2, .credit = 100},
                                                            .step = 1,
                                                            .chunk = 1,
                                                            .weight = 1,
                                                            .elem_count = 4,
                                                            .dtype = Dtype::kFloat16},
                                         {}, data)},
      {"contribution_int8",
       packet_bytes(
           sender,
           wire::Contribution{.flow = {.number = 2, .credit = 100, .flags = wire::kFlagRounded},
                              .step = 1,
                              .chunk = 1,
                              .weight = 1,
                              .elem_count = 4,
                              .dtype = Dtype::kInt8},
           {}, data)},
      {"contribution_sparse",
       packet_bytes(
           sender,
           wire::Contribution{.flow = {.number = 3, .credit = 9, .flags = wire::kFlagSparse},
                              .step = 1,
                              .weight = 1,
                              .elem_count = 10},
           {0b111, 0b101},
           {1, 0, 3, 0, 0, 0, 128, 63, 2, 0, 0xff, 1, 0, 0, 128, 63, 0, 0, 128, 63})},
      {"contribution_nil",
       packet_bytes(sender,
                    wire::Contribution{.flow = {.flags = wire::kFlagNil}, .step = 1, .chunk = 1},
                    {}, {0b1010, 0, 0, 0, 0, 0, 0, 0x80})},
      {"broadcast",
       packet_bytes(sender,
                    wire::Piece{.flow = {.number = 3, .credit = 100},
                                .step = 1,
                                .operation = {.size_bytes = 8, .kind = CollectiveKind::kBroadcast},
                                .payload_bytes = 8},
                    {}, data)},
      {"barrier",
       packet_bytes(sender,
                    wire::Piece{.step = 1, .operation = {.kind = CollectiveKind::kBarrier}})},
      {"push_initial",
       packet_bytes(sender, wire::Push{.flow = {.credit = 100}, .elem_count = 2, .block_chunks = 1},
                    {}, data)},
      {"push", packet_bytes(sender,
                            wire::Push{.flow = {.number = 2, .credit = 100},
                                       .iteration = 1,
                                       .rate = 0.5,
                                       .elem_count = 2,
                                       .block_chunks = 1},
                            {}, data)},
      {"pull",
       packet_bytes(
           sender,
           wire::Pull{.flow = {.number = 3, .credit = 100}, .chunks = 1, .need = 1, .own = 1})},
      {"values", packet_bytes(sender, wire::Values{.chunk = 1, .elem_count = 2}, {}, data)},
      {"probe_pulls",
       packet_bytes(sender, wire::Probe{.step = 2, .want = 1, .stream = StreamId::kPulls})},
      {"probe_closed", packet_bytes(sender, wire::Probe{.step = 2, .want = ~std::uint64_t{0}})},
      {"probe", packet_bytes(sender, wire::Probe{.step = 1, .want = ~std::uint64_t{0}})},
      {"probe_collective",
       packet_bytes(sender, wire::Probe{.step = 1, .want = 1, .stream = StreamId::kCollectives})},
      {"credit",
       packet_bytes(sender, wire::Credit{.flow = {.credit = 9, .flags = wire::kFlagReport}})},
      {"finished", packet_bytes(sender, wire::Finished{.step = 1})},
      {"result",
       packet_bytes(sender, wire::ResultHeader{.elem_count = 2, .mask_words = 1}, {3}, data)},
      {"result_int8", packet_bytes(sender,
                                   wire::ResultHeader{.feedback = {.flags = wire::kFlagMean},
                                                      .elem_count = 4,
                                                      .dtype = Dtype::kInt8,
                                                      .mask_words = 1},
                                   {3}, data)},
      {"result_sparse",
       packet_bytes(sender,
                    wire::ResultHeader{.feedback = {.flags = wire::kFlagSparse | wire::kFlagMean},
                                       .elem_count = 20,
                                       .dtype = Dtype::kFloat16,
                                       .mask_words = 1},
                    {3, 0b11, 0b10}, {1, 0, 19, 0, 0, 60})},
      {"result_nil",
       packet_bytes(
           sender,
           wire::ResultHeader{.feedback = {.flags = wire::kFlagNil}, .chunk = 64, .mask_words = 1},
           {3}, {1, 1, 0, 0, 0, 0, 0, 0})},
      {"piece_result",
       packet_bytes(
           sender,
           wire::PieceResult{.operation = {.size_bytes = 8, .kind = CollectiveKind::kBroadcast},
                             .mask_words = 1,
                             .payload_bytes = 8},
           {3}, data)},
      {"feedback", packet_bytes(sender, wire::Feedback{})},
      {"make_group",
       packet_bytes(sender, wire::MakeGroup{.mask_words = 1, .name_bytes = 1, .name = {'a'}}, {3})},
      {"abort_group", packet_bytes(sender,
                                   wire::MakeGroup{.request = wire::GroupRequest::kAbort,
                                                   .mask_words = 1,
                                                   .name_bytes = 1,
                                                   .name = {'a'}},
                                   {3})},
      {"group_made", packet_bytes(sender, wire::GroupMade{.generation = 1})},
      {"call", packet_bytes(sender, wire::Call{.what = {.bytes = 8,
                                                        .dtype = Dtype::kFloat32,
                                                        .wire = Dtype::kFloat32}})},
      {"part", packet_bytes(sender,
                            wire::Part{.flow = {.number = 4, .credit = 100},
                                       .payload_bytes = 8,
                                       .wire = Dtype::kFloat32},
                            {}, data)},
      {"part_owned", packet_bytes(sender,
                                  wire::Part{.flow = {.number = 5, .credit = 100},
                                             .chunk = 1,
                                             .owner = 1,
                                             .payload_bytes = 8,
                                             .kind = wire::OperationKind::kBroadcast},
                                  {}, data)},
      {"floors", packet_bytes(sender, wire::Floors{.stopped = 1})},
      {"held",
       packet_bytes(sender, wire::Held{.chunk = 1, .elem_count = 2, .mask_words = 1}, {1}, data)},
      {"copies", packet_bytes(sender, wire::Copies{.block_chunks = 2}, {}, data)},
      {"copy",
       packet_bytes(sender, wire::Copy{.version = 2, .elem_count = 2, .mask_words = 1}, {1}, data)},
      {"part_probe", packet_bytes(sender, wire::PartProbe{.want = ~std::uint64_t{0}})},
      {"part_result", packet_bytes(sender, wire::PartResult{.payload_bytes = 8}, {}, data)},
      {"part_answer", packet_bytes(sender, wire::PartAnswer{.counted = 1})},
      {"floor", packet_bytes(sender, wire::Floor{})},
      {"outcome",
       packet_bytes(sender,
                    wire::Outcome{.expected = {.root = 0, .kind = wire::OperationKind::kBroadcast},
                                  .behind_count = 1},
                    {}, Bytes(sizeof(wire::Behind)))},
      {"answer", packet_bytes(sender, wire::Answer{.mask_words = 1, .age_count = 1}, {1},
                              Bytes(sizeof(wire::MissingAge)))},
  };
}

}  // namespace sluice::fuzz
