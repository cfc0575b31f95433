// What is there once: by counting integers of a small range, else by sorting.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/element.h"
#include "core/gpu/runtime.h"
#include "ops/gradient.h"
#include "ops/on_card.h"
#include "ops/on_host.h"
#include "ops/one_line.h"
#include "tessera/autograd.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_shape.h"

namespace tessera {

// ---- elements

namespace {

// fn(a pointer to the elements of x) of integers.
template <class Fn>
void with_integers(const Tensor& x, const Fn& fn) {
  with_element_type(x.dtype(), [&]<class T>(T*) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) fn(x.data<T>());
  });
}
// The least one, and how far the largest lies from it.
std::pair<uint64_t, uint64_t> range_of(const Tensor& x) {
  std::pair<uint64_t, uint64_t> range{0, UINT64_MAX};
  with_integers(x, [&](const auto* from) {
    const auto [least, most] = std::minmax_element(from, from + x.numel());
    range = {static_cast<uint64_t>(*least), static_cast<uint64_t>(*most) - static_cast<uint64_t>(*least)};
  });
  return range;
}

// Of integers of a range: those of each value are counted, and nothing is sorted.
Unique host_counted(const Tensor& x, uint64_t low, uint64_t range, bool numbered) {
  const auto forward = [=](const Tensors& in) {
    const int64_t n = in[0].numel();
    std::vector<int64_t> counts(static_cast<size_t>(range) + 1), rank(counts.size());
    Tensors out;
    with_integers(in[0], [&]<class T>(const T* from) {
      const auto place = [low](T v) { return static_cast<size_t>(static_cast<uint64_t>(v) - low); };
      for (int64_t i = 0; i < n; ++i) ++counts[place(from[i])];
      int64_t count = 0;
      for (size_t i = 0; i < counts.size(); ++i) rank[i] = counts[i] > 0 ? count++ : 0;
      out = {empty({count}, x.dtype()), empty({numbered ? n : 0}, Int64), empty({count}, Int64)};
      T* const values = out[0].data<T>();
      int64_t* const times = out[2].data<int64_t>();
      for (size_t i = 0; i < counts.size(); ++i) {
        if (counts[i] == 0) continue;
        values[rank[i]] = static_cast<T>(low + i);
        times[rank[i]] = counts[i];
      }
      int64_t* const inverse = out[1].data<int64_t>();
      if (numbered)
        each_part(n, 2, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) inverse[i] = rank[place(from[i])];
        });
    });
    return out;
  };
  const Tensors found = custom_function("unique", {x}, forward, {});
  if (!numbered) return {found[0], {}, {}};
  return {found[0], found[1], found[2]};
}

CardKernel count_kernel("count_values", R"(
extern "C" TESSERA_KERNEL(256) void count_values(const T* x, unsigned long long* counts, i64 total, i64 low, i64 values) {
  constexpr int most = 4096;  // values that a block counts by itself
  TESSERA_SHARED u32 own[most];
  const bool few = values <= most;
  for (i64 v = thread_in_block(); few && v < values; v += 256) own[v] = 0;
  sync_block();
  for (i64 i = block_in_grid() * 256 + thread_in_block(); i < total; i += i64{blocks_in_grid()} * 256) {
    const i64 v = static_cast<i64>(x[i]) - low;
    if (few) atomicAdd(&own[v], 1u);
    else atomicAdd(&counts[v], 1ull);
  }
  sync_block();
  for (i64 v = thread_in_block(); few && v < values; v += 256)
    if (own[v] != 0) atomicAdd(&counts[v], static_cast<unsigned long long>(own[v]));
}
)");

// The same on a card, where the range is smaller than the number of elements.
std::optional<Unique> card_counted(const Tensor& x, bool numbered) {
  const Tensor least = cast(amin(x, {}, true), Int64), ends = concat({least, cast(amax(x, {}, true), Int64)}, 0);
  const auto range_ends = ends.to_vector<int64_t>();
  const int64_t low = range_ends[0], n = x.numel();
  const uint64_t range = static_cast<uint64_t>(range_ends[1]) - static_cast<uint64_t>(low);
  if (range >= static_cast<uint64_t>(n)) return std::nullopt;
  const Tensor counts = zeros({static_cast<int64_t>(range) + 1}, Int64, x.device());
  const void* const from = x.data_ptr();
  const int64_t most_blocks = 8 * gpu::state(x.device()).properties.multiprocessors;
  count_kernel.launch(x, std::min((n + 1023) / 1024, most_blocks), from, counts.data_ptr(), n, low, counts.numel());
  const Tensor there = flatten(nonzero(counts));
  const Tensor values = cast(add(there, least), x.dtype());
  if (!numbered) return Unique{values, {}, {}};
  const Tensor rank = add(cumsum(cast(ne(counts, number_like(counts, 0)), Int64), 0), -1);
  return Unique{values, index_select(rank, 0, sub(cast(x, Int64), least)), index_select(counts, 0, there)};
}

CardKernel begins_kernel("find_begins", R"(
extern "C" TESSERA_KERNEL(256) void find_begins(const T* x, u8* begins, i64 total) {
  for (i64 i = block_in_grid() * 256 + thread_in_block(); i < total; i += i64{blocks_in_grid()} * 256)
    begins[i] = i == 0 || convert_element<compute_t<T>>(x[i]) != convert_element<compute_t<T>>(x[i - 1]);
}
)");

// Where runs of equal ones begin.
Tensor run_begins(const Tensor& sorted) {
  const int64_t n = sorted.numel();
  if (on_card(sorted)) {
    const Tensor begins = empty({n}, Bool, sorted.device());
    const int64_t most_blocks = 16 * gpu::state(sorted.device()).properties.multiprocessors;
    const void* const from = sorted.data_ptr();
    begins_kernel.launch(sorted, std::min((n + 255) / 256, most_blocks), from, begins.data_ptr(), n);
    return begins;
  }
  const Tensor first = ones({1}, Bool, sorted.device());
  return n == 1 ? first : concat({first, ne(slice(sorted, 0, 1, n), slice(sorted, 0, 0, n - 1))}, 0);
}

}  // namespace

Unique unique(const Tensor& x, bool numbered) {
  const Tensor flat = flatten(x);
  const Dim numel = flat.shape()[0];
  if (numel == Dim(0)) {
    const Tensor none = empty({0}, Int64, x.device());
    return {flat, none, none};
  }
  const int64_t n = numel.value();
  if (!is_floating(flat.dtype()) && flat.dtype() != Bool && (on_host(flat) || on_card(flat))) {
    const Tensor dense = contiguous(flat);
    if (on_card(flat)) {
      if (const auto counted = card_counted(dense, numbered)) return *counted;
    } else if (const auto [low, range] = range_of(dense); range < static_cast<uint64_t>(n)) {
      return host_counted(dense, low, range, numbered);
    }
  }
  if (!numbered) {
    const Tensor sorted = sort_values(flat, 0);
    return {masked_select(sorted, run_begins(sorted)), {}, {}};
  }
  const auto [sorted, order] = topk(flat, n, 0, false);
  const Tensor begins = run_begins(sorted), starts = flatten(nonzero(begins));
  const Tensor run = add(cumsum(cast(begins, Int64), 0), -1);
  const Dim count = starts.shape()[0];
  const Tensor ends = concat({slice(starts, 0, 1, count), full({1}, static_cast<double>(n), Int64, x.device())}, 0);
  return {index_select(sorted, 0, starts), scatter_add(zeros({n}, Int64, x.device()), 0, order, run),
          sub(ends, starts)};
}

// ---- slices

namespace {

// The order of rows, the first column first, stable: sorted by each column, from the last one.
Tensor order_of_rows(const Tensor& rows) {
  Tensor order = index_numbers(rows.size(0), rows.device());
  for (int64_t column = rows.size(1); column-- > 0;)
    order = index_select(order, 0, argsort(index_select(select(rows, 1, column), 0, order), 0));
  return order;
}

UniqueAlong in_order_of_appearance(const UniqueAlong& u, int64_t dim) {
  const Tensor order = argsort(u.first, 0);
  const Tensor rank =
      scatter_add(zeros(order.shape(), Int64, order.device()), 0, order, index_numbers(order.size(0), order.device()));
  return {index_select(u.values, dim, order), index_select(u.first, 0, order), index_select(rank, 0, u.inverse),
          index_select(u.counts, 0, order)};
}

}  // namespace

UniqueAlong unique_along(const Tensor& x, int64_t dim, bool sorted) {
  dim = normalize_dim("unique_along", dim, x.shape());
  const int64_t n = x.size(dim);
  const Tensor none = empty({0}, Int64, x.device());
  if (n == 0) return {x, none, none, none};
  const Tensor rows = reshape(movedim(x, dim, 0), {n, x.numel() / n});
  const Tensor order = order_of_rows(rows), in_order = index_select(rows, 0, order);
  const Tensor changes = any(ne(slice(in_order, 0, 1, n), slice(in_order, 0, 0, n - 1)), {1});
  const Tensor begins = concat({ones({1}, Bool, x.device()), changes}, 0), starts = flatten(nonzero(begins));
  const Tensor run = cumsum(cast(begins, Int64), 0) + -1.0;
  const Tensor end = full({1}, static_cast<double>(n), Int64, x.device());
  const Tensor ends = concat({slice(starts, 0, Dim(1), starts.shape()[0]), end}, 0);
  const Tensor first = index_select(order, 0, starts);
  const UniqueAlong u = {index_select(x, dim, first), first, scatter_add(zeros({n}, Int64, x.device()), 0, order, run),
                         ends - starts};
  return sorted ? u : in_order_of_appearance(u, dim);
}

}  // namespace tessera
