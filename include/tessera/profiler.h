// Where the time and the memory go: what operators, kernels and tensors took, as a trace, pictures, a table and advice.
//
//   profiler::Profile profile({.schedule = {.wait = 1, .warmup = 1, .active = 3}, .folder = "profile"});
//   for (...) {
//     train_step();
//     profile.step();
//   }
//   std::puts(profile.summary().c_str());
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tensor.h"

namespace tessera::profiler {

struct Trace;

/// Which steps are recorded: `wait` pass, `warmup` are watched and forgotten, `active` are recorded; and again,
/// `repeat` times in all.
struct Schedule {
  int64_t wait = 0, warmup = 0;
  int64_t active = 0;  ///< 0: all that follow, until the profile ends
  int64_t repeat = 1;  ///< 0: without end
};

/// What was recorded between two moments. Its functions that write throw FileError; files appear whole or not at all.
class Recording {
 public:
  explicit Recording(std::shared_ptr<const Trace> trace);
  const Trace& trace() const { return *trace_; }
  /// The kernels that cost most, for people, each with operator, calls, time, share, GB/s, TFLOP/s and share of its
  /// roof.
  std::string table(size_t rows = 10) const;
  /// Time of each step, and of its parts.
  std::string steps() const;
  /// A line each on what a reader should know: events that were dropped, libraries that are not there.
  std::string notes() const;
  /// What to change, with the time that it would win; empty where nothing would.
  std::string advice() const;
  /// In Kineto's schema, which Perfetto, TensorBoard's plug-in and HolisticTraceAnalysis read; gzipped if it ends in
  /// ".gz".
  void write_trace(const std::string& file) const;
  /// The memory timeline of the device that held most, as PyTorch's export_memory_timeline writes it.
  void write_memory(const std::string& file) const;
  /// One page that needs no network.
  void write_report(const std::string& file) const;
  void write_flame(const std::string& file) const;
  /// All of these in a folder, which is made: <host>_<process>.<ms>.pt.trace.json, and under the same name
  /// .memory.json.gz (where memory was recorded), .report.html and .flame.svg. Without that name these three are the
  /// newest recording's, too. Gives the trace's name. Where a file cannot be written the others are; the error names
  /// it.
  std::string write(const std::string& folder) const;

 private:
  std::shared_ptr<const Trace> trace_;
};

struct Options {
  Schedule schedule = {};
  bool memory = true;       ///< each allocation, too
  bool shapes = true;       ///< calls of other shapes are told apart
  bool call_sites = false;  ///< which function called an operator, as far as the dynamic linker knows; slow
  std::string folder = {};  ///< where each recording is written to; empty: nowhere
  size_t most_bytes = size_t{48} << 20;  ///< of what is kept until it is written; what does not fit is counted
  /// For each, on the thread that ends it; its files may be still to come. Where no step was timed before a recording,
  /// it comes a step later.
  std::function<void(const Recording&)> on_trace = {};
  int rank = 0, ranks = 1;  ///< of this process among those that work together
};

/// Records all threads and devices of this process, one profile at a time. What goes wrong with files or devices while
/// it lives does not disturb the program: trouble() says what it was. Files are written on a thread of its own while
/// the program goes on; the end of the next recording waits for it, and so do stop(), files() and trouble().
class Profile {
 public:
  /// Throws Error where another one lives, or where the schedule or the room makes no sense.
  explicit Profile(Options options = {});
  /// Ends it as stop() does.
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// A step is over.
  void step();
  /// Ends what is being recorded, and writes it.
  void stop();
  /// Says what these tensors are, which may have been there before: their memory is then counted as that.
  void parameters(const std::vector<Tensor>& tensors);
  void optimizer_state(const std::vector<Tensor>& tensors);

  /// What the last recording came to: notes, steps, table and advice. Empty before one is complete. Does not wait for
  /// the step that would be timed behind it; nor do files() and trouble().
  std::string summary(size_t rows = 10) const;
  const std::vector<std::string>& files() const;
  const std::vector<std::string>& trouble() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The same as Profile::step() for the profile that lives, if any: for loops that know of none.
void step();
/// Of the profile that lives, if any.
void parameters(const std::vector<Tensor>& tensors);
void optimizer_state(const std::vector<Tensor>& tensors);
/// Measures what a device reaches, which otherwise follows the first recording there: for programs that time steps, or
/// tell their peak of memory. A second.
void measure_roofs(Device device);
/// Whether a profile is recording now.
bool is_recording();

/// A name for a stretch of a thread's time. They nest; while nothing is recorded one costs a look at one number.
class Range {
 public:
  explicit Range(std::string_view name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  bool open_;
};

}  // namespace tessera::profiler
