// Tensors to chunks, and back.
#include "client/core/calls/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregator/base/limits.h"

namespace sluice::client {
namespace {

using ::testing::HasSubstr;

TEST(Layout, CutsTensorsInOrderWithoutCrossingThem) {
  const auto layout = Layout::create(
      {{"a", 40, Dtype::kFloat32}, {"b", 1, Dtype::kFloat32}, {"c", 64, Dtype::kFloat16}}, 64);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout.value().chunk_count(), 3u + 1 + 2);
  EXPECT_EQ(layout.value().first_chunk(1), 3u);
  EXPECT_EQ(layout.value().first_chunk(3), 6u);
  EXPECT_EQ(layout.value().max_chunk_elems(), 32u);
  const ChunkSpan tail = layout.value().chunk(2);
  EXPECT_EQ(tail.tensor, 0u);
  EXPECT_EQ(tail.first_elem, 32u);
  EXPECT_EQ(tail.elem_count, 8);
  const ChunkSpan half = layout.value().chunk(5);
  EXPECT_EQ(half.tensor, 2u);
  EXPECT_EQ(half.first_elem, 32u);
  EXPECT_EQ(half.elem_count, 32);
}

TEST(Layout, FindsTheTensorOfEveryChunkWhetherBlocksHaveManyOrTensorsManyBlocks) {
  std::vector<TensorSpec> tensors;
  for (const std::uint64_t chunks : {1u, 200u, 1u, 1u, 70u, 64u, 3u})
    tensors.push_back({.name = "t", .elem_count = 16 * chunks - 5});
  for (int i = 0; i < 150; ++i) tensors.push_back({.name = "small", .elem_count = 7});
  const Layout layout = Layout::create(tensors, 64).value();
  for (std::uint32_t tensor = 0; tensor < layout.tensor_count(); ++tensor) {
    std::uint64_t elems = 0;
    for (ChunkIndex i = layout.first_chunk(tensor); i < layout.first_chunk(tensor + 1); ++i) {
      ASSERT_EQ(layout.chunk(i).tensor, tensor) << i;
      ASSERT_EQ(layout.chunk(i).first_elem, elems) << i;
      elems += layout.chunk(i).elem_count;
    }
    EXPECT_EQ(elems, tensors[tensor].elem_count);
  }
}

TEST(Layout, OfAStoreEachLayerBeginsABlock) {
  const auto layout =
      Layout::create({{.name = "a", .elem_count = 40, .begins_block = true},
                      {.name = "b", .elem_count = 8},
                      {.name = "c", .elem_count = 64 * 16 + 1, .begins_block = true},
                      {.name = "d", .elem_count = 1, .begins_block = true}},
                     64)
          .value();
  EXPECT_TRUE(layout.in_blocks());
  EXPECT_EQ(layout.first_chunk(1), 3u);
  EXPECT_EQ(layout.end_chunk(1), 4u);
  EXPECT_EQ(layout.first_chunk(2), kChunksPerBlock);
  EXPECT_EQ(layout.end_chunk(2), 2 * kChunksPerBlock + 1);
  EXPECT_EQ(layout.first_chunk(3), 3 * kChunksPerBlock);
  EXPECT_EQ(layout.chunk_count(), 4 * kChunksPerBlock);
  EXPECT_EQ(layout.chunk(3).tensor, 1u);
  EXPECT_EQ(layout.chunk(3).elem_count, 8);
  EXPECT_EQ(layout.chunk(2 * kChunksPerBlock).first_elem, 64u * 16);
}

TEST(Layout, OfAStoreIsFloat32AndBeginsWithALayer) {
  const auto refusal = [](std::vector<TensorSpec> tensors, Dtype wire) {
    return Layout::create(std::move(tensors), 64, wire).status().message();
  };
  const TensorSpec first{.name = "a", .elem_count = 4, .begins_block = true};
  EXPECT_THAT(refusal({{.name = "b", .elem_count = 4}, first}, Dtype::kFloat32),
              HasSubstr("begins no layer"));
  EXPECT_THAT(refusal({first}, Dtype::kFloat16), HasSubstr("are float32"));
  EXPECT_THAT(
      refusal({first, {.name = "b", .elem_count = 4, .dtype = Dtype::kFloat16}}, Dtype::kFloat32),
      HasSubstr("'b' of a store"));
}

TEST(Layout, HashTellsNamesOrderTypeSizeOptionsAndChunkSizeApart) {
  const auto hash = [](std::vector<TensorSpec> tensors, std::size_t chunk_bytes) {
    return Layout::create(std::move(tensors), chunk_bytes).value().hash();
  };
  const TensorSpec small{"a", 40, Dtype::kFloat32}, big{"b", 41, Dtype::kFloat32};
  const std::uint64_t reference = hash({small, big}, 64);
  EXPECT_EQ(reference, hash({small, big}, 64));
  EXPECT_NE(reference, hash({{"x", 40, Dtype::kFloat32}, big}, 64));
  EXPECT_NE(reference, hash({big, small}, 64));
  EXPECT_NE(reference, hash({small, big}, 128));
  EXPECT_NE(reference, hash({{"a", 40, Dtype::kFloat16}, big}, 64));
  EXPECT_NE(reference, hash({{.name = "a", .elem_count = 40, .exact = true}, big}, 64));
  EXPECT_NE(reference, hash({{.name = "a", .elem_count = 40, .dense = true}, big}, 64));
  EXPECT_EQ(reference, hash({{.name = "a", .elem_count = 40, .far = true}, big}, 64))
      << "where a tensor lies is a rank's own affair";
}

TEST(Layout, FingerprintsTellNeighboursApart) {
  const TensorSpec a{"a", 40, Dtype::kFloat32}, b{"b", 40, Dtype::kFloat32};
  const Layout one = Layout::create({a, b, b}, 64).value();
  const Layout other = Layout::create({b, a, b}, 64).value();
  EXPECT_EQ(one.fingerprint(0, 1), other.fingerprint(1, 1));
  EXPECT_NE(one.fingerprint(0, 2), other.fingerprint(0, 2));
  EXPECT_EQ(one.fingerprint(2, 2), other.fingerprint(2, 1));
}

TEST(Layout, CutsChunksByWhatTravels) {
  const std::vector<TensorSpec> tensors{{"g", 200, Dtype::kFloat32},
                                        {"state", 40, Dtype::kFloat32, true},
                                        {"half", 40, Dtype::kFloat16}};
  const Layout layout = Layout::create(tensors, 64, Dtype::kInt8).value();
  EXPECT_EQ(layout.chunk(0).elem_count, 60);  // the scale takes four bytes
  EXPECT_EQ(layout.first_chunk(1), 4u);
  EXPECT_EQ(layout.chunk(4).elem_count, 16);
  EXPECT_EQ(layout.max_chunk_elems(), 60u);
  EXPECT_TRUE(layout.is_rounded(0));
  EXPECT_FALSE(layout.is_rounded(1));
  EXPECT_FALSE(layout.is_rounded(2));
  EXPECT_NE(layout.hash(), Layout::create(tensors, 64, Dtype::kFloat16).value().hash());
  EXPECT_NE(Layout::create(tensors, 64, Dtype::kFloat16).value().hash(),
            Layout::create(tensors, 64, Dtype::kBfloat16).value().hash());
}

TEST(Layout, RefusesWhatCannotBeSummedAndNamesTheTensor) {
  const auto message = [](std::vector<TensorSpec> tensors, std::size_t chunk_bytes) {
    const auto layout = Layout::create(std::move(tensors), chunk_bytes);
    EXPECT_FALSE(layout.ok());
    return layout.status().message();
  };
  EXPECT_THAT(message({}, 64), HasSubstr("no tensors"));
  EXPECT_THAT(message({{"w", 0, Dtype::kFloat32}}, 64), HasSubstr("tensor 0 'w'"));
  EXPECT_THAT(message({{"w", 1, Dtype::kBytes}}, 64), HasSubstr("cannot be summed"));
  EXPECT_THAT(message({{"w", 1, Dtype::kFloat32}}, 100), HasSubstr("multiple of 64"));
  EXPECT_THAT(message({{"w", 1, Dtype::kFloat32}}, kMaxChunkBytes + 64), HasSubstr("8896"));
  EXPECT_THAT(message({{"a", 16, Dtype::kFloat32}, {"w", UINT64_MAX, Dtype::kFloat32}}, 64),
              HasSubstr("tensor 1 'w'"));
}

TEST(Layout, TakesExactlyTheMostChunks) {
  EXPECT_TRUE(Layout::create({{"w", std::uint64_t{16} * kMaxChunks, Dtype::kFloat32}}, 64).ok());
  EXPECT_FALSE(
      Layout::create({{"w", std::uint64_t{16} * kMaxChunks + 1, Dtype::kFloat32}}, 64).ok());
}

}  // namespace
}  // namespace sluice::client
