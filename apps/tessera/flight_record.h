// What ranks called last before a run failed, as a trace.
#pragma once
#include <string>
#include <vector>

#include "dist/launcher.h"

namespace tessera::app {

/// Writes the last collectives of each rank of this host to `file`, as the profiler writes traces: Perfetto shows them,
/// and `tessera profile` says who was waited for. Throws FileError.
void write_flight_record(const std::vector<dist::RankHistory>& ranks, const std::string& file);

}  // namespace tessera::app
