#include "cases/cases.h"

namespace tessera {
namespace {

std::function<Tensors(Generator&)> inputs(std::vector<Shape> shapes) {
  return [=](Generator& g) {
    Tensors in;
    for (const Shape& s : shapes) in.push_back(uniform64(s, g));
    return in;
  };
}

void add_views(std::vector<OpCase>& all) {
  struct Use {
    const char *op, *label;
    Shape in;
    Attrs attrs;
    bool symbolic = true;
  };
  for (const Use& u :
       std::vector<Use>{{"reshape", "merge", {5, 7, 3}, ShapeAttrs{DimList({35, 3})}, false},
                        {"reshape", "split", {12, 7}, ShapeAttrs{DimList({3, 4, 7})}, false},
                        {"reshape", "ones", {5, 7}, ShapeAttrs{DimList({1, 5, 1, 7, 1})}, false},
                        {"reshape", "inferred", {5, 7}, ShapeAttrs{DimList({-1})}},
                        {"reshape", "inferred, two dims", {5, 6}, ShapeAttrs{DimList({-1, 1})}},
                        {"reshape", "number", {1, 1}, ShapeAttrs{DimList(Shape{})}, false},
                        {"permute", "matrix", {5, 7}, PermuteAttrs{{1, 0}}},
                        {"permute", "rotation, negative dims", {2, 3, 5, 7}, PermuteAttrs{{-1, 0, -3, 2}}},
                        {"permute", "number", {}, PermuteAttrs{}},
                        {"expand", "rows and new dims", {5, 1, 3}, ShapeAttrs{DimList({2, 5, 4, 3})}, false},
                        {"expand", "kept dims", {5, 1}, ShapeAttrs{DimList({-1, 7})}},
                        {"slice", "inside", {7, 11}, SliceAttrs{1, 2, 9}},
                        {"slice", "steps", {13, 5}, SliceAttrs{0, 1, 12, 3}},
                        {"slice", "from the end", {13, 5}, SliceAttrs{-2, -6, -1}},
                        {"slice", "to the end", {13, 5}, SliceAttrs{0, 4, INT64_MAX}},
                        {"slice", "past the end", {13, 5}, SliceAttrs{0, 4, 99, 2}, false},
                        {"slice", "nothing", {13, 5}, SliceAttrs{0, 9, 4}, false},
                        {"select", "middle", {5, 7, 3}, SelectAttrs{1, 4}},
                        {"select", "last", {5, 7, 3}, SelectAttrs{-1, -1}},
                        {"slice_backward", "inside", {7, 5}, ScatterAttrs{1, 11, 3}},
                        {"slice_backward", "steps", {4, 5}, ScatterAttrs{0, 12, 1, 3}},
                        {"slice_backward", "steps to the very end", {4, 5}, ScatterAttrs{0, 10, 0, 3}},
                        {"sliding_window", "steps of one", {3, 11}, WindowAttrs{1, 4}},
                        {"sliding_window", "overlap", {11, 3}, WindowAttrs{0, 5, 2}},
                        {"sliding_window", "side by side", {2, 13, 3}, WindowAttrs{-2, 4, 4}},
                        {"sliding_window", "gaps", {2, 17}, WindowAttrs{1, 2, 5}},
                        {"sliding_window", "dilated", {13, 2}, WindowAttrs{0, 3, 2, 4}},
                        {"sliding_window", "the whole dim", {2, 7}, WindowAttrs{1, 7, 3}, false},
                        {"clone", "primes", {7, 13}, {}},
                        {"clone", "number", {}, {}},
                        {"flip", "rows", {7, 5}, PermuteAttrs{{0}}},
                        {"flip", "both", {3, 7, 5}, PermuteAttrs{{-1, 0}}},
                        {"pad", "columns", {5, 7}, PadAttrs{{0, 0, 0, 0, 0, 2}, {0, 0, 0, 0, 0, 1}, -3}},
                        {"pad", "image", {2, 3, 5, 7}, PadAttrs{{0, 0, 0, 0, 1, 2}, {0, 0, 0, 0, 3, 0}, 0}},
                        {"pad", "nothing", {5}, PadAttrs{}}}) {
    bool empty = std::string_view(u.label) == "nothing" && std::string_view(u.op) == "slice";
    all.push_back({.op = u.op,
                   .label = u.label,
                   .attrs = u.attrs,
                   .inputs = inputs({u.in}),
                   .gradients = empty ? 0u : 1u,
                   .symbolic = u.symbolic});
  }
  for (const char* op : {"tril", "triu"})
    for (int64_t diagonal : {0, 2, -3, 50, -50})
      all.push_back({.op = op,
                     .label = "diagonal " + std::to_string(diagonal),
                     .attrs = DiagonalAttrs{diagonal},
                     .inputs = inputs({{2, 5, 7}}),
                     .gradients = 1});
}

}  // namespace

std::vector<OpCase> shape_cases() {
  std::vector<OpCase> all;
  for (Shape shape : {Shape{}, Shape{5}, Shape{0, 7, 3}})
    all.push_back({.op = "shape_of", .label = to_string(shape), .inputs = inputs({shape})});
  add_views(all);
  all.push_back({.op = "concat", .label = "one", .attrs = DimAttrs{0}, .inputs = inputs({{3, 5}}), .gradients = 1});
  all.push_back({.op = "concat",
                 .label = "rows",
                 .attrs = DimAttrs{0},
                 .inputs = inputs({{3, 5}, {1, 5}, {7, 5}}),
                 .gradients = 7,
                 .symbolic = false});
  all.push_back({.op = "concat",
                 .label = "last dim",
                 .attrs = DimAttrs{-1},
                 .inputs = inputs({{3, 5}, {3, 0}, {3, 2}}),
                 .gradients = 5});
  all.push_back({.op = "to_device",
                 .label = "to where it is",
                 .attrs = DeviceAttrs{cpu()},
                 .inputs = inputs({{3, 5}}),
                 .gradients = 1});
  all.push_back({.op = "pack", .label = "by strides", .attrs = PackAttrs{}, .inputs = inputs({{7, 13}})});
  all.push_back({.op = "clone",
                 .label = "4096x768",
                 .inputs = inputs({{4096, 768}}),
                 .dtypes = {Float32},
                 .benchmark = true,
                 .bytes = 2 * 4096.0 * 768 * 4});
  return all;
}

}  // namespace tessera
