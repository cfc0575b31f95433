#include "kernels/gpu/rtc/rtc.h"

#include <fmt/format.h>

#include <future>
#include <map>
#include <mutex>

#include "core/util/disk_cache.h"
#include "kernels/gpu/rtc/embedded.h"
#include "tessera/version.h"

namespace tessera::gpu {
namespace {

constexpr uintmax_t most_on_disk = uintmax_t{256} << 20;

std::atomic<Compiler*> installed[kDeviceTypeCount];

Compiler& compiler_of(DeviceType type) {
  Compiler* compiler = installed[static_cast<int>(type)];
  return compiler ? *compiler : vendor_compiler(type);
}

const std::string& headers_key() {
  static const std::string key = [] {
    std::string all;
    for (const EmbeddedFile& header : embedded_headers()) all.append(header.name).append(header.text);
    return cache_key({all});
  }();
  return key;
}

/// What the code of a program depends on.
std::string key_of(const Program& program, const std::string& compiler, const std::string& architecture) {
  std::string options;
  for (const std::string& option : program.options) options += option + '\n';
  return cache_key({program.source, headers_key(), options, compiler, architecture, TESSERA_VERSION});
}

DiskCache kernels_on_disk() { return DiskCache(cache_folder(), "kernels", most_on_disk); }

std::string find_or_compile(const Program& program, Compiler& compiler, const std::string& architecture,
                            const std::string& key) {
  const DiskCache cache = kernels_on_disk();
  if (auto code = cache.find(key)) return std::move(*code);
  std::string code = compiler.compile(program.source, architecture, program.options);
  cache.keep(key, code);
  return code;
}

}  // namespace

void install(DeviceType type, Compiler* compiler) { installed[static_cast<int>(type)] = compiler; }

std::string machine_code(const Program& program, DeviceType type, const std::string& architecture) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_future<std::string>> under_way;
  Compiler& compiler = compiler_of(type);
  const std::string key = key_of(program, compiler.name(), architecture);
  std::promise<std::string> promise;
  {
    std::unique_lock lock(mutex);
    if (auto found = under_way.find(key); found != under_way.end()) {
      const auto result = found->second;
      lock.unlock();
      return result.get();
    }
    under_way.emplace(key, promise.get_future().share());
  }
  bool refused = false;
  try {
    promise.set_value(find_or_compile(program, compiler, architecture, key));
  } catch (const CompileError& error) {
    promise.set_exception(std::current_exception());
    refused = !error.log.empty();
  } catch (...) {
    promise.set_exception(std::current_exception());
  }
  std::unique_lock lock(mutex);
  const auto result = under_way.at(key);
  if (!refused) under_way.erase(key);  // from now on it is on disk; what is wrong stays wrong
  lock.unlock();
  return result.get();
}

Module::Module(DeviceState& on, ModuleHandle handle, const std::vector<std::string>& kernels) : on_(on) {
  for (const std::string& name : kernels) {
    kernels_.push_back(on.runtime.find_kernel(handle, name.c_str()));
    if (!kernels_.back()) throw Error(fmt::format("the program has no kernel {}: it must be extern \"C\"", name));
  }
}

void Module::launch(size_t kernel, const Grid& grid, void** arguments) const {
  if (grid.blocks <= 0) return;
  if (grid.blocks >= int64_t{1} << 31) throw Error(fmt::format("a kernel cannot have {} blocks", grid.blocks));
  enter(on_);
  on_.runtime.launch(kernels_.at(kernel), grid, arguments, stream_of(on_).handle);
}

const Module& load(const Program& program, Device device) {
  struct Loaded {
    std::unique_ptr<Module> module;
    std::string why_not;  // of code that was loaded and is of no use: there is no way to unload it
  };
  static std::mutex mutex;
  static auto* modules = new std::map<std::pair<DeviceState*, std::string>, Loaded>;
  const auto checked = [](const Loaded& loaded) -> const Module& {
    if (!loaded.module) throw Error(loaded.why_not);
    return *loaded.module;
  };
  DeviceState& on = state(device);
  std::string names;
  for (const std::string& kernel : program.kernels) names += kernel + '\n';
  const std::pair place{&on, key_of(program, names, on.properties.architecture)};
  {
    std::lock_guard lock(mutex);
    if (auto found = modules->find(place); found != modules->end()) return checked(found->second);
  }
  const std::string code = machine_code(program, device.type, on.properties.architecture);
  std::lock_guard lock(mutex);
  if (auto found = modules->find(place); found != modules->end()) return checked(found->second);
  enter(on);
  ModuleHandle handle;
  try {
    handle = on.runtime.load_module(code.data());
  } catch (const DeviceError&) {  // by this driver, perhaps, which would refuse it every time
    kernels_on_disk().drop(key_of(program, compiler_of(device.type).name(), on.properties.architecture));
    throw;
  }
  Loaded& loaded = (*modules)[place];
  try {
    loaded.module = std::make_unique<Module>(on, handle, program.kernels);
  } catch (const DeviceError&) {  // for now
    modules->erase(place);
    throw;
  } catch (const Error& error) {
    loaded.why_not = error.what();
  }
  return checked(loaded);
}

}  // namespace tessera::gpu
