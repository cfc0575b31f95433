// Batch norm over the batches of all ranks.
#include "tessera/autograd.h"
#include "tessera/dist.h"
#include "tessera/ops.h"

namespace tessera::dist {

SyncBatchNorm2d::SyncBatchNorm2d(const nn::BatchNorm2d& norm, const Group& group)
    : group(group),
      momentum(norm.momentum),
      eps(norm.eps),
      weight(add_parameter("weight", norm.weight)),
      bias(add_parameter("bias", norm.bias)),
      running_mean(add_buffer("running_mean", norm.running_mean)),
      running_var(add_buffer("running_var", norm.running_var)) {
  train(norm.training());
}

Tensors SyncBatchNorm2d::forward(const Tensors& in) const {
  const Tensor& given = one_input(in);
  if (!training()) return {batch_norm(given, weight, bias, running_mean, running_var, false, momentum, eps)};
  if (given.dim() != 4) throw Error("SyncBatchNorm2d: takes images [n, c, h, w], not " + to_string(given.shape()));
  const Tensor x = cast(given, Float32);
  const Dims each{0, 2, 3};
  const int64_t channels = x.size(1), images = x.numel() / channels;
  const Tensor mine = concat({sum(x, each), full({1}, static_cast<double>(images), Float32, x.device())}, 0);
  const Tensor sums = all_reduce(mine, group), count = sums.slice(0, channels, channels + 1).detach();
  const auto of_channels = [&](const Tensor& t) { return reshape(t, {1, channels, 1, 1}); };
  const Tensor mean = sums.slice(0, 0, channels) / count, centred = x - of_channels(mean);
  const Tensor var = all_reduce(sum(centred * centred, each), group) / count;
  {
    const NoGrad no_grad;
    const Tensor unbiased = var * (count / maximum(count - 1.0, full({1}, 1.0, Float32, x.device())));
    Tensor(running_mean).copy_(running_mean * (1 - momentum) + mean * momentum);
    Tensor(running_var).copy_(running_var * (1 - momentum) + unbiased * momentum);
  }
  const Tensor scale = rsqrt(var + eps) * weight;
  return {cast(centred * of_channels(scale) + of_channels(bias), given.dtype())};
}

int sync_batch_norms(nn::Module& model, const Group& group) {
  int count = 0;
  for (const auto& [path, child] : model.named_modules())
    if (const auto* norm = child.as<nn::BatchNorm2d>()) {
      model.replace(path, SyncBatchNorm2d(*norm, group));
      ++count;
    }
  return count;
}

}  // namespace tessera::dist
