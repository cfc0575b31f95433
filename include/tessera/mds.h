// MDS, the shards of MosaicML Streaming (format 2): a folder of files with samples, and index.json, which says what is
// in them. Nothing that a file says is trusted: what cannot be read is a FileError of one line that begins with the
// file.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/data.h"
#include "tessera/remote.h"
#include "tessera/sample_order.h"
#include "tessera/tensor.h"

namespace tessera {

/// A number ([]) or an array, or the bytes of a text, of JSON or of an image.
using MdsValue = std::variant<Tensor, std::string>;
/// By the names of its columns.
using MdsSample = std::map<std::string, MdsValue>;

/// A column and how its values are written:
/// - numbers: int (i64), int8 to int64, uint8 to uint64, float16, float32, float64;
/// - arrays: "ndarray", or of one type "ndarray:uint16", or of one shape too "ndarray:uint16:2048";
/// - text in UTF-8: str, str_int, str_float, str_decimal, json;
/// - bytes, left as they are: bytes, jpeg, png, pil, jpeg_array, list[jpeg], list[png], list[pil].
/// pkl is refused: reading it would run a program.
struct MdsColumn {
  std::string name, encoding;
  friend bool operator==(const MdsColumn&, const MdsColumn&) = default;
};

struct MdsWriterOptions {
  std::string compression = {};          ///< zstd, zstd:1 to zstd:22, gz, gz:0 to gz:9; empty: none
  std::vector<std::string> hashes = {};  ///< sha1, xxh32, xxh64, xxh128, xxh3_64, xxh3_128
  int64_t size_limit = 1 << 26;  ///< bytes of a shard before compression; a larger sample has a shard of its own
};

/// Writes a new folder. Its index comes last: a folder without index.json is not complete.
class MdsWriter {
 public:
  /// Throws Error on what is no column or option, and where the folder holds anything.
  MdsWriter(const std::string& folder, std::vector<MdsColumn> columns, MdsWriterOptions options = {});
  /// Before finish(), removes what was written.
  ~MdsWriter();
  /// Numbers and arrays must have the column's type and shape, and at least one element. Throws Error, and then has not
  /// taken the sample.
  void write(const MdsSample& sample);
  /// Writes the last shard and the index. Throws Error.
  void finish();
  int64_t samples() const;
  int64_t shards() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct MdsReaderOptions {
  /// Each shard is compared once, as it is opened, with the first of its hashes that this library knows.
  bool check_hashes = true;
  /// Bytes of decompressed shards that are kept, those used last; the one at hand is always.
  int64_t cache_limit = int64_t{1} << 30;
  RemoteOptions remote = {};  ///< of folders of other machines
};

/// A shard as the index describes it.
struct MdsShardInfo {
  std::string file;  ///< on disk: the compressed one, unless the other is there
  std::string compression;
  std::vector<std::string> hashes;
  int64_t samples = 0, bytes = 0, compressed_bytes = 0;  ///< compressed_bytes: 0 without compression
};

/// Bytes of one value, valid as long as this lives.
struct MdsBytes {
  std::string_view bytes;
  std::shared_ptr<const void> owner;
};

/// The samples of a folder, of this machine or of another one (remote.h). Shards are mapped, or decompressed when a
/// sample of theirs is asked for; those of another machine are downloaded first. Any thread may read.
class MdsReader {
 public:
  /// Throws FileError.
  explicit MdsReader(const std::string& folder, MdsReaderOptions options = {});
  ~MdsReader();
  const std::string& folder() const;
  /// Sorted by name.
  const std::vector<MdsColumn>& columns() const;
  /// The place of a column in columns(). Throws FileError if there is none of that name.
  size_t column(std::string_view name) const;
  int64_t size() const;
  std::vector<MdsShardInfo> shards() const;
  /// Samples of each shard.
  std::vector<int64_t> shard_sizes() const;
  MdsSample sample(int64_t index) const;
  MdsValue value(int64_t index, size_t column) const;
  /// The value as it is written.
  MdsBytes bytes(int64_t index, size_t column) const;
  /// Of another machine: downloads the shards of these samples in the background, the first ones first, in place of
  /// those asked for before. Nothing to do for a folder of this machine.
  void prefetch(std::span<const int64_t> samples) const;
  bool is_remote() const;
  /// Reads a whole shard: each hash that is known, every offset, every value. Throws FileError on what is wrong.
  void verify(int64_t shard) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Batches of a column of tokens, arrays of integers with more than `block` of them: inputs and targets, i64
/// [batch, block] each, the targets one token later. Epochs come in the order of one rank, whatever `order` says of
/// ranks: those of a run take batches by their index, which is all the state that there is. A last, smaller batch is
/// left out. Throws FileError, also on a token outside of the vocabulary.
BatchSource streamed_tokens(std::shared_ptr<const MdsReader> reader, const std::string& column, int64_t block,
                            int64_t batch, int64_t vocabulary, SampleOrderOptions order = {});

}  // namespace tessera
