// Products with an epilogue that is given as text.
#include "tessera/fused_gemm.h"
#include "module.h"

namespace tessera::python {

void bind_fused_gemm(nb::module_& m) {
  m.def(
      "fused_gemm",
      [](const Tensor& a, const Tensor& b, const std::string& epilogue, const Tensors& addends, int tile_m, int tile_n,
         int tile_k, int warps, int stages) {
        const GemmConfig config{tile_m, tile_n, tile_k, warps, stages};
        const bool is_given = tile_m || tile_n || tile_k || warps || stages;
        return fused_gemm(a, b, epilogue, addends, is_given ? std::optional(config) : std::nullopt);
      },
      nb::arg("a"), nb::arg("b"), nb::arg("epilogue"), nb::arg("addends") = Tensors{}, nb::kw_only(),
      nb::arg("tile_m") = 0, nb::arg("tile_n") = 0, nb::arg("tile_k") = 0, nb::arg("warps") = 0, nb::arg("stages") = 0,
      nb::call_guard<Unlocked>(),
      "a [m, k], b [k, n] -> epilogue(acc) [m, n] on a GPU, in one pass: an expression such as \"gelu_tanh(acc + "
      "load(d0))\" in the sum `acc` and the elements of `addends`. What is 0 of a config is chosen.");
}

}  // namespace tessera::python
