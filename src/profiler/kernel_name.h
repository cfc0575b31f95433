// Names of kernels for people.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera::profiler {

/// A C++ function's name without result, parameters and namespaces: "product_kernel<ProductTile<128,192>,f16,true>". A
/// template's arguments are written once; mangled names are read. Other names stay as they are.
std::string plain_kernel_name(std::string_view name);
/// At most `width` characters: what is too long loses its middle.
std::string shortened(const std::string& text, size_t width);
/// Plain names of that width; names that would look alike keep where they differ.
std::vector<std::string> short_kernel_names(const std::vector<std::string>& names, size_t width);

}  // namespace tessera::profiler
