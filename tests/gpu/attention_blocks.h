// Attention kernels of GPUs, run block by block on a simulated card and compared with float64: forward and both kernels
// of the backward.
#pragma once
#define TESSERA_SIMULATED_GPU "../../../../tests/gpu/simulated_gpu.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "tile/arch/gpu/attention.h"

namespace attention_blocks {
using namespace tessera::tile;

inline std::mt19937 random_numbers(2024);
inline float normal() { return std::normal_distribution<float>()(random_numbers); }

/// Where heads lie: each for itself, side by side in rows as attention_qkv has them, or with their columns apart.
enum class Lie { separate, packed, strided };

/// Heads in memory that nothing else may write to; it is full of NaN but for them.
template <class T>
class HeadsInMemory {
 public:
  HeadsInMemory(i64 batch, i64 heads, i64 rows, i64 width, Lie lie, bool random)
      : lengths_{batch, heads, rows, width}, memory_(batch * rows * (heads * width * 2 + 24) + 64) {
    const i64 pitch = heads * width + 24, step = rows * width * 2 + 1;
    const i64 strides[][4] = {{heads * rows * width, rows * width, width, 1},
                              {rows * pitch, width, pitch, 1},
                              {heads * step, step, 2, 2 * rows}};
    const i64 misaligned = (16 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 16) % 16;
    view_.data = memory_.data() + misaligned / static_cast<i64>(sizeof(T)) + 8;
    std::copy(strides[static_cast<int>(lie)], strides[static_cast<int>(lie)] + 4, view_.strides);
    std::memset(static_cast<void*>(memory_.data()), 0xff, memory_.size() * sizeof(T));
    if (random) each([&](T& x) { x = T(normal()); });
  }
  const HeadsView<T>& view() const { return view_; }
  HeadsView<const T> input() const {
    return {view_.data, {view_.strides[0], view_.strides[1], view_.strides[2], view_.strides[3]}};
  }
  double at(i64 b, i64 h, i64 row, i64 column) const {
    return static_cast<float>(view_.head(b, h)[row * view_.row() + column * view_.column()]);
  }
  bool others_untouched() const {
    std::vector<T> rest = memory_;
    const i64 moved = rest.data() - memory_.data();
    each([&](T& x) { std::memset(static_cast<void*>(&x + moved), 0xff, sizeof(T)); });
    const auto* bytes = reinterpret_cast<const unsigned char*>(rest.data());
    return std::all_of(bytes, bytes + rest.size() * sizeof(T), [](unsigned char x) { return x == 0xff; });
  }

 private:
  template <class Fn>
  void each(const Fn& fn) const {
    for (i64 b = 0; b < lengths_[0]; ++b)
      for (i64 h = 0; h < lengths_[1]; ++h)
        for (i64 row = 0; row < lengths_[2]; ++row)
          for (i64 column = 0; column < lengths_[3]; ++column)
            fn(view_.head(b, h)[row * view_.row() + column * view_.column()]);
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

enum class MaskKind { none, allowed, added };

struct Use {
  i64 batch, heads, kv_heads, queries, keys, width, value_width;
  bool causal = false;
  MaskKind mask = MaskKind::none;
  Lie lie = Lie::separate;
  double scale = 0;
};

template <class T>
class Attention {
 public:
  explicit Attention(const Use& u)
      : q(u.batch, u.heads, u.queries, u.width, u.lie, true),
        k(u.batch, u.kv_heads, u.keys, u.width, u.lie, true),
        v(u.batch, u.kv_heads, u.keys, u.value_width, u.lie, true),
        dy(u.batch, u.heads, u.queries, u.value_width, u.lie, true),
        y(u.batch, u.heads, u.queries, u.value_width, u.lie, false),
        dq(u.batch, u.heads, u.queries, u.width, u.lie, false),
        dk(u.batch, u.kv_heads, u.keys, u.width, u.lie, false),
        dv(u.batch, u.kv_heads, u.keys, u.value_width, u.lie, false),
        added(u.heads * u.keys),
        allowed(u.queries * u.keys),
        lse(u.batch * u.heads * u.queries, NAN),
        row_sums(lse.size(), NAN) {
    for (T& x : added) x = T(random_numbers() % 5 ? normal() : -INFINITY);
    for (i64 i = 0; i < u.queries * u.keys; ++i)  // one query sees nothing
      allowed[i] = i / u.keys != u.queries / 2 && random_numbers() % 3 != 0;
    p = {u.batch, u.heads, u.kv_heads, u.queries, u.keys, u.width, u.value_width, 0, u.causal, {}};
    p.scale = u.scale != 0 ? u.scale : 1 / std::sqrt(static_cast<double>(u.width));
    if (u.mask == MaskKind::allowed) p.mask = {AttentionMask::Kind::allowed, allowed.data(), {0, 0, u.keys, 1}};
    if (u.mask == MaskKind::added) p.mask = {AttentionMask::Kind::added, added.data(), {0, u.keys, 0, 1}};
  }

  /// By kernels with their sizes, under one name each.
  template <class Kernels>
  void run() {
    using Forward = typename Kernels::Forward;
    using Backward = typename Kernels::Backward;
    each_block(Forward::blocks(p), Kernels::threads, Forward::shared_bytes, [&](void* shared) {
      Kernels::forward(p, y.view(), q.input(), k.input(), v.input(), lse.data(), Kernels::tiles(shared));
    });
    for (i64 i = 0; i < row_sum_blocks(p); ++i)
      simulated::run_block(i, 256, [&] { attention_row_sums<T>(p, dy.input(), y.input(), row_sums.data()); });
    const AttentionGradients<T> g{dq.view(), dk.view(), dv.view(),  dy.input(),     q.input(),
                                  k.input(), v.input(), lse.data(), row_sums.data()};
    each_block(Backward::key_blocks(p), Kernels::threads, Backward::shared_bytes,
               [&](void* shared) { Kernels::backward_keys(p, g, Kernels::tiles(shared)); });
    each_block(Backward::query_blocks(p), Kernels::threads, Backward::shared_bytes,
               [&](void* shared) { Kernels::backward_queries(p, g, Kernels::tiles(shared)); });
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
  static void each_block(i64 blocks, int threads, int shared_bytes, const std::function<void(void*)>& fn) {
    constexpr int behind = 1024;
    std::vector<unsigned char> memory(shared_bytes + behind + 128);
    unsigned char* shared = memory.data() + (128 - reinterpret_cast<std::uintptr_t>(memory.data()) % 128) % 128;
    for (i64 i = 0; i < blocks; ++i) {
      std::fill(memory.begin(), memory.end(), 0xff);
      simulated::run_block(i, threads, [&] { fn(shared); });
      for (int at = 0; at < behind; ++at) ASSERT_EQ(shared[shared_bytes + at], 0xff) << "shared memory, byte " << at;
    }
  }

  HeadsInMemory<T> q, k, v, dy, y, dq, dk, dv;
  std::vector<T> added;
  std::vector<char> allowed;
  std::vector<float> lse, row_sums;
  AttentionProblem p;
};

template <class Kernels>
void expect_close(const Use& use) {
  if (!can_simulate) GTEST_SKIP();
  using T = typename Kernels::T;
  Attention<T> attention(use);
  attention.template run<Kernels>();
  attention.compare(is_same_v<T, float> ? 2e-6 : is_same_v<T, f16> ? 1e-3 : 8e-3);
}

}  // namespace attention_blocks
