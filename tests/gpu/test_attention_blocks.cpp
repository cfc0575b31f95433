// Attention for NVIDIA's matrix cores and for ordinary ones: odd lengths and widths, masks, shared heads, layouts.
#include "attention_blocks.h"
#include "tile/arch/gpu/attention_simt_backward.h"
#include "tile/arch/sm80/attention_backward.h"

using namespace attention_blocks;

namespace {

template <class Type, int Width>
struct MatrixCores {
  using T = Type;
  using Forward = sm80::ForwardSizes<Width>;
  using Backward = sm80::BackwardSizes<Width>;
  static constexpr int threads = sm80::attention_threads;
  static T* tiles(void* shared) { return static_cast<T*>(shared); }
  static constexpr auto forward = sm80::attention_forward<T, Width>;
  static constexpr auto backward_keys = sm80::attention_backward_keys<T, Width>;
  static constexpr auto backward_queries = sm80::attention_backward_queries<T, Width>;
};
template <class Type, int Width>
struct OrdinaryCores {
  using T = Type;
  using Forward = simt::ForwardSizes<Width>;
  using Backward = simt::BackwardSizes<Width>;
  static constexpr int threads = simt::attention_threads;
  static float* tiles(void* shared) { return static_cast<float*>(shared); }
  static constexpr auto forward = simt::attention_forward<T, Width>;
  static constexpr auto backward_keys = simt::attention_backward_keys<T, Width>;
  static constexpr auto backward_queries = simt::attention_backward_queries<T, Width>;
};

TEST(AttentionBlocks, OneElement) { expect_close<MatrixCores<f16, 64>>({1, 1, 1, 1, 1, 8, 8}); }
TEST(AttentionBlocks, SmallerThanATile) { expect_close<MatrixCores<f16, 64>>({2, 2, 2, 7, 11, 16, 16}); }
TEST(AttentionBlocks, PackedRows) {
  expect_close<MatrixCores<f16, 64>>({1, 2, 2, 200, 200, 64, 64, true, MaskKind::none, Lie::packed});
}
TEST(AttentionBlocks, WidthsBetweenTiles) { expect_close<MatrixCores<bf16, 64>>({1, 2, 1, 131, 131, 40, 56, true}); }
TEST(AttentionBlocks, WideSharedHeads) {
  expect_close<MatrixCores<f16, 128>>({1, 4, 2, 97, 97, 128, 128, true, MaskKind::none, Lie::packed});
}
TEST(AttentionBlocks, CausalWithMoreKeys) { expect_close<MatrixCores<f16, 128>>({1, 1, 1, 70, 200, 96, 72, true}); }
TEST(AttentionBlocks, CausalWithMoreQueries) { expect_close<MatrixCores<f16, 64>>({1, 2, 2, 300, 70, 8, 32, true}); }
TEST(AttentionBlocks, BooleanMask) {
  expect_close<MatrixCores<f16, 128>>({1, 3, 3, 67, 130, 128, 8, false, MaskKind::allowed});
}
TEST(AttentionBlocks, BooleanMaskCausal) {
  expect_close<MatrixCores<f16, 64>>({2, 3, 3, 67, 67, 64, 64, true, MaskKind::allowed});
}
TEST(AttentionBlocks, AddedMask) {
  expect_close<MatrixCores<f16, 64>>({1, 2, 1, 67, 70, 32, 32, false, MaskKind::added});
}
TEST(AttentionBlocks, AddedMaskCausal) {
  expect_close<MatrixCores<f16, 64>>({1, 2, 1, 67, 70, 48, 64, true, MaskKind::added});
}
TEST(AttentionBlocks, NegativeScale) {
  expect_close<MatrixCores<f16, 64>>({1, 1, 1, 65, 65, 64, 64, false, MaskKind::none, Lie::separate, -0.2});
}

TEST(AttentionOnOrdinaryCores, OneElement) { expect_close<OrdinaryCores<float, 64>>({1, 1, 1, 1, 1, 1, 1}); }
TEST(AttentionOnOrdinaryCores, SmallerThanATile) { expect_close<OrdinaryCores<bf16, 64>>({2, 2, 2, 7, 11, 17, 5}); }
TEST(AttentionOnOrdinaryCores, PackedRows) {
  expect_close<OrdinaryCores<float, 64>>({1, 2, 2, 200, 200, 64, 64, true, MaskKind::none, Lie::packed});
}
TEST(AttentionOnOrdinaryCores, StridedColumns) {
  expect_close<OrdinaryCores<float, 64>>({1, 2, 2, 67, 70, 64, 64, true, MaskKind::none, Lie::strided});
}
TEST(AttentionOnOrdinaryCores, OddWidths) { expect_close<OrdinaryCores<bf16, 64>>({1, 2, 1, 131, 131, 33, 47, true}); }
TEST(AttentionOnOrdinaryCores, WideSharedHeads) {
  expect_close<OrdinaryCores<float, 128>>({1, 4, 2, 97, 97, 128, 128, true, MaskKind::none, Lie::packed});
}
TEST(AttentionOnOrdinaryCores, CausalWithMoreKeys) {
  expect_close<OrdinaryCores<float, 128>>({1, 1, 1, 70, 200, 96, 72, true});
}
TEST(AttentionOnOrdinaryCores, CausalWithMoreQueries) {
  expect_close<OrdinaryCores<float, 64>>({1, 2, 2, 300, 70, 8, 32, true});
}
TEST(AttentionOnOrdinaryCores, BooleanMask) {
  expect_close<OrdinaryCores<float, 128>>({1, 3, 3, 67, 130, 80, 8, false, MaskKind::allowed});
}
TEST(AttentionOnOrdinaryCores, BooleanMaskCausal) {
  expect_close<OrdinaryCores<float, 64>>({2, 3, 3, 67, 67, 64, 64, true, MaskKind::allowed});
}
TEST(AttentionOnOrdinaryCores, AddedMask) {
  expect_close<OrdinaryCores<float, 64>>({1, 2, 1, 67, 70, 32, 32, false, MaskKind::added});
}
TEST(AttentionOnOrdinaryCores, AddedMaskCausal) {
  expect_close<OrdinaryCores<bf16, 64>>({1, 2, 1, 67, 70, 48, 64, true, MaskKind::added});
}
TEST(AttentionOnOrdinaryCores, NegativeScale) {
  expect_close<OrdinaryCores<float, 64>>({1, 1, 1, 65, 65, 64, 64, false, MaskKind::none, Lie::separate, -0.2});
}

}  // namespace
