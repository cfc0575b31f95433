#include "io/kept_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "io/checkpoint_parts.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& path) {
  std::error_code code;
  return fs::exists(path, code);
}

void move_file(const std::string& from, const std::string& to) {
  std::error_code code;
  fs::rename(from, to, code);
  if (code) throw Error(fmt::format("cannot write {}: {}", in_quotes(to), code.message()));
}

}  // namespace

std::string checkpoint_of_age(const std::string& path, int age) {
  return age == 0 ? path : fmt::format("{}.{}", path, age);
}

void keep_replaced(const std::string& path, int keep) {
  const std::string before = checkpoint_of_age(path, 1), link = before + ".tmp";
  std::error_code code;
  if (keep < 2 || !is_there(path)) return;
  if (fs::equivalent(path, before, code)) return;  // a writer that was killed came this far
  int last = 1;
  while (last < keep - 1 && is_there(checkpoint_of_age(path, last))) ++last;
  for (int age = last; age > 1; --age) move_file(checkpoint_of_age(path, age - 1), checkpoint_of_age(path, age));
  fs::remove(link, code);
  fs::create_hard_link(path, link, code);  // two names of one file: at no moment is there no checkpoint
  move_file(code ? path : link, before);
}

void remove_replaced(const std::string& path, int keep) {
  std::error_code code;
  for (int age = std::max(keep, 1); fs::remove(checkpoint_of_age(path, age), code); ++age) {
  }
}

void go_back_to(const std::string& path, int age) {
  if (age > 0) move_file(checkpoint_of_age(path, age), path);
}

std::vector<std::string> all_checkpoints_of(const std::string& path) {
  std::vector<std::string> out{path, path + ".old"};
  const fs::path folder = fs::path(path).parent_path();
  const std::string base = fs::path(path).filename().string() + ".";
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, code)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > base.size() && name.starts_with(base) &&
        name.find_first_not_of("0123456789", base.size()) == std::string::npos)
      out.push_back(entry.path().string());
  }
  return out;
}

WholeCheckpoint load_whole_checkpoint(const std::string& path, int first) {
  WholeCheckpoint out;
  for (int age = first; age == first || is_there(checkpoint_of_age(path, age)); ++age) {
    try {
      out.checkpoint = load_checkpoint(checkpoint_of_age(path, age));
      out.age = age;
      return out;
    } catch (const NewerFormat&) {
      throw;
    } catch (const FileError& e) {
      if (out.why.empty()) out.why = e.what();
    }
  }
  throw FileError(out.why);
}

}  // namespace tessera
