// Functions of elements beyond those of ops.h: made of its operators, so that they run on every device, are
// differentiated and are captured as these are.
#pragma once
#include <optional>

#include "tessera/tensor.h"

namespace tessera {

// ---- functions: src/ops/math.cpp ------------------------------------------------------------------------------------
// Functions of one tensor keep its shape and its floating dtype; integers become f32, and halves are computed in f32.
// Two operands broadcast and are promoted as those of add().

Tensor sinh(const Tensor& x);
Tensor cosh(const Tensor& x);
Tensor asinh(const Tensor& x);
/// NaN below 1.
Tensor acosh(const Tensor& x);
/// NaN outside of [-1, 1].
Tensor atanh(const Tensor& x);
Tensor log2(const Tensor& x);
Tensor log10(const Tensor& x);
/// log |gamma(x)|, infinite at 0, -1, -2, ...
Tensor lgamma(const Tensor& x);
/// The derivative of lgamma; NaN at -1, -2, ...
Tensor digamma(const Tensor& x);

/// The remainder of a / b with the sign of a, as in C. Integers are divided as by floor_div().
Tensor fmod(const Tensor& a, const Tensor& b);
/// trunc(a / b); integers stay integers, and are divided as by floor_div().
Tensor div_trunc(const Tensor& a, const Tensor& b);
/// a + weight (b - a).
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight);
Tensor lerp(const Tensor& a, const Tensor& b, double weight);
/// NaN and infinities replaced: by `nan`, and by `high` and `low`, which are the largest finite number of the dtype and
/// the smallest one where they are not given. Integers stay as they are.
Tensor nan_to_num(const Tensor& x, double nan = 0, std::optional<double> high = {}, std::optional<double> low = {});
/// |a - b| <= absolute + relative |b|, as bool; infinities are close to themselves alone, and NaN to NaN where
/// `nan_is_nan`.
Tensor isclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8,
               bool nan_is_nan = false);

// ---- bits: src/ops/bits.cpp -----------------------------------------------------------------------------------------
// Of integers and bools, which broadcast and are promoted; floating-point tensors throw Error.

Tensor bitwise_and(const Tensor& a, const Tensor& b);
Tensor bitwise_or(const Tensor& a, const Tensor& b);
Tensor bitwise_xor(const Tensor& a, const Tensor& b);
Tensor bitwise_not(const Tensor& x);
/// a * 2^count, without the bits that leave the dtype; 0 where count is negative or at least the bits of the dtype.
Tensor left_shift(const Tensor& a, const Tensor& count);
/// floor(a / 2^count); where count is negative or at least the bits of the dtype, 0, and -1 of negative a.
Tensor right_shift(const Tensor& a, const Tensor& count);
/// The bits of rows as elements of another dtype, which is no bool; to one of another size the last dim grows or
/// shrinks. PyTorch's view of a dtype.
Tensor bitcast(const Tensor& x, DType dtype);

// ---- activations: src/ops/activations.cpp ---------------------------------------------------------------------------

/// x above 0, alpha (exp(x) - 1) elsewhere. Clevert et al. 2015.
Tensor elu(const Tensor& x, double alpha = 1);
/// gamma elu(x, alpha). Klambauer et al. 2017.
Tensor selu(const Tensor& x, double alpha = 1.6732632423543772, double gamma = 1.0507009873554805);
/// x above 0, alpha (exp(x / alpha) - 1) elsewhere. Throws Error where alpha is 0. Barron 2017.
Tensor celu(const Tensor& x, double alpha = 1);
/// x above 0, slope x elsewhere.
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
/// x above 0, weight x elsewhere: x [n, channels, ...], weight [channels] or of one element. He et al. 2015.
Tensor prelu(const Tensor& x, const Tensor& weight);
/// x above `threshold`, 0 elsewhere.
Tensor thresholded_relu(const Tensor& x, double threshold = 1);
/// min(max(x, 0), 6).
Tensor relu6(const Tensor& x);
/// min(max(slope x + offset, 0), 1).
Tensor hardsigmoid(const Tensor& x, double slope = 1.0 / 6, double offset = 0.5);
/// x hardsigmoid(x). Howard et al. 2019.
Tensor hardswish(const Tensor& x);
/// min(max(x, low), high). Throws Error where low > high.
Tensor hardtanh(const Tensor& x, double low = -1, double high = 1);
/// x tanh(softplus(x)). Misra 2019.
Tensor mish(const Tensor& x);
/// x / (1 + |x|).
Tensor softsign(const Tensor& x);
/// x moved towards 0 by `lambda`, 0 where |x| <= lambda. Throws Error where lambda is negative.
Tensor softshrink(const Tensor& x, double lambda = 0.5);
/// x, but 0 where |x| <= lambda. Throws Error where lambda is negative.
Tensor hardshrink(const Tensor& x, double lambda = 0.5);
/// x - tanh(x).
Tensor tanhshrink(const Tensor& x);
/// log(sigmoid(x)).
Tensor log_sigmoid(const Tensor& x);
/// a sigmoid(b), where a and b are the halves of x along `dim`, whose size must be even. Dauphin et al. 2016.
Tensor glu(const Tensor& x, int64_t dim = -1);

}  // namespace tessera
