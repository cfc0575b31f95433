// Rows held by warps or blocks. A row is packs of 16 bytes at multiples of 16 bytes and, one to a thread, the few
// elements before and behind them; where rows take turns, all are whole packs.
#pragma once
#include "row_tile.h"
#include "shared_line.h"

TESSERA_TILE_BEGIN

/// How many rows a group takes: one, which lies anywhere, or is whole packs; or several of these, after each other, for
/// which columns' values and sums stay in registers; the same, of which it fetches the next ahead.
enum class Turns { one, one_whole, several, ahead };

/// How many packs of rows that do not lie alike threads have in registers: none, and they shift them.
inline constexpr int apart = -1;

/// How registers hold a row of n elements.
template <int threads, int held, int width>
struct HeldLayout {
  static constexpr TESSERA_HD auto layout() {
    return named("n", repeat(held) * warps(threads / team_lanes) * lanes(team_lanes) * vec(width));
  }
};

/// Rows of a group, of which each of its threads has up to `held` packs in registers; or, where that is 0, any number,
/// the first `kept` in shared memory; or `apart`: the same of rows that lie anyhow.
template <class Team, int width_, int held, Turns turns = Turns::one>
class BlockRows {
 public:
  static constexpr int height = 1, width = width_;
  static constexpr bool in_registers = held > 0, has_edges = width > 1 && turns == Turns::one;
  static constexpr bool fetches_ahead = turns == Turns::ahead;
  static constexpr bool takes_turns = turns == Turns::several || fetches_ahead;
  using Index = conditional_t<width == 1 || held == apart, i64, int>;
  template <class E>
  class Held;
  template <class C>
  class Worked;
  template <class E>
  struct Late;
  template <class C>
  class ColumnSums;

  /// `count` rows of n elements, of which results lie at `result`; room for what threads keep of every tile.
  TESSERA_DEVICE BlockRows(i64 count, i64 n, const void* result, int kept = 0, void* room = nullptr,
                           i64 row = Team::row())
      : count_(count), n_(n), row_(row), result_(result), room_(static_cast<char*>(room)), kept_(kept) {
    packs_ = static_cast<Index>(n / width);
    if constexpr (has_edges) {
      const size_t begin = reinterpret_cast<size_t>(result);
      constexpr int bytes = 16 / width;
      const Index length = static_cast<Index>(n);
      const int rank = Team::rank();
      head_ = min(length, static_cast<Index>(-static_cast<int>(begin / bytes) & (width - 1)));
      // Whole packs of what lies beside, see Beside, end within their rows, too.
      packs_ = (length - (head_ > 0 ? width : 0)) / width;
      const int tail = static_cast<int>(length - head_ - packs_ * width);
      if (rank < head_) edge_ = rank;
      else if (rank >= width && rank - width < tail) edge_ = length - tail + rank - width;
      if constexpr (!in_registers) lead_ = static_cast<int>((begin + head_ * bytes) / 16 % 8);  // to lines of memory
    }
  }

  /// What a thread has of a row of `from`, once load(tile) says that there is one.
  template <class E>
  TESSERA_DEVICE auto tile(const Rows<E>& from) {
    return Held<remove_cvref_t<E>>(*this, from.data, from.pitch, tiles_++);
  }
  /// The same of rows that are needed late: registers hold none, unless they are fetched ahead.
  template <class E>
  TESSERA_DEVICE auto late_tile(const Rows<E>& from) {
    if constexpr (fetches_ahead) return tile(from);
    else return Late<remove_cvref_t<E>>{{nullptr, nullptr}, from};
  }
  /// What a map gives, in registers where they hold rows.
  template <class X>
  TESSERA_DEVICE auto hold(const X& x) {
    if constexpr (in_registers) return Worked<typename X::Element>(*this, x);
    else return x;
  }
  /// Elements of an array over the columns; registers hold those of whole packs. An array is a pointer, or a
  /// tile that is told what to have where it is missing.
  template <class E>
  TESSERA_DEVICE auto columns(const E* data, compute_t<E> otherwise) {
    return kept_columns(Beside<E>(data, result_, otherwise));
  }
  template <class Array>
  requires requires { Array::otherwise; }
  TESSERA_DEVICE auto columns(Array array, float otherwise) {
    array.otherwise = otherwise;
    return kept_columns(array);
  }
  template <class C>
  TESSERA_DEVICE auto column_sums() const {
    return ColumnSums<C>{};
  }
  template <class C>
  TESSERA_DEVICE auto values(const C* from, C otherwise) const {
    LoadedValues<C, 1> values{{}, from, otherwise, {}};
    if (fetches_ahead && row_ < count_) values.fetch_rows(*this, 0);
    return values;
  }

  /// The next row of all these; false: there is none.
  template <class... Tiles>
  TESSERA_DEVICE bool load(Tiles&... tiles) {
    if (takes_turns && begun_) row_ += step();
    if ((!takes_turns && begun_) || row_ >= count_) return false;
    begun_ = true;
    (tiles.load(*this), ...);
    return true;
  }
  /// visit(Int<0>, place, elements of tiles...) for the places of this thread. The first pass over rows that registers
  /// do not hold reads all of their tiles, since it is then that these are kept.
  template <class Visit, class... Tiles>
  TESSERA_DEVICE void each(const Visit& visit, Tiles&... tiles) {
    constexpr Int<0> h;
    const auto go = [&](const auto& at) { visit(h, at, tiles.value(h, at, tiles.fetch(h, at))...); };
    if constexpr (in_registers) {
      unroll<held>([&](auto k) {
        if (pack(k) < packs_) go(place(k));
      });
    } else {
      stream(visit, tiles...);
    }
    if constexpr (has_edges)
      if (edge_ >= 0) go(Place<1, Edge, Index>{{}, edge_});
    again_ = true;
  }
  /// What the threads of the group have, joined.
  template <class S, class Op>
  TESSERA_DEVICE RowValues<S, 1> join(const RowValues<S, 1>& own, const Op& op) {
    return {{Team::join(own[0], op, joins_++)}};
  }
  template <class T, class X>
  TESSERA_DEVICE void store(const Rows<T>& to, const X& x) {
    if (!to.data) return;
    T* const row = to[row_];
    each([&](auto, auto at, const auto& v) { store_place(row, at, v); }, x);
  }
  /// What rows have added to columns, as [blocks][sums][n].
  template <class C, class... Columns>
  TESSERA_DEVICE void store_sums([[maybe_unused]] C* partial, [[maybe_unused]] int sums,
                                 const Columns&... columns) const {
    if constexpr (takes_turns) {
      int s = 0;
      const auto store = [&](const auto& column) {
        if (s < sums) column.store(*this, partial + (block_in_grid() * sums + s) * n_);
        ++s;
      };
      (store(columns), ...);
    }
  }

  TESSERA_DEVICE i64 row(int) const { return row_; }
  TESSERA_DEVICE i64 count() const { return count_; }
  TESSERA_DEVICE i64 length() const { return n_; }
  TESSERA_DEVICE bool is_first_thread() const { return Team::rank() == 0; }
  TESSERA_DEVICE i64 existing_row(int, int turns_ahead) const {
    return turns_ahead == 0 ? row_ : min(row_ + step(), count_ - 1);
  }

 private:
  template <class Array>
  TESSERA_DEVICE auto kept_columns(const Array& array) {
    if constexpr (!has_edges && in_registers) return hold(array);
    else return array;
  }
  static TESSERA_DEVICE i64 step() { return static_cast<i64>(blocks_in_grid()) * Team::rows; }
  TESSERA_DEVICE Index pack(Index k) const { return Team::rank() + k * Team::size() - lead_; }
  template <class K>
  TESSERA_DEVICE auto place(K k) const {
    return Place<width, K, Index>{k, head_ + pack(k) * width};
  }

  /// The places of rows that nobody holds, several under way at once.
  template <class Visit, class... Tiles>
  TESSERA_DEVICE void stream(const Visit& visit, Tiles&... tiles) {
    constexpr Int<0> h;
    const SideBySide<Tiles&...> all{{{{tiles}...}}};
    using Fetched = decltype(all.fetch(h, place(Index(0))));
    constexpr int ahead = (sizeof(Fetched) <= 32 ? 4 : 2) / (held == apart ? 2 : 1);
    const Index end = (packs_ + lead_ + Team::size() - 1) / Team::size();
    for (Index k = 0; k < end; k += ahead) {
      Fetched fetched[ahead];
      const auto for_each = [&](const auto& fn) {
        unroll<ahead>([&](auto u) {
          const Index p = pack(k + u);
          if (p >= 0 && p < packs_) fn(u, place(Index(k + u)));
        });
      };
      for_each([&](auto u, const auto& at) { fetched[u] = all.fetch(h, at); });
      for_each(
          [&](auto u, const auto& at) { all.visit(h, at, fetched[u], [&](const auto&... v) { visit(h, at, v...); }); });
    }
  }

  i64 count_, n_, row_;
  const void* result_;
  char* room_;
  int kept_, tiles_ = 0, joins_ = 0;
  Index head_ = 0, packs_, edge_ = -1;
  int lead_ = 0;  // packs that the first thread leaves out, so that each warp reads whole lines of memory
  bool begun_ = false, again_ = false;  // again: packs have been read, and some are in shared memory
};

/// A thread's part of rows of type E.
template <class Team, int width, int held, Turns turns>
template <class E>
class BlockRows<Team, width, held, turns>::Held {
 public:
  static constexpr bool holds = true;
  using Element = compute_t<E>;
  using Packed = Pack<E, width>;

  TESSERA_DEVICE Held(const BlockRows& rows, const E* data, i64 pitch, int number)
      : rows_(rows), from_(data), pitch_(pitch), number_(number) {
    if constexpr (fetches_ahead)
      if (data && rows.row_ < rows.count_) fetch_row(next_, rows.row_);
  }
  TESSERA_DEVICE explicit operator bool() const { return from_ != nullptr; }

  TESSERA_DEVICE void load(const BlockRows&) {
    if constexpr (fetches_ahead) {
      part_ = next_;
      if (from_ && rows_.row_ + step() < rows_.count_) fetch_row(next_, rows_.row_ + step());
    } else {
      data_ = from_ + rows_.row_ * pitch_;
      if (has_edges && rows_.edge_ >= 0) edge_.lane[0] = data_[rows_.edge_];
      if constexpr (in_registers) fetch_row(part_, rows_.row_);
    }
  }
  template <class H, class At>
  TESSERA_DEVICE auto fetch(H, const At& at) const {
    using K = decltype(at.k);
    if constexpr (in_registers || is_same_v<K, Edge>) {
      return None{};
    } else {
      Raw raw;
      if (is_kept(at.k)) {
        raw.pack[0] = bit_cast<Words>(room(at.k));
      } else if constexpr (held == apart) {
        raw = beside().fetch(Int<0>{}, at);
      } else {
        raw.pack[0] = bit_cast<Words>(*reinterpret_cast<const Packed*>(data_ + at.column));
      }
      return raw;
    }
  }
  template <class H, class At, class Fetched>
  TESSERA_DEVICE auto pack(H, const At& at, [[maybe_unused]] const Fetched& raw) const {
    if constexpr (is_same_v<decltype(at.k), Edge>) {
      return edge_;
    } else if constexpr (in_registers) {
      return bit_cast<Packed>(part_.part[at.k]);
    } else {
      Packed packed = bit_cast<Packed>(raw.pack[0]);
      if constexpr (held == apart)
        if (!is_kept(at.k)) packed = beside().pack(Int<0>{}, at, raw);
      if (!rows_.again_ && at.k < rows_.kept_) room(at.k) = packed;
      return packed;
    }
  }
  template <class H, class At, class Fetched>
  TESSERA_DEVICE auto value(H h, const At& at, const Fetched& raw) const {
    return Lanes<E, At::width>(pack(h, at, raw));
  }

 private:
  using Part = Tile<conditional_t<sizeof(E) == 2, u16, E>, HeldLayout<Team::most, in_registers ? held : 1, width>>;
  using Raw = typename Beside<E, held != apart>::template Raw<width>;
  using Words = typename Raw::Words;

  TESSERA_DEVICE Beside<E> beside() const { return {data_, rows_.result_}; }
  TESSERA_DEVICE bool is_kept(Index k) const { return rows_.again_ && k < rows_.kept_; }
  TESSERA_DEVICE Packed& room(Index k) const {
    return reinterpret_cast<Packed*>(rows_.room_)[(number_ * rows_.kept_ + k) * Team::size() + Team::rank()];
  }
  /// Of whole packs those past the end are others once more, which nobody visits.
  TESSERA_DEVICE void fetch_row(Part& to, i64 row) const {
    const E* const data = from_ + row * pitch_;
    unroll<held>([&](auto k) {
      const Index p = has_edges ? rows_.pack(k) : min(rows_.pack(k), rows_.packs_ - 1);
      if (!has_edges || p < rows_.packs_)
        to.part[k] = bit_cast<typename Part::V>(*reinterpret_cast<const Packed*>(data + (rows_.head_ + p * width)));
    });
  }

  const BlockRows& rows_;
  const E *from_, *data_ = nullptr;
  i64 pitch_;
  int number_;
  Part part_, next_;
  Pack<E, 1> edge_;
};

/// Rows that a map reads from memory.
template <class Team, int width, int held, Turns turns>
template <class E>
struct BlockRows<Team, width, held, turns>::Late : Beside<E, !has_edges> {
  Rows<const E> from;
  TESSERA_DEVICE void load(const BlockRows& rows) {
    if (from.data) static_cast<Beside<E, !has_edges>&>(*this) = {from[rows.row_], rows.result_};
  }
};

/// Elements that have been worked out.
template <class Team, int width, int held, Turns turns>
template <class C>
class BlockRows<Team, width, held, turns>::Worked : public InHand {
 public:
  static constexpr bool holds = true;
  using Element = C;
  template <class X>
  TESSERA_DEVICE Worked(BlockRows& rows, const X& x) {
    rows.each([&](auto, auto at, const auto& v) { unroll<at.width>([&](auto j) { lanes(at.k).x[j] = v[j]; }); }, x);
  }
  template <class H, class At>
  TESSERA_DEVICE const auto& value(H, const At& at, None) const {
    return const_cast<Worked*>(this)->lanes(at.k);
  }

 private:
  TESSERA_DEVICE Lanes<C, width>& lanes(int k) { return part_[k]; }
  TESSERA_DEVICE Lanes<C, 1>& lanes(Edge) { return edge_; }

  Lanes<C, width> part_[held];
  Lanes<C, 1> edge_;
};

/// Sums of a thread's columns, to which a fold adds; dropped where rows do not take turns.
template <class Team, int width, int held, Turns turns>
template <class C>
class BlockRows<Team, width, held, turns>::ColumnSums : public InHand {
 public:
  template <class H, class At>
  TESSERA_DEVICE C* value(H, const At& at, None) {
    if constexpr (takes_turns) return part_[at.k];
    else return part_[0];
  }
  TESSERA_DEVICE void store(const BlockRows& rows, C* to) const {
    if constexpr (Team::rows == 1) {
      unroll<held>([&](auto k) {
        const auto at = rows.place(k);
        if (rows.pack(k) < rows.packs_) store_place(to, at, part_[k]);
      });
    } else {  // one warp after the other adds its own
      using Line = SharedLine<C, width>;
      TESSERA_SHARED C room[held * team_lanes * width];
      const int warp = thread_in_block() / team_lanes;
      for (int w = 0; w < Team::rows; ++w) {
        if (w == warp)
          unroll<held>([&](auto k) {
            const int column = (k * team_lanes + Team::rank()) * width;
            C sum[width] = {};
            if (w > 0) Line::load(room, column, sum);
            unroll<width>([&](auto j) { sum[j] += part_[k][j]; });
            Line::store(room, column, sum);
          });
        sync_block();
      }
      for (int c = thread_in_block(); c < rows.n_; c += Team::threads) to[c] = room[Line::place(c)];
      sync_block();
    }
  }

 private:
  C part_[takes_turns ? held : 1][width] = {};
};

TESSERA_TILE_END
