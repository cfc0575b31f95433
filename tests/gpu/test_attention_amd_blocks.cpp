// Attention for AMD's matrix cores, whatever rows lie like: odd lengths and widths, masks, shared heads, floats.
#include "attention_blocks.h"
#include "tile/arch/cdna/attention_backward.h"

using namespace attention_blocks;

namespace {

template <class Type, int Width>
struct AmdCores {
  using T = Type;
  using Forward = cdna::ForwardSizes<Width, T>;
  using Backward = cdna::BackwardSizes<Width, T>;
  static constexpr int threads = cdna::attention_threads;
  static T* tiles(void* shared) { return static_cast<T*>(shared); }
  static constexpr auto forward = cdna::attention_forward<T, Width>;
  static constexpr auto backward_keys = cdna::attention_backward_keys<T, Width>;
  static constexpr auto backward_queries = cdna::attention_backward_queries<T, Width>;
};
TEST(AttentionOnAmdCores, OneElement) { expect_close<AmdCores<f16, 64>>({1, 1, 1, 1, 1, 1, 1}); }
TEST(AttentionOnAmdCores, SmallerThanATile) { expect_close<AmdCores<bf16, 64>>({2, 2, 2, 7, 11, 17, 5}); }
TEST(AttentionOnAmdCores, PackedRows) {
  expect_close<AmdCores<f16, 64>>({1, 2, 2, 200, 200, 64, 64, true, MaskKind::none, Lie::packed});
}
TEST(AttentionOnAmdCores, WidthsBetweenTiles) { expect_close<AmdCores<bf16, 64>>({1, 2, 1, 131, 131, 40, 56, true}); }
TEST(AttentionOnAmdCores, WideSharedHeads) {
  expect_close<AmdCores<f16, 128>>({1, 4, 2, 97, 97, 128, 128, true, MaskKind::none, Lie::packed});
}
TEST(AttentionOnAmdCores, CausalWithMoreKeys) { expect_close<AmdCores<f16, 128>>({1, 1, 1, 70, 200, 96, 72, true}); }
TEST(AttentionOnAmdCores, CausalWithMoreQueries) { expect_close<AmdCores<f16, 64>>({1, 2, 2, 300, 70, 8, 32, true}); }
TEST(AttentionOnAmdCores, BooleanMask) {
  expect_close<AmdCores<f16, 128>>({1, 3, 3, 67, 130, 128, 8, false, MaskKind::allowed});
}
TEST(AttentionOnAmdCores, AddedMaskCausal) {
  expect_close<AmdCores<f16, 64>>({1, 2, 1, 67, 70, 48, 64, true, MaskKind::added});
}
TEST(AttentionOnAmdCores, StridedColumns) {
  expect_close<AmdCores<f16, 64>>({2, 2, 2, 67, 70, 31, 1, true, MaskKind::allowed, Lie::strided});
}
TEST(AttentionOnAmdCores, Floats) {
  expect_close<AmdCores<float, 64>>({1, 2, 2, 200, 200, 64, 64, true, MaskKind::none, Lie::packed});
  expect_close<AmdCores<float, 64>>({1, 2, 1, 131, 131, 33, 47, true, MaskKind::added});
}
TEST(AttentionOnAmdCores, WideFloats) {
  expect_close<AmdCores<float, 128>>({1, 4, 2, 97, 97, 128, 128, true, MaskKind::none, Lie::packed});
  expect_close<AmdCores<float, 128>>({1, 1, 1, 70, 200, 96, 72, false, MaskKind::allowed, Lie::strided});
}
TEST(AttentionOnAmdCores, NegativeScale) {
  expect_close<AmdCores<f16, 64>>({1, 1, 1, 65, 65, 64, 64, false, MaskKind::none, Lie::separate, -0.2});
}

}  // namespace
