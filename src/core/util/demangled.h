// Names of functions as the source has them.
#pragma once
#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace tessera {

/// What is no mangled name of C++ stays as it is.
inline std::string demangled(const std::string& name) {
  if (!name.starts_with("_Z")) return name;  // "f" alone would be read as a type
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                          std::free);
  return plain ? plain.get() : name;
}

}  // namespace tessera
