// JSON of a trace, event by event: never more of it in memory than one event, and the few lists beside them.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::profiler {

using TraceJson = nlohmann::json;

struct TraceParts {
  /// An object of "traceEvents". Its "ts" and "dur" are in nanoseconds, or null where they are no such numbers.
  std::function<void(const TraceJson& event)> event;
  /// A member of the file beside these, if it is wanted().
  std::function<void(const std::string& key, const TraceJson& value)> member;
  std::function<bool(const std::string& key)> wanted;
};
/// Throws FileError where `json` is cut short, is no JSON, nests too deeply, or has no "traceEvents".
void walk_trace(std::string_view json, const std::string& file, const TraceParts& parts);

/// Microseconds as text, "12.345" or "1e3", in nanoseconds: exactly, as far as these are whole. False: no such number,
/// or one beyond a hundred years.
bool parse_microseconds(const std::string& text, int64_t& nanoseconds);

}  // namespace tessera::profiler
