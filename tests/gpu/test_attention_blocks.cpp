// The attention kernels of NVIDIA cards, run block by block on a simulated card and compared with float64: forward and
// both kernels of the backward, odd lengths and widths, masks, shared heads, packed rows.
#define TESSERA_SIMULATED_GPU "../../../../tests/gpu/simulated_sm80.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tile/arch/sm80/attention_backward.h"

using namespace tessera::tile;

namespace {

// Address sanitizers lose track of stacks that change hands.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool can_simulate = false;
#else
constexpr bool can_simulate = true;
#endif

std::mt19937 random_numbers(2024);
float normal() { return std::normal_distribution<float>()(random_numbers); }

/// Heads in memory that nothing else may write to: separate, or side by side in rows as attention_qkv has them.
template <class T>
class HeadsInMemory {
 public:
  HeadsInMemory(i64 batch, i64 heads, i64 rows, i64 width, bool packed, bool random)
      : lengths_{batch, heads, rows, width}, memory_(batch * rows * (heads * width + 24) + 64) {
    const i64 pitch = heads * width + 24;
    const i64 separate[] = {heads * rows * width, rows * width, width, 1}, rowwise[] = {rows * pitch, width, pitch, 1};
    view_.data = memory_.data() + (16 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 16) % 16 / 2 + 8;
    std::copy(packed ? rowwise : separate, (packed ? rowwise : separate) + 4, view_.strides);
    for (T& x : memory_) x.bits = 0x7fff;
    if (random) each([&](T& x) { x = T(normal()); });
  }
  const HeadsView<T>& view() const { return view_; }
  HeadsView<const T> input() const {
    return {view_.data, {view_.strides[0], view_.strides[1], view_.strides[2], view_.strides[3]}};
  }
  double at(i64 b, i64 h, i64 row, i64 column) const {
    return static_cast<float>(view_.head(b, h)[row * view_.row() + column]);
  }
  bool others_untouched() const {
    std::vector<T> rest = memory_;
    const i64 moved = rest.data() - memory_.data();
    each([&](T& x) { (&x)[moved].bits = 0x7fff; });
    return std::all_of(rest.begin(), rest.end(), [](T x) { return x.bits == 0x7fff; });
  }

 private:
  template <class Fn>
  void each(const Fn& fn) const {
    for (i64 b = 0; b < lengths_[0]; ++b)
      for (i64 h = 0; h < lengths_[1]; ++h)
        for (i64 row = 0; row < lengths_[2]; ++row)
          for (i64 column = 0; column < lengths_[3]; ++column) fn(view_.head(b, h)[row * view_.row() + column]);
  }
  i64 lengths_[4];
  std::vector<T> memory_;
  HeadsView<T> view_;
};

/// Relative L2 error, infinite where something is not a number.
struct Error {
  double difference = 0, size = 0;
  void add(double got, double want) {
    difference += std::isfinite(got) ? (got - want) * (got - want) : INFINITY;
    size += want * want;
  }
  double relative() const { return std::sqrt(difference / std::max(size, 1e-30)); }
};

enum class MaskOf { none, allowed, added };

struct Use {
  i64 batch, heads, kv_heads, queries, keys, width, value_width;
  bool causal = false;
  MaskOf mask = MaskOf::none;
  bool packed = false;
  double scale = 0;
};

template <class T, int Width>
class Attention {
 public:
  explicit Attention(const Use& u)
      : q(u.batch, u.heads, u.queries, u.width, u.packed, true),
        k(u.batch, u.kv_heads, u.keys, u.width, u.packed, true),
        v(u.batch, u.kv_heads, u.keys, u.value_width, u.packed, true),
        dy(u.batch, u.heads, u.queries, u.value_width, u.packed, true),
        y(u.batch, u.heads, u.queries, u.value_width, u.packed, false),
        dq(u.batch, u.heads, u.queries, u.width, u.packed, false),
        dk(u.batch, u.kv_heads, u.keys, u.width, u.packed, false),
        dv(u.batch, u.kv_heads, u.keys, u.value_width, u.packed, false),
        added(u.heads * u.keys),
        allowed(u.queries * u.keys),
        lse(u.batch * u.heads * u.queries, NAN),
        row_sums(lse.size(), NAN) {
    for (T& x : added) x = T(random_numbers() % 5 ? normal() : -INFINITY);
    for (i64 i = 0; i < u.queries * u.keys; ++i)  // one query sees nothing
      allowed[i] = i / u.keys != u.queries / 2 && random_numbers() % 3 != 0;
    p = {u.batch, u.heads, u.kv_heads, u.queries, u.keys, u.width, u.value_width, 0, u.causal, {}};
    p.scale = u.scale != 0 ? u.scale : 1 / std::sqrt(static_cast<double>(u.width));
    if (u.mask == MaskOf::allowed) p.mask = {AttentionMask::Kind::allowed, allowed.data(), {0, 0, u.keys, 1}};
    if (u.mask == MaskOf::added) p.mask = {AttentionMask::Kind::added, added.data(), {0, u.keys, 0, 1}};
  }

  void run() {
    using Forward = sm80::ForwardSizes<Width>;
    using Backward = sm80::BackwardSizes<Width>;
    each_block(Forward::blocks(p), Forward::shared_bytes, [&](T* shared) {
      sm80::attention_forward<T, Width>(p, y.view(), q.input(), k.input(), v.input(), lse.data(), shared);
    });
    const i64 rows = p.batch * p.heads * p.queries;
    for (i64 i = 0; i < ceil_div(rows, i64(sm80::rows_of_block)); ++i)
      simulated::run_block(i, 256, [&] { sm80::attention_row_sums<T>(p, dy.input(), y.input(), row_sums.data()); });
    const sm80::AttentionGradients<T> g{dq.view(), dk.view(), dv.view(),  dy.input(),     q.input(),
                                        k.input(), v.input(), lse.data(), row_sums.data()};
    each_block(Backward::key_blocks(p), Backward::shared_bytes,
               [&](T* shared) { sm80::attention_backward_keys<T, Width>(p, g, shared); });
    each_block(Backward::query_blocks(p), Backward::shared_bytes,
               [&](T* shared) { sm80::attention_backward_queries<T, Width>(p, g, shared); });
  }

  void compare(double limit) const {
    Error of_y, of_lse, of_dq, of_dk, of_dv;
    for (i64 b = 0; b < p.batch; ++b)
      for (i64 kv_head = 0; kv_head < p.kv_heads; ++kv_head) {
        std::vector<double> sum_dk(p.keys * p.width), sum_dv(p.keys * p.value_width);
        const i64 copies = p.heads / p.kv_heads;
        for (i64 h = kv_head * copies; h < (kv_head + 1) * copies; ++h)
          for (i64 i = 0; i < p.queries; ++i) {
            double top = -INFINITY, sum = 0, row_sum = 0;
            std::vector<double> s(p.keys), gradient(p.width);
            for (i64 j = 0; j < p.keys; ++j) top = std::max(top, s[j] = score(b, h, i, j));
            for (double& x : s) sum += x = std::isinf(top) ? 0 : std::exp(x - top);
            for (double& x : s) x /= std::max(sum, 1e-300);
            const float got_lse = lse[(b * p.heads + h) * p.queries + i];
            if (sum > 0) of_lse.add(got_lse, top + std::log(sum));
            else EXPECT_EQ(got_lse, -INFINITY);
            for (i64 c = 0; c < p.value_width; ++c) {
              double out = 0;
              for (i64 j = 0; j < p.keys; ++j) out += s[j] * v.at(b, kv_head, j, c);
              of_y.add(y.at(b, h, i, c), out);
              row_sum += out * dy.at(b, h, i, c);
            }
            for (i64 j = 0; j < p.keys; ++j) {
              double ds = -row_sum;
              for (i64 c = 0; c < p.value_width; ++c) {
                ds += dy.at(b, h, i, c) * v.at(b, kv_head, j, c);
                sum_dv[j * p.value_width + c] += s[j] * dy.at(b, h, i, c);
              }
              ds *= s[j] * p.scale;
              for (i64 c = 0; c < p.width; ++c) {
                gradient[c] += ds * k.at(b, kv_head, j, c);
                sum_dk[j * p.width + c] += ds * q.at(b, h, i, c);
              }
            }
            for (i64 c = 0; c < p.width; ++c) of_dq.add(dq.at(b, h, i, c), gradient[c]);
          }
        for (i64 j = 0; j < p.keys; ++j) {
          for (i64 c = 0; c < p.width; ++c) of_dk.add(dk.at(b, kv_head, j, c), sum_dk[j * p.width + c]);
          for (i64 c = 0; c < p.value_width; ++c) of_dv.add(dv.at(b, kv_head, j, c), sum_dv[j * p.value_width + c]);
        }
      }
    EXPECT_LT(of_y.relative(), limit);
    EXPECT_LT(of_lse.relative(), 1e-5);
    EXPECT_LT(of_dq.relative(), 2 * limit);
    EXPECT_LT(of_dk.relative(), 2 * limit);
    EXPECT_LT(of_dv.relative(), 2 * limit);
    EXPECT_TRUE(y.others_untouched() && dq.others_untouched() && dk.others_untouched() && dv.others_untouched());
  }

 private:
  double score(i64 b, i64 h, i64 i, i64 j) const {
    double sum = 0;
    for (i64 c = 0; c < p.width; ++c) sum += q.at(b, h, i, c) * k.at(b, h / (p.heads / p.kv_heads), j, c);
    sum *= p.scale;
    if (p.mask.kind == AttentionMask::Kind::added) sum += static_cast<float>(added[h * p.keys + j]);
    const bool masked = p.mask.kind == AttentionMask::Kind::allowed && !allowed[i * p.keys + j];
    return masked || (p.causal && j > i) ? -INFINITY : sum;
  }

  // Shared memory is full of NaN before each block, and nobody writes behind what was asked for.
  template <class Fn>
  static void each_block(i64 blocks, int shared_bytes, const Fn& fn) {
    constexpr int behind = 1024;
    std::vector<unsigned char> memory(shared_bytes + behind + 128);
    unsigned char* shared = memory.data() + (128 - reinterpret_cast<std::uintptr_t>(memory.data()) % 128) % 128;
    for (i64 i = 0; i < blocks; ++i) {
      std::fill(memory.begin(), memory.end(), 0xff);
      simulated::run_block(i, sm80::attention_threads, [&] { fn(reinterpret_cast<T*>(shared)); });
      for (int at = 0; at < behind; ++at) ASSERT_EQ(shared[shared_bytes + at], 0xff) << "shared memory, byte " << at;
    }
  }

  HeadsInMemory<T> q, k, v, dy, y, dq, dk, dv;
  std::vector<T> added;
  std::vector<char> allowed;
  std::vector<float> lse, row_sums;
  AttentionProblem p;
};

template <class T, int Width>
void expect_close(const Use& use) {
  if (!can_simulate) GTEST_SKIP();
  Attention<T, Width> attention(use);
  attention.run();
  attention.compare(is_same_v<T, f16> ? 1e-3 : 8e-3);
}

TEST(AttentionBlocks, OneElement) { expect_close<f16, 32>({1, 1, 1, 1, 1, 8, 8}); }
TEST(AttentionBlocks, SmallerThanATile) { expect_close<f16, 32>({2, 2, 2, 7, 11, 16, 16}); }
TEST(AttentionBlocks, PackedRows) { expect_close<f16, 64>({1, 2, 2, 200, 200, 64, 64, true, MaskOf::none, true}); }
TEST(AttentionBlocks, WidthsBetweenTiles) { expect_close<bf16, 64>({1, 2, 1, 131, 131, 40, 56, true}); }
TEST(AttentionBlocks, WideSharedHeads) {
  expect_close<f16, 128>({1, 4, 2, 97, 97, 128, 128, true, MaskOf::none, true});
}
TEST(AttentionBlocks, CausalWithMoreKeys) { expect_close<f16, 128>({1, 1, 1, 70, 200, 96, 72, true}); }
TEST(AttentionBlocks, CausalWithMoreQueries) { expect_close<f16, 32>({1, 2, 2, 300, 70, 8, 32, true}); }
TEST(AttentionBlocks, BooleanMask) { expect_close<f16, 128>({1, 3, 3, 67, 130, 128, 8, false, MaskOf::allowed}); }
TEST(AttentionBlocks, BooleanMaskCausal) { expect_close<f16, 64>({2, 3, 3, 67, 67, 64, 64, true, MaskOf::allowed}); }
TEST(AttentionBlocks, AddedMask) { expect_close<f16, 32>({1, 2, 1, 67, 70, 32, 32, false, MaskOf::added}); }
TEST(AttentionBlocks, AddedMaskCausal) { expect_close<f16, 64>({1, 2, 1, 67, 70, 48, 64, true, MaskOf::added}); }
TEST(AttentionBlocks, NegativeScale) {
  expect_close<f16, 64>({1, 1, 1, 65, 65, 64, 64, false, MaskOf::none, false, -0.2});
}

}  // namespace
