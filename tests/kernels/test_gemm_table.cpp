// The GEMM that ops call, on every instruction set of this processor: types, batches, strides, epilogues.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/args/gemm.h"
#include "tile/types.h"

namespace {
using namespace tessera::cpu_kernels;
namespace tile = tessera::tile;
using i64 = long long;

struct Set {
  const char* name;
  const GemmTable* table;
};
std::vector<Set> sets() {
#if defined(TESSERA_ONLY_ISA)
  return {{"only", &TESSERA_ONLY_ISA::gemm_table}};
#else
  std::vector<Set> r{{"baseline", &baseline::gemm_table}};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) r.push_back({"avx2", &avx2::gemm_table});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    r.push_back({"avx512", &avx512::gemm_table});
  }
  return r;
#endif
}

int size_of(Scalar type) { return type == Scalar::f64 ? 8 : type == Scalar::f32 ? 4 : 2; }

/// A batch of matrices of any floating type with memory of its own, filled with fresh numbers.
struct Data {
  MatrixArg arg{};
  std::vector<char> memory;

  static inline std::mt19937 random{17};

  Data() = default;
  Data(Scalar type, i64 batch, i64 rows, i64 columns, bool transposed = false, i64 pitch_extra = 0) {
    const i64 pitch = (transposed ? rows : columns) + pitch_extra, lines = transposed ? columns : rows;
    memory.resize(batch * lines * pitch * size_of(type) + 1);
    arg = {memory.data(), type, transposed ? 1 : pitch, transposed ? pitch : 1, {lines * pitch}};
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (i64 i = 0; i < batch * lines * pitch; ++i) put(i, uniform(random));
  }
  void put(i64 offset, double value) {
    char* p = memory.data() + offset * size_of(arg.type);
    const auto write = [&](auto x) { std::memcpy(p, &x, sizeof x); };
    if (arg.type == Scalar::f64) return write(value);
    if (arg.type == Scalar::f32) return write(static_cast<float>(value));
    if (arg.type == Scalar::f16) return write(tile::f16(static_cast<float>(value)));
    write(tile::bf16(static_cast<float>(value)));
  }
  double at(i64 b, i64 i, i64 j) const {
    const char* p = memory.data() + (b * arg.batch[0] + i * arg.row + j * arg.column) * size_of(arg.type);
    const auto read = [&](auto x) {
      std::memcpy(&x, p, sizeof x);
      return tile::convert_element<double>(x);
    };
    if (arg.type == Scalar::f64) return read(double{});
    if (arg.type == Scalar::f32) return read(float{});
    if (arg.type == Scalar::f16) return read(tile::f16{});
    return read(tile::bf16{});
  }
};

double activate(Activation kind, double x) {
  switch (kind) {
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::tanh:
      return std::tanh(x);
    default:
      return x;
  }
}

double slope_of(Activation kind, double x) {
  switch (kind) {
    case Activation::relu:
      return x > 0;
    case Activation::gelu_tanh: {
      const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
      return (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
    }
    case Activation::gelu_erf:
      return std::erfc(-x / std::sqrt(2.0)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
    case Activation::tanh:
      return 1 - std::tanh(x) * std::tanh(x);
    default:
      return 1;
  }
}

double tolerance(Scalar type) {
  return type == Scalar::f64 ? 1e-14 : type == Scalar::f32 ? 2e-6 : type == Scalar::f16 ? 1e-3 : 8e-3;
}

struct Shape {
  i64 batch, m, n, k;
};

struct Extras {
  bool addend = false, bias = false, slope = false;
  double alpha = 1, beta = 0;
  Activation activation = Activation::none;
  bool in_place = false;
  bool factor = false, row_sums = false, column_sums = false;
  bool packed = false;
};

GemmArgs arguments(Shape s, const MatrixArg& a, const MatrixArg& b, const MatrixArg& c) {
  GemmArgs args{};
  args.m = s.m;
  args.n = s.n;
  args.k = s.k;
  args.batch_rank = 1;
  args.batch[0] = s.batch;
  args.a = a;
  args.b = b;
  args.c = c;
  args.alpha = 1;
  return args;
}

void run(const Set& set, GemmArgs args) {
  std::vector<double> workspace(set.table->workspace(args, tessera::executor()) / sizeof(double) + 1, NAN);
  args.workspace = workspace.data();
  set.table->run(args, tessera::executor());
}

/// Room for the panels of a matrix; nothing may depend on what was there, nor lies behind them.
struct Panels {
  std::vector<float> memory;
  float* data;
  Panels(const Set& set, i64 n, i64 k)
      : memory(set.table->panel_bytes(n, k) / sizeof(float) + 16 + 1, NAN), data(memory.data()) {
    while (reinterpret_cast<uintptr_t>(data) % 64 != 0) ++data;
  }
};

/// Runs one call on one instruction set and compares with sums in double.
void check(const Set& set, Shape s, Data a, Data b, Data c, const Extras& extras) {
  Data addend = extras.addend ? Data(c.arg.type, s.batch, s.m, s.n) : Data();
  Data bias = extras.bias ? Data(c.arg.type, 1, 1, s.n) : Data();
  Data slope = extras.slope ? Data(c.arg.type, s.batch, s.m, s.n) : Data();
  bias.arg.row = bias.arg.batch[0] = 0;
  Data factor = extras.factor ? Data(c.arg.type, s.batch, s.m, s.n, extras.column_sums) : Data();
  Data row_sums = extras.row_sums ? Data(c.arg.type, s.batch, s.m, 1) : Data();
  Data column_sums = extras.column_sums ? Data(c.arg.type, s.batch, 1, s.n) : Data();
  row_sums.arg.column = column_sums.arg.row = 0;
  if (extras.in_place) addend = c;
  const Data before = addend;
  GemmArgs args = arguments(s, a.arg, b.arg, c.arg);
  args.addend = addend.arg;
  args.bias = bias.arg;
  args.slope = slope.arg;
  args.factor = factor.arg;
  args.row_sums = row_sums.arg;
  args.column_sums = column_sums.arg;
  args.alpha = extras.alpha;
  args.beta = extras.beta;
  args.activation = extras.activation;
  args.a.data = a.memory.data();
  args.b.data = b.memory.data();
  args.c.data = c.memory.data();
  args.addend.data = extras.in_place ? c.memory.data() : extras.addend ? addend.memory.data() : nullptr;
  args.bias.data = extras.bias ? bias.memory.data() : nullptr;
  args.slope.data = extras.slope ? slope.memory.data() : nullptr;
  ASSERT_TRUE(set.table->supports(args));
  Panels panels(set, s.n, extras.packed ? s.k : 0);
  if (extras.packed) {
    set.table->pack({s.n, s.k, args.b, panels.data}, tessera::executor());
    args.packed = true;
    args.b.data = panels.data;
  }
  run(set, args);
  double error = 0, norm = 0;
  std::vector<double> rows(s.batch * s.m), columns(s.batch * s.n);
  for (i64 q = 0; q < s.batch; ++q) {
    for (i64 i = 0; i < s.m; ++i) {
      for (i64 j = 0; j < s.n; ++j) {
        double sum = 0, size = 0;
        for (i64 k = 0; k < s.k; ++k) {
          sum += a.at(q, i, k) * b.at(q, k, j);
          size += std::fabs(a.at(q, i, k) * b.at(q, k, j));
        }
        sum *= extras.alpha;
        if (args.addend.data) sum += extras.beta * before.at(q, i, j);
        if (extras.bias) sum += bias.at(0, 0, j);
        const double wanted = activate(extras.activation, sum) * (extras.factor ? factor.at(q, i, j) : 1);
        error += std::pow(wanted - c.at(q, i, j), 2);
        norm += 1e-2 * size * size + sum * sum + 1e-30;
        rows[q * s.m + i] += wanted;
        columns[q * s.n + j] += wanted;
        if (extras.slope) {
          const double expected = slope_of(extras.activation, sum);
          error += std::pow(expected - slope.at(q, i, j), 2);
          norm += expected * expected;
        }
      }
    }
  }
  const auto compare = [&](const Data& got, const std::vector<double>& wanted) {
    const i64 length = static_cast<i64>(wanted.size()) / s.batch;
    for (i64 i = 0; got.arg.data && i < s.batch * length; ++i) {
      error += std::pow(got.at(i / length, i % length, i % length) - wanted[i], 2);
      norm += wanted[i] * wanted[i];
    }
  };
  compare(row_sums, rows);
  compare(column_sums, columns);
  c.arg.data = nullptr;
  EXPECT_LE(std::sqrt(error / norm), tolerance(c.arg.type))
      << set.name << " batch " << s.batch << " [" << s.m << ", " << s.k << "] x [" << s.k << ", " << s.n << "]";
}

const Shape shapes[] = {{1, 1, 1, 1},   {1, 1, 37, 19},   {1, 37, 1, 19},   {2, 7, 33, 64},    {1, 64, 7, 130},
                        {3, 13, 17, 5}, {1, 29, 50, 700}, {1, 101, 67, 31}, {1, 200, 70, 401}, {5, 15, 16, 0}};

TEST(gemm_table, every_orientation_and_type) {
  for (const Set& set : sets()) {
    for (Scalar type : {Scalar::f32, Scalar::f64, Scalar::f16, Scalar::bf16}) {
      for (const Shape& s : shapes) {
        for (int form = 0; form < 8; ++form) {
          check(set, s, Data(type, s.batch, s.m, s.k, form & 1, 3), Data(type, s.batch, s.k, s.n, form & 2),
                Data(type, s.batch, s.m, s.n, form & 4, 1), {});
        }
      }
    }
  }
}

TEST(gemm_table, epilogues) {
  for (const Set& set : sets()) {
    for (Scalar type : {Scalar::f32, Scalar::f64, Scalar::bf16}) {
      int activation = 0;
      for (const Shape& s : shapes) {
        for (int form = 0; form < 8; ++form, activation = (activation + 1) % 6) {
          Extras extras{
              (form & 1) != 0, (form & 2) != 0, (form & 4) != 0, 0.5, -2, static_cast<Activation>(activation)};
          check(set, s, Data(type, s.batch, s.m, s.k), Data(type, s.batch, s.k, s.n), Data(type, s.batch, s.m, s.n),
                extras);
        }
      }
    }
  }
}

TEST(gemm_table, factor_and_sums) {
  for (const Set& set : sets()) {
    for (Scalar type : {Scalar::f32, Scalar::f64, Scalar::f16, Scalar::bf16}) {
      int activation = 0;
      for (const Shape& s : shapes) {
        for (int form = 1; form < 16; ++form, activation = (activation + 5) % 6) {
          Extras extras;
          extras.factor = form & 1;
          extras.row_sums = form & 2;
          extras.column_sums = form & 4;
          extras.bias = extras.slope = form & 8;
          extras.activation = static_cast<Activation>(activation);
          check(set, s, Data(type, s.batch, s.m, s.k), Data(type, s.batch, s.k, s.n),
                Data(type, s.batch, s.m, s.n, form & 1), extras);
        }
      }
    }
  }
}

TEST(gemm_table, accumulates_in_place) {
  for (const Set& set : sets()) {
    for (const Shape& s : shapes) {
      Extras extras;
      extras.in_place = true;
      for (double beta : {1.0, 0.25}) {
        extras.beta = beta;
        check(set, s, Data(Scalar::f32, s.batch, s.m, s.k), Data(Scalar::f32, s.batch, s.k, s.n),
              Data(Scalar::f32, s.batch, s.m, s.n), extras);
      }
    }
  }
}

TEST(gemm_table, halves_into_float_and_broadcast_batches) {
  for (const Set& set : sets()) {
    const Shape s{4, 19, 23, 41};
    Data a(Scalar::bf16, 1, s.m, s.k);
    a.arg.batch[0] = 0;  // one left matrix for the whole batch
    check(set, s, a, Data(Scalar::f16, s.batch, s.k, s.n), Data(Scalar::f32, s.batch, s.m, s.n), {});
  }
}

TEST(gemm_table, refuses_types_that_do_not_fit) {
  Data a(Scalar::f64, 1, 2, 2), b(Scalar::f32, 1, 2, 2);
  GemmArgs args = arguments({1, 2, 2, 2}, a.arg, b.arg, a.arg);
  for (const Set& set : sets()) {
    EXPECT_FALSE(set.table->supports(args));
    args.b = a.arg;
    EXPECT_TRUE(set.table->supports(args));
    args.b = b.arg;
  }
}

TEST(gemm_table, result_does_not_depend_on_the_schedule) {
  const Shape s{1, 96, 80, 1000};
  Data a(Scalar::f32, 1, s.m, s.k), b(Scalar::f32, 1, s.k, s.n), first(Scalar::f32, 1, s.m, s.n), c = first;
  for (const Set& set : sets()) {
    for (int trial = 0; trial < 5; ++trial) {
      GemmArgs args = arguments(s, a.arg, b.arg, c.arg);
      args.a.data = a.memory.data();
      args.b.data = b.memory.data();
      args.c.data = (trial == 0 ? first : c).memory.data();
      set.table->run(args, tessera::executor());
      if (trial > 0) {
        EXPECT_EQ(first.memory, c.memory);
      }
    }
  }
}

// ---- right sides that are packed once

/// A shared right matrix in panels: near sums in double, and of many rows, whose sums have the same order, the same
/// bits as the plain one gives.
void check_packed(const Set& set, Shape s, bool transposed, Extras extras) {
  extras.packed = true;
  Data a(Scalar::f32, s.batch, s.m, s.k), b(Scalar::f32, 1, s.k, s.n, transposed, 3), c(Scalar::f32, s.batch, s.m, s.n);
  b.arg.batch[0] = 0;
  check(set, s, a, b, c, extras);
  if (s.m <= 8) return;
  Data other = c, bias(Scalar::f32, 1, 1, s.n);
  GemmArgs args = arguments(s, a.arg, b.arg, c.arg);
  args.a.data = a.memory.data();
  args.b.data = b.memory.data();
  args.c.data = c.memory.data();
  args.bias = bias.arg;
  args.bias.row = args.bias.batch[0] = 0;
  if (!extras.bias) args.bias.data = nullptr;
  args.activation = extras.activation;
  run(set, args);
  Panels panels(set, s.n, s.k);
  set.table->pack({s.n, s.k, args.b, panels.data}, tessera::executor());
  args.packed = true;
  args.b.data = panels.data;
  args.c.data = other.memory.data();
  run(set, args);
  EXPECT_EQ(c.memory, other.memory) << set.name << " [" << s.m << ", " << s.k << "] x [" << s.k << ", " << s.n << "]";
}

TEST(gemm_table, panels_are_read_in_the_place_of_plain_operands) {
  const Shape odd[] = {{1, 1, 97, 131},   {1, 2, 33, 64},    {1, 3, 1000, 17}, {1, 4, 129, 1031}, {1, 7, 64, 3},
                       {1, 8, 50, 700},   {1, 9, 97, 131},   {1, 13, 31, 1},   {1, 16, 67, 2100}, {1, 29, 257, 1025},
                       {1, 101, 163, 31}, {1, 200, 70, 401}, {3, 1, 80, 37},   {2, 11, 48, 90}};
  for (const Set& set : sets()) {
    int activation = 0;
    for (const Shape& s : odd) {
      for (int form = 0; form < 8; ++form, activation = (activation + 1) % 6) {
        Extras extras;
        extras.addend = form & 1;
        extras.beta = 1;
        extras.bias = form & 2;
        extras.slope = form & 4;
        extras.activation = form == 0 ? Activation::none : static_cast<Activation>(activation);
        check_packed(set, s, form % 3 != 0, extras);
      }
    }
  }
}

TEST(gemm_table, panels_read_back) {
  for (const Set& set : sets()) {
    for (const bool transposed : {false, true}) {
      for (const Shape& s : {Shape{1, 0, 1, 1}, Shape{1, 0, 33, 64}, Shape{1, 0, 97, 131}, Shape{1, 0, 64, 7}}) {
        Data b(Scalar::f32, 1, s.k, s.n, transposed, 3), back(Scalar::f32, 1, s.k, s.n, !transposed, 1);
        b.arg.data = b.memory.data();
        back.arg.data = back.memory.data();
        Panels panels(set, s.n, s.k);
        set.table->pack({s.n, s.k, b.arg, panels.data}, tessera::executor());
        set.table->unpack({s.n, s.k, back.arg, panels.data}, tessera::executor());
        for (i64 k = 0; k < s.k; ++k) {
          for (i64 j = 0; j < s.n; ++j) ASSERT_EQ(back.at(0, k, j), b.at(0, k, j)) << set.name << " " << k << ", " << j;
        }
      }
    }
  }
}

}  // namespace
