#include "kernels/args/fourier.h"

#include "internal.h"
#include "tile/kernels/fourier.h"
#include "tile/kernels/transpose.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

namespace fourier = tile::fourier;

/// Some rows of a call, as many as there are lanes, or twice as many: two rows of reals are the parts of one of complex
/// numbers, from whose transform both of theirs come.
template <class T>
class RowsOfTransform {
 public:
  using V = tile::NativeVec<T>;
  using Complex = fourier::Complex<V>;
  static constexpr i64 lanes = V::lanes;

  static bool takes_pairs(const FourierArgs& a) { return a.parts == 1 || a.out_parts == 1; }
  static i64 rows_of(const FourierArgs& a) { return takes_pairs(a) ? 2 * lanes : lanes; }
  static i64 bytes_of(const FourierArgs& a) { return (4 * size_of(a) + longer_of(a)) * i64(sizeof(T)); }

  RowsOfTransform(const FourierArgs& a, i64 first, void* room)
      : a_(a),
        first_(first),
        data_(static_cast<T*>(room)),
        even_(data_ + size_of(a)),
        odd_(even_ + size_of(a)),
        room_(odd_ + size_of(a)) {}

  void run() {
    if (a_.out_parts == 1) read_symmetric();
    else if (a_.parts == 1) read_pairs();
    else read_rows(data_, 0, 1);
    if (a_.inverse) exchange(data_);
    T* const found = fourier::transform<V>(*a_.plan, data_, room_);
    if (a_.inverse) exchange(found);
    if (a_.out_parts == 1) write_parts(found);
    else if (a_.parts == 1) write_pairs(found);
    else {
      for (i64 k = 0; k < a_.out; ++k) fourier::write(found, k, fourier::read<V>(found, k) * factor_of(k));
      write_rows(found, 0, 1);
    }
  }

 private:
  static i64 size_of(const FourierArgs& a) { return 2 * lanes * a.plan->length; }
  static i64 longer_of(const FourierArgs& a) { return a.plan->longer ? 4 * lanes * a.plan->longer->length : 0; }
  i64 length() const { return a_.plan->length; }
  bool doubles(i64 n) const { return n > 0 && 2 * n < length(); }
  V factor_of(i64 k) const { return V(static_cast<T>(a_.scale * (a_.doubles_out && doubles(k) ? 2 : 1))); }
  /// Of rows `first`, first + step, ... those that exist.
  i64 count_of(i64 first, i64 step) const {
    return tile::max(i64(0), tile::min(lanes, (a_.rows - first_ - first + step - 1) / step));
  }
  void zero(T* to, i64 begin, i64 end) {
    __builtin_memset(to + 2 * lanes * begin, 0, (end - begin) * 2 * lanes * sizeof(T));
  }

  /// Lane l is row first + l * step: from memory that holds `parts` numbers for each element, to every `gap`-th vector.
  void turn_in(T* to, i64 gap, i64 first, i64 step) {
    const i64 width = a_.in * a_.parts, count = count_of(first, step), size = sizeof(T);
    if (count < lanes)
      for (i64 i = 0; i < width; ++i) store(to + i * gap * lanes, V(T(0)));
    tile::detail::transpose_plane<T>(reinterpret_cast<char*>(to), gap * lanes * size,
                                     static_cast<const char*>(a_.x) + (first_ + first) * width * size,
                                     step * width * size, width, count);
  }
  void turn_out(const T* from, i64 gap, i64 first, i64 step) {
    const i64 width = a_.out * a_.out_parts, size = sizeof(T);
    tile::detail::transpose_plane<T>(static_cast<char*>(a_.y) + (first_ + first) * width * size, step * width * size,
                                     reinterpret_cast<const char*>(from), gap * lanes * size, count_of(first, step),
                                     width);
  }

  void double_some(T* data) {
    for (i64 n = 1; a_.doubles_in && n < a_.in && doubles(n); ++n)
      fourier::write(data, n, fourier::read<V>(data, n) * V(T(2)));
  }
  /// As complex numbers.
  void read_rows(T* to, i64 first, i64 step) {
    if (a_.parts == 1)
      for (i64 n = 0; n < a_.in; ++n) store(to + (2 * n + 1) * lanes, V(T(0)));
    turn_in(to, 3 - a_.parts, first, step);
    zero(to, a_.in, length());
    double_some(to);
  }
  void read_pairs() {
    turn_in(data_, 2, 0, 2);
    turn_in(data_ + lanes, 2, 1, 2);
    zero(data_, a_.in, length());
    double_some(data_);
  }
  /// What of two rows makes real transforms, the second row times i.
  void read_symmetric() {
    read_rows(even_, 0, 2);
    read_rows(odd_, 1, 2);
    const V half(T(0.5));
    for (i64 n = 0; n < length(); ++n) {
      const i64 other = n == 0 ? 0 : length() - n;
      const Complex a = fourier::read<V>(even_, n), b = fourier::read<V>(even_, other);
      const Complex c = fourier::read<V>(odd_, n), d = fourier::read<V>(odd_, other);
      fourier::write(data_, n, Complex{(a.re + b.re) - (c.im - d.im), (a.im - b.im) + (c.re + d.re)} * half);
    }
  }

  void exchange(T* data) {
    for (i64 n = 0; n < length(); ++n) {
      const Complex v = fourier::read<V>(data, n);
      fourier::write(data, n, Complex{v.im, v.re});
    }
  }
  void write_rows(const T* from, i64 first, i64 step) { turn_out(from, 1, first, step); }
  void write_pairs(const T* found) {
    for (i64 k = 0; k < a_.out; ++k) {
      const Complex z = fourier::read<V>(found, k), w = fourier::read<V>(found, k == 0 ? 0 : length() - k);
      const V factor = factor_of(k) * V(T(0.5));
      fourier::write(even_, k, Complex{z.re + w.re, z.im - w.im} * factor);
      fourier::write(odd_, k, Complex{z.im + w.im, w.re - z.re} * factor);
    }
    write_rows(even_, 0, 2);
    write_rows(odd_, 1, 2);
  }
  void write_parts(T* found) {
    for (i64 k = 0; k < a_.out; ++k) fourier::write(found, k, fourier::read<V>(found, k) * factor_of(k));
    turn_out(found, 2, 0, 2);
    turn_out(found + lanes, 2, 1, 2);
  }

  const FourierArgs& a_;
  i64 first_;
  T *data_, *even_, *odd_, *room_;
};

template <class T>
void transform_in(const FourierArgs& a, Executor& e) {
  using Rows = RowsOfTransform<T>;
  const tile::ExecutorRef executor(e);
  const i64 together = Rows::rows_of(a);
  executor.parallel((a.rows + together - 1) / together, [&](i64 part, int thread) {
    Rows(a, part * together, executor.scratch(thread, Rows::bytes_of(a))).run();
  });
}

void transform(const FourierArgs& a, Executor& e) {
  if (a.type == Scalar::f64) transform_in<double>(a, e);
  else transform_in<float>(a, e);
}

}  // namespace

extern const FourierTable fourier_table;
const FourierTable fourier_table{transform};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
