// The parts of a checkpoint: who writes what, what the index says of them, and how they become tensors again.
#include "io/checkpoint_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "io/file.h"
#include "io/kept_checkpoints.h"
#include "io/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Counts = std::vector<int64_t>;

constexpr const char* kPartFormat = "tessera checkpoint part";
constexpr int kDeepest = 6;
constexpr size_t kMostDims = 64;
constexpr size_t kMostSlices = 4096;  // of a tensor: each two of them are compared

Counts counts_of(const Shape& shape) {
  Counts out;
  for (Dim d : shape) out.push_back(d.value());
  return out;
}

// "w" of a whole tensor, or "w[0:3,0:4]".
std::string key_of(const IndexedSlice& s) {
  if (s.extent == s.whole) return s.name;
  std::string text;
  for (size_t d = 0; d < s.whole.size(); ++d)
    text += fmt::format("{}{}:{}", d ? "," : "", s.offset[d], s.offset[d] + s.extent[d]);
  return fmt::format("{}[{}]", s.name, text);
}

// The generation in the name of a part, or of one that was not finished; nothing if it is none of `base`.
std::optional<int64_t> generation_of(std::string_view file, std::string_view base) {
  if (!file.starts_with(base)) return {};
  file.remove_prefix(base.size());
  int64_t numbers[2];
  for (int i = 0; i < 2; ++i) {
    if (file.empty() || file[0] != ".-"[i]) return {};
    const auto [end, error] = std::from_chars(file.data() + 1, file.data() + file.size(), numbers[i]);
    if (error != std::errc() || numbers[i] < 0) return {};
    file.remove_prefix(static_cast<size_t>(end - file.data()));
  }
  if (file != ".part" && file != ".part.tmp") return {};
  return numbers[0];
}

fs::path folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

// The parts of a checkpoint, of which there may be none; nothing if that cannot be known.
std::optional<std::set<std::string>> parts_of(const std::string& path) {
  std::set<std::string> out;
  std::error_code code;
  if (!fs::exists(path, code) && !code) return out;
  try {
    const SafeTensors file(path);
    if (CheckpointReader::version(file) < 2) return out;
    for (const IndexedPart& p : parse_index(CheckpointReader::value(file, "parts"), path)) out.insert(p.file);
    return out;
  } catch (const FileError&) {
    return {};
  }
}

Counts read_counts(const Json& json, const std::string& name) {
  if (!json.is_array() || json.size() > kMostDims) throw FileError(name + ": damaged checkpoint: bad index");
  Counts out;
  for (const Json& n : json) {
    if (!n.is_number_unsigned() || n.get<uint64_t>() > INT64_MAX)
      throw FileError(name + ": damaged checkpoint: bad index");
    out.push_back(static_cast<int64_t>(n.get<uint64_t>()));
  }
  return out;
}

template <class T>
T read_member(const Json& json, const char* key, const std::string& name) {
  auto it = json.find(key);
  if constexpr (std::is_same_v<T, std::string>) {
    if (it != json.end() && it->is_string()) return it->get<T>();
  } else {
    if (it != json.end() && it->is_number_unsigned()) return it->get<T>();
  }
  throw FileError(fmt::format("{}: damaged checkpoint: bad index: no {}", name, key));
}

IndexedSlice read_slice(const Json& json, const std::string& name) {
  IndexedSlice s;
  if (!json.is_object() || !json.contains("of") || !json.contains("offset") || !json.contains("extent"))
    throw FileError(name + ": damaged checkpoint: bad index");
  s.name = read_member<std::string>(json, "name", name);
  s.whole = read_counts(json["of"], name);
  s.offset = read_counts(json["offset"], name);
  s.extent = read_counts(json["extent"], name);
  bool fits = s.offset.size() == s.whole.size() && s.extent.size() == s.whole.size();
  for (size_t d = 0; fits && d < s.whole.size(); ++d)
    fits = s.extent[d] <= s.whole[d] && s.offset[d] <= s.whole[d] - s.extent[d];
  if (!fits)
    throw FileError(fmt::format("{}: damaged checkpoint: a slice leaves its tensor {}", name, in_quotes(s.name)));
  return s;
}

// A slice, and the file that has it.
struct Block {
  const IndexedSlice* slice;
  const SafeTensors* part;
  TensorMeta meta;
};

bool overlap(const IndexedSlice& a, const IndexedSlice& b) {
  for (size_t d = 0; d < a.whole.size(); ++d)
    if (a.offset[d] + a.extent[d] <= b.offset[d] || b.offset[d] + b.extent[d] <= a.offset[d]) return false;
  return true;
}

// The blocks must cover their tensor once.
void check_cover(const std::vector<Block>& blocks, const std::string& name) {
  const IndexedSlice& first = *blocks[0].slice;
  const auto refuse = [&](const char* what) {
    throw FileError(fmt::format("{}: damaged checkpoint: {} {}", name, what, in_quotes(first.name)));
  };
  size_t bytes, covered = 0;
  const DType dtype = blocks[0].meta.dtype;
  if (blocks.size() > kMostSlices) refuse("too many slices of");
  if (!dense_bytes(Shape(first.whole.begin(), first.whole.end()), dtype, bytes)) refuse("an impossible size of");
  for (size_t i = 0; i < blocks.size(); ++i) {
    const IndexedSlice& one = *blocks[i].slice;
    if (one.whole != first.whole || blocks[i].meta.dtype != dtype)
      refuse("slices that differ in the shape or dtype of");
    size_t part = 0;
    dense_bytes(blocks[i].meta.shape, dtype, part);  // not above that of the whole
    covered += part;
    for (size_t j = 0; j < i; ++j)
      if (part > 0 && overlap(one, *blocks[j].slice)) refuse("slices that overlap in");
  }
  if (covered != bytes) refuse("a slice is missing of");
}

// Copies a dense block to its place in the whole, in runs that lie one after another in both.
void copy_block(char* to, const char* from, const IndexedSlice& s, size_t element) {
  size_t inner = s.whole.size();  // dims from here on are whole
  int64_t run = 1;
  while (inner > 0 && s.extent[inner - 1] == s.whole[inner - 1]) run *= s.whole[--inner];
  if (inner > 0) run *= s.extent[--inner];
  int64_t runs = 1;
  for (size_t d = 0; d < inner; ++d) runs *= s.extent[d];
  if (run == 0) return;
  const size_t bytes = static_cast<size_t>(run) * element;
  for (int64_t r = 0; r < runs; ++r) {
    int64_t rest = r, at = 0, stride = 1;
    for (size_t d = s.whole.size(); d-- > 0;) {
      const int64_t index = d < inner ? rest % s.extent[d] : 0;
      if (d < inner) rest /= s.extent[d];
      at += (s.offset[d] + index) * stride;
      stride *= s.whole[d];
    }
    std::memcpy(to + static_cast<size_t>(at) * element, from + static_cast<size_t>(r) * bytes, bytes);
  }
}

Tensor whole_of(const std::vector<Block>& blocks) {
  const IndexedSlice& first = *blocks[0].slice;
  if (blocks.size() == 1) return blocks[0].part->tensor(key_of(first));
  Tensor out = empty(Shape(first.whole.begin(), first.whole.end()), blocks[0].meta.dtype);
  for (const Block& b : blocks) {
    const Tensor part = b.part->tensor(key_of(*b.slice));
    copy_block(static_cast<char*>(out.place()), static_cast<const char*>(part.place()), *b.slice, size_of(out.dtype()));
  }
  return out;
}

// Opens a part and holds it against what the index says. Throws FileError.
SafeTensors open_part(const IndexedPart& part, const std::string& name, const OpenPart& open) {
  SafeTensors file = open(part.file);
  if (CheckpointReader::value(file, "format") != kPartFormat)
    throw FileError(CheckpointReader::name(file) + ": not a part of a checkpoint");
  if (CheckpointReader::checksum(file) != part.checksum || CheckpointReader::size(file) != part.bytes)
    throw FileError(
        fmt::format("{}: damaged checkpoint: {} is not the part that it names", name, in_quotes(part.file)));
  if (file.names().size() != part.slices.size() + 1)
    throw FileError(fmt::format("{}: damaged checkpoint: {} has other slices", name, in_quotes(part.file)));
  return file;
}

}  // namespace

std::vector<TensorSlice> share_of(const StateDict& tensors, int part, int parts) {
  size_t all = 0, at = 0;
  for (const auto& [name, t] : tensors) all += bytes_of(t);
  // Rows belong to the part in whose share of the bytes they begin.
  const auto begin_of = [&](int p) { return all / static_cast<size_t>(parts) * static_cast<size_t>(p); };
  const size_t begin = begin_of(part), end = part + 1 == parts ? SIZE_MAX : begin_of(part + 1);
  std::vector<TensorSlice> out;
  for (const auto& [name, t] : tensors) {
    int64_t dim = 0;  // the first one that can be cut
    while (dim < t.dim() && t.size(dim) == 1) ++dim;
    const int64_t rows = dim < t.dim() ? t.size(dim) : 1;
    const size_t row = rows > 0 ? bytes_of(t) / static_cast<size_t>(rows) : 0;
    const auto first_from = [&](size_t byte) {  // row that begins there or later
      if (byte <= at) return int64_t{0};
      return row == 0 ? rows : static_cast<int64_t>(std::min((byte - at + row - 1) / row, static_cast<size_t>(rows)));
    };
    const int64_t from = first_from(begin), to = end == SIZE_MAX ? rows : first_from(end);
    at += bytes_of(t);
    const bool empty_one = bytes_of(t) == 0;  // of the first part
    if (empty_one ? part != 0 : from >= to) continue;
    Counts offset(static_cast<size_t>(t.dim()), 0);
    const bool cut = !empty_one && (from > 0 || to < rows);
    if (cut) offset[static_cast<size_t>(dim)] = from;
    out.push_back({name, t.shape(), offset, cut ? t.slice(dim, from, to) : t});
  }
  return out;
}

int64_t next_generation(const std::string& path) {
  remove_unnamed_parts(path);
  int64_t last = 0;
  std::error_code code;
  const std::string base = fs::path(path).filename().string();
  for (const auto& entry : fs::directory_iterator(folder_of(path), code))
    last = std::max(last, generation_of(entry.path().filename().string(), base).value_or(0));
  return last + 1;
}

std::string save_part(const std::string& path, int64_t generation, int part, const std::vector<TensorSlice>& slices) {
  const std::string file = fmt::format("{}.{}-{}.part", path, generation, part);
  Json list = Json::array();
  StateDict tensors;
  for (const TensorSlice& s : slices) {
    const IndexedSlice one{s.name, counts_of(s.whole), s.offset, counts_of(s.data.shape())};
    if (!tensors.emplace(key_of(one), s.data).second)
      throw Error("save_checkpoint: two tensors would be called " + in_quotes(key_of(one)));
    list.push_back({{"name", s.name}, {"of", one.whole}, {"offset", one.offset}, {"extent", one.extent}});
  }
  const uint64_t checksum = save_with_checksum(file, tensors, {{"format", kPartFormat}});
  return Json{{"file", fs::path(file).filename().string()},
              {"bytes", static_cast<uint64_t>(fs::file_size(file))},
              {"checksum", checksum},
              {"slices", std::move(list)}}
      .dump();
}

void remove_unnamed_parts(const std::string& path) {
  const std::string base = fs::path(path).filename().string();
  std::error_code code;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder_of(path), code))
    if (generation_of(entry.path().filename().string(), base)) found.push_back(entry.path());
  if (found.empty()) return;
  std::set<std::string> named;
  for (const std::string& checkpoint : all_checkpoints_of(path)) {
    const auto parts = parts_of(checkpoint);
    if (!parts) return;
    named.insert(parts->begin(), parts->end());
  }
  for (const fs::path& file : found)
    if (!named.contains(file.filename().string())) fs::remove(file, code);
}

std::vector<IndexedPart> parse_index(const std::string& text, const std::string& name) {
  auto watch = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) throw FileError(name + ": damaged checkpoint: bad index");
    return true;
  };
  const Json json = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (!json.is_array()) throw FileError(name + ": damaged checkpoint: no index of parts");
  std::vector<IndexedPart> out;
  for (const Json& entry : json) {
    if (!entry.is_object() || !entry.contains("slices") || !entry["slices"].is_array())
      throw FileError(name + ": damaged checkpoint: bad index");
    IndexedPart& part = out.emplace_back();
    part.file = read_member<std::string>(entry, "file", name);
    part.bytes = read_member<uint64_t>(entry, "bytes", name);
    part.checksum = read_member<uint64_t>(entry, "checksum", name);
    if (part.file.find_first_of(std::string_view("/\0", 2)) != std::string::npos || !part.file.ends_with(".part"))
      throw FileError(fmt::format("{}: damaged checkpoint: {} is no name of a part", name, in_quotes(part.file)));
    for (const Json& slice : entry["slices"]) part.slices.push_back(read_slice(slice, name));
  }
  return out;
}

StateDict assemble(const std::vector<IndexedPart>& parts, const std::string& name, const OpenPart& open) {
  std::vector<SafeTensors> files;
  files.reserve(parts.size());  // blocks point to them
  std::map<std::string, std::vector<Block>> tensors;
  for (const IndexedPart& part : parts) {
    files.push_back(open_part(part, name, open));
    for (const IndexedSlice& slice : part.slices) {
      const std::string key = key_of(slice);
      if (!files.back().contains(key) || counts_of(files.back().meta(key).shape) != slice.extent)
        throw FileError(
            fmt::format("{}: damaged checkpoint: {} has no {}", name, in_quotes(part.file), in_quotes(key)));
      tensors[slice.name].push_back({&slice, &files.back(), files.back().meta(key)});
    }
  }
  StateDict out;
  for (const auto& [key, blocks] : tensors) {
    check_cover(blocks, name);
    out.emplace(key, whole_of(blocks));
  }
  return out;
}

}  // namespace tessera
