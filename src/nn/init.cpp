#include <cmath>

#include "tessera/autograd.h"
#include "tessera/nn.h"

namespace tessera::nn::init {
namespace {

struct Fans {
  double in = 1, out = 1;
};

Fans fans(const char* op, const Tensor& t) {
  if (t.dim() < 2) throw Error(std::string(op) + ": needs at least two dimensions, not " + to_string(t.shape()));
  const double field =
      static_cast<double>(t.numel()) / static_cast<double>(std::max<int64_t>(t.size(0) * t.size(1), 1));
  return {static_cast<double>(t.size(1)) * field, static_cast<double>(t.size(0)) * field};
}

}  // namespace

void constant_(Tensor t, double value) {
  NoGrad guard;
  t.fill_(value);
}
void normal_(Tensor t, double mean, double std, Generator& generator) {
  NoGrad guard;
  t.copy_(randn(t.shape(), generator) * std + mean);
}
void uniform_(Tensor t, double low, double high, Generator& generator) {
  NoGrad guard;
  t.copy_(rand(t.shape(), generator) * (high - low) + low);
}
void trunc_normal_(Tensor t, double mean, double std, double cut, Generator& generator) {
  if (!(cut > 0)) throw Error("trunc_normal_: the cut must be positive");
  NoGrad guard;
  const Tensor limit = full({1}, cut);
  Tensor x = randn(t.shape(), generator);
  for (Tensor outside = gt(abs(x), limit); any(outside).item() != 0; outside = gt(abs(x), limit))
    x = where(outside, randn(t.shape(), generator), x);
  t.copy_(x * std + mean);
}
void xavier_uniform_(Tensor t, double gain, Generator& generator) {
  const Fans f = fans("xavier_uniform_", t);
  const double bound = gain * std::sqrt(6 / (f.in + f.out));
  uniform_(t, -bound, bound, generator);
}
void xavier_normal_(Tensor t, double gain, Generator& generator) {
  const Fans f = fans("xavier_normal_", t);
  normal_(t, 0, gain * std::sqrt(2 / (f.in + f.out)), generator);
}
void kaiming_uniform_(Tensor t, double gain, Generator& generator) {
  const double bound = gain * std::sqrt(3 / fans("kaiming_uniform_", t).in);
  uniform_(t, -bound, bound, generator);
}
void kaiming_normal_(Tensor t, double gain, Generator& generator) {
  normal_(t, 0, gain / std::sqrt(fans("kaiming_normal_", t).in), generator);
}

}  // namespace tessera::nn::init
