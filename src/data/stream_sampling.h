// How much of each stream an epoch has, and which samples: number for number as MosaicML Streaming 0.13 draws them.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/streaming.h"

namespace tessera {

/// Throws Error on weights and a size of an epoch that cannot be, whatever the streams hold.
void check_weights(const std::vector<DataStream>& streams, int64_t epoch_size);
/// Samples of each stream in an epoch, of streams that have so many. Throws Error on weights that cannot be.
std::vector<int64_t> samples_per_stream(const std::vector<DataStream>& streams, const std::vector<int64_t>& sizes,
                                        int64_t epoch_size, uint64_t seed);

struct SampledEpoch {
  std::vector<int64_t> sizes;  ///< of what is shuffled together: shards, and parts of them
  std::vector<int64_t> ids;    ///< of their samples; empty: each sample once
};
/// Draws an epoch from the sizes of the shards of each stream, of which `chosen` samples are wanted.
SampledEpoch sample_streams(const std::vector<std::vector<int64_t>>& shards, const std::vector<int64_t>& chosen,
                            const StreamingOptions& options, int64_t epoch);

}  // namespace tessera
