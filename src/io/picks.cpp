#include "io/picks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/util/disk_cache.h"
#include "io/file.h"
#include "tessera/io.h"
#include "tessera/picks.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kPicksFormat = 1;
constexpr size_t kMostBytes = size_t(64) << 20;

std::string kind_of(Device device) {
  const std::string text = to_string(device);
  return text.substr(0, text.find(':'));
}

PicksFile here(Device device) { return {kind_of(device), card_of(device), libraries_of(device), {}}; }

void warn(const std::string& text) { fmt::print(stderr, "warning: {}\n", text); }

// One line of a file, with what is wrong with it.
class Line {
 public:
  Line(std::string_view text, const std::string& file, size_t number)
      : where_(fmt::format("{}: line {}: ", file, number)), json_(Json::parse(text, nullptr, false)) {
    if (!json_.is_object()) fail("not a JSON object");
  }
  std::string string(const char* key) const {
    auto found = json_.find(key);
    if (found == json_.end() || !found->is_string()) fail(std::string("no text '") + key + "'");
    const auto& text = found->get_ref<const std::string&>();  // which warnings will show
    if (text.size() > 4000 || std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 32 || c == 127; }))
      fail(fmt::format("'{}' is no short printable text", key));
    return text;
  }
  const Json& json() const { return json_; }
  [[noreturn]] void fail(const std::string& what) const { throw FileError(where_ + what); }

 private:
  std::string where_;
  Json json_;
};

PicksFile parse_first(const Line& line) {
  auto format = line.json().find("tessera_picks");
  if (format == line.json().end() || !format->is_number_integer()) line.fail("not a file of picks");
  if (*format != kPicksFormat) line.fail(fmt::format("format {}; this program reads {}", format->dump(), kPicksFormat));
  return {line.string("device"), line.string("card"), line.string("libraries"), {}};
}

Pick parse_pick(const Line& line) {
  Pick pick{line.string("kernel"), line.string("when"), {}};
  auto times = line.json().find("microseconds");
  if (times == line.json().end() || !times->is_object()) line.fail("no times");
  for (const auto& [kernel, time] : times->items()) {
    if (!time.is_number() || !(time.get<double>() >= 0 && time.get<double>() < 1e12))
      line.fail("a time that is no number of microseconds");
    pick.microseconds.emplace_back(kernel, time.get<double>());
  }
  return pick;
}

// Held while a file is read, changed and written again.
class Lock {
 public:
  explicit Lock(const std::string& path) : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (fd_ < 0 || ::flock(fd_, LOCK_EX) != 0) throw Error("cannot lock " + in_quotes(path));
  }
  ~Lock() { ::close(fd_); }
  Lock(const Lock&) = delete;

 private:
  int fd_;
};

// What a file of this card holds; nothing of one that is not there. Throws FileError where it is damaged.
Picks picks_in(const std::string& path, const PicksFile& wanted) {
  if (!fs::exists(path)) return {};
  PicksFile file = parse_picks(read_file(path), path);
  if (file.device != wanted.device || file.card != wanted.card || file.libraries != wanted.libraries) return {};
  return std::move(file.picks);
}

// In the cache folder, a file per card and versions.
class Measured final : public PickBook {
 public:
  Picks read(Device device) override {
    try {
      return picks_in(picks_file(device), here(device));
    } catch (const std::exception& error) {
      warn(fmt::format("{}: it will be written anew", error.what()));
      return {};
    }
  }
  bool measures() const override { return true; }
  void keep(Device device, const std::string& call, const Pick& pick) override {
    try {
      const std::string path = picks_file(device);
      if (const std::string why_not = open_cache_folder(cache_folder(), "picks"); !why_not.empty())
        throw Error(why_not);
      const Lock lock(path + ".lock");
      PicksFile file = here(device);
      try {
        file.picks = picks_in(path, file);  // other processes add to it
      } catch (const FileError&) {          // reading it has warned
      }
      file.picks[call] = pick;
      write_file(path, format_picks(file));
    } catch (const std::exception& error) {
      if (!warned_) warn(fmt::format("measured picks are not kept: {}", error.what()));
      warned_ = true;
    }
  }
  std::string name(Device device) const override { return picks_file(device); }

 private:
  bool warned_ = false;
};

std::string refusal(const std::string& path, const PicksFile& file, const std::string& device) {
  return fmt::format("{} was measured on {}: nothing in it is for {}", path, file.device, device);
}

class Pinned final : public PickBook {
 public:
  Pinned(std::string path, PicksFile file) : path_(std::move(path)), file_(std::move(file)) {}
  Picks read(Device device) override {
    const PicksFile now = here(device);
    if (file_.device != now.device) {  // beside a GPU, the CPU does odd jobs
      if (device.is_gpu()) warn(refusal(path_, file_, now.device));
      return {};
    }
    if (file_.card != now.card || file_.libraries != now.libraries)
      warn(fmt::format("{} was measured on {} with {}; this is {} with {}", path_, file_.card, file_.libraries,
                       now.card, now.libraries));
    return file_.picks;
  }
  bool measures() const override { return false; }
  void keep(Device, const std::string&, const Pick&) override {}
  std::string name(Device) const override { return path_; }

 private:
  std::string path_;
  PicksFile file_;
};

}  // namespace

PicksFile parse_picks(std::string_view text, const std::string& name) {
  if (text.size() > kMostBytes) throw FileError(name + ": too large for a file of picks");
  PicksFile file;
  for (size_t number = 1, at = 0; at < text.size() || number == 1; ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const Line line(text.substr(at, end - at), name, number);
    at = end + 1;
    if (number == 1) file = parse_first(line);
    else file.picks.insert_or_assign(line.string("call"), parse_pick(line));
  }
  return file;
}

std::string format_picks(const PicksFile& file) {
  const auto dump = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n'; };
  std::string text = dump(
      {{"tessera_picks", kPicksFormat}, {"device", file.device}, {"card", file.card}, {"libraries", file.libraries}});
  for (const auto& [call, pick] : file.picks) {
    Json times = Json::object();
    for (const auto& [kernel, time] : pick.microseconds) times[kernel] = time;
    text += dump({{"call", call}, {"kernel", pick.kernel}, {"microseconds", times}, {"when", pick.when}});
  }
  return text;
}

std::string picks_file(Device device) {
  const fs::path folder = cache_folder();
  if (folder.empty()) throw Error("no cache folder: set TESSERA_CACHE_DIR or HOME");
  std::string name;
  for (char c : kind_of(device) + ' ' + card_of(device) + ' ' + libraries_of(device)) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '.') name += c;
    else if (!name.ends_with('-')) name += '-';
  }
  constexpr size_t most = 200;  // file systems take 255
  if (name.size() > most) name = name.substr(0, most - 33) + '-' + cache_key({name});
  return (folder / "picks" / (name + ".jsonl")).string();
}

void measure_picks() {
  if (cache_folder().empty()) throw Error("no cache folder: set TESSERA_CACHE_DIR or HOME");
  use_picks(std::make_shared<Measured>());
}

void pin_picks(const std::string& path, std::optional<Device> device) {
  PicksFile file = parse_picks(read_file(path), in_quotes(path));
  if (device && kind_of(*device) != file.device) throw FileError(refusal(in_quotes(path), file, kind_of(*device)));
  use_picks(std::make_shared<Pinned>(path, std::move(file)));
}

void static_picks() { use_picks(nullptr); }

}  // namespace tessera
