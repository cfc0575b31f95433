#include "command.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/device.h"
#include "tessera/io.h"
#include "tessera/parallel.h"
#include "tessera/picks.h"
#include "tessera/random.h"

namespace tessera::app {

void CommonOptions::add_to(Command app, bool measures) {
  const std::string more = without_memory ? "; without a card cuda:sm80, cuda:sm90 or hip:gfx90a" : "";
  app.option("--device", device, "cpu, cuda:N or hip:N" + more).with_default();
  if (!own_threads)
    app.option("--threads", threads, "threads of the CPU; 0 means all this process may use")
        .range(0, 1024)
        .with_default();
  app.flag("--tf32", tf32, "products of f32 on NVIDIA's cards may round their operands to tf32");
  app.flag("--nondeterministic", nondeterministic, "kernels on GPUs may add up in any order: faster, other last bits");
  app.option("--seed", seed, "seed of every random draw").with_default();
  if (measures) app.option("--json", json, "write the results to this file");
}

std::string CommonOptions::place() const {
  return target().is_gpu() ? properties(target()).name : fmt::format("{} threads", num_threads());
}

void CommonOptions::add_picks_to(Command app) {
  const Option measured =
      app.flag("--tune", tune, "measure the kernels of each new call, and keep what was the fastest");
  app.option("--picks", picks, "use the kernels that this file of --tune names; measure nothing").excludes(measured);
}

void CommonOptions::apply() const {
  Device d;
  try {
    d = parse_device(device);
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
  if (d.meta && !without_memory) throw UsageError("device " + device + " has no memory: nothing can be computed there");
  if (const std::string reason = why_unavailable(d); !reason.empty())
    throw UsageError("device " + device + " is not available: " + reason);
  if (!json.empty()) require_writable(json);
  if (threads) set_num_threads(threads);
  allow_tf32(tf32);
  allow_nondeterministic(nondeterministic);
  manual_seed(seed);
  if (tune) measure_picks();
  if (!picks.empty()) pin_picks(picks, d);
}

void require_writable(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (std::filesystem::is_directory(path) || access(folder.empty() ? "." : folder.c_str(), W_OK) != 0)
    throw UsageError("cannot write " + path);
}

std::string decimal(double number, const char* unit) {
  const char* const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t p = 0;
  for (; number >= 1000 && p + 1 < std::size(prefixes); ++p) number /= 1000;
  return fmt::format("{:.4g} {}{}", number, prefixes[p], unit);
}

Shape parse_shape(const std::string& text) {
  Shape shape;
  size_t at = 0;
  while (at <= text.size()) {
    size_t x = std::min(text.find('x', at), text.size());
    std::string digits = text.substr(at, x - at);
    if (digits.empty() || digits.size() > 12 || digits.find_first_not_of("0123456789") != digits.npos)
      throw UsageError("bad shape '" + text + "': sizes joined by x, such as 12x1024x64");
    shape.push_back(std::stoll(digits));
    at = x + 1;
  }
  return shape;
}

Results::Results(std::string command, const CommonOptions& options)
    : path_(options.json), object_(std::make_shared<nlohmann::json>()) {
  *object_ = {{"command", std::move(command)},
              {"device", options.device},
              {"threads", num_threads()},
              {"results", nlohmann::json::array()}};
}

void Results::add(const std::string& name, double value, const std::string& unit, bool higher_is_better) {
  (*object_)["results"].push_back(
      {{"name", name}, {"value", value}, {"unit", unit}, {"better", higher_is_better ? "higher" : "lower"}});
}

void Results::write() const {
  if (path_.empty()) return;
  write_file(path_, object_->dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Progress::Progress(int64_t total)
    : total_(total), terminal_(isatty(STDOUT_FILENO)), start_(Clock::now()), last_(start_) {}

void Progress::update(int64_t done, const std::string& text) {
  auto now = Clock::now();
  if (first_ < 0) first_ = done - 1;  // a resumed run starts late
  bool last = done == total_;
  if (!last && drawn_ && now - last_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000)))
    return;
  last_ = now;
  drawn_ = true;
  double elapsed = std::chrono::duration<double>(now - start_).count();
  double left = elapsed / static_cast<double>(std::max<int64_t>(done - first_, 1)) * static_cast<double>(total_ - done);
  std::string line = fmt::format("step {}/{}  {}  {:d}:{:02d} left", done, total_, text, static_cast<int>(left) / 60,
                                 static_cast<int>(left) % 60);
  if (!terminal_) {
    fmt::print("{}\n", line);
  } else {
    winsize window{};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &window);
    int room = std::clamp(static_cast<int>(window.ws_col) - static_cast<int>(line.size()) - 4, 0, 40);
    int filled = static_cast<int>(room * done / std::max<int64_t>(total_, 1));
    std::string bar = room < 5 ? "" : fmt::format("[{:#<{}}{: <{}}] ", "", filled, "", room - filled);
    fmt::print("\r\033[K{}{}", bar, line);
  }
  std::fflush(stdout);
}

void Progress::note(const std::string& line) {
  fmt::print("{}{}\n", terminal_ && drawn_ ? "\r\033[K" : "", line);
  std::fflush(stdout);
}

void Progress::finish() {
  if (terminal_ && drawn_) fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace tessera::app
