// Traces as files: JSON in Kineto's schema, which Perfetto, TensorBoard's plug-in and HolisticTraceAnalysis read.
#pragma once
#include <string>
#include <string_view>

#include "profiler/trace.h"

namespace tessera::profiler {

/// Writes FILE as it goes, never the whole text in memory; gzipped where the name ends in ".gz". The file appears
/// whole or not at all. Throws FileError.
void write_trace(const Trace& trace, const std::string& file);
/// The same as text, not gzipped.
std::string trace_text(const Trace& trace);
/// What write_trace wrote, and traces of PyTorch's profiler as far as they hold the same. Throws FileError with one
/// line on what is cut short, or is no trace.
Trace read_trace(const std::string& file);
/// The same of bytes, already unpacked; `file` is what errors call them.
Trace parse_trace(std::string_view json, const std::string& file);

/// [times, sizes by category], as torch.profiler's export_memory_timeline(".json.gz") writes it, of one device (-1: the
/// host). Throws FileError.
void write_memory_timeline(const Trace& trace, int device, const std::string& file);

}  // namespace tessera::profiler
