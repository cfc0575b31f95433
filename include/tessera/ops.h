// The operators, by family. Dims may be negative and then count from the end; an undefined tensor stands for an absent
// optional one; every function throws Error naming itself, the shapes and the rule broken.
#pragma once
#include <optional>
#include <utility>

#include "tessera/enums.h"
#include "tessera/random.h"
#include "tessera/tensor.h"

namespace tessera {

// ---- creation: src/ops/creation.cpp (more in tensor.h) -----------------------------------------------------------
/// A copy of `value` on the host, which is part of the graph where a function is captured: what a tensor that it closes
/// over is by reference, this is for ever.
Tensor constant(const Tensor& value);

// ---- elementwise: src/ops/elementwise.cpp ---------------------------------------------------------------------------
// Two operands broadcast by NumPy's rule and are promoted to a common dtype; comparisons and predicates give bool.
Tensor add(Tensor a, Tensor b);
Tensor sub(Tensor a, Tensor b);
Tensor mul(Tensor a, Tensor b);
/// True division: integers become f32.
Tensor div(Tensor a, Tensor b);
/// floor(a / b); integers stay integers. On the CPU a division of integers by 0 throws Error; on a GPU, and in a
/// captured function, the quotient is 0 and the remainder a.
Tensor floor_div(Tensor a, Tensor b);
/// Sign of the divisor, as in Python.
Tensor remainder(Tensor a, Tensor b);
Tensor pow(Tensor a, Tensor b);
Tensor maximum(Tensor a, Tensor b);
Tensor minimum(Tensor a, Tensor b);
/// The angle of the point (x, y), between -pi and pi, with the C library's special cases; at (0, 0) its gradient is 0.
Tensor atan2(Tensor y, Tensor x);
/// sqrt(a² + b²), without overflow; at (0, 0) its gradient is 0.
Tensor hypot(Tensor a, Tensor b);
Tensor add(const Tensor& a, double b);
Tensor mul(const Tensor& a, double b);
Tensor pow(const Tensor& a, double exponent);

// Functions of one tensor keep its shape; roots, exponentials, logarithms and the like make f32 of integers.
Tensor neg(Tensor x);
Tensor abs(Tensor x);
Tensor sign(Tensor x);
Tensor exp(Tensor x);
/// 2^x.
Tensor exp2(Tensor x);
Tensor expm1(Tensor x);
Tensor log(Tensor x);
Tensor log1p(Tensor x);
Tensor sqrt(Tensor x);
Tensor rsqrt(Tensor x);
Tensor square(Tensor x);
Tensor reciprocal(Tensor x);
Tensor sin(Tensor x);
Tensor cos(Tensor x);
Tensor tan(Tensor x);
/// Arc sine, between -pi / 2 and pi / 2; NaN outside of [-1, 1].
Tensor asin(Tensor x);
/// Arc cosine, between 0 and pi; NaN outside of [-1, 1].
Tensor acos(Tensor x);
/// Arc tangent, between -pi / 2 and pi / 2.
Tensor atan(Tensor x);
Tensor tanh(Tensor x);
Tensor sigmoid(Tensor x);
Tensor erf(Tensor x);
/// The inverse of erf (Giles 2010): infinite at -1 and 1, NaN beyond them.
Tensor erfinv(Tensor x);
Tensor floor(Tensor x);
Tensor ceil(Tensor x);
/// Half to even.
Tensor round(Tensor x);
Tensor trunc(Tensor x);
/// min(max(x, low), high); of integers f32 where a bound has a fraction. On a bound the gradient is 0.
Tensor clamp(Tensor x, double low, double high);
Tensor relu(Tensor x);
/// x * Phi(x).
Tensor gelu(Tensor x);
/// 0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x^3))), Hendrycks & Gimpel 2016.
Tensor gelu_tanh(Tensor x);
/// x * sigmoid(x).
Tensor silu(Tensor x);
/// log(1 + exp(x)).
Tensor softplus(Tensor x);

Tensor eq(Tensor a, Tensor b);
Tensor ne(Tensor a, Tensor b);
Tensor lt(Tensor a, Tensor b);
Tensor le(Tensor a, Tensor b);
Tensor gt(Tensor a, Tensor b);
Tensor ge(Tensor a, Tensor b);
Tensor logical_and(Tensor a, Tensor b);
Tensor logical_or(Tensor a, Tensor b);
Tensor logical_xor(Tensor a, Tensor b);
Tensor logical_not(Tensor x);
Tensor isnan(Tensor x);
Tensor isinf(Tensor x);
Tensor isfinite(Tensor x);
/// a where condition (bool) is true, b elsewhere.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// The elements converted to `dtype`; x itself if it has it.
Tensor cast(const Tensor& x, DType dtype);

inline Tensor operator+(Tensor a, Tensor b) { return add(std::move(a), std::move(b)); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return add(a, -b); }
inline Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return mul(a, 1 / b); }
inline Tensor operator*(double a, const Tensor& b) { return mul(b, a); }
inline Tensor operator+(double a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(double a, const Tensor& b) { return add(neg(b), a); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

// ---- reductions: src/ops/reduction.cpp (empty `dims` means all) -----------------------------------------------------
// The dims reduced vanish, or stay as 1 with `keepdim`. Of integers, sums and products are i64, of u64 they are u64;
// means and norms are f32. Dims named twice, more than 8 of them and extrema of no elements throw.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Divides by n - correction.
Tensor var(const Tensor& x, const Dims& dims = {}, int64_t correction = 1, bool keepdim = false);
Tensor std_dev(const Tensor& x, const Dims& dims = {}, int64_t correction = 1, bool keepdim = false);
/// sqrt(sum of squares).
Tensor norm(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// log(sum(exp(x))), without overflow.
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim = false);
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Index (i64) of the first largest / smallest element.
Tensor argmax(const Tensor& x, int64_t dim, bool keepdim = false);
Tensor argmin(const Tensor& x, int64_t dim, bool keepdim = false);
/// Sums up to and with each element along `dim`; the shape of x.
Tensor cumsum(const Tensor& x, int64_t dim);
/// Values and indices (i64) of the k largest (or smallest), sorted.
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);
/// Sums `x` down to `shape`, the reverse of broadcasting.
Tensor sum_to(const Tensor& x, const Shape& shape);

// ---- shape: src/ops/shape_ops.cpp (views where strides allow) -------------------------------------------------------
/// One size may be -1 and is inferred.
Tensor reshape(const Tensor& x, const Shape& shape);
/// Exchanges two dims.
Tensor transpose(const Tensor& x, int64_t a, int64_t b);
/// Dim i of the result is dim dims[i] of x; each is named once.
Tensor permute(const Tensor& x, const Dims& dims);
/// Repeats dims of 1, and new leading ones, to `shape` without copying; -1 keeps a size.
Tensor expand(const Tensor& x, const Shape& shape);
/// Drops `dim`, which must be 1.
Tensor squeeze(const Tensor& x, int64_t dim);
/// Puts a dim of 1 before `dim`; -1 appends it.
Tensor unsqueeze(const Tensor& x, int64_t dim);
/// Merges the dims `first` to `last`.
Tensor flatten(const Tensor& x, int64_t first = 0, int64_t last = -1);
/// Elements start, start + step, ... below end (negative counts from the end; both are clamped). step > 0.
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step = 1);
/// Element `index` along `dim`, which vanishes; a negative index counts from the end.
Tensor select(const Tensor& x, int64_t dim, int64_t index);
/// The same from and to dims that may be symbols: clamped where the symbols' bounds tell that they lie outside, and
/// otherwise taken to lie inside, which a captured function checks when it runs.
Tensor slice(const Tensor& x, int64_t dim, Dim start, Dim end, int64_t step = 1);
/// The sizes of x, i64 [rank] on the host. Without memory its elements are known all the same, and so is what small
/// integer tensors come to that are computed from it: shape_from() reads them, with symbols.
Tensor shape_of(const Tensor& x);
/// The elements of an i64 or i32 tensor [rank] as sizes: `reshape(x, shape_from(sizes))`. Throws Error where they
/// depend on values that are not there while a function is captured.
Shape shape_from(const Tensor& sizes);
/// x itself if it is row-major, otherwise a copy that is; also of what is packed.
Tensor contiguous(const Tensor& x);
Tensor clone(const Tensor& x);
/// Joins along `dim`; the other sizes must agree.
Tensor concat(const Tensors& parts, int64_t dim);
/// Joins along a new `dim`; the shapes must agree.
Tensor stack(const Tensors& parts, int64_t dim);
/// Views of `size` elements along `dim`; the last may be shorter.
Tensors split(const Tensor& x, int64_t size, int64_t dim);
/// At most `count` views along `dim`, of equal size but for the last.
Tensors chunk(const Tensor& x, int64_t count, int64_t dim);
/// `low` and `high` elements of `value` before and after the last dims, outermost first.
Tensor pad(const Tensor& x, const Dims& low, const Dims& high, double value = 0);
/// Reverses the order along each of `dims`.
Tensor flip(const Tensor& x, const Dims& dims);
/// Zero above (below) diagonal `diagonal` of the last two dims.
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor triu(const Tensor& x, int64_t diagonal = 0);

// ---- indexing: src/ops/indexing.cpp (indices i64 or i32; out of range throws) ---------------------------------------
/// out[i][j] = x[index[i][j]][j] for dim 0.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// Adds source to a copy of x at the places gather would read. Deterministic.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
/// Rows of `x` along `dim` named by the 1-d `index`.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);
/// weight[index]: index [...], weight [rows, width] -> [..., width]. Its backward is deterministic.
Tensor embedding(const Tensor& index, const Tensor& weight);
/// index [...] -> [..., classes] (i64): one at the index, zero elsewhere.
Tensor one_hot(const Tensor& index, int64_t classes);

/// Where x is not zero, i64 [count, rank], in row-major order. The count depends on values: without memory, and while a
/// function is captured, it is a symbol from 0 to the number of elements.
Tensor nonzero(const Tensor& x);
/// The elements of x where mask (bool) is true, [count], in row-major order; the two broadcast. By nonzero().
Tensor masked_select(const Tensor& x, const Tensor& mask);
struct Unique {
  Tensor values;   ///< [count], each once, ascending
  Tensor inverse;  ///< i64 [numel]: which of them each element is
  Tensor counts;   ///< i64 [count]: how many elements each one has
};
/// Of all elements of x, whose number is known; not numbered, the values alone. By nonzero().
Unique unique(const Tensor& x, bool numbered = true);

// ---- matmul: src/ops/matmul.cpp -------------------------------------------------------------------------------------
/// [..., m, k] x [..., k, n]; leading dims broadcast; 1-d operands as in NumPy. Transposed views are not copied.
Tensor matmul(const Tensor& a, const Tensor& b);
/// y = (a b) * factor in one pass, and with `row_sums` the sums of its rows [..., m], with `column_sums` those of its
/// columns [..., n]: a gradient through an activation whose slope is the factor, and that of the bias before it. factor
/// has the shape of y, or is undefined; at least two dims as in matmul. Gives y and the sums, in this order.
Tensors matmul_mul_sum(const Tensor& a, const Tensor& b, const Tensor& factor, bool row_sums, bool column_sums);
/// act(x wᵀ + bias) + residual in one pass: x [..., in], weight [out, in], bias [out], residual [..., out]; the last
/// two may be undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
Tensor linear_act(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation,
                  const Tensor& residual = {});
/// A multilayer perceptron of one hidden layer: act(x upᵀ + up_bias) downᵀ + down_bias + residual, with up [hidden, in]
/// and down [out, hidden]; biases and residual may be undefined. As two calls of linear_act, but its backward
/// multiplies by the activation's slope and makes the gradient of up_bias in the product that gives the hidden layer's
/// gradient.
Tensor mlp(const Tensor& x, const Tensor& up, const Tensor& up_bias, Activation activation, const Tensor& down,
           const Tensor& down_bias = {}, const Tensor& residual = {});

// ---- convolution and pooling: src/ops/conv.cpp (N, C, H, W) ---------------------------------------------------------
/// For rows and columns, each at most 2^31; padding is on both sides.
struct Conv2dOptions {
  int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1}, groups = 1;
};
/// x [n, c, h, w], weight [out, c / groups, r, s], bias [out] or undefined -> [n, out, h', w'] with
/// h' = floor((h + 2 padding - dilation (r - 1) - 1) / stride) + 1.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv2dOptions& options = {});
struct ConvTranspose2dOptions {
  int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, output_padding[2] = {0, 0}, dilation[2] = {1, 1}, groups = 1;
};
/// What conv2d with these options takes back to the shape of x: x [n, c, h, w], weight [c, out / groups, r, s], bias
/// [out] or undefined -> [n, out, h', w'] with h' = (h - 1) stride - 2 padding + dilation (r - 1) + output_padding + 1.
/// output_padding is below the stride: it says which of the sizes is meant that conv2d takes to h. Of halves, sums are
/// rounded before the bias is added.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose2dOptions& options = {});
struct Pool2dOptions {
  int64_t window[2] = {2, 2}, stride[2] = {0, 0}, padding[2] = {0, 0}, dilation[2] = {1, 1};  // stride 0: the window
  bool count_include_pad = true;
};
// x [n, c, h, w] -> [n, c, h', w'] as a convolution with `window`. Padding is at most half the window; it never is the
// maximum. avg_pool2d takes no dilation; padding counts as zeros, or with `count_include_pad` off not at all.
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});

// ---- norms and softmax: src/ops/norm.cpp ----------------------------------------------------------------------------
/// Over the last dims, as many as `weight` has. weight and bias may be undefined (then over the last dim). Ba et al.
/// 2016.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// What joins two parts of a network with a residual stream, in one pass: sum = x + branch + branch_bias in the dtype
/// of x, and layer_norm(sum, weight, bias) in that of branch, to which branch_bias is rounded, as a bias of the product
/// that made the branch would be. x and branch have one shape; the others may be undefined.
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& branch, const Tensor& branch_bias = {},
                                         const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// x / sqrt(mean(x²) + eps) * weight over the last dim. Zhang & Sennrich 2019.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);
/// x [n, c, ...] in `groups` groups of channels. Wu & He 2018.
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);
/// x [n, c, ...]. Training uses the batch's statistics and updates running_mean and running_var in place. Ioffe &
/// Szegedy 2015. With Relu as `activation` that follows in the same pass; others throw Error.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean, Tensor running_var,
                  bool training, double momentum = 0.1, double eps = 1e-5, Activation activation = Activation::None);
// exp(x) / sum(exp(x)) along `dim`, and its logarithm, without overflow.
Tensor softmax(const Tensor& x, int64_t dim);
Tensor log_softmax(const Tensor& x, int64_t dim);

// ---- losses: src/ops/loss.cpp ---------------------------------------------------------------------------------------
/// logits [..., classes], target [...] (i64); mean over the targets that are not `ignore_index`. Of f16
/// and bf16 logits the loss is f32.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, int64_t ignore_index = -100,
                     double label_smoothing = 0);
Tensor cross_entropy(const Tensor& logits, const Tensor& target, Reduction reduction, int64_t ignore_index = -100,
                     double label_smoothing = 0);
/// The mean for logits that the caller gives away: a backward that neither retains the graph nor is differentiated
/// writes their gradient over them. A backward that needs them as they were throws Error.
Tensor cross_entropy_overwriting(Tensor logits, const Tensor& target, int64_t ignore_index = -100,
                                 double label_smoothing = 0);
/// Mean of (x - target)², a scalar; the shapes must agree.
Tensor mse_loss(const Tensor& x, const Tensor& target);

// ---- attention: src/ops/attention.cpp -------------------------------------------------------------------------------
struct AttentionOptions {
  Tensor mask = {};     ///< broadcasts to [batch, heads, queries, keys]: bool (true attends) or floating (added)
  bool causal = false;  ///< query i attends keys 0..i, as in PyTorch
  double scale = 0;     ///< 0 means 1/sqrt(head dim)
  double dropout = 0;   ///< of the weights: zeroes each with this probability and scales the rest by 1/(1-p)
  Generator* generator = nullptr;  ///< for dropout; null: default_generator()
  /// Adds alibi_slope(head) (key - query) to the scores, with this largest exponent, in place of positions; 0: nothing.
  /// Of the paper and of MPT: 8. Press et al. 2022.
  double alibi = 0;
};
/// ALiBi's slope of a head: 2^(-largest i / heads) for i = 1, 2, ... Where heads are no power of two, those of the next
/// lower one, then every second one of the next higher.
double alibi_slope(int64_t head, int64_t heads, double largest = 8);
/// dropout(softmax(scale q kᵀ + mask)) v: q [batch, heads, queries, d], k and v [batch, kv_heads, keys, d]; heads is a
/// multiple of kv_heads. Dao et al. 2022 for the tiled kernel.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});
/// The same on the packed rows of one projection: qkv [batch, tokens, 3 * heads * d] holds all queries, then keys, then
/// values; the result is [batch, tokens, heads * d]. Nothing is split or transposed in memory, forward or backward.
Tensor attention_qkv(const Tensor& qkv, int64_t heads, const AttentionOptions& options = {});

// ---- random: src/ops/random.cpp -------------------------------------------------------------------------------------
/// Uniform in [0, 1).
Tensor rand(const Shape& shape, Generator& generator = default_generator(), DType dtype = Float32,
            Device device = default_device());
/// Normal with mean 0 and variance 1.
Tensor randn(const Shape& shape, Generator& generator = default_generator(), DType dtype = Float32,
             Device device = default_device());
/// Integers in [low, high), i64.
Tensor randint(int64_t low, int64_t high, const Shape& shape, Generator& generator = default_generator(),
               Device device = default_device());
/// Zeroes with probability p and scales the rest by 1/(1-p).
Tensor dropout(const Tensor& x, double p, bool training = true, Generator& generator = default_generator());
/// Draws column indices (i64) by the weights in each row of probabilities [rows, n] or [n].
Tensor multinomial(const Tensor& probabilities, int64_t samples, bool replacement = false,
                   Generator& generator = default_generator());

}  // namespace tessera
