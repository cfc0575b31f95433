#include "dist/mpi.h"

#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <thread>

#include "dist/engine_plugin.h"
#include "dist/mpi_functions.h"

namespace tessera::dist {
namespace {

constexpr int kGroupBits = 16;         // of a tag; above them the rank that made the group, below the purpose
constexpr int64_t kAwake = 2'000'000;  // nanoseconds, in which others may have the processor but MPI goes on
constexpr auto kNap = std::chrono::microseconds(50);

/// MPI, once it was looked for.
struct MpiLibrary {
  const MpiFunctions* functions = nullptr;
  std::string why_not;
  int rank = -1, size = 0;
  std::mutex mutex;  // of all calls
};

std::atomic<bool> is_started{false};

bool is_begun_by_mpirun() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* text = std::getenv(name); text && *text) return true;
  return false;
}

void open_mpi(MpiLibrary& library) {
  if (!is_begun_by_mpirun()) {
    library.why_not = "mpirun did not begin these processes";
    return;
  }
  // Its own plugins look for MPI's symbols among those of all.
  const auto* const found =
      open_engine_plugin<MpiFunctions>("libtessera_mpi.so", "tessera_mpi", "MPI", RTLD_GLOBAL, library.why_not);
  if (!found) return;
  if (const char* const why = found->start(&library.rank, &library.size)) library.why_not = why;
  else library.functions = found, is_started = true;
}

MpiLibrary& mpi_library() {
  static MpiLibrary* const opened = [] {
    auto* made = new MpiLibrary;  // never destroyed: engines may outlive everything
    open_mpi(*made);
    return made;
  }();
  return *opened;
}

int tag_of(uint64_t group) {
  const uint64_t rank = group >> 32, number = group & 0xffffffff;
  if (number >> kGroupBits) throw Error(fmt::format("mpi: a rank has made more than {} groups", 1 << kGroupBits));
  return static_cast<int>((rank << kGroupBits | number) << 1);
}

}  // namespace

std::string Mpi::why_not(const Control& control) {
  if (control.hosts().count > 1) return "`tessera launch` or one process began several ranks, mpirun did not";
  const MpiLibrary& mpi = mpi_library();
  if (!mpi.functions) return mpi.why_not;
  if (mpi.size != control.ranks() || mpi.rank != control.hosts().first)
    return fmt::format("this is rank {} of {}, and for MPI {} of {}", control.hosts().first, control.ranks(), mpi.rank,
                       mpi.size);
  return "";
}

Mpi::AtExit::~AtExit() {
  if (is_started) mpi_library().functions->finish();
}

Mpi::Mpi(std::shared_ptr<Control> control, uint64_t group, std::vector<int> members, int rank)
    : Messages(std::move(control), group, std::move(members), rank), tag_(tag_of(group)) {}

void* Mpi::begin_message(bool is_out, const iovec* pieces, size_t count, int peer, Lane lane) {
  MpiLibrary& mpi = mpi_library();
  const std::lock_guard lock(mpi.mutex);
  const auto begin = is_out ? mpi.functions->send : mpi.functions->receive;
  return begin(pieces, count, rank_of(peer), tag_ + static_cast<int>(lane));
}

bool Mpi::is_done(void* message) {
  MpiLibrary& mpi = mpi_library();
  const std::lock_guard lock(mpi.mutex);
  return mpi.functions->is_done(message);
}

void Mpi::drop(void* message) {
  MpiLibrary& mpi = mpi_library();
  const std::lock_guard lock(mpi.mutex);
  mpi.functions->drop(message);
}

// Messages move while MPI is called.
int Mpi::rest(std::span<void* const>, int other, int64_t began) {
  if (now_ns() - began < kAwake) std::this_thread::yield();
  else std::this_thread::sleep_for(kNap);
  return other;
}

}  // namespace tessera::dist
