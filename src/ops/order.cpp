// What sorts, ranks and counts, made of topk, gather and sums; on the host mostly of loops.
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "core/element.h"
#include "ops/gradient.h"
#include "ops/on_card.h"
#include "ops/on_host.h"
#include "ops/one_line.h"
#include "tessera/autograd.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_shape.h"

namespace tessera {

// ---- sorting

std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim, bool descending) {
  const Line line("sort", x, dim);
  const auto [values, index] = topk(line.x, line.size, line.dim, descending);
  return {line.back(values), line.back(index)};
}
Tensor argsort(const Tensor& x, int64_t dim, bool descending) { return sort(x, dim, descending).second; }

namespace {

// Where the k-th smallest element of a line is, k from 1; NaN come last, and of equals the first comes first. With
// `bad`, NaN is what comes of a line in which there is one.
template <class T>
int64_t place_of_kth(const T* line, int64_t length, int64_t step, int64_t k, bool bad, T* room) {
  int64_t held = 0;
  for (int64_t i = 0; i < length; ++i) {
    const T v = line[i * step];
    if (v == v) room[held++] = v;
    else if (bad) return i;
  }
  const auto find = [&](const auto& is_one, int64_t which) {
    int64_t i = 0;
    for (;; ++i)
      if (is_one(line[i * step]) && which-- == 0) return i;
  };
  if (k > held) return find([](T v) { return v != v; }, k - held - 1);
  std::nth_element(room, room + k - 1, room + held);
  const T value = room[k - 1];
  const auto before = std::count_if(room, room + k - 1, [=](T v) { return v < value; });
  return find([=](T v) { return v == value; }, k - 1 - before);
}

// Of a line without its dim, or with a size of 1 there.
Tensor host_places_of_kth(const Line& line, int64_t k, bool bad) {
  const auto forward = [dim = line.dim, k, bad](const Tensors& in) {
    const Tensor x = contiguous(in[0]);
    Shape shape = x.shape();
    shape[dim] = 1;
    const Tensor places = empty(shape, Int64);
    const HostLines lines(x, dim);
    with_element_type(x.dtype(), [&]<class T>(T*) {
      each_part(lines.outer * lines.inner, 8 * lines.length, [&](int64_t begin, int64_t end) {
        const auto room = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(lines.length));
        const T* const all = x.data<T>();
        int64_t* const found = places.data<int64_t>();
        for (int64_t i = begin; i < end; ++i) {
          const T* const from = all + i / lines.inner * lines.length * lines.inner + i % lines.inner;
          found[i] = place_of_kth(from, lines.length, lines.inner, k, bad, room.get());
        }
      });
    });
    return Tensors{places};
  };
  return custom_function("place_of_kth", {line.x.detach()}, forward, {})[0];
}

// Each element counts those before it. Lines of up to 32 elements share a block.
CardKernel kth_kernel("places_of_kth", R"(
extern "C" TESSERA_KERNEL(256) void places_of_kth(const T* x, i64* places, i64 lines, int length, i64 inner,
                                                  i64 step, int k, int bad, int lanes) {
  using C = compute_t<T>;
  TESSERA_SHARED C room[512];
  const int lane = thread_in_block() % lanes, team = thread_in_block() / lanes;
  const i64 line = block_in_grid() * (256 / lanes) + team;
  C* const own = room + team * length;
  const T* const from = x + line / inner * step + line % inner;
  for (int i = lane; line < lines && i < length; i += lanes) own[i] = convert_element<C>(from[i * inner]);
  sync_block();
  for (int i = lane; line < lines && i < length; i += lanes) {
    const C v = own[i];
    int before = 0, none = 0, none_before = 0;  // NaN: largest of all, unless they are what is looked for
    for (int j = 0; j < length; ++j) {
      const C u = own[j];
      const bool is_none = u != u, equal = u == v || (is_none && v != v);
      before += equal ? j < i : is_none ? 0 : v != v || u < v;
      none += is_none, none_before += is_none && j < i;
    }
    if (bad && none > 0 ? v != v && none_before == 0 : before == k) places[line] = i;
  }
}
)");

// Keys whose order is that of the elements are told apart bit by bit from the top, then their places, until one is
// left. Lanes hold up to sixteen keys, or read longer lines again for each bit.
constexpr std::string_view select_text = R"(
template <class C>
TESSERA_DEVICE auto key_of(C v) {
  if constexpr (is_same_v<C, float> || is_same_v<C, double>) {
    using Bits = conditional_t<sizeof(C) == 8, u64, u32>;
    constexpr Bits sign = Bits(1) << (8 * sizeof(C) - 1);
    if (v != v) return ~Bits(0);
    const Bits bits = bit_cast<Bits>(v == C(0) ? C(0) : v);
    return bits & sign ? ~bits : bits | sign;
  } else {
    using Bits = conditional_t<sizeof(C) == 8, u64, u32>;
    constexpr Bits sign = C(-1) < C(0) ? Bits(1) << (8 * sizeof(Bits) - 1) : 0;
    return static_cast<Bits>(v) ^ sign;
  }
}

template <class Team, bool held>
TESSERA_DEVICE void select_kth(const T* x, i64* places, i64 lines, int length, i64 inner, i64 step, int k, bool bad) {
  using Key = decltype(key_of(compute_t<T>()));
  constexpr int each = 16;
  const i64 line = Team::row();
  if (line >= lines) return;
  const T* const from = x + line / inner * step + line % inner;
  const int steps = ceil_div(length, Team::size());
  const auto place_of = [](int j) { return j * Team::size() + Team::rank(); };
  const auto key_at = [&](int i) {  // what is not there comes last
    return i < length ? key_of(convert_element<compute_t<T>>(from[i * inner])) : ~Key(0);
  };
  Key keys[held ? each : 1];
  if constexpr (held) unroll<each>([&](auto j) { keys[j] = key_at(place_of(j)); });
  const auto count = [&](const auto& is_one) {  // of a place and its key
    int ones = 0;
    if constexpr (held) {
      unroll<each>([&](auto j) { ones += j < steps && is_one(place_of(j), keys[j]); });
    } else {
      for (int j = 0; j < steps; ++j) ones += is_one(place_of(j), key_at(place_of(j)));
    }
    return Team::join(ones, Add{});
  };
  if (bad) {
    constexpr bool has_none = is_same_v<compute_t<T>, float> || is_same_v<compute_t<T>, double>;
    const int none = has_none ? count([&](int i, Key key) { return i < length && key == ~Key(0); }) : 0;
    if (none > 0) k = length - none;
  }
  int left = steps * Team::size();
  // Keeps those that have the bit, or not, as the k-th has it.
  const auto narrow = [&](auto& prefix, int bit, const auto& has_no_bit) {
    const int zeros = count(has_no_bit);
    if (k < zeros) {
      left = zeros;
    } else {
      k -= zeros, left -= zeros;
      prefix |= static_cast<remove_cvref_t<decltype(prefix)>>(1) << bit;
    }
  };
  Key prefix = 0;
  u32 place = 0;
  int low = 8 * sizeof(Key), low_place = 16;
  const auto is_left = [&](int i, Key key) { return (key ^ prefix) >> low == 0 && (i ^ place) >> low_place == 0; };
  while (low > 0 && left > 1) narrow(prefix, --low, [&](int, Key key) { return (key ^ prefix) >> low == 0; });
  while (low_place > 0 && left > 1) narrow(place, --low_place, is_left);
  (void)count([&](int i, Key key) {
    if (is_left(i, key)) places[line] = i;
    return false;
  });
}
)";
CardKernel kth_by_warps_kernel("kth_by_warps", std::string(select_text) + R"(
extern "C" TESSERA_KERNEL(256) void kth_by_warps(const T* x, i64* places, i64 lines, int length, i64 inner,
                                                  i64 step, int k, int bad, int) {
  select_kth<Team<team_lanes>, true>(x, places, lines, length, inner, step, k, bad);
}
)");
CardKernel kth_by_blocks_kernel("kth_by_blocks", std::string(select_text) + R"(
extern "C" TESSERA_KERNEL(256) void kth_by_blocks(const T* x, i64* places, i64 lines, int length, i64 inner,
                                                  i64 step, int k, int bad, int) {
  if (length <= 4096) select_kth<Team<256>, true>(x, places, lines, length, inner, step, k, bad);
  else select_kth<Team<256>, false>(x, places, lines, length, inner, step, k, bad);
}
)");

// Longer lines are sorted.
bool card_takes_kth(const Line& line) { return on_card(line.x) && line.size <= 1 << 15 && line.x.numel() > 0; }

// The place of what k elements of its line are before, [.., 1, ..], or where `bad` that of the first NaN.
Tensor card_places_of_kth(const Line& line, int64_t k, bool bad) {
  const auto forward = [dim = line.dim, k, bad](const Tensors& in) {
    const bool padded = dim == in[0].dim() - 1 && lies_in_padded_rows(in[0]);
    const Tensor x = padded ? in[0] : contiguous(in[0]);
    const HostLines lines(x, dim);
    const int64_t step = padded ? x.stride(dim - 1) : lines.length * lines.inner;  // from row to row
    Shape shape = x.shape();
    shape[dim] = Dim(1);
    const Tensor places = empty(shape, Int64, x.device());
    const bool few = lines.length <= 32, some = lines.length <= 512;
    const int lanes = few ? static_cast<int>(std::bit_ceil(static_cast<uint64_t>(lines.length))) : some ? 32 : 256;
    const int64_t count = lines.outer * lines.inner;
    const void* const from = x.data_ptr();
    CardKernel& kernel = few ? kth_kernel : some ? kth_by_warps_kernel : kth_by_blocks_kernel;
    kernel.launch(x, (count * lanes + 255) / 256, from, places.data_ptr(), count, static_cast<int>(lines.length),
                  lines.inner, step, static_cast<int>(k), static_cast<int>(bad), lanes);
    return Tensors{places};
  };
  return custom_function("place_of_kth", {line.x.detach()}, forward, {})[0];
}

Chosen kth(const Line& line, int64_t k, bool keepdim, bool bad) {
  constexpr int64_t few = 16;  // a heap of so many is faster
  if (card_takes_kth(line)) {
    const Tensor index = card_places_of_kth(line, k - 1, bad);
    return kept_or_dropped(line, gather(line.x, line.dim, index), index, keepdim);
  }
  if (on_host(line.x) && (bad || k > few)) {
    const Tensor index = host_places_of_kth(line, k, bad);
    return kept_or_dropped(line, gather(line.x, line.dim, index), index, keepdim);
  }
  const auto [values, index] = topk(line.x, k, line.dim, false);
  const Chosen found =
      kept_or_dropped(line, slice(values, line.dim, k - 1, k), slice(index, line.dim, k - 1, k), keepdim);
  if (!bad || !is_floating(line.x.dtype())) return found;
  const auto [largest, at] = max_with_index(line.x, line.dim, keepdim);  // NaN, where there is one
  const Tensor is_bad = isnan(largest);
  return {where(is_bad, line.back(largest), found.first), where(is_bad, line.back(at), found.second)};
}

}  // namespace

std::pair<Tensor, Tensor> kthvalue(const Tensor& x, int64_t k, int64_t dim, bool keepdim) {
  const Line line("kthvalue", x, dim);
  if (k < 1 || k > line.size)
    throw Error(fmt::format("kthvalue: no element {} among {} along dim {} of {}", k, line.size, line.dim,
                            to_string(x.shape())));
  return kth(line, k, keepdim, false);
}

std::pair<Tensor, Tensor> median(const Tensor& x, int64_t dim, bool keepdim) {
  const Line line("median", x, dim);
  if (line.size == 0)
    throw Error(fmt::format("median: no elements to choose from along dim {} of {}", line.dim, to_string(x.shape())));
  return kth(line, (line.size + 1) / 2, keepdim, true);
}
Tensor median(const Tensor& x) {
  if (is_floating(x.dtype()) && x.shape().numel() == Dim(0)) return full({}, NAN, x.dtype(), x.device());
  const Line line("median", flatten(x), 0);
  if (!on_card(x) || card_takes_kth(line) || (grad_enabled() && x.requires_grad())) return median(line.x, 0).first;
  const Tensor sorted = sort_values(line.x, 0), middle = select(sorted, 0, (line.size - 1) / 2);
  if (!is_floating(x.dtype())) return middle;
  const Tensor last = select(sorted, 0, line.size - 1);  // NaN, where there is one
  return where(isnan(last), last, middle);
}

namespace {
Chosen extreme_with_index(std::string_view op, const Tensor& x, int64_t dim, bool keepdim, bool largest) {
  const Line line(op, x, dim);
  const Tensor index = largest ? argmax(line.x, line.dim, true) : argmin(line.x, line.dim, true);
  return kept_or_dropped(line, gather(line.x, line.dim, index), index, keepdim);
}
Tensor last_extreme(std::string_view op, const Tensor& x, int64_t dim, bool keepdim, bool largest) {
  const Line line(op, x, dim);
  const Tensor turned = flip(line.x, {line.dim});
  const Tensor index = largest ? argmax(turned, line.dim, keepdim) : argmin(turned, line.dim, keepdim);
  const Tensor last = static_cast<double>(line.size - 1) - index;
  return line.number ? reshape(last, {}) : last;
}
}  // namespace

std::pair<Tensor, Tensor> max_with_index(const Tensor& x, int64_t dim, bool keepdim) {
  return extreme_with_index("max_with_index", x, dim, keepdim, true);
}
std::pair<Tensor, Tensor> min_with_index(const Tensor& x, int64_t dim, bool keepdim) {
  return extreme_with_index("min_with_index", x, dim, keepdim, false);
}
Tensor argmax_last(const Tensor& x, int64_t dim, bool keepdim) {
  return last_extreme("argmax_last", x, dim, keepdim, true);
}
Tensor argmin_last(const Tensor& x, int64_t dim, bool keepdim) {
  return last_extreme("argmin_last", x, dim, keepdim, false);
}

// ---- places in what is sorted

namespace {

// By halves: low and high enclose each place, until they meet.
Tensor composed_search(const Tensor& sorted, const Tensor& wanted, bool right) {
  const int64_t n = sorted.size(-1);
  Tensor low = zeros(wanted.shape(), Int64, wanted.device());
  Tensor high = full(wanted.shape(), static_cast<double>(n), Int64, wanted.device());
  for (int step = std::bit_width(static_cast<uint64_t>(n)); step > 0; --step) {
    const Tensor open = lt(low, high);
    const Tensor middle =
        minimum(floor_div(low + high, number_like(low, 2)), number_like(low, static_cast<double>(n - 1)));
    const Tensor at = gather(sorted, -1, middle);
    const Tensor after = logical_not(right ? gt(at, wanted) : ge(at, wanted));  // NaN comes behind all
    low = where(logical_and(open, after), middle + 1.0, low);
    high = where(logical_and(open, logical_not(after)), middle, high);
  }
  return low;
}

template <bool right, class T>
void search_line(const T* sorted, int64_t n, const T* wanted, int64_t count, int64_t* places) {
  for (int64_t i = 0; i < count; ++i) {
    int64_t low = 0, high = n;
    const T value = wanted[i];
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const bool after = !(right ? sorted[middle] > value : sorted[middle] >= value);
      low = after ? middle + 1 : low;
      high = after ? high : middle;
    }
    places[i] = low;
  }
}

// Rows of `wanted` in rows of `sorted`, or all in one row.
Tensor host_search(const Tensor& sorted, const Tensor& wanted, bool right) {
  const auto forward = [right](const Tensors& in) {
    const DType dtype = promote(in[0].dtype(), in[1].dtype());
    const Tensor rows = contiguous(cast(in[0], dtype)), values = contiguous(cast(in[1], dtype));
    const Tensor places = empty(values.shape(), Int64);
    const int64_t n = rows.size(-1), width = values.numel() > 0 ? values.size(-1) : 1;
    with_element_type(dtype, [&]<class T>(T*) {
      each_part(values.numel(), 4 * std::bit_width(static_cast<uint64_t>(n)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin, next; i < end; i = next) {
          next = std::min(end, (i / width + 1) * width);
          const auto search = right ? search_line<true, T> : search_line<false, T>;
          search(rows.data<T>() + (rows.dim() == 1 ? 0 : i / width * n), n, values.data<T>() + i, next - i,
                 places.data<int64_t>() + i);
        }
      });
    });
    return Tensors{places};
  };
  return custom_function("searchsorted", {sorted.detach(), wanted.detach()}, forward, {})[0];
}

}  // namespace

namespace {

CardKernel search_kernel("search", R"(
extern "C" TESSERA_KERNEL(256) void search(const T* sorted, const T* wanted, i64* places, i64 length, i64 width,
                                           i64 total, int right) {
  const i64 i = block_in_grid() * 256 + thread_in_block();
  if (i >= total) return;
  const T* const line = sorted + i / width * length;
  const auto value = convert_element<compute_t<T>>(wanted[i]);
  i64 low = 0, high = length;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    const auto at = convert_element<compute_t<T>>(line[middle]);
    if (right ? at > value : at >= value) high = middle;
    else low = middle + 1;
  }
  places[i] = low;
}
)");

// As host_search().
Tensor card_search(const Tensor& sorted, const Tensor& wanted, bool right) {
  const auto forward = [right](const Tensors& in) {
    const DType dtype = promote(in[0].dtype(), in[1].dtype());
    const Tensor rows = contiguous(cast(in[0], dtype)), values = contiguous(cast(in[1], dtype));
    const Tensor places = empty(values.shape(), Int64, values.device());
    const int64_t total = values.numel(), width = rows.dim() == 1 ? std::max<int64_t>(total, 1) : values.size(-1);
    if (total == 0) return Tensors{places};
    const void *from = rows.data_ptr(), *searched = values.data_ptr();
    search_kernel.launch(rows, (total + 255) / 256, from, searched, places.data_ptr(), rows.size(-1), width, total,
                         static_cast<int>(right));
    return Tensors{places};
  };
  return custom_function("searchsorted", {sorted.detach(), wanted.detach()}, forward, {})[0];
}

Tensor search(const Tensor& sorted, const Tensor& wanted, bool right) {
  if (on_host(wanted) && on_host(sorted)) return host_search(sorted, wanted, right);
  if (on_card(wanted) && sorted.device() == wanted.device()) return card_search(sorted, wanted, right);
  return composed_search(sorted, wanted, right);
}

}  // namespace

Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right) {
  const bool one = sorted.dim() == 1;
  bool fits = sorted.dim() > 0 && (one || sorted.dim() == values.dim());
  for (int64_t d = 0; fits && !one && d < sorted.dim() - 1; ++d) fits = sorted.shape()[d] == values.shape()[d];
  if (!fits)
    throw Error(fmt::format("searchsorted: rows of {} do not match those of {}", to_string(values.shape()),
                            to_string(sorted.shape())));
  const Tensor wanted = one ? flatten(values) : values;
  return reshape(search(sorted, wanted, right), values.shape());
}

Tensor bucketize(const Tensor& values, const Tensor& boundaries, bool right) {
  if (boundaries.dim() != 1)
    throw Error(fmt::format("bucketize: the boundaries {} are not 1-d", to_string(boundaries.shape())));
  return searchsorted(boundaries, values, right);
}

namespace {

Tensor host_histogram(const Tensor& given, int64_t bins, double low, double high) {
  const auto forward = [=](const Tensors& in) {
    const Tensor x = contiguous(in[0]), counts = zeros({bins}, Int64);
    const double scale = static_cast<double>(bins) / (high - low);
    with_element_type(x.dtype(), [&]<class T>(T*) {
      int64_t* const to = counts.data<int64_t>();
      const T *const begin = x.data<T>(), *const end = begin + x.numel();
      for (const T* at = begin; at != end; ++at) {
        const auto v = static_cast<double>(*at);
        if (v >= low && v <= high) ++to[std::min(bins - 1, static_cast<int64_t>((v - low) * scale))];
      }
    });
    return Tensors{cast(counts, x.dtype())};
  };
  return custom_function("histc", {given}, forward, {})[0];
}

CardKernel histogram_kernel("histogram", R"(
extern "C" TESSERA_KERNEL(256) void histogram(const T* x, unsigned long long* counts, i64 total, i64 bins, double low,
                                              double high) {
  constexpr int most = 4096;  // bins that a block counts by itself
  TESSERA_SHARED u32 own[most];
  const bool few = bins <= most;
  for (i64 b = thread_in_block(); few && b < bins; b += 256) own[b] = 0;
  sync_block();
  const double scale = static_cast<double>(bins) / (high - low);
  for (i64 i = block_in_grid() * 256 + thread_in_block(); i < total; i += i64{blocks_in_grid()} * 256) {
    const double v = convert_element<double>(x[i]);
    if (!(v >= low && v <= high)) continue;
    const i64 bin = min(bins - 1, static_cast<i64>((v - low) * scale));
    if (few) atomicAdd(&own[bin], 1u);
    else atomicAdd(&counts[bin], 1ull);
  }
  sync_block();
  for (i64 b = thread_in_block(); few && b < bins; b += 256)
    if (own[b] != 0) atomicAdd(&counts[b], static_cast<unsigned long long>(own[b]));
}
)");

Tensor card_histogram(const Tensor& given, int64_t bins, double low, double high) {
  const auto forward = [=](const Tensors& in) {
    const Tensor x = contiguous(in[0]), counts = zeros({bins}, Int64, x.device());
    const void* const from = x.data_ptr();
    const int64_t most = 8 * gpu::state(x.device()).properties.multiprocessors;
    histogram_kernel.launch(x, std::min((x.numel() + 1023) / 1024, most), from, counts.data_ptr(), x.numel(), bins, low,
                            high);
    return Tensors{cast(counts, x.dtype())};
  };
  return custom_function("histc", {given}, forward, {})[0];
}

template <class T>
std::pair<T, T> find_range(const T* begin, const T* end) {
  std::pair range(*begin, *begin);
  for (; begin != end; ++begin) range = {std::min(range.first, *begin), std::max(range.second, *begin)};
  return range;
}

Tensor host_counts(const Tensor& given, int64_t least) {
  const auto forward = [=](const Tensors& in) {
    const Tensor x = contiguous(in[0]);
    Tensor counts;
    with_element_type(x.dtype(), [&]<class T>(T*) {
      const T *const begin = x.data<T>(), *const end = begin + x.numel();
      const auto [low, high] = begin == end ? std::pair(T(0), T(0)) : find_range(begin, end);
      if (low < T(0)) throw Error(fmt::format("bincount: index {} is out of range", static_cast<int64_t>(low)));
      counts = zeros({std::max(least, begin == end ? 0 : static_cast<int64_t>(high) + 1)}, Int64);
      int64_t* const to = counts.data<int64_t>();
      for (const T* at = begin; at != end; ++at) ++to[static_cast<int64_t>(*at)];
    });
    return Tensors{counts};
  };
  return custom_function("bincount", {given}, forward, {})[0];
}

}  // namespace

Tensor histc(const Tensor& x, int64_t bins, double low, double high) {
  if (bins < 1) throw Error(fmt::format("histc: {} bins", bins));
  if (!is_floating(x.dtype())) throw Error(fmt::format("histc: takes floating-point tensors, not {}", describe(x)));
  const Tensor flat = on_host(x) || on_card(x) ? flatten(x) : cast(flatten(x), Float64);
  if (low == high && !(flat.shape()[0] == Dim(0))) low = amin(flat).item(), high = amax(flat).item();
  if (low == high) low -= 1, high += 1;
  if (!(low < high) || !std::isfinite(low) || !std::isfinite(high))
    throw Error(fmt::format("histc: no range from {} to {}", low, high));
  if (on_host(x)) return host_histogram(x.detach(), bins, low, high);
  if (on_card(x)) return card_histogram(x.detach(), bins, low, high);
  const auto count = static_cast<double>(bins);
  const Tensor inside = logical_and(ge(flat, number_like(flat, low)), le(flat, number_like(flat, high)));
  const Tensor bin = floor((where(inside, flat, number_like(flat, low)) - low) * (count / (high - low)));
  const Tensor counts = zeros({bins}, Int64, x.device());
  return cast(scatter_add(counts, 0, cast(clamp(bin, 0, count - 1), Int64), cast(inside, Int64)), x.dtype());
}

Tensor bincount(const Tensor& x, const Tensor& weights, int64_t least) {
  if (x.dim() != 1 || is_floating(x.dtype()) || x.dtype() == Bool)
    throw Error(fmt::format("bincount: takes a 1-d tensor of integers, not {}", describe(x)));
  if (weights.defined() && !(weights.shape() == x.shape()))
    throw Error(fmt::format("bincount: weights {} for {}", to_string(weights.shape()), to_string(x.shape())));
  if (on_host(x) && !weights.defined()) return host_counts(x, least);
  const int64_t size = std::max<int64_t>(least, x.numel() == 0 ? 0 : amax(x).item<int64_t>() + 1);
  if (on_card(x) && !weights.defined() && x.numel() > 0) {
    if (const auto low = amin(x).item<int64_t>(); low < 0)
      throw Error(fmt::format("bincount: index {} is out of range", low));
    return cast(card_histogram(x.detach(), size, 0, static_cast<double>(size)), Int64);
  }
  const Tensor each = weights.defined() ? weights : ones(x.shape(), Int64, x.device());
  return scatter_add(zeros({size}, each.dtype(), x.device()), 0, cast(x, Int64), each);
}

}  // namespace tessera
