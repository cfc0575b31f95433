// Distributions as text, for tests and for the eyes of whoever writes a kernel.
#pragma once
#include "distribution.h"

TESSERA_TILE_BEGIN

/// Writes into a caller's buffer what fits, always ends it with a zero, and counts what would have been
/// written.
class TextBuffer {
 public:
  constexpr TextBuffer(char* data, int capacity) : data_(data), capacity_(capacity) {
    if (capacity_ > 0) data_[0] = 0;
  }
  constexpr void put(char c) {
    if (length_ + 1 < capacity_) {
      data_[length_] = c;
      data_[length_ + 1] = 0;
    }
    ++length_;
  }
  constexpr void put(const char* text) {
    while (*text) put(*text++);
  }
  /// A non-negative number, right-aligned.
  constexpr void put(int number, int columns = 1) {
    for (int digits = columns_of(number); digits < columns; ++digits) put(' ');
    int power = 1;
    while (number / power >= 10) power *= 10;
    for (; power > 0; power /= 10) put(static_cast<char>('0' + number / power % 10));
  }
  constexpr int length() const { return length_; }

  static constexpr int columns_of(int number) {
    int columns = 1;
    while (number >= 10) {
      number /= 10;
      ++columns;
    }
    return columns;
  }

 private:
  char* data_;
  int capacity_;
  int length_ = 0;
};

/// Writes the notation of a distribution, e.g. "mn: repeat(2, 1) * lanes(8, 4) * vec(1, 2)".
template <int Rank>
constexpr void put_notation(TextBuffer& out, const Distribution<Rank>& d) {
  for (int i = 0; i < Rank; ++i) out.put(d.names[i]);
  out.put(": ");
  for (int f = 0; f < d.factor_count; ++f) {
    const Factor& factor = d.factors[f];
    if (f > 0) out.put(" * ");
    out.put(factor.holder == Holder::lanes   ? "lanes"
            : factor.holder == Holder::warps ? "warps"
            : factor.vector                  ? "vec"
                                             : "repeat");
    for (int i = 0; i < Rank; ++i) {
      out.put(i == 0 ? "(" : ", ");
      out.put(factor.extent[i]);
    }
    out.put(')');
  }
}

/// Draws a distribution over two dimensions: "thread:register" for every element, under the notation and the
/// counts. Returns the length of the whole text without the closing zero, like snprintf: with a capacity of 0
/// nothing is written.
constexpr int print(const Distribution<2>& d, char* buffer, int capacity) {
  TextBuffer out(buffer, capacity);
  put_notation(out, d);
  out.put('\n');
  out.put(d.length(0));
  out.put(" x ");
  out.put(d.length(1));
  out.put(", threads ");
  out.put(d.threads());
  out.put(", registers ");
  out.put(d.registers());
  out.put(" (thread:register)\n");

  const int thread_columns = TextBuffer::columns_of(d.threads() - 1),
            reg_columns = TextBuffer::columns_of(d.registers() - 1);
  const int row_columns = TextBuffer::columns_of(d.length(0) - 1), cell = thread_columns + 1 + reg_columns;
  for (int row = -1; row < d.length(0); ++row) {
    if (row < 0) {
      for (int i = 0; i < row_columns + 1; ++i) out.put(' ');
    } else {
      out.put(d.names[0]);
      out.put(row, row_columns);
    }
    for (int column = 0; column < d.length(1); ++column) {
      out.put(' ');
      if (row < 0) {
        for (int i = 1 + TextBuffer::columns_of(column); i < cell; ++i) out.put(' ');
        out.put(d.names[1]);
        out.put(column);
      } else {
        const Owner owner = d.owner({row, column});
        out.put(owner.thread, thread_columns);
        out.put(':');
        out.put(owner.reg);
        for (int i = TextBuffer::columns_of(owner.reg); i < reg_columns; ++i) out.put(' ');
      }
    }
    out.put('\n');
  }
  return out.length();
}

TESSERA_TILE_END
