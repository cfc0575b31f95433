// Code objects as a HIP runtime sees them: taken out of a program's bundles, loaded, and their kernels described.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace stand_in {

/// A parameter of a kernel; those whose kind begins with "hidden_" are the runtime's to fill.
struct Parameter {
  std::string kind;
  size_t offset, size;
};

struct Kernel {
  std::string name;
  uint64_t descriptor;  // address
  size_t argument_bytes;
  unsigned group_bytes, private_bytes, most_threads;
  std::vector<Parameter> parameters;
};

/// How a kernel is launched.
struct Shape {
  uint32_t blocks[3], threads[3], shared_bytes;
};

/// The code object for `target` in clang's bundle, or `image` where that is a code object itself; null: there is none.
const std::byte* find_code(const void* image, const std::string& target);

/// Copies a code object to the card's memory and makes it executable there; throws std::runtime_error.
std::map<std::string, Kernel> load_code(const std::byte* elf);

/// The arguments as the kernel finds them in memory; `values` point to those that the program gives.
std::vector<std::byte> argument_bytes(const Kernel& kernel, const Shape& shape, void* const* values);

}  // namespace stand_in
