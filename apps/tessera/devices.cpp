// tessera devices: what there is to compute on, and what is missing.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "command.h"
#include "kernels/cpu/isa_select.h"
#include "tessera/parallel.h"
#include "tessera/tensor.h"

namespace tessera::app {
namespace {

std::string field_of(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.compare(0, key.size(), key) == 0)
      if (auto colon = line.find(':'); colon != line.npos) return line.substr(line.find_first_not_of(" \t", colon + 1));
  return "unknown";
}

double memory_gib() { return std::strtod(field_of("/proc/meminfo", "MemTotal").c_str(), nullptr) / (1 << 20); }

// The GPUs of a kind, and why one, or the kind, cannot be used.
void show_gpus(DeviceType type, nlohmann::json& list) {
  const auto refuse = [&](const std::string& name, const char* what, const std::string& reason) {
    fmt::print("{:<8} {}: {}\n", name, what, reason);
    list.push_back({{"name", name}, {"reason", reason}});
  };
  for (int i = 0; i < device_count(type); ++i) {
    const Device device{type, static_cast<int8_t>(i)};
    if (const std::string reason = why_unavailable(device); !reason.empty()) {
      refuse(to_string(device), "cannot be used", reason);
      continue;
    }
    try {
      const DeviceProperties p = properties(device);
      const double gib = static_cast<double>(p.memory) / 0x1p30;
      fmt::print("{:<8} {}, {}\n         {} multiprocessors, {:.1f} GiB memory\n", to_string(device), p.name,
                 p.architecture, p.multiprocessors, gib);
      list.push_back({{"name", to_string(device)},
                      {"model", p.name},
                      {"architecture", p.architecture},
                      {"multiprocessors", p.multiprocessors},
                      {"memory_bytes", p.memory}});
    } catch (const Error& e) {
      refuse(to_string(device), "cannot be used", e.what());
    }
  }
  if (device_count(type) > 0) return;
  const Device first{type, 0};
  const std::string name = to_string(first);
  refuse(name.substr(0, name.find(':')), "none", why_unavailable(first));
}

void show(const CommonOptions& options) {
  options.apply();
  fmt::print("cpu      {}\n         kernels for {}, {} threads, {:.1f} GiB memory\n",
             field_of("/proc/cpuinfo", "model name"), cpu_kernels::isa_name(), num_threads(), memory_gib());
  Results results("devices", options);
  results.add("cpu.threads", num_threads(), "threads", true);
  results.add("cpu.memory", memory_gib(), "GiB", true);
  results.extra()["devices"] = nlohmann::json::array();
  results.extra()["devices"].push_back(
      {{"name", "cpu"}, {"model", field_of("/proc/cpuinfo", "model name")}, {"isa", cpu_kernels::isa_name()}});
  for (DeviceType type : {DeviceType::CUDA, DeviceType::HIP}) show_gpus(type, results.extra()["devices"]);
  results.write();
}

}  // namespace

void add_devices(Command app) {
  const Command command = app.command("devices", "List the devices, and what is missing for others.");
  auto options = std::make_shared<CommonOptions>();
  options->add_to(command, true);
  command.run([options] { show(*options); });
}

}  // namespace tessera::app
