#include "train/saved.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "io/kept_checkpoints.h"
#include "tessera/dist_checkpoint.h"
#include "tessera/ops.h"
#include "train/ranks.h"

namespace tessera::train {

namespace {
constexpr int kMaxDepth = 16;
}

nlohmann::json parse_object(const std::string& text, const std::string& file) {
  using Json = nlohmann::json;
  auto watch = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw FileError(file + ": damaged checkpoint: JSON nested too deeply");
    return true;
  };
  Json json = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (!json.is_object()) throw FileError(file + ": damaged checkpoint: no JSON object where one must be");
  return json;
}

const std::string& metadata(const Checkpoint& checkpoint, const std::string& file, std::string_view key) {
  auto it = checkpoint.metadata.find(key);
  if (it == checkpoint.metadata.end()) throw FileError(fmt::format("{}: damaged checkpoint: no {}", file, key));
  return it->second;
}

void check_kind(const Checkpoint& checkpoint, const std::string& file, std::string_view kind, const std::string& what) {
  if (metadata(checkpoint, file, "kind") != kind)
    throw FileError(fmt::format("{}: not a checkpoint of {}", file, what));
}

Checkpoint load_checkpoint_of(const std::string& file, std::string_view kind, const std::string& what) {
  Checkpoint checkpoint = load_checkpoint(file);
  check_kind(checkpoint, file, kind, what);
  return checkpoint;
}

StateDict part(const Checkpoint& checkpoint, std::string_view prefix) {
  StateDict out;
  for (const auto& [name, t] : checkpoint.tensors)
    if (name.starts_with(prefix)) out.emplace(name.substr(prefix.size()), t);
  return out;
}

void add_part(Checkpoint& checkpoint, const std::string& prefix, const StateDict& dict) {
  for (const auto& [name, t] : dict) checkpoint.tensors.emplace(prefix + name, t);
}

Tensor table(const std::vector<std::vector<double>>& rows, int64_t width) {
  std::vector<double> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return tensor(all, {static_cast<int64_t>(rows.size()), width});
}

Tensor read_table(const Checkpoint& checkpoint, const std::string& file, const std::string& name, int64_t width) {
  auto it = checkpoint.tensors.find(name);
  if (it == checkpoint.tensors.end() || it->second.dim() != 2 || it->second.size(1) != width ||
      it->second.dtype() != Float64)
    throw FileError(fmt::format("{}: damaged checkpoint: bad {}", file, name));
  return it->second;
}

WholeCheckpoint CheckpointFile::load(const dist::Group* group) {
  const Ranks ranks{group};
  for (int first = 0;;) {
    WholeCheckpoint out = load_whole_checkpoint(path_, first);
    const Tensor mine = tensor(std::vector<int32_t>{out.age}, {1});
    const std::vector<int32_t> ages = ranks.all(mine).to_vector<int32_t>();
    const auto [least, most] = std::minmax_element(ages.begin(), ages.end());
    age_ = *most;
    if (*least == *most) {
      if (age_ > 0 && out.why.empty()) out.why = path_ + ": damaged for another rank";
      return out;
    }
    first = age_;
  }
}

// What is at the path and after it before this run's first save there.
void CheckpointFile::make_place() {
  if (!keep_old_) return go_back_to(path_, age_);
  std::error_code none;  // two names of one file: at no moment is there no checkpoint
  std::filesystem::remove(path_ + ".old", none);
  std::filesystem::create_hard_link(path_, path_ + ".old", none);
  if (none) std::filesystem::rename(path_, path_ + ".old", none);
  remove_replaced(path_, 1);
}

void CheckpointFile::save(const Checkpoint& checkpoint, const dist::Group* group) {
  if (!group || group->rank() == 0) make_place();
  const int keep = std::exchange(keep_old_, false) ? 1 : keep_;  // what is there now is another run's
  age_ = 0;
  if (group) dist::save_checkpoint(path_, checkpoint, *group, keep);
  else save_checkpoint(path_, checkpoint, keep);
}

}  // namespace tessera::train
