#include "cases/cases.h"
#include "tessera/ops.h"

namespace tessera {

namespace {
using Inputs = std::function<Tensors(Generator&)>;
}

std::vector<OpCase> bit_cases() {
  std::vector<OpCase> all;
  const std::pair<Shape, Shape> shapes[] = {
      {{}, {}}, {{1}, {1}}, {{7, 13}, {7, 13}}, {{5, 1, 3}, {4, 1}}, {{0, 3}, {1}}};
  for (const char* op : {"bitwise_and", "bitwise_or", "bitwise_xor"})
    for (const auto& [a, b] : shapes)
      for (DType dtype : {Bool, UInt8, Int8, Int32, Int64}) {
        const int64_t least = dtype == Bool || dtype == UInt8 ? 0 : -128;
        all.push_back({.op = op,
                       .label = std::string(name(dtype)) + " " + to_string(a) + " " + to_string(b),
                       .inputs =
                           [=](Generator& g) {
                             const auto draw = [&](const Shape& shape) {
                               const Tensor whole = indices(shape, dtype == Bool ? 2 : 256, g);
                               return cast(whole + static_cast<double>(dtype == UInt8 ? 0 : least), dtype);
                             };
                             return Tensors{draw(a), draw(b)};
                           },
                       .dtypes = {Float64}});
      }
  for (const char* op : {"left_shift", "right_shift"})
    for (const auto& [a, b] : shapes)
      for (DType dtype : {UInt8, Int8, Int16, Int32, Int64})
        all.push_back({.op = op,
                       .label = std::string(name(dtype)) + " " + to_string(a) + " " + to_string(b),
                       .inputs =
                           [=](Generator& g) {
                             const double least = dtype == UInt8 ? 0 : -8;
                             return Tensors{cast(indices(a, 16, g) + least, dtype), cast(indices(b, 4, g), dtype)};
                           },
                       .dtypes = {Float64}});
  const Inputs small = [](Generator& g) { return Tensors{cast(indices({7, 13}, 256, g), UInt8)}; };
  const Inputs wide = [](Generator& g) { return Tensors{cast(indices({3, 5, 7}, 1 << 30, g), Int32)}; };
  const Inputs real = [](Generator& g) { return Tensors{uniform64({7, 13}, g)}; };
  for (const auto& [dtype, inputs] : {std::pair{Int8, small}, {Float32, wide}, {Int64, real}})
    all.push_back({.op = "bitcast",
                   .label = std::string(name(dtype)),
                   .attrs = CastAttrs{dtype},
                   .inputs = inputs,
                   .dtypes = {Float64}});
  return all;
}

}  // namespace tessera
