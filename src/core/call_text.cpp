// Calls that observers see, as text.
#include <dlfcn.h>

#include <fmt/format.h>

#include "core/attrs.h"
#include "core/util/demangled.h"
#include "tessera/observer.h"

namespace tessera {
namespace {

std::string list_text(std::span<const Tensor> tensors) {
  std::string text;
  for (const Tensor& t : tensors) text += (text.empty() ? "" : ", ") + (t.defined() ? describe(t) : "none");
  return text;
}

// Also of a template, whose name follows the type that it returns.
bool is_in_library(std::string_view function) {
  const auto arguments = function.find('(');
  const std::string_view name = function.substr(0, arguments);
  return name.starts_with("tessera::") || name.find(" tessera::") != name.npos;
}

std::string_view file_of(const Dl_info& info) {
  const std::string_view path = info.dli_fname ? info.dli_fname : "?";
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

std::string describe(const CallSeen& call) {
  const std::string attrs = call.attrs.describe();
  return fmt::format("{}({}){}{}{}", call.op, list_text(call.inputs), attrs.empty() ? "" : " ", attrs,
                     call.failed            ? " failed"
                     : call.outputs.empty() ? ""
                                            : " -> " + list_text(call.outputs));
}

std::string call_site(const CallSeen& call) {
  Dl_info own{};
  dladdr(reinterpret_cast<void*>(&scope_path), &own);
  const bool is_shared = file_of(own).find(".so") != std::string_view::npos;
  std::string addresses;
  for (void* const address : call.callers) {
    Dl_info info{};
    // A return address may be the first behind a function that ends with the call.
    if (!dladdr(static_cast<char*>(address) - 1, &info)) continue;
    const std::string name = info.dli_sname ? demangled(info.dli_sname) : "";
    if (is_in_library(name) || (is_shared && info.dli_fbase == own.dli_fbase)) continue;
    const auto offset = static_cast<char*>(address) - static_cast<char*>(info.dli_fbase);
    const std::string place = fmt::format("{}+0x{:x}", file_of(info), offset);
    if (name.starts_with("__libc_start") || name == "start_thread") break;
    if (!name.empty()) return fmt::format("{} at {}", name, place);
    addresses += (addresses.empty() ? "" : " ") + place;
  }
  return addresses;
}

}  // namespace tessera
