// Trees of time: what flame graphs are drawn of, on the report's page and as a picture.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/trace.h"

namespace tessera::profiler {

/// Spans of one name in the same place, added up.
struct FlameNode {
  std::string name;
  Kind kind = Kind::Range;
  int depth = 0;
  int64_t total = 0;   ///< nanoseconds, with those of its children
  int64_t device = 0;  ///< of the host's nodes: nanoseconds on devices of what was started in it
  int64_t calls = 0;
};
/// Host time by what encloses what: steps, ranges, modules, operators. Each node is followed by its children, in the
/// order of their first begin. Threads are added up.
std::vector<FlameNode> host_flame(const Trace& trace);
/// Device time by module path, operator and kernel; by device before it, where there are several.
std::vector<FlameNode> device_flame(const Trace& trace);

/// "1.25 ms": for people.
std::string duration_text(int64_t nanoseconds);
/// The text as XML may hold it: markup escaped, and what is no character replaced.
std::string escape_markup(std::string_view text);

}  // namespace tessera::profiler
