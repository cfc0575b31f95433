// How many samples of a batch go through the model at a time, and how ranks find that out together.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/trainer.h"
#include "train/ranks.h"

namespace tessera::train {

class Microbatch {
 public:
  /// As in Options.
  explicit Microbatch(int64_t option) : searched_(option == kAutoMicrobatch), size_(std::max<int64_t>(option, 0)) {}

  bool is_searched() const { return searched_; }
  /// 0: all of a batch.
  int64_t size() const { return size_; }
  /// With the size that was found before the run was stopped.
  void go_on_with(int64_t size) {
    if (searched_) size_ = size;
  }

  /// Before each attempt at a step.
  void begin() { largest_ = 0; }
  /// A batch in parts of that size, of which the last one may have less. Throws Error where it has no samples.
  std::vector<Tensors> parts_of(const Tensors& batch) {
    if (size_ == 0 && !searched_) return {batch};
    const int64_t rows = rows_of(batch), size = size_ > 0 ? std::min(size_, rows) : rows;
    largest_ = std::max(largest_, size);
    if (size == rows) return {batch};
    std::vector<Tensors> parts;
    for (int64_t at = 0; at < rows; at += size) {
      Tensors& part = parts.emplace_back();
      for (const Tensor& t : batch) part.push_back(t.slice(0, at, std::min(at + size, rows)));
    }
    return parts;
  }
  /// Throws Error unless all tensors of a batch have as many.
  static int64_t rows_of(const Tensors& batch) {
    const int64_t rows = batch.empty() || batch[0].dim() == 0 ? 0 : batch[0].size(0);
    for (const Tensor& t : batch)
      if (rows == 0 || t.dim() == 0 || t.size(0) != rows)
        throw Error(
            fmt::format("train: a batch with {} has no samples along dim 0 that a microbatch could take", describe(t)));
    return rows;
  }

  /// Whether all ranks got through; else they take half of what the least of those that did not had tried, and try the
  /// step again. All ranks call it, and none communicates before. Throws OutOfMemoryError, the same on all of them,
  /// where one sample was too many.
  bool agree(const Ranks& ranks, const std::optional<std::string>& failure) {
    if (!searched_) return true;
    const int64_t mine = failure ? std::max<int64_t>(largest_ > 0 ? largest_ : size_, 1) : 0;
    const std::vector<int64_t> all = ranks.all(tensor(std::vector<int64_t>{mine}, {1})).to_vector<int64_t>();
    int failed = -1;  // the rank
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i] > 0 && (failed < 0 || all[i] < all[static_cast<size_t>(failed)])) failed = static_cast<int>(i);
    if (failed < 0) return true;
    too_many_ = all[static_cast<size_t>(failed)];
    if (too_many_ == 1) fail(ranks, failed, failure.value_or(""));
    size_ = too_many_ / 2;
    is_news_ = true;
    return false;
  }

  struct News {
    int64_t samples, too_many;
  };
  /// What was found, once.
  std::optional<News> news() {
    if (!searched_ || !std::exchange(is_news_, false)) return {};
    return News{size_ > 0 ? size_ : largest_, too_many_};
  }

 private:
  [[noreturn]] static void fail(const Ranks& ranks, int failed, std::string what) {
    if (ranks.size() > 1) {
      constexpr size_t most = 512;
      what.resize(most, '\0');
      const std::vector<uint8_t> mine(what.begin(), what.end());
      const Tensor said = dist::broadcast(tensor(mine, {most}), failed, *ranks.group);
      what.assign(reinterpret_cast<const char*>(said.data<uint8_t>()), most);
      what.resize(std::min(what.find('\0'), most));
    }
    const std::string where = ranks.size() > 1 ? fmt::format(" on rank {}", failed) : "";
    throw OutOfMemoryError(fmt::format("train: microbatches of one sample are too large{}: {}", where, what));
  }

  bool searched_;
  int64_t size_;
  int64_t largest_ = 0;   // of the parts of this attempt
  int64_t too_many_ = 0;  // the last size that did not fit
  bool is_news_ = true;
};

}  // namespace tessera::train
