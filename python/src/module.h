// The parts of the extension.
#pragma once
#include "casters.h"

namespace tessera::python {

void bind_errors(nb::module_& m);
void bind_basics(nb::module_& m);
void bind_open_size(nb::module_& m);
/// What Tensor has beside operators.
void bind_tensor(nb::module_& m, nb::class_<Tensor>& tensor);
/// add and sub with a factor, beside those of the headers.
void bind_scaled(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_arrays(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_places(nb::class_<Tensor>& tensor);
void bind_streams(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_autograd(nb::module_& m);
void bind_nn(nb::module_& m);
void bind_optim(nb::module_& m);
void bind_files(nb::module_& m);
void bind_onnx(nb::module_& m);
void bind_models(nb::module_& m);
void bind_fused_gemm(nb::module_& m);
void bind_dist(nb::module_& m);
void bind_data(nb::module_& m);
void bind_train(nb::module_& m);

// Made by generate.py, one for each header of operators.
void bind_ops(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_attention(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_image(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_indexing(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_layers(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_loss(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_math(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_pool(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_quantize(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_recurrent(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_shape(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_ops_signal(nb::module_& m, nb::class_<Tensor>& tensor);

/// Whether this thread has read an open size as a number since the last time.
bool open_size_was_read();

/// A tensor on the memory of an array, by DLPack or Python's buffers. `dtype` says what its bits are where the array
/// cannot. Throws Error where it is none, read-only, or of a dtype that is not there.
Tensor from_array(nb::handle array, std::optional<DType> dtype = {});

}  // namespace tessera::python
