// The operators of ONNX Runtime, whose optimizers write them in place of ONNX's own.
#pragma once
#include "onnx/handler.h"

namespace tessera::onnx {

constexpr std::string_view kMicrosoft = "com.microsoft";

/// ONNX's own, which FusedGemm begins with.
Values gemm(const Call& c);

/// The attention of packed projections [batch, tokens, q + k + v], with the attributes and optional inputs of
/// `Attention`: which input is the mask, the past keys and values, and the bias of the scores.
struct AttentionInputs {
  size_t mask, past, scores_bias;
};
Values attend_packed(const Call& c, const Tensor& projected, const AttentionInputs& at);

}  // namespace tessera::onnx
