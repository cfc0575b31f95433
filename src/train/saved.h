// The parts of a run's checkpoint, and the file that it is saved to.
#pragma once
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dist.h"
#include "tessera/error.h"
#include "tessera/io.h"

namespace tessera::train {

/// x, or a NaN without a sign, which would be printed.
inline double without_nan_sign(double x) { return std::isnan(x) ? NAN : x; }

/// Whatever does not fit together in a file is the file's fault: an Error from `fn` becomes a FileError.
template <class Fn>
void blame(const std::string& file, const Fn& fn) {
  try {
    fn();
  } catch (const Error& e) {
    throw FileError(file + ": " + e.what());
  }
}

/// Parses an object. Throws FileError that begins with `file`.
nlohmann::json parse_object(const std::string& text, const std::string& file);
/// Metadata `key`. Throws FileError if there is none.
const std::string& metadata(const Checkpoint& checkpoint, const std::string& file, std::string_view key);
/// Throws FileError unless the checkpoint is of that kind: `what` it would be is for the error.
void check_kind(const Checkpoint& checkpoint, const std::string& file, std::string_view kind, const std::string& what);
/// The checkpoint in `file`, which must be of that kind. Throws FileError.
Checkpoint load_checkpoint_of(const std::string& file, std::string_view kind, const std::string& what);
/// The tensors below "prefix.", under the rest of their names, and the reverse.
StateDict part(const Checkpoint& checkpoint, std::string_view prefix);
void add_part(Checkpoint& checkpoint, const std::string& prefix, const StateDict& dict);
/// Rows of numbers as a tensor f64 [rows, width], and the tensor `name` of that width. Throws FileError.
Tensor table(const std::vector<std::vector<double>>& rows, int64_t width);
Tensor read_table(const Checkpoint& checkpoint, const std::string& file, const std::string& name, int64_t width);

/// The file that a run saves to, and those before it. What another run has left there becomes FILE.old, unless this run
/// goes on from it.
class CheckpointFile {
 public:
  CheckpointFile(std::string path, bool resumed, int keep) : path_(std::move(path)), keep_(keep), keep_old_(!resumed) {}
  bool exists() const { return !path_.empty(); }
  /// The newest one that all ranks of `group` find whole, from which the run goes on. Throws FileError.
  WholeCheckpoint load(const dist::Group* group = nullptr);
  /// As all ranks of `group` do together, where there is one.
  void save(const Checkpoint& checkpoint, const dist::Group* group = nullptr);

 private:
  void make_place();
  std::string path_;
  int keep_, age_ = 0;  // age: of the one that was loaded
  bool keep_old_;
};

}  // namespace tessera::train
