// Helpers of the tests of files.
#pragma once
#include <cstdlib>
#include <cstring>
#include <string>

#include "io/temporary_folder.h"
#include "tessera/tensor.h"

namespace tessera {

/// The message of the E that `fn` throws; "no error" if it does not.
template <class E = Error, class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const E& e) {
    return e.what();
  }
  return "no error";
}
template <class Fn>
std::string file_error(Fn&& fn) {
  return error_of<FileError>(fn);
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.is_contiguous() && b.is_contiguous() &&
         (a.numel() == 0 ||
          std::memcmp(a.data_ptr(), b.data_ptr(), static_cast<size_t>(a.numel()) * size_of(a.dtype())) == 0);
}

}  // namespace tessera
