// The files of the report's page, which the build puts into the library (cmake/embed_page.cmake).
#pragma once
#include <string_view>

namespace tessera::profiler {

/// The file of that name in report_page/; empty if there is none.
std::string_view report_page_part(std::string_view name);

}  // namespace tessera::profiler
