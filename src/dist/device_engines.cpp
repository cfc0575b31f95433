// Which engine moves tensors of GPUs, and which GPU is whose.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "dist/group.h"
#include "dist/nccl.h"

namespace tessera::dist {

Engine* Group::State::engine_on(Device device, bool of_all) {
  if (!engine || !device.is_gpu() || device.meta) return nullptr;
  const auto found =
      std::find_if(on_devices.begin(), on_devices.end(), [&](const OnDevice& known) { return known.device == device; });
  if (found != on_devices.end()) return found->engine.get();
  if (!of_all) return nullptr;
  OnDevice made{device, {}, {}};
  const char* const chosen = std::getenv("TESSERA_GPU_ENGINE");
  if (chosen && std::string_view(chosen) == "host") made.why_not = "TESSERA_GPU_ENGINE=host";
  else made.engine = Nccl::create(control, members, rank, *engine, device, made.why_not);
  return on_devices.emplace_back(std::move(made)).engine.get();
}

std::string Group::engine(Device device) const {
  for (const State::OnDevice& known : state_->on_devices) {
    if (!(known.device == device)) continue;
    if (known.engine) return std::string(known.engine->name());
    return fmt::format("{} through the host: {}", engine(), known.why_not);
  }
  return std::string(engine());
}

Device World::device(Device first) const {
  if (!first.is_gpu() || size() == 1) return first;
  const int count = std::max(device_count(first.type), 1);
  return {first.type, static_cast<int8_t>((first.index + local_rank()) % count)};
}

}  // namespace tessera::dist
