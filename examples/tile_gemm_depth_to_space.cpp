// A pointwise convolution whose store is depth-to-space: pixel (h, w) of the product becomes a block x block patch of
// the image. The permutation is a view of the output; it costs no pass of its own.
#include <tessera/parallel.h>
#include <tessera/tile/kernels/gemm.h>

#include "check.h"

// ---- the operator
using namespace tessera::tile;

/// x is [batch, h, w, in], weights [in, block * block * out], y [batch, h * block, w * block, out].
void gemm_depth_to_space(i64 batch, i64 h, i64 w, i64 in, i64 out, i64 block, const float* x, const float* weights,
                         float* y) {
  const auto image = packed(y, {batch, h * block, w * block, out});
  const auto patches = transform(image, pass(), unmerge({h, block}), unmerge({w, block}), pass());  // n h i w j c
  const auto product = transform(patches, merge<0, 1, 3>(), merge<2, 4, 5>());
  gemm(tessera::executor(), packed(x, {product.length(0), in}), packed(weights, {in, product.length(1)}),
       store(product, acc));
}
// ---- the end of the operator

struct Example {
  i64 batch, h, w, in, out, block;
  example::Floats x, weights, result;

  explicit Example(const example::Sizes& s)
      : batch(s[0]),
        h(s[1]),
        w(s[2]),
        in(s[3]),
        out(s[4]),
        block(s[5]),
        x(example::random_floats(batch * h * w * in)),
        weights(example::random_floats(in * block * block * out)),
        result(batch * h * w * block * block * out) {}

  void compute() { gemm_depth_to_space(batch, h, w, in, out, block, x.data(), weights.data(), result.data()); }

  example::Doubles reference() const {
    example::Doubles y(result.size());
    const i64 n = block * block * out;
    for (i64 at = 0; at < i64(y.size()); ++at) {
      const i64 c = at % out, column = at / out % (w * block),
                line = at / out / (w * block);  // line counts over images
      const i64 pixel = line / block * w + column / block;
      const i64 depth = (line % block * block + column % block) * out + c;
      for (i64 l = 0; l < in; ++l) y[at] += double(x[pixel * in + l]) * weights[l * n + depth];
    }
    return y;
  }
  double flops() const { return 2.0 * result.size() * in; }
};

int main(int argc, char** argv) {
  return example::run<Example>(argc, argv, "BATCH HEIGHT WIDTH IN OUT BLOCK",
                               {{1, 1, 1, 1, 1, 1}, {2, 3, 5, 7, 3, 2}, {1, 7, 11, 29, 5, 3}, {3, 5, 13, 61, 17, 4}},
                               {8, 56, 56, 256, 64, 2});
}
