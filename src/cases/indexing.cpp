#include "cases/cases.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

// Values of shape `x`, places of shape `index` below `bound`, and further values of the index's shape where asked for.
std::function<Tensors(Generator&)> places(Shape x, Shape index, int64_t bound, bool with_source = false) {
  return [=](Generator& g) {
    Tensors in = {uniform64(x, g), indices(index, bound, g)};
    if (with_source) in.push_back(uniform64(index, g));
    return in;
  };
}

Tensor as_i32(const Tensor& index) {
  Tensor out = empty(index.shape(), Int32);
  for (int64_t i = 0; i < index.numel(); ++i) out.data<int32_t>()[i] = static_cast<int32_t>(index.data<int64_t>()[i]);
  return out;
}

// Sizes of an index and of the table it points into.
std::function<Tensors(Generator&)> rows(Shape index, int64_t count, int64_t width, bool narrow = false) {
  return [=](Generator& g) {
    Tensor i = indices(index, count, g);
    return Tensors{narrow ? as_i32(i) : i, uniform64({count, width}, g)};
  };
}

std::function<Tensors(Generator&)> row_gradients(Shape index, int64_t count, int64_t width) {
  return [=](Generator& g) {
    Shape shape = index;
    shape.push_back(width);
    return Tensors{indices(index, count, g), uniform64(shape, g)};
  };
}

// So that most are zero.
std::function<Tensors(Generator&)> sparse(Shape shape) {
  return [=](Generator& g) { return Tensors{relu(uniform64(shape, g, -1, 0.5))}; };
}

constexpr const char* kScatters[] = {"scatter", "scatter_add", "scatter_prod", "scatter_amax", "scatter_amin"};

}  // namespace

std::vector<OpCase> indexing_cases() {
  std::vector<OpCase> all;
  for (int64_t dim : {0, 1, -1}) {
    int64_t bound = dim == 0 ? 7 : dim == 1 ? 5 : 3;
    Attrs attrs = DimAttrs{dim};
    std::string label = "dim " + std::to_string(dim);
    all.push_back({.op = "gather",
                   .label = label,
                   .attrs = attrs,
                   .inputs = places({7, 5, 3}, {7, 5, 3}, bound),
                   .gradients = 1});
    for (const char* op : kScatters)
      all.push_back({.op = op,
                     .label = label,
                     .attrs = attrs,
                     .inputs = places({7, 5, 3}, {7, 5, 3}, bound, true),
                     .gradients = 5});
    all.push_back({.op = "index_select",
                   .label = label,
                   .attrs = attrs,
                   .inputs = places({7, 5, 3}, {11}, bound),
                   .gradients = 1});
  }
  all.push_back({.op = "gather",
                 .label = "smaller index",
                 .attrs = DimAttrs{1},
                 .inputs = places({7, 5}, {4, 9}, 5),
                 .gradients = 1,
                 .symbolic = false});
  for (const char* op : kScatters) {
    all.push_back({.op = op,
                   .label = "smaller index",
                   .attrs = DimAttrs{0},
                   .inputs = places({7, 5}, {13, 4}, 7, true),
                   .gradients = 5,
                   .symbolic = false});
    all.push_back({.op = op, .label = "a long line", .attrs = DimAttrs{0}, .inputs = places({901}, {5003}, 901, true)});
    all.push_back(
        {.op = op, .label = "many columns", .attrs = DimAttrs{0}, .inputs = places({3, 2, 131}, {4, 2, 131}, 3, true)});
    all.push_back({.op = op,
                   .label = "no index",
                   .attrs = DimAttrs{0},
                   .inputs = places({7, 5}, {0, 5}, 7, true),
                   .symbolic = false});
  }
  all.push_back({.op = "gather", .label = "one", .attrs = DimAttrs{0}, .inputs = places({1}, {1}, 1), .gradients = 1});
  all.push_back({.op = "index_select",
                 .label = "one row",
                 .attrs = DimAttrs{0},
                 .inputs = places({1, 4}, {1}, 1),
                 .gradients = 1});
  all.push_back({.op = "embedding", .label = "one", .inputs = rows({1}, 1, 1), .gradients = 2});
  all.push_back({.op = "embedding", .label = "number", .inputs = rows({}, 5, 3), .gradients = 2});
  all.push_back({.op = "embedding", .label = "primes", .inputs = rows({3, 7}, 11, 13), .gradients = 2});
  all.push_back({.op = "embedding", .label = "i32", .inputs = rows({17}, 5, 3, true), .gradients = 2});
  for (Shape index : {Shape{1}, Shape{}, Shape{3, 7}, Shape{101}})
    all.push_back({.op = "embedding_backward",
                   .label = to_string(index),
                   .attrs = ScatterAttrs{0, 11, 0, 1},
                   .inputs = row_gradients(index, 11, 13),
                   .gradients = 2});
  for (Shape index : {Shape{1}, Shape{}, Shape{3, 7}, Shape{101}})
    all.push_back({.op = "embedding_backward_",
                   .label = to_string(index),
                   .inputs =
                       [=](Generator& g) {
                         Tensors in = row_gradients(index, 11, 13)(g);
                         in.insert(in.begin(), uniform64({11, 13}, g));
                         return in;
                       },
                   .gradients = 5});
  for (Shape index : {Shape{1}, Shape{}, Shape{3, 7}})
    all.push_back({.op = "one_hot",
                   .label = to_string(index),
                   .attrs = OneHotAttrs{5},
                   .inputs = [=](Generator& g) { return Tensors{indices(index, 5, g)}; },
                   .dtypes = {Float64}});
  for (Shape shape : {Shape{}, Shape{1}, Shape{0, 4}, Shape{101}, Shape{7, 5, 3}, Shape{3, 2047}})
    all.push_back({.op = "nonzero", .label = to_string(shape), .inputs = sparse(shape)});
  all.push_back({.op = "nonzero",
                 .label = "1000x1000",
                 .inputs = sparse({1000, 1000}),
                 .dtypes = {Float32},
                 .benchmark = true,
                 .bytes = 2 * 4e6 + 1e6 / 3 * 16});
  all.push_back({.op = "embedding",
                 .label = "1024 of 50257x768",
                 .inputs = rows({1024}, 50257, 768),
                 .dtypes = {Float32},
                 .benchmark = true,
                 .bytes = 2 * 1024.0 * 768 * 4});
  all.push_back({.op = "embedding_backward",
                 .label = "16384 into 65x384",
                 .attrs = ScatterAttrs{0, 65, 0, 1},
                 .inputs = row_gradients({16384}, 65, 384),
                 .dtypes = {Float32},
                 .benchmark = true,
                 .bytes = 16384.0 * 384 * 4});
  return all;
}

}  // namespace tessera
