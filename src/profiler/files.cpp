#include "profiler/files.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "io/file.h"
#include "profiler/trace.h"
#include "tessera/error.h"

namespace tessera::profiler {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTraceEnd = ".pt.trace.json";

// Another recording may have begun in the same millisecond.
std::string name_of_its_own(const Trace& trace, const std::string& folder) {
  for (int64_t ms = trace.base / 1000000;; ++ms) {
    std::string name = fmt::format("{}/{}_{}.{}", folder, trace.host, trace.process, ms);
    if (!fs::exists(name + kTraceEnd)) return name;
  }
}

// One file by two names; a copy where the disk has no such thing.
void also_as(const std::string& plain, const std::string& file) {
  const std::string temporary = plain + ".tmp";
  std::error_code failed;
  fs::remove(temporary, failed);
  fs::create_hard_link(file, temporary, failed);
  if (failed) fs::copy_file(file, temporary, failed);
  if (!failed) fs::rename(temporary, plain, failed);
  if (!failed) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  throw FileError(fmt::format("cannot write {}: {}", in_quotes(plain), failed.message()));
}

}  // namespace

WrittenFiles write_files(const Recording& recording, const std::string& folder) {
  WrittenFiles out;
  const auto attempt = [&](const auto& write) {
    try {
      write();
    } catch (const std::exception& e) {
      out.trouble.emplace_back(e.what());
    }
  };
  attempt([&] {
    std::error_code failed;
    fs::create_directories(folder, failed);
    if (!fs::is_directory(folder))
      throw FileError(fmt::format("{}: cannot make the folder: {}", folder, failed.message()));
  });
  if (!out.trouble.empty()) return out;
  const std::string own = name_of_its_own(recording.trace(), folder);
  attempt([&] {
    recording.write_trace(own + kTraceEnd);
    out.trace = own + kTraceEnd;
  });
  const auto write = [&](const char* name, void (Recording::*writer)(const std::string&) const) {
    attempt([&] {
      const std::string file = fmt::format("{}.{}", own, name);
      (recording.*writer)(file);
      also_as(fmt::format("{}/{}", folder, name), file);
    });
  };
  const char* const memory = "memory.json.gz";
  if (!recording.trace().memory.empty()) write(memory, &Recording::write_memory);
  else attempt([&] { fs::remove(fmt::format("{}/{}", folder, memory)); });  // of the recording before
  write("report.html", &Recording::write_report);
  write("flame.svg", &Recording::write_flame);
  return out;
}

FileWriter::~FileWriter() {
  if (owner_ == getpid()) (void)wait();
  else if (thread_.joinable()) thread_.detach();  // it is the parent's
}

void FileWriter::begin(std::shared_ptr<const Recording> recording, const std::string& folder) {
  (void)wait();
  auto job = [this, recording = std::move(recording), folder] { written_ = write_files(*recording, folder); };
  try {
    thread_ = std::thread(job);
  } catch (const std::system_error&) {  // there are too many threads
    job();
  }
}

WrittenFiles FileWriter::wait() {
  if (owner_ != getpid()) return {};
  if (thread_.joinable()) thread_.join();
  return std::exchange(written_, {});
}

}  // namespace tessera::profiler
