#include "kernels/cpu/conv_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/isa_select.h"

namespace tessera::cpu_kernels {
namespace {

double parts(double length, double most) { return std::ceil(length / most); }
double vectors(double length) { return parts(length, 16); }

/// Pairs of an output's row and a tap's that lies inside.
double rows_inside(const ConvAttrs& a, int64_t size, int64_t places, int64_t taps) {
  int64_t pairs = 0;
  for (int64_t t = 0; t < taps; ++t) {
    const int64_t before = a.padding[0] - t * a.dilation[0], stride = a.stride[0], last = size - 1 + before;
    const int64_t begin = before > 0 ? (before + stride - 1) / stride : 0;
    const int64_t end = last < 0 ? 0 : std::min(places, last / stride + 1);
    pairs += std::max<int64_t>(0, end - begin);
  }
  return static_cast<double>(pairs);
}

/// What exceeds the caches: reading or writing across planes misses them.
double beyond_caches(double elements) { return elements > 1 << 20 ? elements : 0; }

/// How often groups of so many channels meet a line of memory: each that has elements of it does.
double lines_met(double channels, double groups) { return std::clamp(16 / channels, 1.0, groups); }

/// What kernels of the instruction set in use hold in registers, and how much longer they take than with AVX-512
/// beside the others.
struct Registers {
  double lanes, filters, pixels;  // of a vector; of a kernel along rows; of a block of the others
  double planes, copies, gemm;
  double spread, filters_gemm;  // cycles of a product; the gradient of filters
};
const Registers& registers() {
  static constexpr Registers avx512{16, 8, 14, 1, 1, 1.1, 1.2, 1.3}, others{8, 6, 6, 1.1, 0.9, 1, 1, 1};
  return isa() == Isa::Avx512 ? avx512 : others;
}
double vectors_of(double length) { return parts(length, registers().lanes); }
/// A copy of what the lanes of a vector see: at most two vectors are permuted, elements of more are gathered.
double spread_copy(double summed, double each) {
  const double groups_met = std::floor((each + 14) / each) + 1;
  return (groups_met - 1) * summed + 1 <= 32 ? 4.2 : 11;
}
/// As in tile/kernels/conv_direct.h: results whose lanes are what they sum.
bool by_dots(double each, double summed) { return each <= (isa() == Isa::Avx512 ? 8 : 6) && summed >= 24; }

}  // namespace

ConvCost::ConvCost(const ConvAttrs& a, const Operand& x, const Operand& weight, const Operand& y)
    : images(static_cast<double>(x.size(0))),
      groups(static_cast<double>(a.groups)),
      channels(static_cast<double>(weight.size(1))),
      filters(static_cast<double>(weight.size(0)) / groups),
      tap_rows_inside(rows_inside(a, x.size(2), y.size(2), weight.size(2))),
      padded(a.padding[0] + a.padding[1] > 0),
      rows_lie(x.strides()[3] == 1 && y.strides()[3] == 1) {
  for (int d = 0; d < 2; ++d) {
    taps[d] = static_cast<double>(weight.size(2 + d));
    size[d] = static_cast<double>(x.size(2 + d)), places[d] = static_cast<double>(y.size(2 + d));
    stride[d] = static_cast<double>(a.stride[d]), dilation[d] = static_cast<double>(a.dilation[d]);
  }
}

double ConvCost::met() const { return std::min(taps[0], stride[0]) * std::min(taps[1], stride[1]); }

double ConvCost::scatter(bool gradient) const {
  const double from = images * (gradient ? places[0] * places[1] : size[0] * size[1]);
  const double to = images * (gradient ? size[0] * size[1] : places[0] * places[1]);
  const double summed = gradient ? filters : channels, each = gradient ? channels : filters;
  const double window = taps[0] * taps[1];
  const double read = groups * from * summed, written = groups * to * each;
  const double all = 1.07 * read * vectors(window * each) +
                     groups * (11 * from * window * vectors(each) + 23 * to * vectors(each)) + 1.5 * elements_w() +
                     0.55 * beyond_caches(read) + 1.5 * beyond_caches(written) +
                     (groups > 1 ? beyond_caches(elements_x() + elements_y()) + 0.8 * again(gradient) : 0);
  return groups > 1 && gradient ? 0.85 * all : all;
}

double ConvCost::direct(bool gradient) const {
  const double summed = gradient ? filters : channels, each = gradient ? channels : filters;
  const double columns = gradient ? size[1] / stride[1] : places[1], written = gradient ? elements_x() : elements_y();
  // Panels of filters come back to results one after the other, a cost that few channels do not hide.
  return 1.2 * images * groups * tap_rows_inside * columns * taps[1] * summed * vectors(each) +
         6 * written / each * vectors(each) + 1.5 * beyond_caches(written) + written_apart(gradient);
}

double ConvCost::written_apart(bool gradient) const {
  return gradient ? 1.5 * (stride[0] * stride[1] - 1) * beyond_caches(elements_x()) : 0;
}

double ConvCost::full_vectors() const { return elements_y() * channels * taps[0] * taps[1] / 16; }

double ConvCost::turned_planes(bool gradient) const {
  const double summed = gradient ? filters : channels, each = gradient ? channels : filters, panels = parts(each, 8);
  const double strides = stride[0] * stride[1];
  const double columns = is_point() ? size[0] * size[1] : gradient ? size[1] / stride[1] : places[1];
  const double pitch = columns + (taps[1] - 1) * dilation[1] / (gradient ? 1 : stride[1]);
  const double lines = images * groups * (is_point() ? 1 : gradient ? size[0] * stride[1] : places[0]);
  const double window = taps[0] * taps[1] / (gradient ? strides : 1);
  const double copied = gradient ? elements_y() * strides : elements_x() * met() / strides;
  const double copied_rows = gradient ? places[0] * met() : size[0] * std::min(taps[1], stride[1]);
  const double written = gradient ? elements_x() : elements_y();
  // Lines of many channels leave the first-level cache before the next channel is read.
  const double lost = groups == 1 && summed * (gradient ? places[1] : size[1]) > 16384 ? 6 * copied : 0;
  return lines * std::min(vectors(columns), pitch / 16) * summed * window * (1.3 * each + panels) + 1.2 * copied +
         lost + 8 * elements_w() + (is_point() ? 0 : 25 * images * groups * summed * copied_rows) + 1.2 * written +
         80 * lines * panels + 1.8 * beyond_caches(elements_x() + elements_y()) + 0.1 * again(gradient);
}

double ConvCost::direct_of_few(bool gradient) const {
  const double summed = gradient ? filters : channels, each = gradient ? channels : filters;
  const double read = gradient ? elements_y() : elements_x(), pixels = (gradient ? elements_x() : elements_y()) / each;
  const double lines = images * groups * (gradient ? size[0] * stride[1] : places[0]),
               rows_met = std::min(taps[1], stride[1]);
  const bool dots = by_dots(each, summed);
  const double products = dots ? (1.1 * each + 2) * parts(summed, registers().lanes) : 1.3 * summed * vectors(each);
  const double all = images * groups * tap_rows_inside * places[1] * taps[1] * products +
                     (dots ? 10 * each : 2.6) * pixels + (is_point() ? 0 : 63 * lines);
  if (groups == 1) return all + elements_w() + written_apart(gradient);
  const bool copied = padded || (gradient && taps[0] * taps[1] > 1);
  const double copies =
      copied ? read / summed * vectors(summed) * (gradient ? std::min(taps[0], stride[0]) * rows_met : 1) : 0;
  // A row of taps is one stretch where a copy has a group's channels one after the other.
  const bool whole = dilation[1] == 1 && copied;
  const double stretches = images * groups * tap_rows_inside * (whole ? (gradient ? rows_met : 1) : taps[1]) *
                           parts(gradient ? size[1] / stride[1] : places[1], 14) * parts(each, 32);
  return all + 11 * stretches + 6.5 * copies + beyond_caches(elements_x() + elements_y()) + 0.3 * again(gradient) +
         written_apart(gradient);
}

bool ConvCost::point_by_planes(bool gradient) const {
  const double summed = gradient ? filters : channels;
  const bool held = isa() == Isa::Avx512 && channels * filters <= 8192;  // filters, by the first-level cache
  return is_point() && rows_lie && (summed <= 16 || held);
}

double ConvCost::again(bool gradient) const {
  if (groups == 1 || beyond_caches(elements_x() + elements_y()) == 0) return 0;
  const double summed = gradient ? filters : channels, each = gradient ? channels : filters;
  const double read = gradient ? elements_y() : elements_x(), written = gradient ? elements_x() : elements_y();
  return read * (lines_met(summed, groups) - 1) + written * (lines_met(each, groups) - 1);
}

double ConvCost::filters_again() const {
  if (groups == 1) return 0;
  return beyond_caches(elements_x()) * (lines_met(channels, groups) - 1) +
         beyond_caches(elements_y()) * (lines_met(filters, groups) - 1);
}

double ConvCost::spread(bool gradient) const {
  const double summed = gradient ? filters : channels, blocks = vectors(groups * (gradient ? channels : filters));
  const double copied = gradient ? images * places[0] * places[1] * met() : spread_pixels();
  const double products = images * tap_rows_inside * places[1] * taps[1];
  const double pixels = images * (gradient ? size[0] * size[1] : places[0] * places[1]);
  const double rows = gradient ? size[0] * std::min(taps[1], stride[1]) : places[0];
  const double each_product = gradient || slides() ? registers().spread : 2;
  const double all = blocks * (spread_copy(summed, gradient ? channels : filters) * summed * copied +
                               each_product * summed * products + 2.1 * pixels + 150 * images * rows) +
                     1.5 * elements_w() + 1.2 * beyond_caches(elements_x() + elements_y());
  return gradient ? 1.4 * all : all;
}

double ConvCost::filters_by_spread() const {
  constexpr double sums = 26;  // that stay in registers along a row
  const double blocks = vectors(groups * filters), taps_of_row = tap_rows_inside / places[0] * channels * taps[1];
  const double products = images * tap_rows_inside * places[1] * taps[1];
  return blocks * (spread_copy(channels, filters) * channels * spread_pixels() +
                   (slides() ? 1.1 : 3.5) * channels * products + 16 * images * tap_rows_inside * channels +
                   140 * images * places[0] * parts(taps_of_row, sums)) +
         8 * elements_w() + beyond_caches(elements_x() + elements_y());
}

bool ConvCost::slides() const { return taps[1] == 1 || std::fmod(dilation[1], stride[1]) == 0; }

double ConvCost::spread_pixels() const {
  double pixels = images;
  for (int d = 0; d < 2; ++d) pixels *= taps[d] == 1 && !padded ? parts(size[d], stride[d]) : size[d];
  return pixels;
}

double ConvCost::filters_by_planes() const {
  const double pitch = places[1] + (taps[1] - 1) * dilation[1] / stride[1], whole = vectors(places[1]);
  const double steps = channels * taps[0] * taps[1];
  const double work = images * groups * places[0] * std::min(whole, pitch / 16) * steps;
  const double copied = elements_x() * met() / (stride[0] * stride[1]);
  // A product of planes that are read where they lie.
  if (is_point() && rows_lie) return 2.2 * work * filters + 1.2 * work * parts(filters, 4) + 20 * elements_w();
  const double sums = rows_lie && groups > 1 && filters <= 2 ? 0.65 : 1, grouped = !rows_lie && groups > 1 ? 0.8 : 1;
  return grouped * (sums * (2.7 * work * filters + 1.2 * work * parts(filters, 4)) +
                    2.1 * copied / (rows_lie && stride[1] == 1 ? 16 : 1) + 2.2 * elements_y() / (rows_lie ? 16 : 1) +
                    20 * elements_w() + 8.6 * images * groups * places[0] * parts(filters, 4) * parts(steps, 6) +
                    (rows_lie ? 0 : 2.2 * beyond_caches(elements_x() + elements_y()) + 2 * filters_again()));
}

double ConvCost::filters_by_direct() const {
  // A row of taps is one stretch of memory, or, dilated, of copies where these pay.
  const double row = taps[1] * vectors(channels), unfolding = 8 * row * std::min(stride[0], taps[0]);
  const bool follow = dilation[1] == 1;
  const bool unfolds = !follow && filters * taps[0] * (row - vectors(taps[1] * channels)) > unfolding && taps[1] > 1;
  const bool whole = follow || unfolds;
  const double length = whole ? taps[1] * channels : channels, stretches = whole ? 1 : taps[1];
  const double window = taps[0] * taps[1], lines = images * groups * tap_rows_inside * stretches;
  double products = lines * places[1] * vectors(length);
  const double depth = window * channels, pixels = images * groups * places[0] * places[1];
  const double gathered = 16 + 8 * taps[0] * (follow && groups == 1 ? vectors(length) : row);
  const double windows = (whole ? taps[0] : window) * vectors(length);
  const bool gathers = !rows_lie && filters * (windows - vectors(depth)) > gathered;
  if (gathers) products = pixels * vectors(depth);
  const double far = beyond_caches(elements_x() + elements_y());
  const double swapped = depth * vectors(filters) + (gathers ? 0 : gathered);  // vectors along filters
  if (!rows_lie && filters * depth <= 65536 && filters * (gathers ? vectors(depth) : windows) + filters > swapped)
    return pixels * (depth * vectors(filters) + 0.8 * gathered + 3.7 * vectors(filters)) +
           0.16 * (elements_x() + elements_y()) + 0.65 * elements_w() + 0.6 * far;
  const bool copied = groups > 1 && !gathers && (padded || std::fmod(length, 16) != 0);
  const double begun = gathers ? images * groups * places[0] : lines;
  const double all = products * (0.9 * filters + 1.6 * parts(filters, 14)) +
                     (gathers   ? 1.4 * pixels * gathered
                      : unfolds ? 1.4 * pixels * unfolding
                                : 0) +
                     (rows_lie ? 0.4 * elements_x() + 4.5 * beyond_caches(elements_w())
                      : copied ? 5.2 * elements_x() / channels * vectors(channels)
                               : 0) +
                     1.2 * elements_y() + 17 * begun * parts(filters, 14) * parts(length, 32) + 0.5 * far;
  return rows_lie && groups > 1 ? 1.35 * all : all;  // each group's images are turned round by themselves
}

double ConvCost::filters_by_gemm() const {
  const double steps = channels * taps[0] * taps[1], packed = images * groups * places[0] * places[1] * steps;
  const double pixels = images * groups * places[0] * places[1];
  return registers().filters_gemm *
         (1.3 * pixels * vectors(steps) * filters + (rows_lie && stride[1] > 1 ? 3.8 : 0.6) * packed +
          1.2 * elements_y() / (rows_lie ? 16 : 1) + (padded ? 3.2 * elements_x() : 0) + 11 * elements_w() +
          5 * images * groups * places[0] * steps + (steps < 16 ? 7 * pixels : 0) +
          (groups > 1 && !rows_lie ? 2 * beyond_caches(elements_x() + elements_y()) + 2 * filters_again() : 0));
}

// ---- a filter for each channel

double DepthwiseCost::planes(Pass pass) const {
  const double all = images * groups, far = beyond_caches(elements_x()) + beyond_caches(elements_y());
  if (pass == Pass::Images) {
    const double vectors_of_row = vectors(parts(size[1], stride[1]));
    return all * (83 + parts(size[0], stride[0]) * (0.94 * vectors_of_row * window() + 31 * met())) +
           0.43 * elements_y() * met() + (stride[1] > 1 ? 1.2 : 0.16) * elements_x() + 0.32 * far +
           43 * groups * window();
  }
  const bool forward = pass == Pass::Forward;
  const double copied = elements_x() * met() / (stride[0] * stride[1]) * (stride[1] > 1 ? 1 : 0.25);
  const double row = forward ? vectors(places[1]) * (0.67 * window() + 0.57) + 0.76 * window() + 22 + 5.2 * met()
                             : 1.76 * vectors(places[1]) * window() + 6 + 1.5 * met();
  return all * (places[0] * row + 120) + (forward ? 1.2 : 1.37) * copied + 0.33 * elements_y() + 0.4 * far +
         30 * groups * window();
}

double DepthwiseCost::copies(Pass pass) const {
  const double lanes = groups < 16 ? groups / 16 : vectors(groups);  // few channels repeat from pixel to pixel
  const double far = beyond_caches(elements_x()), far_y = beyond_caches(elements_y());
  if (pass == Pass::Images)
    return images * size[0] * (0.77 * size[1] * lanes * window() / (stride[0] * stride[1]) + 145) + 2.2 * elements_x() +
           0.35 * elements_y() + 1.15 * far + 2.5 * far_y;
  const bool forward = pass == Pass::Forward;
  const double product = (forward ? 1 : 1.8) * (slides() ? 0.97 : 1.84);
  return images * places[0] * (product * places[1] * lanes * window() + (forward ? 150 : 190)) + 1.3 * elements_x() +
         (forward ? 1.18 : 0.23) * elements_y() + far + (forward ? 3.35 : 2.65) * far_y;
}

// ---- where rows lie one after the other

RowsCost::RowsCost(const ConvAttrs& a, const Operand& from, const Operand& weight, const Operand& to, bool gradient)
    : ConvCost(a, gradient ? to : from, weight, gradient ? from : to), gradient(gradient) {}

double RowsCost::rows() const { return gradient ? parts(size[0], stride[0]) * met() : places[0]; }
double RowsCost::columns() const { return gradient ? parts(size[1], stride[1]) : places[1]; }

double RowsCost::planes() const {
  const double strides = stride[0] * stride[1], panels = parts(each(), registers().filters),
               lines = images * groups * rows();
  const double pitch = columns() + (taps[1] - 1) * dilation[1] / (gradient ? 1 : stride[1]);
  const double products = lines * std::min(vectors_of(columns()), pitch / registers().lanes) * steps();
  const bool in_place = !gradient && !padded && strides == 1;
  const double copied = in_place ? 0 : read() * met() / (gradient ? 1 : strides);
  const double copied_lines = in_place ? 0 : images * groups * summed() * places[0] * met();
  const bool gathered = !gradient && stride[1] > 1, apart = gradient && stride[1] > 1;  // one element at a time
  return registers().planes *
         (products * (0.36 * each() + 1.2 * panels)  // a load serves a panel
          + copied * (gathered ? 2.7 : 0.75) + 12 * copied_lines +
          (apart ? 1.1 * written() + 0.8 * beyond_caches(written()) : 0.07 * written()) +
          lines * (9 * each() +
                   35 * panels * parts(columns(), 3 * registers().lanes))  // a call for three vectors of places
          + 4 * elements_w());
}

double RowsCost::copies() const {
  const double along = taps[1] * summed() * vectors_of(each()), across = gradient ? size[1] / stride[1] : places[1];
  const double lines = gradient ? size[0] * stride[1] : places[0];
  const double products = by_dots(each(), summed()) ? taps[1] * vectors_of(summed()) * (0.55 * each() + 1) * across
                                                    : along * (0.35 * across + 1.5 * parts(across, registers().pixels));
  return registers().copies *
         (images * groups * tap_rows_inside * products  // each block of pixels reads the filters
          + 11 * written() / each() * vectors_of(each()) + 70 * images * groups * lines + 1.2 * elements_w() +
          0.5 * beyond_caches(elements_w()) + (1.1 * read() + 0.9 * beyond_caches(read())) * (gradient ? met() : 1) +
          0.1 * written() + 1.8 * beyond_caches(written()));
}

double RowsCost::gemm() const {
  const double plane = gradient ? parts(size[0], stride[0]) * columns() : places[0] * places[1];
  const double products = images * groups * (gradient ? met() : 1) * steps(), strides = stride[0] * stride[1];
  return registers().gemm *
         (products * vectors_of(plane) * (0.37 * each() + 1.2 * parts(each(), registers().pixels)) +
          products * plane * (!gradient && stride[1] > 1 ? 2 : 0.14)  // packed, by vectors where none is left out
          + (padded ? 1.8 * read() : 0) + (gradient && strides > 1 ? 10 : 0.6) * written() +
          2 * images * elements_w()  // filters are packed for each image, and rows of taps for each step
          + 9.5 * images * groups * rows() * steps() + 140 * images * groups * strides);
}

double RowsCost::scatter() const {
  const double from = read() / summed(), to = written() / each(), window = taps[0] * taps[1];
  return read() * (0.48 * vectors_of(window * each()) + 0.13) + 3.2 * from * window * vectors_of(each()) +
         10 * to * vectors_of(each()) + 1.2 * elements_w() + 2 * beyond_caches(elements_w()) + 0.3 * read() +
         0.9 * beyond_caches(read()) + 0.9 * written() + 2.3 * beyond_caches(written());
}

double RowsCost::winograd() const {
  const double* const plane = gradient ? size : places;
  const double tiles = images * parts(plane[0], 2) * parts(plane[1], 2);
  return tiles * (0.27 * summed() * each() + 15 * summed() + 7 * each()) + 19 * elements_w();
}

// ---- one tap, a stride apart, where rows lie one after the other

double PointsCost::far_read() const { return beyond_caches(read()) / (gradient ? 1 : stride[0]); }

double PointsCost::planes() const {
  return 0.76 * points() / 16 * summed() * each() +
         (gradient ? 0.6 * written() : 1.43 * points() * summed() + 0.18 * written()) +  // one element at a time
         lines() * (1.7 * summed() + 17.5 * each() + 22 * parts(each(), 8) * parts(places[1], 48)) +
         2.9 * elements_w() + 0.36 * far_read() + 0.23 * beyond_caches(written());
}

double PointsCost::copies() const {
  const double products = by_dots(each(), summed())
                              ? 1.8 * points() * (each() + 1) * vectors(summed())
                              : summed() * vectors(each()) * (0.37 * points() + 2.3 * lines() * parts(places[1], 14));
  return products + 130 * lines() + 0.64 * points() * summed() + 0.24 * read() + 1.5 * written() + 0.45 * far_read() +
         1.7 * beyond_caches(written()) + 0.3 * elements_w();
}

double PointsCost::gemm() const {
  if (gradient) return std::numeric_limits<double>::infinity();  // it reads where most elements are zeros
  return images * groups * summed() * vectors(places[0] * places[1]) * 0.62 * each() + 1.6 * points() * summed() +
         1.5 * images * elements_w() + 14 * lines() * summed() + 1000 * images * groups + 0.36 * far_read() +
         0.45 * beyond_caches(written());
}

double PointsCost::scatter() const {
  return points() * (summed() * (0.68 * vectors(each()) + 0.8) + 7.7 * vectors(each())) +
         11.5 * written() / each() * vectors(each()) + 0.61 * written() + 0.31 * far_read() +
         1.1 * beyond_caches(written());
}

}  // namespace tessera::cpu_kernels
