// What PyTorch gives for a model: see scripts/fixtures.py.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "nn/nn_check.h"
#include "tessera/autograd.h"
#include "tessera/io.h"
#include "tessera/nn.h"

namespace tessera {

struct Fixture {
  StateDict weights, gradients;
  Tensors inputs, outputs;
};

inline Fixture read_fixture(const std::string& folder) {
  Fixture f;
  f.weights = load_safetensors(folder + "/model.safetensors");
  const StateDict check = load_safetensors(folder + "/check.safetensors");
  for (const auto& [name, t] : check) {  // fewer than ten of each: in order
    if (name.starts_with("inputs.")) f.inputs.push_back(t);
    else if (name.starts_with("outputs.")) f.outputs.push_back(t);
    else f.gradients.emplace(name.substr(std::string("gradients.").size()), t);
  }
  return f;
}
inline Fixture small_fixture(const std::string& name) {
  return read_fixture(TESSERA_SOURCE_DIR "/tests/data/zoo/" + name);
}

using Converter = std::function<StateDict(const StateDict&)>;  // of a file, for load_state_dict

inline void load(nn::Module& m, const Fixture& f, const Converter& convert, DType dtype) {
  m.load_state_dict(convert(f.weights));
  m.eval();
  m.to(dtype);
  m.zero_grad();
}

/// The model's outputs, which are near PyTorch's by relative L2.
inline Tensors expect_outputs(const nn::Module& m, const Fixture& f, DType dtype, double tolerance) {
  Tensors in;
  for (const Tensor& x : f.inputs) in.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
  const Tensors out = m(in);
  EXPECT_EQ(out.size(), f.outputs.size());
  for (size_t i = 0; i < std::min(out.size(), f.outputs.size()); ++i)
    EXPECT_LT(distance(out[i], f.outputs[i]), tolerance) << "output " << i;
  return out;
}

/// All gradients from these outputs, too. One that is nothing but rounding, as that of a bias of keys, is measured
/// beside the largest one.
inline void expect_gradients(const nn::Module& m, const Fixture& f, const Converter& convert, const Tensors& out,
                             double tolerance) {
  Tensors slopes;
  for (const Tensor& y : f.outputs) slopes.push_back(flip(y.to(out[0].dtype()), {-1}));
  backward(out, std::move(slopes));
  const StateDict gradients = convert(f.gradients);
  double largest = 0;
  const auto size = [](const Tensor& t) { return norm(t.to(Float64)).item(); };
  for (const auto& [name, t] : gradients) largest = std::max(largest, size(t));
  size_t seen = 0;
  for (const auto& [name, t] : m.named_parameters()) {
    const auto found = gradients.find(name);
    ASSERT_EQ(found == gradients.end(), !t.grad().defined()) << name;
    if (found == gradients.end()) continue;
    ++seen;
    ASSERT_EQ(to_string(t.grad().shape()), to_string(found->second.shape())) << name;
    const double error = size(t.grad().to(Float64) - found->second.to(Float64));
    EXPECT_LT(error, tolerance * std::max(size(found->second), 1e-3 * largest)) << "gradient of " << name;
  }
  EXPECT_EQ(seen, gradients.size());
}

/// Where the reference's rounding to f32 is all that differs: 2^-24 = 6e-8.
constexpr double kToleranceF64 = 1e-7;
/// Each sum rounds by about 1e-7, and a few tens of layers by less than a hundred times that.
constexpr double kToleranceF32 = 1e-5;

/// Outputs and gradients of a small model in f64 and in f32.
inline void expect_agrees(nn::Module& m, const Fixture& f, const Converter& convert) {
  for (const auto& [dtype, tolerance] : {std::pair(Float64, kToleranceF64), {Float32, kToleranceF32}}) {
    SCOPED_TRACE(name(dtype));
    load(m, f, convert, dtype);
    const Tensors out = expect_outputs(m, f, dtype, tolerance);
    expect_gradients(m, f, convert, out, tolerance);
  }
}

}  // namespace tessera
