// What the report's page is made of: the parts of its data that take a file each.
#pragma once
#include <nlohmann/json.hpp>

#include "profiler/trace.h"

namespace tessera::profiler {

/// The earliest begin or change of memory: the zero of the page's times.
int64_t report_origin(const Trace& trace);
/// Of each device that has changes of memory: the curve by category, thinned, and what was alive at its peak.
nlohmann::json report_memory(const Trace& trace);
/// The longest times within steps in which nothing ran on the busiest device, and what the host did in them.
nlohmann::json report_gaps(const Trace& trace);

}  // namespace tessera::profiler
