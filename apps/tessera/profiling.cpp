#include "profiling.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "tessera/observer.h"
#include "tessera/profiler.h"
#include "training.h"

namespace tessera::app {
namespace {

// "wait=1,warmup=1,active=3,repeat=1", each where it is not the default.
profiler::Schedule parse_schedule(const std::string& text) {
  profiler::Schedule schedule;
  std::map<std::string, int64_t*> parts = {{"wait", &schedule.wait},
                                           {"warmup", &schedule.warmup},
                                           {"active", &schedule.active},
                                           {"repeat", &schedule.repeat}};
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size()), equal = std::min(text.find('=', at), end);
    const auto part = parts.find(text.substr(at, equal - at));
    int64_t value = -1;
    const char* const last = text.data() + end;
    if (equal < end && std::from_chars(text.data() + equal + 1, last, value).ptr != last) value = -1;
    if (part == parts.end() || value < 0 || value > 1'000'000'000)
      throw UsageError("--profile-steps " + text +
                       ": of wait=N, warmup=N, active=N and repeat=N, each once, with commas between");
    *part->second = value;
    parts.erase(part);
    at = end + 1;
  }
  return schedule;
}

// What launchers tell each of their processes: RANK of WORLD_SIZE.
void take_rank(profiler::Options& options) {
  const char *const rank = std::getenv("RANK"), *const ranks = std::getenv("WORLD_SIZE");
  if (!rank || !ranks) return;
  const auto read = [](std::string_view text, int& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  };
  if (!read(rank, options.rank) || !read(ranks, options.ranks) || options.rank < 0 || options.rank >= options.ranks)
    throw UsageError(fmt::format("--profile: RANK={} of WORLD_SIZE={} is no rank", rank, ranks));
}

// Ends what runs at its next operator once a signal came.
struct Interrupt : Observer {
  struct Came : Error {
    using Error::Error;
  };
  void called(const CallSeen&) override {
    if (train::stop_requested()) throw Came("interrupted");
  }
};

void print_recording(const profiler::Recording& recording) {
  fmt::print("\n{}{}{}{}", recording.notes(), recording.steps(), recording.table(), advice_lines(recording.advice()));
  std::fflush(stdout);
}

}  // namespace

std::string advice_lines(const std::string& advice) {
  return advice.empty() ? "no advice: nothing that is known would win 2 % of a step\n" : advice;
}

void RecordingOptions::add_to(Command app, const std::string& default_steps) {
  steps = default_steps;
  const Option profile = app.option("--profile", folder, "record where time and memory go, into this folder");
  app.option("--profile-steps", steps,
             "which steps are recorded: wait, warmup, active and repeat, where repeat is 1 and the others 0 if left "
             "out; active=0: all that follow")
      .with_default()
      .needs(profile);
}

void with_profile(const RecordingOptions& options, Device device, bool interrupts, const std::function<void()>& fn) {
  if (options.folder.empty()) return fn();
  profiler::Options wanted;
  wanted.schedule = parse_schedule(options.steps);
  take_rank(wanted);
  wanted.folder = options.folder;
  wanted.on_trace = print_recording;
  if (interrupts) catch_signals();
  std::error_code failed;
  std::filesystem::create_directories(options.folder, failed);
  if (failed) throw UsageError("cannot make the folder " + options.folder + ": " + failed.message());
  profiler::measure_roofs(device);  // neither in a step nor in the peak of memory
  profiler::Profile profile(std::move(wanted));
  Interrupt interrupt;
  std::optional<Observing> ends_early;
  if (interrupts) ends_early.emplace(interrupt);
  try {
    fn();
  } catch (const Interrupt::Came&) {
  }
  ends_early.reset();
  profile.stop();
  for (const std::string& file : profile.files()) fmt::print("wrote {}\n", file);
  const char* const which = profile.files().size() > 1 ? ": the last recording's" : "";
  if (!profile.files().empty()) fmt::print("open {}/report.html in a browser{}\n", options.folder, which);
  else if (profile.trouble().empty()) fmt::print("note: the run ended before the steps that were to be recorded\n");
  for (const std::string& what : profile.trouble()) fmt::print(stderr, "note: the profile: {}\n", what);
  if (interrupts) exit_if_signalled();
}

}  // namespace tessera::app
