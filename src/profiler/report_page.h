// The files of the report's page, which the build puts into the library.
#pragma once
#include <string_view>

#include "core/util/embedded.h"

namespace tessera::profiler {

std::span<const EmbeddedFile> report_page_files();
/// The file of that name in report_page/; empty if there is none.
std::string_view report_page_part(std::string_view name);

}  // namespace tessera::profiler
