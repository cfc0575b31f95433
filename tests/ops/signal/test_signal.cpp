#include <complex>
#include <numbers>

#include "ops/capture.h"
#include "ops/reference.h"
#include "ops/slope_check.h"
#include "tessera/ops_signal.h"

namespace tessera {
namespace {

using reference::Index;
using Complex = std::complex<double>;

std::vector<Complex> transformed(const std::vector<Complex>& x, bool inverse) {
  const auto n = static_cast<double>(x.size());
  std::vector<Complex> out;
  for (size_t k = 0; k < x.size(); ++k) {
    Complex sum = 0;
    for (size_t i = 0; i < x.size(); ++i)
      sum += x[i] * std::polar(1.0, (inverse ? 2 : -2) * std::numbers::pi * static_cast<double>(i * k) / n);
    out.push_back(inverse ? sum / n : sum);
  }
  return out;
}

TEST(Dft, OfRealAndComplexSignals) {
  Generator g(1);
  for (const int64_t parts : {1, 2})
    for (const bool inverse : {false, true})
      for (const int64_t length : {0, 9, 5}) {
        const Tensor x = normal64({2, 7, 3, parts}, g);
        const int64_t size = length ? length : 7;
        const Tensor want = reference::generate({2, size, 3, 2}, Float64, [&](const Index& i) {
          std::vector<Complex> line(static_cast<size_t>(size));
          for (int64_t n = 0; n < std::min<int64_t>(size, 7); ++n)
            line[static_cast<size_t>(n)] = {reference::get(x, Index{i[0], n, i[2], 0}),
                                            parts == 2 ? reference::get(x, Index{i[0], n, i[2], 1}) : 0};
          const Complex value = transformed(line, inverse)[static_cast<size_t>(i[1])];
          return i[3] ? value.imag() : value.real();
        });
        const auto run = [&](const Tensors& in) { return dft(in[0], 1, {.length = length, .inverse = inverse}); };
        EXPECT_LE(relative_error(run({x}), want), 1e-13) << parts << inverse << length;
        expect_slopes(run, {x});
      }
}

// Passes of each radix, primes among them, and lengths that a chirp takes; rows that fill no vector, one, and more.
TEST(Dft, OfAnyLengthAsByAMatrix) {
  Generator g(4);
  for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 9, 11, 16, 30, 31, 37, 64, 77, 97, 128, 225, 1023})
    for (const int64_t parts : {1, 2})
      for (const int64_t rows : {1, 3, 16, 17, 35}) {
        if (n > 200 && rows > 3) continue;
        const Tensor x = normal64({rows, n, parts}, g);
        for (const FourierOptions& o :
             {FourierOptions{}, FourierOptions{.inverse = true}, FourierOptions{.onesided = parts == 1},
              FourierOptions{.length = n, .inverse = true, .onesided = true}}) {
          const auto run = [&](const Tensors& in) { return Tensors{dft(in[0], 1, o)}; };
          const Tensor want = capture(run, {x})({x})[0];  // a product with a matrix
          EXPECT_LE(relative_error(dft(x, 1, o), want), 1e-13)
              << n << ' ' << parts << ' ' << rows << o.inverse << o.onesided;
          EXPECT_LE(relative_error(dft(x.to(Float32), 1, o), want), 1e-6) << n << ' ' << parts << ' ' << rows;
          const auto slope = [&](const Tensors& in) {
            const Tensor leaf = in[0].detach().set_requires_grad(), y = dft(leaf, 1, o);
            return Tensors{grad({sum(square(y) * sin(y))}, {leaf})[0]};
          };
          EXPECT_LE(relative_error(slope({x})[0], capture(slope, {x})({x})[0]), 1e-12)
              << n << ' ' << parts << ' ' << rows;
        }
      }
}

TEST(Dft, OneSidedIsTheFirstHalf) {
  Generator g(2);
  for (const int64_t n : {1, 2, 7, 8}) {
    const Tensor x = normal64({3, n, 1}, g);
    const Tensor half = dft(x, 1, {.onesided = true});
    EXPECT_LE(relative_error(half, slice(dft(x, 1), 1, 0, n / 2 + 1)), 1e-13) << n;
    const auto back = [&](const Tensors& in) {
      return dft(in[0], 1, {.length = n, .inverse = true, .onesided = true});
    };
    EXPECT_LE(relative_error(back({half}), x), 1e-13) << n;
    expect_slopes(back, {half});
  }
  EXPECT_EQ(dft(zeros({2, 5, 2}), 1, {.inverse = true, .onesided = true}).shape(), (Shape{2, 8, 1}));
}

TEST(Stft, TransformsFramesAndBack) {
  Generator g(3);
  const Tensor x = normal64({2, 23}, g), window = add(hann_window(8, true, Float64), 0.1);
  for (const bool onesided : {false, true}) {
    const Tensor y = stft(x, window, 3, onesided);
    EXPECT_EQ(y.shape(), (Shape{2, 6, onesided ? 5 : 8, 2}));
    for (int64_t frame = 0; frame < 6; ++frame) {
      const Tensor part = unsqueeze(mul(slice(x, 1, 3 * frame, 3 * frame + 8), window), -1);
      EXPECT_LE(relative_error(y.select(1, frame), dft(part, 1, {.onesided = onesided})), 1e-14);
    }
    const Tensor back = istft(y, window, 3, onesided);
    EXPECT_LE(relative_error(back.select(2, 0), x), 1e-13);
    expect_slopes([&](const Tensors& in) { return stft(in[0], in[1], 3, onesided); }, {x, window});
  }
  const Tensor complex = normal64({2, 23, 2}, g);
  EXPECT_LE(relative_error(istft(stft(complex, window, 3, false), window, 3, false), complex), 1e-13);
}

TEST(Signal, Windows) {
  for (const bool periodic : {false, true}) {
    const double last = periodic ? 9 : 8;
    const auto check = [&](const Tensor& window, auto fn) {
      const Tensor want = reference::generate(
          {9}, Float64, [&](const Index& i) { return fn(2 * std::numbers::pi * static_cast<double>(i[0]) / last); });
      EXPECT_LE(relative_error(window, want), 1e-14);
    };
    check(hann_window(9, periodic, Float64), [](double t) { return std::pow(std::sin(t / 2), 2); });
    check(hamming_window(9, periodic, Float64), [](double t) { return 0.54 - 0.46 * std::cos(t); });
    check(blackman_window(9, periodic, Float64),
          [](double t) { return 0.42 - 0.5 * std::cos(t) + 0.08 * std::cos(2 * t); });
  }
  EXPECT_EQ(hann_window(1).to_vector<float>(), std::vector<float>{1});
}

TEST(Signal, MelFiltersAreTriangles) {
  const MelOptions o{.bins = 6, .length = 64, .sample_rate = 8000, .low = 100, .high = 3900};
  const Tensor w = mel_weight_matrix(o, Float64);
  ASSERT_EQ(w.shape(), (Shape{33, 6}));
  int64_t before = -1;
  for (int64_t i = 0; i < 6; ++i) {
    const auto column = w.select(1, i).to_vector<double>();
    const auto peak = std::max_element(column.begin(), column.end()) - column.begin();
    EXPECT_EQ(column[static_cast<size_t>(peak)], 1);
    EXPECT_GE(peak, before);
    before = peak;
    for (size_t row = 1; row < column.size(); ++row)  // rises to the peak, and falls behind it
      if (column[row] > 0 && column[row - 1] > 0) {
        EXPECT_EQ(column[row] > column[row - 1], static_cast<int64_t>(row) <= peak);
      }
  }
}

TEST(Signal, NamesTheRuleThatIsBroken) {
  const Tensor x = zeros({2, 5, 1});
  EXPECT_EQ(error_of([&] { dft(zeros({2, 5}), 0); }), "dft: the last dim of [2, 5] must be 1 or 2");
  EXPECT_EQ(error_of([&] { dft(x, 2); }), "dft: dim 2 of [2, 5, 1] holds the parts of numbers");
  EXPECT_EQ(error_of([&] { dft(x, 1, {.length = -3}); }), "dft: a length of -3 for [2, 5, 1]");
  EXPECT_EQ(error_of([&] { dft(x, 1, {.length = 1 << 20}); }), "dft: a length of 1048576 exceeds 32768");
  EXPECT_EQ(error_of([&] { dft(x.to(Int64), 1); }), "dft: takes floating-point tensors, not i64[2, 5, 1] on cpu");
  EXPECT_EQ(error_of([&] { stft(x, ones({6}), 1); }), "stft: a frame of 6 exceeds [2, 5, 1]");
  EXPECT_EQ(error_of([&] { stft(x, ones({3}), 0); }), "stft: a step of 0");
  EXPECT_EQ(error_of([&] {
              stft(zeros({2, 5, 2}), ones({3}), 1);
            }),
            "stft: complex signals have no onesided transform");
  EXPECT_EQ(error_of([&] {
              istft(zeros({2, 3, 4, 2}), ones({4}), 1);
            }),
            "istft: y must have shape [batch, frames, 3, 2], not [2, 3, 4, 2]");
  EXPECT_EQ(error_of([&] { istft(zeros({2, 3, 3, 2}), ones({4}), 5); }), "istft: windows 5 apart leave out elements");
  EXPECT_EQ(error_of([&] { hann_window(0); }), "cosine_window: a size of 0");
  EXPECT_EQ(error_of([&] { mel_weight_matrix({.bins = 4, .length = 8, .sample_rate = 10, .low = 3, .high = 2}); }),
            "mel_weight_matrix: frequencies 3 to 2 at a rate of 10");
}

}  // namespace
}  // namespace tessera
