// Where the library's plugins lie.
#pragma once
#include <filesystem>

namespace tessera {

/// The plugin of that file name: in TESSERA_PLUGIN_DIR where that is set, or else beside the library or the program it
/// is linked into, above it, or in the library's folder of an installation. Empty where there is none.
std::filesystem::path find_plugin(const char* name);

}  // namespace tessera
