#include <fmt/format.h>

#include "cases/cases.h"
#include "ops/sparse_lines.h"
#include "tessera/ops.h"

namespace tessera {

std::vector<OpCase> line_cases() {
  std::vector<OpCase> all;
  struct Size {
    Shape x;
    int64_t dim, count, each;
  };
  for (const auto& [x, dim, count, each] :
       {Size{{3, 7, 5}, 1, 4, 2}, {{3, 7, 5}, 2, 9, 3}, {{6, 33}, 0, 3, 4}, {{4}, 0, 4, 1}, {{2, 3, 70}, 1, 5, 2}}) {
    const int64_t length = x[static_cast<size_t>(dim)].value();
    all.push_back({.op = "sparse_lines",
                   .label = fmt::format("{} along {}, {} rows", to_string(x), dim, count),
                   .attrs = DimAttrs{dim},
                   .inputs =
                       [=](Generator& g) {
                         const Tensor places = randint(0, length, {count * each}, g);
                         const SparseMatrix m = sparse_matrix(places.to_vector<int64_t>(),
                                                              uniform64({count * each}, g, 0.5, 1).to_vector<double>(),
                                                              count, length, Float64, cpu());
                         return Tensors{uniform64(x, g), m.begins,      m.places,      m.weights,
                                        m.begins_back,   m.places_back, m.weights_back};
                       },
                   .gradients = 0b1,
                   .dtypes = {Float32},
                   .symbolic = false});
  }
  return all;
}

}  // namespace tessera
