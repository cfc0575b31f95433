// Data: text, a character tokenizer, and a loader that prepares batches in the background.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tensor.h"

namespace tessera {

/// A text file in UTF-8, without a byte-order mark. Throws FileError if it is missing, empty or no text.
std::string read_text(const std::string& path);
/// Byte offset of the first place that is no text (a zero byte, or not UTF-8); npos if there is none.
size_t find_non_text(std::string_view text);

/// Maps each character (Unicode code point) of a text to a number: its place among all characters, sorted.
class CharTokenizer {
 public:
  CharTokenizer() = default;
  /// The characters of `text`, or a vocabulary written before. Throws Error unless it is UTF-8.
  explicit CharTokenizer(std::string_view text);
  /// All characters in order, in UTF-8: the tokenizer made from it is the same.
  std::string vocabulary() const;
  int64_t size() const { return static_cast<int64_t>(characters_.size()); }
  /// Throws Error that names the first character that is not in the vocabulary.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Throws Error on a number outside of the vocabulary.
  std::string decode(const std::vector<int32_t>& tokens) const;

 private:
  std::vector<char32_t> characters_;
};

using Tokens = std::shared_ptr<const std::vector<int32_t>>;

/// A text as tokens: the first 90 % to train on, the rest to validate.
struct TextData {
  CharTokenizer tokenizer;
  Tokens train, validation;
};
/// Throws FileError if one of the splits has not more than `block` tokens.
TextData make_text_data(std::string_view text, const CharTokenizer& tokenizer, int64_t block,
                        double train_fraction = 0.9);

/// Produces batch `index`. Must depend on nothing but the index, and must be safe to call from another thread.
using BatchSource = std::function<Tensors(int64_t index)>;

/// Windows of a text: inputs and targets, i64 [batch, block] each, the targets one token later. In each epoch the text
/// is cut at other places and its windows, which do not overlap, come in another order.
BatchSource shuffled_windows(Tokens tokens, int64_t block, int64_t batch, uint64_t seed);
/// Rows (dim 0) of all `columns`, shuffled anew in each epoch; a last, smaller batch is left out.
BatchSource shuffled_rows(std::vector<Tensor> columns, int64_t batch, uint64_t seed);

/// Calls a source for batch 0, 1, 2, ... in a background thread, a few batches ahead. Since a batch is a function of
/// its index, the position is the whole state of a loader.
class DataLoader {
 public:
  /// For a GPU, batches of the CPU come from page-locked memory, on the stream that is current in next().
  explicit DataLoader(BatchSource source, int prefetch = 2, Device device = cpu());
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;
  /// The next batch. Rethrows what the source threw; throws Error in a process forked after construction.
  Tensors next();
  /// Index of the batch that next() returns.
  int64_t position() const;
  void seek(int64_t position);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
