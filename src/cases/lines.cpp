#include <fmt/format.h>

#include "cases/cases.h"
#include "core/plane_attrs.h"
#include "ops/sparse_lines.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

SparseMatrix random_matrix(int64_t count, int64_t length, int64_t each, bool selects, Generator& g) {
  const Tensor places = randint(0, length, {count * each}, g);
  const auto weights = selects ? std::vector<double>() : uniform64({count * each}, g, 0.5, 1).to_vector<double>();
  return sparse_matrix(places.to_vector<int64_t>(), weights, count, length, Float64, cpu());
}

}  // namespace

std::vector<OpCase> line_cases() {
  std::vector<OpCase> all;
  struct Size {
    Shape x;
    int64_t dim, count, each;
  };
  for (const auto& [x, dim, count, each] : {Size{{3, 7, 5}, 1, 4, 2},
                                            {{3, 7, 5}, 2, 9, 3},
                                            {{6, 33}, 0, 3, 4},
                                            {{4}, 0, 4, 1},
                                            {{2, 3, 70}, 1, 5, 2},
                                            {{3, 190}, 1, 3, 45}}) {
    const int64_t length = x[static_cast<size_t>(dim)].value();
    all.push_back({.op = "sparse_lines",
                   .label = fmt::format("{} along {}, {} rows", to_string(x), dim, count),
                   .attrs = DimAttrs{dim},
                   .inputs =
                       [=](Generator& g) {
                         const SparseMatrix m = random_matrix(count, length, each, false, g);
                         return Tensors{uniform64(x, g), m.begins,      m.places,      m.weights,
                                        m.begins_back,   m.places_back, m.weights_back};
                       },
                   .gradients = 0b1,
                   .dtypes = {Float32},
                   .symbolic = false});
  }
  struct Planes {
    Shape x;
    int64_t rows, columns, each;
    bool selects;
  };
  for (const auto& [x, rows, columns, each, selects] : {Planes{{2, 3, 7, 5}, 4, 9, 2, false},
                                                        {{3, 7, 6}, 8, 11, 1, true},
                                                        {{5, 1}, 1, 3, 1, true},
                                                        {{4, 1, 9}, 1, 8, 3, false}})
    all.push_back({.op = "sparse_planes",
                   .label = fmt::format("{}, {} rows, {} columns", to_string(x), rows, columns),
                   .attrs = SparsePlanesAttrs{selects, false},
                   .inputs =
                       [=](Generator& g) {
                         const auto matrix = [&](int64_t count, int64_t d) {
                           return random_matrix(count, x[x.size() - static_cast<size_t>(d)].value(), each, selects, g);
                         };
                         const SparseMatrix m = matrix(rows, 2), n = matrix(columns, 1);
                         return Tensors{uniform64(x, g), m.begins,      m.places,      m.weights,     n.begins,
                                        n.places,        n.weights,     m.begins_back, m.places_back, m.weights_back,
                                        n.begins_back,   n.places_back, n.weights_back};
                       },
                   .gradients = 0b1,
                   .dtypes = {Float32},
                   .symbolic = false});
  return all;
}

}  // namespace tessera
