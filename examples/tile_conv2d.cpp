// A convolution with bias and ReLU as a matrix product: pad, embed and merge say which input element stands at (row,
// column) of the left matrix, which never exists in memory.
#include <tessera/parallel.h>
#include <tessera/tile/convolution.h>
#include <tessera/tile/kernels/gemm.h>

#include "check.h"

// ---- the operator
using namespace tessera::tile;

struct Shape {
  i64 batch, channels, filters;
  Window h, w;  // length, filter, stride, dilation, padding of each spatial dimension
};

/// x is [batch, h, w, channels], weights [filters, r, s, channels], y [batch, ho, wo, filters].
void conv2d_relu(const Shape& c, const float* x, const float* weights, const float* bias, float* y) {
  const auto image = packed(x, {c.batch, c.h.length, c.w.length, c.channels});
  const auto padded = transform(image, pass(), pad(c.h.pad_low, c.h.pad_high), pad(c.w.pad_low, c.w.pad_high), pass());
  const auto windows = transform(padded, pass(), embed({c.h.filter, c.h.output()}, {c.h.dilation, c.h.stride}),
                                 embed({c.w.filter, c.w.output()}, {c.w.dilation, c.w.stride}), pass());
  const auto a = transform(windows, merge<0, 2, 4>(), merge<1, 3, 5>());  // from (n, r, ho, s, wo, c)
  const i64 m = a.length(0), n = c.filters, k = a.length(1);
  gemm(tessera::executor(), a, strided(weights, {k, n}, {1, k}),
       store(packed(y, {m, n}), relu(acc + load(strided(bias, {m, n}, {0, 1})))));
}
// ---- the end of the operator

struct Example {
  Shape c;
  example::Floats x, weights, bias, result;

  explicit Example(const example::Sizes& s)
      : c{s[0], s[3], s[4], window(s[1], s), window(s[2], s)},
        x(example::random_floats(c.batch * c.h.length * c.w.length * c.channels)),
        weights(example::random_floats(c.filters * c.h.filter * c.w.filter * c.channels)),
        bias(example::random_floats(c.filters)),
        result(c.batch * c.h.output() * c.w.output() * c.filters) {}

  static Window window(i64 length, const example::Sizes& s) {
    const i64 filter = s[5], stride = s[6], dilation = s[7], padding = filter / 2 * dilation;
    return {length, filter, stride, dilation, padding, padding};
  }

  void compute() { conv2d_relu(c, x.data(), weights.data(), bias.data(), result.data()); }

  example::Doubles reference() const {
    example::Doubles y(result.size());
    const i64 ho = c.h.output(), wo = c.w.output();
    for (i64 at = 0; at < i64(y.size()); ++at) {
      const i64 f = at % c.filters, ow = at / c.filters % wo, oh = at / c.filters / wo % ho,
                b = at / c.filters / wo / ho;
      double sum = bias[f];
      for (i64 r = 0; r < c.h.filter; ++r) {
        for (i64 s = 0; s < c.w.filter; ++s) {
          const i64 ih = oh * c.h.stride + r * c.h.dilation - c.h.pad_low;
          const i64 iw = ow * c.w.stride + s * c.w.dilation - c.w.pad_low;
          if (ih < 0 || ih >= c.h.length || iw < 0 || iw >= c.w.length) continue;
          const float* from = &x[((b * c.h.length + ih) * c.w.length + iw) * c.channels];
          const float* with = &weights[((f * c.h.filter + r) * c.w.filter + s) * c.channels];
          for (i64 l = 0; l < c.channels; ++l) sum += double(from[l]) * with[l];
        }
      }
      y[at] = std::max(sum, 0.0);
    }
    return y;
  }
  double flops() const { return 2.0 * result.size() * c.h.filter * c.w.filter * c.channels; }
};

int main(int argc, char** argv) {
  return example::run<Example>(argc, argv, "BATCH HEIGHT WIDTH CHANNELS FILTERS FILTER STRIDE DILATION",
                               {{1, 1, 1, 1, 1, 1, 1, 1},
                                {2, 11, 13, 3, 7, 3, 1, 1},
                                {3, 17, 9, 5, 37, 5, 2, 1},
                                {1, 23, 29, 16, 11, 3, 3, 2},
                                {2, 14, 15, 19, 33, 1, 2, 1}},
                               {8, 56, 56, 64, 64, 3, 1, 1});
}
