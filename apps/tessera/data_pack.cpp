// tessera data pack: texts, JSON lines, images and arrays become folders of MDS shards.
#include "data_commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "data/download.h"
#include "data/packed_bytes.h"
#include "remote_choice.h"
#include "tessera/data.h"
#include "tessera/io.h"
#include "tessera/mds.h"
#include "training.h"

namespace tessera::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct PackOptions {
  std::string input, out, vocabulary, compression, hashes, size_limit = "64M";
  int64_t block = 0;
  RemoteChoice remote;

  MdsWriterOptions writer() const {
    MdsWriterOptions options;
    options.compression = compression;
    for (size_t at = 0; at < hashes.size();) {
      const size_t end = std::min(hashes.find(',', at), hashes.size());
      options.hashes.push_back(hashes.substr(at, end - at));
      at = end + 1;
    }
    options.size_limit = parse_size("--size-limit", size_limit);
    try {
      parse_compression(compression);
      for (const std::string& hash : options.hashes) hash_of(hash, "");
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
    return options;
  }
};

// What is packed: next() fills in a sample, or says that there is none.
struct Source {
  std::vector<MdsColumn> columns;
  std::function<bool(MdsSample&)> next;
};

// Lines that are not empty, with their numbers.
class Lines {
 public:
  explicit Lines(const std::string& file) : text_(std::make_shared<std::string>(read_text(file))) {}
  bool next(std::string& line) {
    do {
      if (at_ >= text_->size()) return false;
      const size_t end = std::min(text_->find('\n', at_), text_->size());
      line = text_->substr(at_, end - at_);
      at_ = end + 1;
      ++number_;
    } while (line.empty());
    return true;
  }
  int64_t number() const { return number_; }

 private:
  std::shared_ptr<std::string> text_;
  size_t at_ = 0;
  int64_t number_ = 0;
};

Source text_lines(const std::string& file) {
  return {{{"text", "str"}}, [lines = Lines(file)](MdsSample& sample) mutable {
            std::string line;
            if (!lines.next(line)) return false;
            sample["text"] = std::move(line);
            return true;
          }};
}

std::string encoding_of(const Json& value) {
  if (value.is_string()) return "str";
  if (value.is_number_integer()) return "int";
  return value.is_number() ? "float64" : "json";
}

// False if the column has others.
bool to_value(const Json& json, const std::string& encoding, MdsValue& out) {
  if (encoding == "json") return out = json.dump(), true;
  if (encoding == "str") return json.is_string() && (out = json.get<std::string>(), true);
  if (encoding == "float64")
    return json.is_number() && (out = tensor(std::vector<double>{json.get<double>()}, {}), true);
  const bool fits = json.is_number_integer() && (!json.is_number_unsigned() || json.get<uint64_t>() <= INT64_MAX);
  if (fits) out = tensor(std::vector<int64_t>{json.get<int64_t>()}, {});
  return fits;
}

// A column for each member of the first line's object, which all lines must have.
Source json_lines(const std::string& file) {
  const auto parse = [file](const Lines& lines, const std::string& line) {
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) throw FileError(fmt::format("{}: line {} is no JSON object", file, lines.number()));
    return json;
  };
  Lines first(file);
  std::string line;
  if (!first.next(line)) throw FileError(file + ": no line has anything in it");
  Source out;
  const Json head = parse(first, line);
  for (const auto& [name, value] : head.items()) out.columns.push_back({name, encoding_of(value)});
  out.next = [=, columns = out.columns, lines = Lines(file)](MdsSample& sample) mutable {
    std::string text;
    if (!lines.next(text)) return false;
    const Json json = parse(lines, text);
    for (const MdsColumn& column : columns)
      if (const auto it = json.find(column.name);
          it == json.end() || !to_value(*it, column.encoding, sample[column.name]))
        throw FileError(fmt::format("{}: line {} has no {} for the column \"{}\" of the first line", file,
                                    lines.number(), column.encoding, column.name));
    if (json.size() != columns.size())
      throw FileError(fmt::format("{}: line {} has members that the first one has not", file, lines.number()));
    return true;
  };
  return out;
}

std::string kind_of(const fs::path& file) {
  std::string end = file.extension().string();
  std::transform(end.begin(), end.end(), end.begin(), [](unsigned char c) { return std::tolower(c); });
  return end == ".jpg" || end == ".jpeg" ? "jpeg" : end == ".png" ? "png" : end == ".npy" ? "ndarray" : "";
}

// Images or arrays below a folder, in the order of their names. Where all lie in folders of their own, these are
// classes.
Source files_below(const std::string& folder) {
  std::vector<std::string> names, kinds, classes;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && !kind_of(entry).empty()) names.push_back(fs::relative(entry, folder).string());
  if (names.empty()) throw UsageError(folder + ": no image (.jpg, .png) and no array (.npy) is in it");
  std::sort(names.begin(), names.end());
  bool labelled = true;
  for (const std::string& name : names) {
    kinds.push_back(kind_of(name));
    classes.push_back(fs::path(name).parent_path().string());
    labelled &= !classes.back().empty();
  }
  const auto unique = [](std::vector<std::string>& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  };
  unique(kinds);
  unique(classes);
  const bool arrays = std::find(kinds.begin(), kinds.end(), "ndarray") != kinds.end();
  if (arrays && kinds.size() > 1) throw UsageError(folder + ": both images and arrays are in it");
  const std::string column = arrays ? "array" : "image";
  Source out{{{column, kinds.size() > 1 ? "bytes" : kinds[0]}, {"name", "str"}}, {}};
  if (labelled) out.columns.insert(out.columns.end(), {{"class", "str"}, {"label", "int"}});
  out.next = [=, at = size_t{0}](MdsSample& sample) mutable {
    if (at == names.size()) return false;
    const std::string& name = names[at++];
    const std::string file = folder + "/" + name;
    if (arrays) sample[column] = load_npy(file);
    else sample[column] = read_file(file);
    sample["name"] = name;
    if (labelled) {
      const std::string in = fs::path(name).parent_path().string();
      sample["class"] = in;
      sample["label"] =
          full({}, static_cast<double>(std::find(classes.begin(), classes.end(), in) - classes.begin()), Int64);
    }
    return true;
  };
  return out;
}

constexpr int64_t kAhead = 4096;  // samples

void prefetch_range(const MdsReader& reader, int64_t first, int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(std::min(count, reader.size() - first)));
  std::iota(ids.begin(), ids.end(), first);
  reader.prefetch(ids);
}

// A folder of shards, or an address, is packed anew.
Source shards_of(const std::string& folder, const RemoteOptions& remote) {
  const auto reader = std::make_shared<MdsReader>(folder, MdsReaderOptions{.remote = remote});
  return {reader->columns(), [reader, at = int64_t{0}](MdsSample& sample) mutable {
            if (at == reader->size()) return false;
            if (at % kAhead == 0) prefetch_range(*reader, at, 2 * kAhead);
            sample = reader->sample(at++);
            return true;
          }};
}

// Blocks of tokens, each with the one that follows it.
Source token_blocks(Tokens tokens, int64_t block, int64_t vocabulary) {
  const bool narrow = vocabulary <= UINT16_MAX + 1;
  Source out{{{"tokens", fmt::format("ndarray:{}:{}", narrow ? "uint16" : "int32", block + 1)}}, {}};
  out.next = [=, at = int64_t{0}](MdsSample& sample) mutable {
    if (at + block + 1 > static_cast<int64_t>(tokens->size())) return false;
    const auto from = tokens->begin() + at;
    if (narrow) sample["tokens"] = tensor(std::vector<uint16_t>(from, from + block + 1), {block + 1});
    else sample["tokens"] = tensor(std::vector<int32_t>(from, from + block + 1), {block + 1});
    at += block + 1;
    return true;
  };
  return out;
}

// Where a folder is made until it is whole, beside its place. What a killed process has left there is replaced.
class UnfinishedFolder {
 public:
  explicit UnfinishedFolder(const std::string& out) : out_(fs::path(out) / ""), path_(out_.parent_path()) {
    out_ = path_;
    path_ += ".packing";
    std::error_code code;
    if (!out_.parent_path().empty()) fs::create_directories(out_.parent_path(), code);
    if (!code) fs::create_directory(path_, code);
    if (code) throw UsageError(fmt::format("cannot make {}: {}", path_.string(), code.message()));
    folder_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_ < 0 || ::flock(folder_, LOCK_EX | LOCK_NB) != 0) {
      if (folder_ >= 0) ::close(folder_);
      throw UsageError(path_.string() + " is being written by another process");
    }
    for (const auto& entry : fs::recursive_directory_iterator(path_))
      if (!entry.is_directory() && !is_of_a_pack(entry.path().filename().string())) {
        ::close(folder_);
        throw UsageError(fmt::format("{}: is not of a pack, and nothing is overwritten", entry.path().string()));
      }
    for (const auto& entry : fs::directory_iterator(path_)) fs::remove_all(entry.path());
  }
  ~UnfinishedFolder() {
    std::error_code ignored;
    if (!finished_) fs::remove_all(path_, ignored);
    ::close(folder_);
  }
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  std::string path() const { return path_.string(); }
  void finish() {
    std::error_code code;
    fs::rename(path_, out_, code);
    if (code) throw FileError(fmt::format("cannot rename {} to {}: {}", path_.string(), out_.string(), code.message()));
    finished_ = true;
  }

 private:
  static bool is_of_a_pack(const std::string& file) {
    return file.starts_with("shard.") || file.starts_with("index.json") || file.starts_with("vocabulary.txt");
  }
  fs::path out_, path_;
  int folder_ = -1;
  bool finished_ = false;
};

// False if a signal came.
bool pack(const Source& source, const std::string& folder, const std::string& name, const MdsWriterOptions& options) {
  MdsWriter writer(folder, source.columns, options);
  const bool terminal = isatty(STDOUT_FILENO);
  MdsSample sample;
  while (source.next(sample)) {
    if (train::stop_requested()) return false;
    writer.write(sample);
    sample.clear();
    if (!terminal || writer.samples() % 1000 != 0) continue;
    fmt::print("\r\033[K{} samples, {} shards", writer.samples(), writer.shards());
    std::fflush(stdout);
  }
  writer.finish();
  fmt::print("{}{}: {} samples in {}\n", terminal ? "\r\033[K" : "", name, writer.samples(),
             shards_text(writer.shards()));
  return true;
}

// Two folders, the last tenth of the text for validation, and the characters beside them.
bool pack_tokens(const PackOptions& o, const std::string& folder, const MdsWriterOptions& options) {
  const std::string text = read_text(o.input);
  const CharTokenizer tokenizer(o.vocabulary.empty() ? text : read_text(o.vocabulary));
  std::optional<TextData> data;
  try {
    data = make_text_data(text, tokenizer, o.block);
  } catch (const FileError&) {
    throw;
  } catch (const Error& e) {  // a character that is not in the vocabulary
    throw FileError(o.input + ": " + e.what());
  }
  for (const auto& [name, tokens] : {std::pair{"train", data->train}, {"validation", data->validation}})
    if (!pack(token_blocks(tokens, o.block, tokenizer.size()), folder + "/" + name, o.out + "/" + name, options))
      return false;
  write_file(folder + "/vocabulary.txt", tokenizer.vocabulary());
  return true;
}

// False after a signal. Whatever ends it, nothing is left of what is not whole.
bool pack_input(const PackOptions& o) {
  const MdsWriterOptions options = o.writer();
  std::error_code code;
  if (fs::exists(o.out, code) && (!fs::is_directory(o.out, code) || !fs::is_empty(o.out, code)))
    throw UsageError(o.out + " is there already, and nothing is overwritten");
  if (is_remote(o.out)) throw UsageError(o.out + ": only folders of this machine are written");
  const bool remote = is_remote(o.input), folder = remote || fs::is_directory(o.input, code);
  const bool lines = fs::path(o.input).extension() == ".jsonl";
  if (o.block > 0 && (lines || folder)) throw UsageError("--block is of a text");
  if (!o.vocabulary.empty() && o.block == 0) throw UsageError("--vocabulary is of --block");
  const auto source = [&] {
    if (!remote && fs::exists(o.input + "/train/index.json"))
      throw UsageError(o.input + ": it has no shards itself: give its train/ or its validation/");
    if (remote || fs::exists(o.input + "/index.json")) return shards_of(o.input, o.remote.settle());
    return folder ? files_below(o.input) : lines ? json_lines(o.input) : text_lines(o.input);
  };
  UnfinishedFolder out(o.out);
  const DownloadsEnd end([] { return train::stop_requested().load(); });
  try {
    if (!(o.block > 0 ? pack_tokens(o, out.path(), options) : pack(source(), out.path(), o.out, options))) return false;
  } catch (const FileError&) {
    if (train::stop_requested()) return false;
    throw;
  }
  out.finish();
  return true;
}

}  // namespace

std::string shards_text(int64_t count) { return fmt::format("{} shard{}", count, count == 1 ? "" : "s"); }

void add_data_pack(Command data) {
  const Command command = data.command("pack", "Write samples as MDS shards.");
  auto o = std::make_shared<PackOptions>();
  command
      .option("input", o->input,
              "lines of a text, JSON lines (.jsonl), or a folder of images, of .npy files or of shards, or an address "
              "of shards")
      .required();
  command.option("--out", o->out, "a new folder").required();
  command.option("--block", o->block, "a text as blocks of so many characters, for train gpt --data").range(1, 1 << 30);
  command.option(
      "--vocabulary", o->vocabulary,
      "of --block: a text with all characters, such as vocabulary.txt of another folder (default: the text)");
  command.option("--compression", o->compression, "zstd or gz, or one with a level such as zstd:7");
  command.option("--hashes", o->hashes, "hashes to keep, such as sha1,xxh64");
  command.option("--size-limit", o->size_limit, "most bytes of a shard, before compression").with_default();
  o->remote.add_to(command, "--");
  command.run([o] {
    catch_signals();
    if (pack_input(*o)) return;
    fmt::print(stderr, "interrupted: nothing is left of {}\n", o->out);
    exit_if_signalled();
  });
}

}  // namespace tessera::app
