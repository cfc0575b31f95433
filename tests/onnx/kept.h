// Models that tests leave behind for others to run: with TESSERA_ONNX_FOLDER, in the layout of ONNX's tests.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>

#include "onnx/proto.h"
#include "onnx/tensors.h"
#include "onnx/written.h"
#include "tessera/io.h"

namespace tessera::onnx {

/// Copies the file, with these inputs and what the module makes of them.
inline void keep_case(const std::string& name, const std::string& path, const nn::Module& module, const Tensors& in) {
  const char* const kept = std::getenv("TESSERA_ONNX_FOLDER");
  if (!kept) return;
  const std::string folder = std::string(kept) + "/" + name, data = folder + "/test_data_set_0/";
  std::filesystem::create_directories(data);
  std::filesystem::copy_file(path, folder + "/model.onnx", std::filesystem::copy_options::overwrite_existing);
  const auto write = [&](const char* what, const Tensors& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor t = tensors[i].contiguous();
      TensorProto proto{.data_type = data_type_of(t.dtype())};
      for (const Dim size : t.shape()) proto.dims.push_back(size.value());
      proto.raw_data =
          Bytes(static_cast<const char*>(t.data_ptr()), static_cast<size_t>(t.numel()) * size_of(t.dtype()));
      write_file(data + what + "_" + std::to_string(i) + ".pb", write_proto(proto));
    }
  };
  const NoGrad no_grad;
  write("input", in);
  write("output", module(in));
}

}  // namespace tessera::onnx
