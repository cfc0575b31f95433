// The operators of ONNX Runtime, whose optimizers write them in place of ONNX's own.
#pragma once
#include "onnx/handler.h"

namespace tessera::onnx {

constexpr std::string_view kMicrosoft = "com.microsoft";

/// ONNX's own, which FusedGemm begins with.
Values gemm(const Call& c);

/// Tables and norm of EmbedLayerNormalization; segments and the ids of positions may be undefined.
struct Embeddings {
  Tensor word, position, segment, weight, bias, position_ids;
};
/// The rest of its inputs are those of the call: the ids, of segments, too, and the mask.
Values embed_and_norm(const Call& c, const Embeddings& e);

/// The attention of packed projections [batch, tokens, q + k + v], with the attributes and optional inputs of
/// `Attention`: which input is the mask, the past keys and values, and the bias of the scores.
struct AttentionInputs {
  size_t mask, past, scores_bias;
};
Values attend_packed(const Call& c, const Tensor& projected, const AttentionInputs& at);

/// A weight [n, k] in blocks along k, each with a scale; zero points may be undefined, and are packed where they are
/// bytes.
struct Blocks {
  Tensor packed, scales, points;
  int64_t n = 0, k = 0, bits = 4, block = 0;
};
/// In f32. Throws where sizes do not fit.
Tensor weight_of_blocks(const Blocks& b);

}  // namespace tessera::onnx
