#include "data/curl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "tessera/error.h"

namespace tessera {
namespace {

struct OpenedCurl {
  CurlLibrary library{};
  std::string why_not;
};

OpenedCurl open_curl() {
  const char* const chosen = std::getenv("TESSERA_CURL");
  void* handle = nullptr;
  std::string file = chosen && *chosen ? chosen : "libcurl.so.4";
  handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle && !(chosen && *chosen)) handle = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
  if (!handle) return {{}, fmt::format("{} was not found: install libcurl, or let TESSERA_CURL name it", file)};
  OpenedCurl out;
  int (*global_init)(long) = nullptr;
  const auto need = [&]<class F>(const char* name, F*& function) {
    function = reinterpret_cast<F*>(dlsym(handle, name));
    if (!function && out.why_not.empty()) out.why_not = fmt::format("{} has no {}", file, name);
  };
  CurlLibrary& l = out.library;
  need("curl_global_init", global_init);
  need("curl_easy_init", l.init);
  need("curl_easy_cleanup", l.cleanup);
  need("curl_easy_reset", l.reset);
  need("curl_easy_setopt", l.setopt);
  need("curl_easy_perform", l.perform);
  need("curl_easy_getinfo", l.getinfo);
  need("curl_easy_strerror", l.error_text);
  need("curl_slist_append", l.append);
  need("curl_slist_free_all", l.free_list);
  constexpr long everything = 3;
  if (out.why_not.empty() && global_init(everything) != CurlLibrary::ok) out.why_not = file + " does not start";
  return out;
}

}  // namespace

const CurlLibrary& curl_library() {
  static const OpenedCurl opened = open_curl();
  if (!opened.why_not.empty()) throw Error(opened.why_not);
  return opened.library;
}

}  // namespace tessera
