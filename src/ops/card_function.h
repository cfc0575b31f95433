// Functions of elements by the vendor's library on GPUs.
#pragma once
#include <string>

#include "ops/on_card.h"
#include "ops/precise.h"
#include "tessera/autograd.h"

namespace tessera {

/// One that C has in f32 and f64, `name`, in fewer instructions than operators would take; `kernel` is NAME_of_each.
/// Its gradient is that of the result times slope(x), by one operator.
template <Tensor (*slope)(const Tensor& x)>
class CardFunction {
 public:
  CardFunction(const char* name, const char* kernel) : name_(name), kernel_(kernel, text_of(name)) {}

  static bool takes(const Tensor& x) { return on_card(x) && is_floating(x.dtype()); }
  Tensor operator()(const Tensor& given) {
    const auto forward = [this](const Tensors& in) {
      const Tensor x = contiguous(in[0]), y = empty(x.shape(), x.dtype(), x.device());
      const void* const from = x.data_ptr();
      if (x.numel() > 0) kernel_.launch(x, (x.numel() + 1023) / 1024, from, y.data_ptr(), x.numel());
      return Tensors{y};
    };
    const auto backward = [](const Tensors& in, const Tensors&, const Tensors& grads) {
      return Tensors{map_in_single(grads[0], in[0], [](const Tensor& g, const Tensor& x) { return g * slope(x); })};
    };
    return in_single(given, [&](const Tensor& x) { return custom_function(name_, {x}, forward, backward)[0]; });
  }

 private:
  static std::string text_of(const std::string& name) {
    return R"(
extern "C" TESSERA_KERNEL(256) void )" +
           name + R"(_of_each(const T* x, T* y, i64 total) {
  constexpr int each = 4;
  const i64 first = block_in_grid() * 256 * each + thread_in_block();
  T v[each];
  unroll<each>([&](auto j) { v[j] = first + j * 256 < total ? x[first + j * 256] : T(0); });
  unroll<each>([&](auto j) {
    if (first + j * 256 < total) y[first + j * 256] = ::)" +
           name + R"((v[j]);
  });
}
)";
  }

  const char* name_;
  CardKernel kernel_;
};

}  // namespace tessera
