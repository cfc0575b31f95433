// NVRTC and hipRTC. They have the same functions, but for their prefix and one name, so that neither's header is
// needed.
#include "kernels/gpu/rtc/compiler.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <array>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <sstream>

#include "kernels/gpu/rtc/embedded.h"

namespace tessera::gpu {
namespace {

struct Vendor {
  const char* name;
  const char* prefix;    // of its functions
  const char* get_code;  // the function that is called otherwise
  const char* variable;  // of the environment, naming the library
  std::vector<std::string> libraries;
};

Vendor vendor(DeviceType type) {
  if (type == DeviceType::HIP)
    return {"hipRTC",
            "hiprtc",
            "GetCode",
            "TESSERA_HIPRTC",
            {"libhiprtc.so.7", "libhiprtc.so.6", "/opt/rocm/lib/libhiprtc.so", "libhiprtc.so.5",
             "libamdhip64.so.5"}};  // in the order of the runtimes (backend.cpp), so that both are of one version
  std::vector<std::string> libraries = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* folder = std::getenv(variable)) libraries.push_back(std::string(folder) + "/lib64/libnvrtc.so");
  libraries.push_back("/usr/local/cuda/lib64/libnvrtc.so");
  return {"NVRTC", "nvrtc", "GetCUBIN", "TESSERA_NVRTC", libraries};
}

/// The embedded headers as both compilers take them: their quoted includes become names from the root, since NVRTC
/// compares the names of headers in memory literally.
struct Headers {
  std::vector<std::string> texts;
  std::vector<const char*> names, pointers;

  Headers() {
    for (const EmbeddedFile& header : embedded_headers()) {
      names.push_back(header.name);
      texts.push_back(rooted(header));
    }
    for (const std::string& text : texts) pointers.push_back(text.c_str());
  }
  static std::string rooted(const EmbeddedFile& header) {
    const std::string directive = "#include \"";
    const auto folder = std::filesystem::path(header.name).parent_path();
    std::istringstream in(header.text);
    std::string out;
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(directive)) {
        const std::string name = line.substr(directive.size(), line.rfind('"') - directive.size());
        line = directive + (folder / name).lexically_normal().string() + '"';
      }
      out += line + '\n';
    }
    return out;
  }
};

class VendorCompiler final : public Compiler {
 public:
  VendorCompiler(const Vendor& vendor, DeviceType type) : vendor_(vendor), type_(type) {
    open();
    load(version_, "Version");
    load(create_, "CreateProgram");
    load(compile_, "CompileProgram");
    load(destroy_, "DestroyProgram");
    load(error_string_, "GetErrorString");
    load(log_size_, "GetProgramLogSize");
    load(log_, "GetProgramLog");
    load(code_size_, (std::string(vendor.get_code) + "Size").c_str());
    load(code_, vendor.get_code);
    int major = 0, minor = 0;
    check(version_(&major, &minor), "asking for its version");
    name_ = fmt::format("{} {}.{}", vendor.name, major, minor);
  }

  std::string name() const override { return name_; }

  std::string compile(const std::string& source, const std::string& architecture,
                      const std::vector<std::string>& options) override {
    static const Headers headers;
    Handle program = nullptr;
    check(create_(&program, source.c_str(), "program", static_cast<int>(headers.names.size()), headers.pointers.data(),
                  headers.names.data()),
          "taking a program");
    const auto destroy = [this](Handle* p) { destroy_(p); };
    const std::unique_ptr<Handle, decltype(destroy)> owner(&program, destroy);

    std::vector<std::string> all = own_options(architecture);
    all.insert(all.end(), options.begin(), options.end());
    std::vector<const char*> words;
    for (const std::string& option : all) words.push_back(option.c_str());
    if (const int status = compile_(program, static_cast<int>(words.size()), words.data())) {
      const std::string log = log_of(program), error = first_error(log);
      throw CompileError(fmt::format("{}: {}", name_, error.empty() ? error_string_(status) : error), log);
    }
    size_t bytes = 0;
    check(code_size_(program, &bytes), "asking for the size of its code");
    std::string code(bytes, '\0');
    check(code_(program, code.data()), "asking for its code");
    return code;
  }

 private:
  using Handle = void*;

  void open() {
    const char* named = std::getenv(vendor_.variable);
    if (named && *named) vendor_.libraries = {named};
    for (const std::string& library : vendor_.libraries)
      if ((library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL))) return;
    if (named && *named) throw Error(fmt::format("{} names '{}', which does not load", vendor_.variable, named));
    throw Error(fmt::format("{} was not found: install {}, or let {} name the library", vendor_.name,
                            vendor_.libraries.front(), vendor_.variable));
  }
  template <class F>
  void load(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library_, (std::string(vendor_.prefix) + name).c_str()));
    if (!function) throw Error(fmt::format("{} has no {}{}: it is too old", vendor_.name, vendor_.prefix, name));
  }
  void check(int status, const char* what) const {
    if (status) throw Error(fmt::format("{}: {} failed: {}", vendor_.name, what, error_string_(status)));
  }
  std::string log_of(Handle program) const {
    size_t bytes = 0;
    if (log_size_(program, &bytes) || bytes == 0) return "";
    std::string log(bytes, '\0');
    if (log_(program, log.data())) return "";
    return log.c_str();  // without the zero at its end
  }

  /// Nothing is contracted to fused multiply-adds, as in the kernels that were compiled before.
  std::vector<std::string> own_options(const std::string& architecture) const {
    if (type_ == DeviceType::HIP) return {"--offload-arch=" + architecture, "-std=c++20", "-O3", "-ffp-contract=off"};
    // From Hopper on, code for exactly this card may use all that it has. Functions for the host (executors, dumps) are
    // let through: a kernel that called one would not link.
    const bool exact = architecture.starts_with("sm_") && std::atoi(architecture.c_str() + 3) >= 90;
    return {"--gpu-architecture=" + architecture + (exact ? "a" : ""), "--std=c++20", "--fmad=false",
            "--device-as-default-execution-space"};
  }

  Vendor vendor_;
  DeviceType type_;
  void* library_ = nullptr;
  std::string name_;
  int (*version_)(int* major, int* minor) = nullptr;
  int (*create_)(Handle*, const char* source, const char* name, int headers, const char* const* texts,
                 const char* const* names) = nullptr;
  int (*compile_)(Handle, int options, const char* const* words) = nullptr;
  int (*destroy_)(Handle*) = nullptr;
  const char* (*error_string_)(int status) = nullptr;
  int (*log_size_)(Handle, size_t*) = nullptr;
  int (*log_)(Handle, char*) = nullptr;
  int (*code_size_)(Handle, size_t*) = nullptr;
  int (*code_)(Handle, char*) = nullptr;
};

}  // namespace

Compiler& vendor_compiler(DeviceType type) {
  static std::mutex mutex;
  static std::unique_ptr<VendorCompiler> compilers[kDeviceTypeCount];
  if (type == DeviceType::CPU) throw Error("cpu code is not compiled at run time");
  std::lock_guard lock(mutex);
  auto& compiler = compilers[static_cast<int>(type)];
  if (!compiler) compiler = std::make_unique<VendorCompiler>(vendor(type), type);
  return *compiler;
}

// NVRTC: `file(line): error: message`, or with a number after `error`; clang: `file:line:column: error: message`.
std::string first_error(const std::string& log) {
  std::istringstream in(log);
  for (std::string line; std::getline(in, line);) {
    const size_t error = line.find("error");
    const size_t colon = error == std::string::npos ? error : line.find(": ", error);
    if (colon == std::string::npos) continue;
    std::string place = line.substr(0, error);
    while (!place.empty() && (place.back() == ' ' || place.back() == ':')) place.pop_back();
    if (const size_t column = place.rfind(':'); column != std::string::npos) {  // clang's
      const size_t number = place.rfind(':', column - 1);
      if (number != std::string::npos)
        place = fmt::format("{}({})", place.substr(0, number), place.substr(number + 1, column - number - 1));
    }
    const size_t header = place.rfind("tessera/tile/"), slash = place.rfind('/');
    if (header != std::string::npos) place = place.substr(header);  // without the compiler's temporary folder
    else if (slash != std::string::npos) place = place.substr(slash + 1);
    return place.empty() ? line.substr(colon + 2) : fmt::format("{}: {}", place, line.substr(colon + 2));
  }
  return "";
}

bool has_compiler(DeviceType type) {
  static const std::array<bool, kDeviceTypeCount> has = [] {
    std::array<bool, kDeviceTypeCount> found{};
    for (const DeviceType type : {DeviceType::CUDA, DeviceType::HIP}) try {
        vendor_compiler(type);
        found[static_cast<size_t>(type)] = true;
      } catch (const Error&) {
      }
    return found;
  }();
  return has[static_cast<size_t>(type)];
}

}  // namespace tessera::gpu
