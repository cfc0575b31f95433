// What the vendor's tracing library sees, CUPTI or roctracer; opened at run time where it is installed. The members of
// gpu::Runtime of these names.
#pragma once
#include <functional>
#include <string>

#include "core/gpu/runtime.h"

namespace tessera::gpu_kernels {

std::string start_activities(size_t most_bytes);
int64_t stop_activities(const std::function<void(const gpu::Activity&)>& take);

}  // namespace tessera::gpu_kernels
