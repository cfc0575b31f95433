#include "cases/cases.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

std::function<Tensors(Generator&)> uniform(Shape shape, double low = -2, double high = 2) {
  return [=](Generator& g) { return Tensors{uniform64(shape, g, low, high)}; };
}

void add_reductions(std::vector<OpCase>& all) {
  struct Use {
    const char* label;
    Shape in;
    ReduceAttrs attrs;
  };
  const std::vector<Use> uses = {{"all", {5, 7}, {}},
                                 {"one", {1}, {{0}, false}},
                                 {"number", {}, {}},
                                 {"rows", {7, 67}, {{1}, false}},
                                 {"columns", {67, 13}, {{0}, true}},
                                 {"negative dim", {3, 5, 7}, {{-2}, false}},
                                 {"outer and inner", {3, 5, 7, 2}, {{0, 3}, true}},
                                 {"long", {2, 1031}, {{1}, false}}};
  for (const char* op : {"sum", "sum_wide", "mean", "amax", "amin", "norm", "logsumexp", "prod"})
    for (const Use& u : uses) {
      bool product = std::string_view(op) == "prod";
      if (product && u.in.numel() == Dim(2062)) continue;
      all.push_back({.op = op,
                     .label = u.label,
                     .attrs = u.attrs,
                     .inputs = uniform(u.in, product ? 0.8 : -2, product ? 1.2 : 2),
                     .gradients = 1});
    }
  for (const char* op : {"var", "std_dev"})
    for (Use u : uses) {
      if (u.in.numel() == Dim(1)) continue;
      u.attrs.correction = 1;
      all.push_back({.op = op, .label = u.label, .attrs = u.attrs, .inputs = uniform(u.in), .gradients = 1});
      u.attrs.correction = 0;
      all.push_back({.op = op,
                     .label = u.label + std::string(", whole"),
                     .attrs = u.attrs,
                     .inputs = uniform(u.in, 9, 11),
                     .gradients = 1});
    }
  for (const char* op : {"argmax", "argmin"})
    for (const Use& u : uses) all.push_back({.op = op, .label = u.label, .attrs = u.attrs, .inputs = uniform(u.in)});
  for (const char* op : {"any", "all"})
    for (const Use& u : uses)
      all.push_back({.op = op, .label = u.label, .attrs = u.attrs, .inputs = [=](Generator& g) {
                       Tensor x = uniform64(u.in, g);
                       for (int64_t i = 0; i < x.numel(); ++i)
                         if (double& v = x.data<double>()[i]; v < (op[1] == 'n' ? 0.9 : -0.9)) v = 0;
                       return Tensors{x};
                     }});
}

// Lines of many lengths, sorted whole or in part, with equal elements and both zeros.
void add_sorts(std::vector<OpCase>& all) {
  const auto inputs = [](const Shape& shape) {
    return [=](Generator& g) {
      const Tensor x = floor(uniform64(shape, g) * 50.0);
      for (int64_t i = 0; i < x.numel(); i += 11) x.data<double>()[i] = -0.0;
      return Tensors{x};
    };
  };
  struct Sort {
    Shape shape;
    int64_t dim, k;
  };
  for (const auto& [shape, dim, k] :
       {Sort{{9, 1}, 1, 1}, Sort{{3, 8, 2}, 1, 8}, Sort{{70, 33}, 1, 33}, Sort{{300, 5}, 0, 200},
        Sort{{5, 1000}, 1, 1000}, Sort{{2, 3000}, 1, 7}, Sort{{2, 4096}, 1, 4096}, Sort{{3, 9001}, 1, 9001},
        Sort{{9001, 2}, 0, 4000}, Sort{{70001}, 0, 3}})
    for (bool largest : {true, false})
      all.push_back({.op = "topk",
                     .label = (largest ? "largest " : "smallest ") + std::to_string(k) + " of " + to_string(shape),
                     .attrs = TopkAttrs{dim, k, largest},
                     .inputs = inputs(shape),
                     .dtypes = {Float32, Float64, Float16, BFloat16}});
}

}  // namespace

std::vector<OpCase> reduction_cases() {
  std::vector<OpCase> all;
  add_reductions(all);
  all.push_back({.op = "sum", .label = "nothing", .attrs = ReduceAttrs{{0}}, .inputs = uniform({0, 3})});
  all.push_back({.op = "prod",
                 .label = "one zero",
                 .inputs =
                     [](Generator& g) {
                       Tensor x = uniform64({4, 5}, g);
                       for (int64_t row : {0, 2}) x.data<double>()[row * 5 + 3] = 0;
                       x.data<double>()[10] = 0;
                       return Tensors{x};
                     },
                 .gradients = 1});
  all.back().attrs = ReduceAttrs{{1}};
  for (int64_t dim : {0, -1}) {
    all.push_back({.op = "cumsum",
                   .label = "dim " + std::to_string(dim),
                   .attrs = DimAttrs{dim},
                   .inputs = uniform({7, 13, 5}),
                   .gradients = 1});
    for (bool largest : {true, false})
      all.push_back({.op = "topk",
                     .label = (largest ? "largest of dim " : "smallest of dim ") + std::to_string(dim),
                     .attrs = TopkAttrs{dim, 3, largest},
                     .inputs = uniform({7, 13}),
                     .gradients = 1,
                     .dtypes = {Float32, Float64}});
  }
  all.push_back({.op = "cumsum", .label = "number", .attrs = DimAttrs{0}, .inputs = uniform({}), .gradients = 1});
  all.push_back(
      {.op = "topk", .label = "all of them", .attrs = TopkAttrs{0, 5}, .inputs = uniform({5}), .dtypes = {Float64}});
  for (int64_t dim : {0, 1, -1})
    all.push_back({.op = "sort_values",
                   .label = "dim " + std::to_string(dim),
                   .attrs = DimAttrs{dim},
                   .inputs = uniform({7, 130, 5}),
                   .gradients = 1});
  add_sorts(all);
  for (int64_t dim : {0, 1})
    all.push_back({.op = "sum",
                   .label = "4096x768, dim " + std::to_string(dim),
                   .attrs = ReduceAttrs{{dim}},
                   .inputs = uniform({4096, 768}),
                   .dtypes = {Float32},
                   .benchmark = true,
                   .bytes = 4096.0 * 768 * 4});
  return all;
}

}  // namespace tessera
