// What the subcommands share: common options, results for machines, progress for people.
#pragma once
#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "command_line.h"
#include "tessera/device.h"
#include "tessera/shape.h"

namespace tessera::app {

/// --device, --threads, --seed, --tf32, --nondeterministic and, where something is measured, --json.
struct CommonOptions {
  std::string device = "cpu", json, picks;
  int threads = 0;  // 0: all that this process may use
  bool tf32 = false, nondeterministic = false;
  uint64_t seed = 1337;
  bool tune = false;
  bool without_memory = false;  // devices that have none will do: nothing is computed
  bool own_threads = false;     // the command has a --threads of its own
  void add_to(Command app, bool measures);
  /// --tune and --picks, for commands that run operators.
  void add_picks_to(Command app);
  /// Checks the device and sets threads, seed and picks. Throws UsageError.
  void apply() const;
  /// The device, which apply() has checked.
  Device target() const { return parse_device(device); }
  /// The name of the device, or how many threads.
  std::string place() const;
};

/// Throws UsageError where a file cannot be written: known before the work, not after it.
void require_writable(const std::string& path);

/// Four digits and a unit with its prefix: "16.35 GFLOP".
std::string decimal(double number, const char* unit);

/// The shape that "12x1024x64" names. Throws UsageError.
Shape parse_shape(const std::string& text);

/// What was measured, for `--json FILE`: {command, device, threads, results: [{name, value, unit, better}]}.
class Results {
 public:
  Results(std::string command, const CommonOptions& options);
  void add(const std::string& name, double value, const std::string& unit, bool higher_is_better);
  /// Further members of the object.
  nlohmann::json& extra() { return *object_; }
  /// Writes the file atomically, if one was asked for. Throws Error.
  void write() const;

 private:
  std::string path_;
  std::shared_ptr<nlohmann::json> object_;
};

/// A bar with rate and time left on a terminal; a plain line now and then in a pipe.
class Progress {
 public:
  explicit Progress(int64_t total);
  /// `rate` and `loss` are shown as given, e.g. "loss 1.93  24.1k tokens/s".
  void update(int64_t done, const std::string& text);
  void finish();
  /// A line of its own, above the bar.
  void note(const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;
  int64_t total_, first_ = -1;
  bool terminal_, drawn_ = false;
  Clock::time_point start_, last_;
};

// One function per subcommand; each adds itself to the app and runs in its callback.
void add_train(Command app);
void add_train_convmodel(Command train);
void add_launch(Command app);
void add_sample(Command app);
void add_data(Command app);
void add_bench(Command app);
void add_bench_model(Command bench);
void add_bench_comm(Command bench);
void add_explain(Command app);
void add_explain_model(Command explain);
void add_simulate(Command app);
void add_profile(Command app);
void add_ops(Command app);
void add_devices(Command app);
void add_cache(Command app);
void add_selftest(Command app);
void add_onnx_test(Command app);
void add_export(Command app);
void add_run(Command app);
void add_info(Command app);

}  // namespace tessera::app
