// What the report's page is made of: its files, which the build puts into the library, and its data.
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "profiler/trace.h"

namespace tessera::profiler {

/// The file of that name in report_page/; empty if there is none.
std::string_view report_page_part(std::string_view name);

/// The earliest begin or change of memory: the zero of the page's times.
int64_t report_origin(const Trace& trace);
/// Of each device that has changes of memory: the curve by category, thinned, and what was alive at its peak.
nlohmann::json report_memory(const Trace& trace);
/// The longest times within steps in which nothing ran on the busiest device, and what the host did in them.
nlohmann::json report_gaps(const Trace& trace);

}  // namespace tessera::profiler
