// Elementwise operators as data: what tile/kernels/maps.h says of them, for whoever lists them or makes code of them.
#pragma once
#include <string_view>

namespace tessera {

struct MapText {
  std::string_view op;
  std::string_view map;         ///< that computes it: of the same name, or another, or "copy"
  std::string_view expression;  ///< of an element, as maps.h explains
};
inline constexpr MapText map_table[] = {
#define TESSERA_MAP(name, Functor, inputs, types, unit, ...) {#name, #name, #__VA_ARGS__},
#define TESSERA_GRADIENT_MAP TESSERA_MAP
#define TESSERA_NUMBER_MAP(name, Functor, inputs, types, unit, numbers, ...) {#name, #name, #__VA_ARGS__},
#define TESSERA_MAP_OF(name, map, ...) {#name, #map, #__VA_ARGS__},
#include "tile/kernels/maps.h"
};

}  // namespace tessera
