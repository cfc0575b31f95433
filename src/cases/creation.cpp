#include "cases/cases.h"
#include "tessera/ops.h"

namespace tessera {

std::vector<OpCase> creation_cases() {
  auto nothing = [](Generator&) { return Tensors{}; };
  std::vector<OpCase> all;
  for (DType dtype : {Bool, UInt8, Int8, Int32, Int64, Float16, BFloat16, Float32, Float64}) {
    all.push_back({.op = "full",
                   .label = std::string(name(dtype)),
                   .attrs = CreateAttrs{DimList({3, 67}), dtype, 2.5},
                   .inputs = nothing,
                   .dtypes = {Float64}});
    all.push_back({.op = "arange",
                   .label = std::string(name(dtype)),
                   .attrs = CreateAttrs{DimList({101}), dtype, 3, 0.25},
                   .inputs = nothing,
                   .dtypes = {Float64}});
  }
  for (Shape shape : {Shape{}, Shape{1}, Shape{0, 4}})
    all.push_back({.op = "full",
                   .label = to_string(shape),
                   .attrs = CreateAttrs{DimList(shape), Float32, -1},
                   .inputs = nothing,
                   .dtypes = {Float64}});
  all.push_back({.op = "empty",
                 .attrs = CreateAttrs{DimList({3, 5}), Float32},
                 .inputs = nothing,
                 .dtypes = {Float64},
                 .check = [](const Tensors&, const Tensors& out) {
                   if (!(out[0].shape() == Shape{3, 5})) throw Error("has another shape");
                 }});
  for (DType dtype : {Bool, Int64, BFloat16, Float64})
    all.push_back({.op = "constant",
                   .label = std::string(name(dtype)),
                   .attrs = ConstantAttrs{arange(-3, 3, 1, Int64, cpu()).reshape({2, 3}).to(dtype)},
                   .inputs = nothing,
                   .dtypes = {Float64}});
  all.push_back({.op = "full",
                 .label = "4096x768",
                 .attrs = CreateAttrs{DimList({4096, 768}), Float32, 0},
                 .inputs = nothing,
                 .dtypes = {Float32},
                 .benchmark = true,
                 .bytes = 4096.0 * 768 * 4});
  return all;
}

}  // namespace tessera
