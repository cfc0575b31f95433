#include "ops/losses_on_card.h"

#include <algorithm>
#include <string>

#include "ops/on_card.h"

namespace tessera {
namespace {

// 32 lanes have a row; a block has 8.
constexpr int64_t block_rows = 8;
constexpr int64_t most_classes = 4096;  // of lists, a bit each in a block's memory
constexpr int64_t most_parts = 1024;    // of a sum

const std::string rows_of_lanes = R"(
constexpr int row_lanes = 32, block_rows = 8;
struct Place {
  int lane = thread_in_block() % row_lanes, team = thread_in_block() / row_lanes;
  i64 row = block_in_grid() * block_rows + team;
};
// The sum over a row's lanes, for each of them.
TESSERA_DEVICE T sum_of_lanes(const Place& at, T value) {
  TESSERA_SHARED T room[256];
  T* const own = room + at.team * row_lanes;
  own[at.lane] = value;
  for (int half = row_lanes / 2; half > 0; half /= 2) {
    sync_block();
    if (at.lane < half) own[at.lane] += own[at.lane + half];
  }
  sync_block();
  return own[0];
}
)";

const std::string sums_of_block = R"(
// The sums of two numbers over a block, in its first thread.
TESSERA_DEVICE void sum_of_block(double& a, double& b) {
  TESSERA_SHARED double room[2][256];
  const int thread = thread_in_block();
  room[0][thread] = a, room[1][thread] = b;
  for (int half = 128; half > 0; half /= 2) {
    sync_block();
    if (thread < half) room[0][thread] += room[0][thread + half], room[1][thread] += room[1][thread + half];
  }
  a = room[0][0], b = room[1][0];
}
)";

CardKernel nll_kernel("nll_of_rows", sums_of_block + R"(
// The loss of each row, or what a block's rows lose and weigh.
extern "C" TESSERA_KERNEL(256) void nll_of_rows(const T* x, const i64* target, const T* weight, T* each, double* parts,
                                                Fault* fault, const char* op, i64 rows, i64 classes, i64 ignored,
                                                i64 blocks) {
  double sum = 0, weights = 0;
  for (i64 i = block_in_grid() * 256 + thread_in_block(); i < rows; i += blocks * 256) {
    const i64 c = target[i];
    const bool counts = c != ignored && c >= 0 && c < classes;
    if (!counts && c != ignored) raise(fault, op, c, classes);
    const T w = !counts ? T(0) : weight ? weight[c] : T(1), value = counts ? -(x[i * classes + c] * w) : T(0);
    if (each) each[i] = value;
    sum += value, weights += w;
  }
  if (each) return;
  sum_of_block(sum, weights);
  if (thread_in_block() == 0) parts[block_in_grid()] = sum, parts[blocks + block_in_grid()] = weights;
}
)");
CardKernel nll_total_kernel("nll_of_all", sums_of_block + R"(
extern "C" TESSERA_KERNEL(256) void nll_of_all(const double* parts, T* loss, T* total, i64 blocks, int mean) {
  double sum = 0, weights = 0;
  for (i64 i = thread_in_block(); i < blocks; i += 256) sum += parts[i], weights += parts[blocks + i];
  sum_of_block(sum, weights);
  if (thread_in_block() == 0) *total = T(weights), *loss = T(mean ? sum / weights : sum);
}
)");

CardKernel nll_slopes_kernel("slopes_of_nll", R"(
extern "C" TESSERA_KERNEL(256) void slopes_of_nll(const i64* target, const T* weight, const T* total, const T* g, T* dx,
                                                  i64 count, i64 classes, i64 ignored, int each, int mean) {
  const i64 place = block_in_grid() * 256 + thread_in_block();
  if (place >= count) return;
  const i64 i = quotient(place, classes), c = target[i];
  if (place - i * classes != c || c == ignored) {
    dx[place] = T(0);
    return;
  }
  dx[place] = -(g[each ? i : 0] * (weight ? weight[c] : T(1)) / (mean ? *total : T(1)));
}
)");

CardKernel margins_kernel("margins", rows_of_lanes + R"(
// y, or with dy the gradient of x.
extern "C" TESSERA_KERNEL(256) void margins(const T* x, const i64* target, const T* dy, T* out, Fault* fault,
                                            const char* op, i64 rows, i64 classes, int power, double margin) {
  const Place at;
  const T* const row = x + at.row * classes;
  const i64 own = at.row < rows ? target[at.row] : 0;
  const bool some = at.row < rows && own >= 0 && own < classes;
  if (at.row < rows && !some && at.lane == 0) raise(fault, op, own, classes);
  const T apart = some ? T(margin) - row[own] : T(0), slope = some && dy ? dy[at.row] * T(power) : T(0);
  T sum(0);
  for (i64 j = at.lane; some && j < classes; j += row_lanes) {
    const T over = j == own ? T(0) : max(apart + row[j], T(0));
    if (!dy) {
      sum += power == 2 ? over * over : over;
      continue;
    }
    const T share = over > T(0) ? slope * (power == 2 ? over : T(1)) : T(0);
    if (j != own) out[at.row * classes + j] = share;
    sum -= share;
  }
  sum = sum_of_lanes(at, sum);
  if (some && at.lane == 0) out[dy ? at.row * classes + own : at.row] = sum;
}
)");

CardKernel listed_kernel("listed_margins", rows_of_lanes + R"(
constexpr int words = 4096 / 32;

// y, or with dy the gradient of x.
extern "C" TESSERA_KERNEL(256) void listed_margins(const T* x, const i64* lists, const T* dy, T* out, Fault* fault,
                                                   const char* op, i64 rows, int classes) {
  TESSERA_SHARED u32 listed[block_rows][words];
  TESSERA_SHARED int lengths[block_rows];
  const Place at;
  const bool some = at.row < rows;
  const T* const row = x + at.row * classes;
  const i64* const list = lists + at.row * classes;
  for (int i = at.lane; i < words; i += row_lanes) listed[at.team][i] = 0;
  if (at.lane == 0) lengths[at.team] = some ? classes : 0;
  sync_block();
  for (int k = at.lane; some && k < classes; k += row_lanes)
    if (list[k] < 0 || list[k] >= classes) atomicMin(&lengths[at.team], k);
  sync_block();
  const int length = lengths[at.team];
  if (at.lane == 0 && length < classes && some && list[length] >= classes) raise(fault, op, list[length], classes);
  for (int k = at.lane; k < length; k += row_lanes) atomicOr(&listed[at.team][list[k] / 32], 1u << list[k] % 32);
  sync_block();
  const auto is_other = [&](int j) { return (listed[at.team][j / 32] >> j % 32 & 1) == 0; };
  if (!dy) {
    T sum(0);
    for (int k = 0; k < length; ++k) {
      const T apart = T(1) - row[list[k]];
      for (int j = at.lane; j < classes; j += row_lanes)
        if (is_other(j)) sum += max(apart + row[j], T(0));
    }
    sum = sum_of_lanes(at, sum);
    if (some && at.lane == 0) out[at.row] = sum;
    return;
  }
  const T slope = some ? dy[at.row] : T(0);
  T* const to = out + at.row * classes;
  for (int j = at.lane; some && j < classes; j += row_lanes) {
    int over = 0;
    for (int k = 0; k < length && is_other(j); ++k) over += T(1) - row[list[k]] + row[j] > T(0);
    to[j] = slope * T(over);
  }
  sync_block();
  for (int k = at.lane; k < length; k += row_lanes) {
    const T apart = T(1) - row[list[k]];
    int over = 0;
    for (int j = 0; j < classes; ++j) over += is_other(j) && apart + row[j] > T(0);
    atomicAdd(&to[list[k]], -slope * T(over));  // of one class all terms are alike, so that no order matters
  }
}
)");

// out of x [rows, classes], whole numbers of its rows, and for a gradient that of the results.
template <class... Rest>
Tensors of_rows(CardKernel& kernel, const char* op, const Tensor& given, const Tensor& numbers, const Tensor& slopes,
                const Rest&... rest) {
  const Tensor x = contiguous(given), of = contiguous(numbers), dy = slopes.defined() ? contiguous(slopes) : slopes;
  const Tensor out = empty(dy.defined() ? x.shape() : Shape{x.shape()[0]}, x.dtype(), x.device());
  const int64_t rows = x.size(0);
  if (out.numel() == 0) return {out};
  const void *from = x.data_ptr(), *at = of.data_ptr(), *grads = dy.defined() ? dy.data_ptr() : nullptr;
  kernel.launch(x, (rows + block_rows - 1) / block_rows, from, at, grads, out.data_ptr(), fault_on(x), op, rows,
                rest...);
  return {out};
}

const void* data_or_null(const Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }

}  // namespace

Tensor card_nll_loss(const Tensor& x, const Tensor& target, const Tensor& weight, int64_t ignore_index,
                     Reduction reduction, const Composed& composed) {
  const int each = reduction == Reduction::None, mean = reduction == Reduction::Mean;
  const char* const op = "nll_loss";
  const auto forward = [=](const Tensors& in) {
    const Tensor logs = contiguous(in[0]), classes = contiguous(in[1]);
    const Tensor of_class = in.size() > 2 ? contiguous(in[2]) : Tensor();
    const auto made = [&](const Shape& shape, DType dtype) { return empty(shape, dtype, logs.device()); };
    const int64_t rows = logs.size(0), needed = (rows + 255) / 256;
    const int64_t blocks = each ? needed : std::clamp<int64_t>(needed / 4, 1, most_parts);
    const Tensor loss = made(each ? Shape{Dim(rows)} : Shape(), logs.dtype()), total = made({}, logs.dtype());
    const Tensor parts = made({2 * blocks}, Float64);
    const void *const from = logs.data_ptr(), *const at = classes.data_ptr(), *const weights = data_or_null(of_class);
    void* const losses = each ? loss.data_ptr() : nullptr;
    nll_kernel.launch(logs, blocks, from, at, weights, losses, parts.data_ptr(), fault_on(logs), op, rows, logs.size(1),
                      ignore_index, blocks);
    if (!each) {
      const void* const sums = parts.data_ptr();
      nll_total_kernel.launch(logs, 1, sums, loss.data_ptr(), total.data_ptr(), blocks, mean);
    }
    return Tensors{loss, total};
  };
  const auto slopes = [=](const Tensors& in) {
    const size_t last = in.size() - 1;
    const Tensor classes = contiguous(in[1]), of_class = last > 4 ? contiguous(in[2]) : Tensor(),
                 g = contiguous(in[last]);
    const Tensor dx = empty(in[0].shape(), in[0].dtype(), in[0].device());
    const void *const at = classes.data_ptr(), *const weights = data_or_null(of_class);
    const void *const total = in[last - 1].data_ptr(), *const grads = g.data_ptr();
    nll_slopes_kernel.launch(dx, (dx.numel() + 255) / 256, at, weights, total, grads, dx.data_ptr(), dx.numel(),
                             dx.size(1), ignore_index, each, mean);
    return Tensors{dx};
  };
  Tensors in{x, target};
  if (weight.defined()) in.push_back(weight);
  return loss_of_rows("nll_loss", in, forward, slopes, composed);
}

Tensor card_margins(const Tensor& x, const Tensor& target, int64_t p, double margin, const Composed& composed) {
  const int64_t classes = x.size(1);
  const auto run = [=](const Tensors& in, const Tensor& slopes) {
    return of_rows(margins_kernel, "multi_margin_loss", in[0], in[1], slopes, classes, static_cast<int>(p), margin);
  };
  const auto forward = [=](const Tensors& in) { return run(in, {}); };
  const auto slopes = [=](const Tensors& in) { return run(in, in[3]); };
  return loss_of_rows("multi_margin_loss", {x, target}, forward, slopes, composed);
}

bool card_takes_lists(const Tensor& x) { return on_card(x) && x.size(1) <= most_classes; }

Tensor card_listed_margins(const Tensor& x, const Tensor& lists, const Composed& composed) {
  const auto run = [classes = static_cast<int>(x.size(1))](const Tensors& in, const Tensor& slopes) {
    return of_rows(listed_kernel, "multilabel_margin_loss", in[0], in[1], slopes, classes);
  };
  const auto forward = [=](const Tensors& in) { return run(in, {}); };
  const auto slopes = [=](const Tensors& in) { return run(in, in[3]); };
  return loss_of_rows("multilabel_margin_loss", {x, lists}, forward, slopes, composed);
}

}  // namespace tessera
