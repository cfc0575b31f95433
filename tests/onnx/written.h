// Modules as files, and back.
#pragma once
#include <string>

#include "cases/compare.h"
#include "io/io_check.h"
#include "tessera/autograd.h"
#include "tessera/nn.h"
#include "tessera/onnx.h"
#include "tessera/ops.h"

namespace tessera::onnx {

/// A function of any inputs as a module.
struct FunctionOf : nn::Module {
  explicit FunctionOf(std::function<Tensors(const Tensors&)> function) : function(std::move(function)) {}
  Tensors forward(const Tensors& in) const override { return function(in); }
  std::function<Tensors(const Tensors&)> function;
};

inline Values values_of(const Tensors& tensors) { return Values(tensors.begin(), tensors.end()); }

/// A model file as a module.
inline FunctionOf module_of(const std::string& path) {
  return FunctionOf([model = std::make_shared<Model>(path)](const Tensors& in) {
    Tensors out;
    for (const Value& v : model->run(values_of(in))) out.push_back(v.tensor());
    return out;
  });
}

/// The largest relative L2 error of the outputs of the file against those of the module; types and shapes must agree.
inline double error_of_file(const std::string& path, const nn::Module& module, const Tensors& inputs) {
  const NoGrad no_grad;
  const nn::EvalMode eval(module);
  const Tensors want = module(inputs);
  const Values got = Model(path).run(values_of(inputs));
  if (got.size() != want.size()) return INFINITY;
  double error = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const Tensor& t = got[i].tensor();
    if (!(t.shape() == want[i].shape()) || t.dtype() != want[i].dtype()) return INFINITY;
    error = std::max(error, relative_error(t.to_vector<double>(), want[i].to_vector<double>()));
  }
  return error;
}

}  // namespace tessera::onnx
