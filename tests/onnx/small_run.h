// A model that nobody trusts, run on small inputs of the types that it declares.
#pragma once
#include <string>
#include <vector>

#include "core/util/allocation_limit.h"
#include "onnx/tensors.h"
#include "tessera/onnx.h"
#include "tessera/ops.h"

namespace tessera::onnx {

/// Counts 0, 1, 2, 0, ... of a type: few models refuse them as sizes or as indices.
inline Tensor small_input(const Port& port) {
  constexpr int64_t kMost = 4096;
  Shape shape;
  int64_t numel = 1;
  for (const std::string& dim : port.dims) {
    const bool is_number = !dim.empty() && dim.size() < 5 && dim.find_first_not_of("0123456789") == dim.npos;
    const int64_t size = is_number ? std::stoll(dim) : 2;
    const bool fits = size == 0 || numel <= kMost / size;
    shape.push_back(fits ? size : 2);
    if (fits) numel *= size;
    if (shape.rank() == 8) break;
  }
  DType dtype = Float32;
  for (int i = 0; i < kDTypeCount; ++i)
    if (type_name(data_type_of(static_cast<DType>(i))) == port.type) dtype = static_cast<DType>(i);
  std::vector<int64_t> counts(static_cast<size_t>(shape.numel().value()));
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<int64_t>(i % (dtype == Bool ? 2 : 3));
  return tensor(counts, shape).to(dtype);
}

/// What loading or running the model says; empty where it gives an answer.
inline std::string run_small(std::string bytes, const LoadOptions& options) {
  constexpr size_t kLargestTensor = size_t{32} << 20;
  const AllocationLimit limit(kLargestTensor);
  try {
    const Model model = Model::from_bytes(std::move(bytes), "m.onnx", options);
    try {
      (void)model.run(Values());  // each input has a value in the file
    } catch (const Error& e) {
      if (std::string_view(e.what()).find(": takes ") == std::string_view::npos) return e.what();
    }
    Values inputs;
    for (const Port& port : model.inputs()) {
      if (port.kind == Port::kSequence) inputs.emplace_back(Values{small_input(port)});
      else inputs.emplace_back(small_input(port));
    }
    for (int run = 0; run < 2; ++run) (void)model.run(inputs);  // the second knows what follows from sizes
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace tessera::onnx
