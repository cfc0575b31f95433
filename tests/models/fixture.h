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

/// The model's outputs and all its gradients against PyTorch's, in `dtype` and by relative L2. A gradient that is
/// nothing but rounding, as that of a bias of keys, is measured beside the largest one.
inline void expect_agrees(const nn::Module& model, const Fixture& f,
                          const std::function<StateDict(const StateDict&)>& convert, DType dtype, double tolerance) {
  nn::Module m = model;
  m.load_state_dict(convert(f.weights));
  m.eval();
  m.to(dtype);
  Tensors in;
  for (const Tensor& x : f.inputs) in.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
  const Tensors out = model(in);
  ASSERT_EQ(out.size(), f.outputs.size());
  Tensors slopes;
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_LT(distance(out[i], f.outputs[i]), tolerance) << "output " << i;
    slopes.push_back(flip(f.outputs[i].to(dtype), {-1}));
  }
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

/// The same in f64, where the reference's rounding to f32 is all that differs (2^-24 = 6e-8), and in f32. There each
/// sum rounds by about 1e-7, and a few tens of layers by less than a hundred times that.
inline void expect_agrees_in_both(const nn::Module& model, const Fixture& f,
                                  const std::function<StateDict(const StateDict&)>& convert) {
  for (const auto& [dtype, tolerance] : {std::pair(Float64, 1e-7), {Float32, 1e-5}}) {
    SCOPED_TRACE(name(dtype));
    nn::Module(model).zero_grad();
    expect_agrees(model, f, convert, dtype, tolerance);
  }
}

}  // namespace tessera
