// Helpers of the tests of files.
#pragma once
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "tessera/tensor.h"

namespace tessera {

/// A fresh folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tessera_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

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
