#include "train/saved.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "tessera/dist_checkpoint.h"
#include "tessera/ops.h"

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

Checkpoint load_checkpoint_of(const std::string& file, std::string_view kind, const std::string& what) {
  Checkpoint checkpoint = load_checkpoint(file);
  if (metadata(checkpoint, file, "kind") != kind)
    throw FileError(fmt::format("{}: not a checkpoint of {}", file, what));
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

void CheckpointFile::save(const Checkpoint& checkpoint, const dist::Group* group) {
  if (std::exchange(keep_old_, false) && (!group || group->rank() == 0)) {
    std::error_code none;  // two names of one file: at no moment is there no checkpoint
    std::filesystem::remove(path_ + ".old", none);
    std::filesystem::create_hard_link(path_, path_ + ".old", none);
    if (none) std::filesystem::rename(path_, path_ + ".old", none);
  }
  if (group) dist::save_checkpoint(path_, checkpoint, *group);
  else save_checkpoint(path_, checkpoint);
}

}  // namespace tessera::train
