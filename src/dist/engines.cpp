// Which engine moves a group's tensors, in an ordered list with reasons, and which GPU is whose.
#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "dist/gloo.h"
#include "dist/group.h"
#include "dist/mpi.h"
#include "dist/nccl.h"
#include "dist/neighbours.h"
#include "dist/tcp.h"

namespace tessera::dist {
namespace {

using State = Group::State;

/// An engine of tensors of the host: what it is for, why it is not for some ranks, and how it is made.
struct HostEngine {
  const char *name, *what;
  std::string (*why_not)(const State& group);  // empty: it can
  std::unique_ptr<Engine> (*make)(const State& group, uint64_t place);
};

std::string not_neighbours(const State& group) {
  for (const int rank : group.members)
    if (!group.control->is_local(rank)) return fmt::format("rank {} is on another host", rank);
  return "";
}

/// The first that can is taken.
constexpr HostEngine kHostEngines[] = {
    {"neighbours", "rounds in memory that all ranks share", not_neighbours,
     [](const State& g, uint64_t place) -> std::unique_ptr<Engine> {
       return std::make_unique<Neighbours>(g.control, place, g.members, g.rank);
     }},
    {"mpi", "messages of MPI", [](const State& g) { return Mpi::why_not(*g.control); },
     [](const State& g, uint64_t place) -> std::unique_ptr<Engine> {
       return std::make_unique<Mpi>(g.control, place, g.members, g.rank);
     }},
    {"tcp", "streams between each two ranks", [](const State&) { return std::string(); },
     [](const State& g, uint64_t place) -> std::unique_ptr<Engine> {
       return std::make_unique<Tcp>(g.control, g.mesh, place, g.members, g.rank);
     }},
    {"gloo", "pairs of Gloo", [](const State&) { return Gloo::why_not(); },
     [](const State& g, uint64_t place) -> std::unique_ptr<Engine> {
       return std::make_unique<Gloo>(g.control, g.mesh, place, g.members, g.rank);
     }},
};

std::string why_not(const HostEngine& engine, const State& group) {
  if (!group.asked_engine.empty() && group.asked_engine != engine.name)
    return fmt::format("{} was asked for", group.asked_engine);
  return engine.why_not(group);
}

const HostEngine& chosen(const State& group) {
  for (const HostEngine& engine : kHostEngines) {
    const std::string reason = why_not(engine, group);
    if (reason.empty()) return engine;
    if (group.asked_engine == engine.name)
      throw Error(fmt::format("dist: the engine {} was asked for: {}", engine.name, reason));
  }
  throw Error(fmt::format("dist: there is no engine {}", group.asked_engine));
}

}  // namespace

std::vector<int64_t> numbers_of_ranks(Engine& host, int size, int64_t mine) {
  std::vector<int64_t> all(static_cast<size_t>(size));
  const Call call{.kind = Call::Kind::AllGather, .dtype = Int64, .count = 1, .dims = 1, .shape = {1}};
  host.all_gather(call, reinterpret_cast<const char*>(&mine), reinterpret_cast<char*>(all.data()));
  return all;
}

std::string_view engine_name(int number) {
  return number > 0 && number <= static_cast<int>(std::size(kHostEngines)) ? kHostEngines[number - 1].name : "another";
}

bool Group::State::share_memory() const { return chosen(*this).name == std::string_view("neighbours"); }

void Group::State::make_engine(uint64_t place) { engine = chosen(*this).make(*this, place); }

uint8_t Group::State::engine_number() const { return static_cast<uint8_t>(&chosen(*this) - kHostEngines + 1); }

std::string explain_engines(const Group& group, Device device) {
  const Group::State& state = group.state();
  if (!state.engine) return "   a group of one rank: nothing moves\n";
  std::string out;
  const auto line = [&](bool is_taken, std::string_view name, std::string_view text) {
    out += fmt::format("{} {:<16} {}\n", is_taken ? "->" : "  ", name, text);
  };
  bool is_open = true;
  if (device.is_gpu()) {
    const char* const library = device.type == DeviceType::HIP ? "rccl" : "nccl";
    for (const Group::State::OnDevice& known : state.on_devices) {
      if (!(known.device == device)) continue;
      is_open = !known.engine;
      line(!is_open, library, is_open ? known.why_not : "chosen: from card to card, on the caller's stream");
    }
  }
  const std::string_view way = device.is_gpu() ? ", through memory of the host" : "";
  for (const HostEngine& engine : kHostEngines) {
    const std::string reason = why_not(engine, state);
    const bool is_taken = is_open && reason.empty();
    if (is_taken) line(true, engine.name, fmt::format("chosen: {}{}", engine.what, way));
    else line(false, engine.name, reason.empty() ? "another one comes before it" : reason);
    is_open &= !is_taken;
  }
  return out;
}

Engine* Group::State::engine_on(Device device, bool of_all) {
  if (!engine || !device.is_gpu() || device.meta) return nullptr;
  const auto found =
      std::find_if(on_devices.begin(), on_devices.end(), [&](const OnDevice& known) { return known.device == device; });
  if (found != on_devices.end()) return found->engine.get();
  if (!of_all) return nullptr;
  OnDevice made{device, {}, {}};
  const std::string_view chosen = asked_gpu_engine;
  const std::string_view library = device.type == DeviceType::HIP ? "rccl" : "nccl";
  if (!chosen.empty() && chosen != "host" && chosen != library)
    throw Error(fmt::format("dist: TESSERA_GPU_ENGINE={} is neither host nor {}", chosen, library));
  const std::vector<int64_t> asked = numbers_of_ranks(*engine, size(), chosen.empty() ? 0 : chosen == "host" ? 1 : 2);
  for (int r = 1; r < size(); ++r)
    if (const auto at = static_cast<size_t>(r); asked[at] != asked[0]) {
      const std::string_view names[] = {"nothing", "host", library};
      throw Error(fmt::format("dist: TESSERA_GPU_ENGINE asks for {} on rank {}, and for {} on rank {}", names[asked[0]],
                              members[0], names[asked[at]], members[at]));
    }
  if (chosen == "host") made.why_not = "TESSERA_GPU_ENGINE=host";
  else made.engine = Nccl::create(control, members, rank, *engine, device, made.why_not);
  if (!made.engine && chosen == library)
    throw Error(fmt::format("dist: TESSERA_GPU_ENGINE={}: {}", library, made.why_not));
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
