// Features and trees: operators of ai.onnx.ml, and counts of n-grams. By the host, from values.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "onnx/handler.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

constexpr int64_t kMostColumns = int64_t{1} << 24;  // of a result whose width the file says

Values extract_features(const Call& c) {
  const Tensor& x = c.in(0);
  if (x.dim() == 0) c.fail("a number has no features");
  const Tensor picked = index_select(x, x.dim() - 1, flatten(cast(c.in(1), Int64)));
  return {x.dim() == 1 ? unsqueeze(picked, 0) : picked};
}

Values binarize(const Call& c) {
  const Tensor& x = c.in(0);
  return {cast(gt(x, full({}, c.real("threshold", 0), x.dtype(), x.device())), x.dtype())};
}

// ---- n-grams

struct Grams {
  std::map<std::vector<int64_t>, size_t> places;  // of each n-gram among `columns` and `weights`
  std::vector<int64_t> columns;
  std::vector<double> weights;
  int64_t width = 0;    // of a row of the result
  int64_t longest = 0;  // that the pool has
};
Grams grams_of(const Call& c) {
  if (c.has_attribute("pool_strings")) c.refuse("elements of string are not supported");
  Grams out;
  out.columns = c.integers("ngram_indexes");
  out.weights = c.reals("weights");
  const std::vector<int64_t> pool = c.integers("pool_int64s"), begins = c.integers("ngram_counts");
  if (out.weights.empty()) out.weights.resize(out.columns.size(), 1);
  if (out.weights.size() != out.columns.size())
    c.fail("{} weights of {} n-grams", out.weights.size(), out.columns.size());
  for (const int64_t column : out.columns) {
    if (column < 0 || column >= kMostColumns) c.fail("an n-gram is counted in column {}", column);
    out.width = std::max(out.width, column + 1);
  }
  const auto size = static_cast<int64_t>(pool.size());
  out.longest = static_cast<int64_t>(begins.size());
  size_t place = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    const int64_t begin = begins[i], end = i + 1 < begins.size() ? begins[i + 1] : size;
    const auto n = static_cast<int64_t>(i + 1);
    if (begin < 0 || begin > end || end > size || (end - begin) % n)
      c.fail("{}-grams lie from {} to {} of a pool of {}", n, begin, end, size);
    for (int64_t at = begin; at < end; at += n)
      out.places.emplace(std::vector(&pool[0] + at, &pool[0] + at + n), place++);
  }
  if (place != out.columns.size()) c.fail("{} n-grams have {} columns", place, out.columns.size());
  return out;
}

// Elements of an n-gram lie `distance` apart; single ones are counted at the first distance alone.
Values count_grams(const Call& c) {
  const Tensor& x = c.in(0);
  if (is_floating(x.dtype()) || x.dim() < 1 || x.dim() > 2) c.fail("{} is no list of integers", describe(x));
  const int64_t shortest = c.integer("min_gram_length", 1), longest = c.integer("max_gram_length", 1);
  const int64_t length = x.size(-1), rows = x.numel() / std::max<int64_t>(length, 1);
  const int64_t skips = std::clamp<int64_t>(c.integer("max_skip_count", 0), 0, length);
  if (shortest < 1 || longest < shortest) c.fail("n-grams of {} to {} elements", shortest, longest);
  const std::string mode = c.text("mode", "TF");
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF") c.fail("mode '{}' is not known", mode);
  const Grams grams = grams_of(c);
  const int64_t most = std::min({longest, length, grams.longest});
  const std::vector<int64_t> elements = x.to(cpu()).to_vector<int64_t>();
  const Tensor out = zeros({rows, grams.width}, Float32, cpu());
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> counts(grams.columns.size());
    for (int64_t distance = 1; distance <= skips + 1; ++distance)
      for (int64_t n = std::max<int64_t>(shortest, distance > 1 ? 2 : 1); n <= most; ++n)
        for (int64_t first = 0; first + (n - 1) * distance < length; ++first) {
          std::vector<int64_t> gram(static_cast<size_t>(n));
          for (int64_t i = 0; i < n; ++i)
            gram[static_cast<size_t>(i)] = elements[static_cast<size_t>(row * length + first + i * distance)];
          if (const auto found = grams.places.find(gram); found != grams.places.end()) ++counts[found->second];
        }
    for (size_t i = 0; i < counts.size(); ++i) {
      const double count = mode == "IDF" ? counts[i] > 0 : counts[i], weight = mode == "TF" ? 1 : grams.weights[i];
      out.data<float>()[row * grams.width + grams.columns[i]] += static_cast<float>(count * weight);
    }
  }
  return {(x.dim() == 1 ? reshape(out, {grams.width}) : out).to(x.device())};
}

// ---- trees

class Trees {
 public:
  explicit Trees(const Call& c)
      : roots_(c.integers("tree_roots")),
        modes_(c.tensor("nodes_modes").to_vector<int64_t>()),
        features_(c.integers("nodes_featureids")),
        splits_(c.tensor("nodes_splits").to_vector<double>()),
        missing_(c.integers("nodes_missing_value_tracks_true")),
        next_{c.integers("nodes_falsenodeids"), c.integers("nodes_truenodeids")},
        is_leaf_{c.integers("nodes_falseleafs"), c.integers("nodes_trueleafs")},
        targets_(c.integers("leaf_targetids")),
        weights_(c.tensor("leaf_weights").to_vector<double>()) {
    const size_t n = modes_.size();
    if (missing_.empty()) missing_.resize(n);
    for (size_t size : {features_.size(), splits_.size(), missing_.size(), next_[0].size(), next_[1].size(),
                        is_leaf_[0].size(), is_leaf_[1].size()})
      if (size != n) c.fail("lists of {} and {} nodes", n, size);
    if (targets_.size() != weights_.size()) c.fail("{} targets of {} leaves", targets_.size(), weights_.size());
    for (size_t i = 0; i < n; ++i)
      for (int side : {0, 1}) require(c, next_[side][i], is_leaf_[side][i] ? weights_.size() : n);
    for (const int64_t root : roots_) require(c, root, n);
    read_members(c);
  }

  size_t count() const { return roots_.size(); }
  int64_t target(size_t leaf) const { return targets_[leaf]; }
  double weight(size_t leaf) const { return weights_[leaf]; }
  size_t leaves() const { return weights_.size(); }

  /// Where a row ends in tree `t`.
  size_t leaf_of(const Call& c, size_t t, const double* row, int64_t features) const {
    auto node = static_cast<size_t>(roots_[t]);
    for (size_t step = 0; step < modes_.size(); ++step) {
      if (features_[node] < 0 || features_[node] >= features) c.fail("feature {} of {}", features_[node], features);
      const bool side = takes(c, node, row[features_[node]]);
      const auto next = static_cast<size_t>(next_[side][node]);
      if (is_leaf_[side][node]) return next;
      node = next;
    }
    c.fail("tree {} has no end", t);
  }

 private:
  static void require(const Call& c, int64_t place, size_t size) {
    if (place < 0 || static_cast<size_t>(place) >= size) c.fail("node or leaf {} of {}", place, size);
  }
  // The sets of nodes that ask for members, one after another; NaN ends each.
  void read_members(const Call& c) {
    members_.resize(modes_.size());
    if (!c.has_attribute("membership_values")) return;
    const std::vector<double> values = c.tensor("membership_values").to_vector<double>();
    size_t at = 0;
    for (size_t i = 0; i < modes_.size(); ++i) {
      if (modes_[i] != 6) continue;
      for (; at < values.size() && !std::isnan(values[at]); ++at) members_[i].push_back(values[at]);
      ++at;
    }
  }
  bool takes(const Call& c, size_t node, double x) const {
    if (std::isnan(x) && missing_[node]) return true;
    const double split = splits_[node];
    switch (modes_[node]) {
      case 0:
        return x <= split;
      case 1:
        return x < split;
      case 2:
        return x >= split;
      case 3:
        return x > split;
      case 4:
        return x == split;
      case 5:
        return x != split;
      case 6:
        return std::find(members_[node].begin(), members_[node].end(), x) != members_[node].end();
      default:
        c.fail("mode {} of a node is not known", modes_[node]);
    }
  }

  std::vector<int64_t> roots_, modes_, features_;
  std::vector<double> splits_;
  std::vector<int64_t> missing_, next_[2], is_leaf_[2], targets_;
  std::vector<double> weights_;
  std::vector<std::vector<double>> members_;
};

Tensor transformed(const Call& c, const Tensor& y) {
  switch (c.integer("post_transform", 0)) {
    case 0:
      return y;
    case 1:
      return softmax(y, 1);
    case 2:
      return sigmoid(y);
    default:
      c.refuse("post_transform {} is not supported", c.integer("post_transform", 0));
  }
}

Values tree_ensemble(const Call& c) {
  enum { Average, Sum, Min, Max };
  const Tensor& x = c.in(0);
  const Trees trees(c);
  const int64_t targets = c.integer("n_targets", 0), how = c.integer("aggregate_function", Sum);
  if (x.dim() != 2) c.fail("{} is no matrix", describe(x));
  if (targets < 1 || targets > kMostColumns) c.fail("{} targets", targets);
  if (how < Average || how > Max) c.fail("aggregate_function {} is not known", how);
  for (size_t leaf = 0; leaf < trees.leaves(); ++leaf)
    if (trees.target(leaf) < 0 || trees.target(leaf) >= targets) c.fail("target {} of {}", trees.target(leaf), targets);
  const int64_t rows = x.size(0), features = x.size(1);
  const std::vector<double> values = x.to(cpu()).to_vector<double>();
  const Tensor out = zeros({rows, targets}, Float64, cpu());
  for (int64_t row = 0; row < rows; ++row) {
    double* const sums = out.data<double>() + row * targets;
    std::vector<bool> met(static_cast<size_t>(targets));
    for (size_t t = 0; t < trees.count(); ++t) {
      const size_t leaf = trees.leaf_of(c, t, values.data() + row * features, features);
      const auto target = static_cast<size_t>(trees.target(leaf));
      double& sum = sums[target];
      const double weight = trees.weight(leaf);
      if (how == Average || how == Sum) sum += weight / (how == Average ? static_cast<double>(trees.count()) : 1);
      else if (!met[target]) sum = weight;
      else sum = how == Min ? std::min(sum, weight) : std::max(sum, weight);
      met[target] = true;
    }
  }
  return {cast(transformed(c, out), x.dtype()).to(x.device())};
}

constexpr std::string_view kMl = "ai.onnx.ml";
constexpr Entry entries[] = {
    {"ArrayFeatureExtractor", 1, extract_features, kMl},
    {"Binarizer", 1, binarize, kMl},
    {"TfIdfVectorizer", 9, count_grams},
    {"TreeEnsemble", 5, tree_ensemble, kMl},
};

}  // namespace

std::span<const Entry> feature_handlers() { return entries; }

}  // namespace tessera::onnx
