// Tensors of ONNX files.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "io/file.h"
#include "onnx/proto.h"
#include "tessera/onnx.h"

namespace tessera::onnx {

/// What a type is called in messages: "float", "uint16", "type 99".
std::string type_name(int64_t data_type);
/// The same type here, if there is one.
std::optional<DType> dtype_from(int64_t data_type);
int64_t data_type_of(DType dtype);
/// Throws Unsupported, which begins with `where`, for types that are not there.
DType required_dtype(int64_t data_type, const std::string& where);

/// The file, and those beside it that hold tensors of it.
class Source {
 public:
  /// `folder`: where external data may lie; nowhere if empty. `owner` keeps the bytes of the file itself, which is
  /// `mapped` if that is given.
  Source(std::string file, std::string folder, std::shared_ptr<void> owner, MappedFile* mapped = nullptr)
      : file_(std::move(file)), folder_(std::move(folder)), owner_(std::move(owner)), mapped_(mapped) {}

  const std::string& file() const { return file_; }
  /// A view of the file where it aligns the elements, otherwise a copy. Pages of the file go back to the system as soon
  /// as they are copied, or the last view of them is gone. Throws FileError, or Unsupported for types that are not
  /// there.
  Tensor tensor(const TensorProto& proto);
  Tensor tensor(const SparseTensorProto& proto);

 private:
  struct Located {
    Bytes bytes;
    std::shared_ptr<void> owner;
    MappedFile* mapped;
  };
  Located external(const TensorProto& proto, const std::string& where);

  std::string file_, folder_;
  std::shared_ptr<void> owner_;
  MappedFile* mapped_;
  std::map<std::string, std::shared_ptr<MappedFile>, std::less<>> others_;
};

}  // namespace tessera::onnx
