// Pictures of a trace: a page that needs no network, and a flame graph.
#pragma once
#include <string>

#include "profiler/trace.h"

namespace tessera::profiler {

/// A whole HTML page: timeline, tables that sort, flame graph, memory, steps, roofline, gaps of the host, advice.
std::string report_html(const Trace& trace);
/// Host time by range, module and operator, and below each operator its time on the device.
std::string flame_svg(const Trace& trace);

}  // namespace tessera::profiler
