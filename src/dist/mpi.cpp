#include "dist/mpi.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

#include "core/util/plugin_path.h"
#include "dist/mpi_functions.h"

namespace tessera::dist {
namespace {

constexpr const char* kPlugin = "libtessera_mpi.so";
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
  const std::filesystem::path path = find_plugin(kPlugin);
  if (path.empty()) {
    library.why_not = fmt::format(
        "{} was not found beside the program or in TESSERA_PLUGIN_DIR; CMake makes it where MPI is", kPlugin);
    return;
  }
  // Its own plugins look for MPI's symbols among those of all.
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!handle) {
    library.why_not = dlerror();
    return;
  }
  const auto entry = reinterpret_cast<const MpiFunctions* (*)()>(dlsym(handle, "tessera_mpi"));
  const MpiFunctions* const found = entry ? entry() : nullptr;
  if (!found || found->version != MpiFunctions::kVersion) {
    library.why_not = path.string() + " belongs to another version of tessera";
    return;
  }
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

// A moment of one that has waited since then: messages move while MPI is called.
void rest(int64_t began) {
  if (now_ns() - began < kAwake) std::this_thread::yield();
  else std::this_thread::sleep_for(kNap);
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
    : Exchanges(std::move(control), group, std::move(members), rank), tag_(tag_of(group)) {
  for (int r = 0; r < size(); ++r) links_.push_back(std::make_unique<Link>());
}
Mpi::~Mpi() = default;

// ---- messages ----

void Mpi::Message::begin(bool is_out, const iovec* pieces, size_t count, int other, int tag) {
  MpiLibrary& mpi = mpi_library();
  const std::lock_guard lock(mpi.mutex);
  request_ = (is_out ? mpi.functions->send : mpi.functions->receive)(pieces, count, other, tag);
}

bool Mpi::Message::ends() {
  if (!request_) return false;
  MpiLibrary& mpi = mpi_library();
  const std::lock_guard lock(mpi.mutex);
  if (!mpi.functions->is_done(request_)) return false;
  request_ = nullptr;
  return true;
}

void Mpi::Message::drop() {
  if (!request_) return;
  MpiLibrary& mpi = mpi_library();
  const std::lock_guard lock(mpi.mutex);
  mpi.functions->drop(std::exchange(request_, nullptr));
}

// ---- exchanges: what ranks call is a message of its own, so that the rest is received only where they call alike ----

void Mpi::begin(const Flows& flows, int peer) {
  const Flow &out = flows.out[static_cast<size_t>(peer)], &in = flows.in[static_cast<size_t>(peer)];
  Link& link = *links_[static_cast<size_t>(peer)];
  link.has_begun = true;
  if (is_first()) {
    link.says.begin(true, out.pieces.data(), 1, rank_of(peer), tag_);
    link.hears.begin(false, in.pieces.data(), 1, rank_of(peer), tag_);
  }
  begin_parts(true, out, peer);
  if (!is_first()) begin_parts(false, in, peer);
}

// A part is a message: where it lies in one piece, MPI need not pack it.
void Mpi::begin_parts(bool is_out, const Flow& flow, int peer) {
  Link& link = *links_[static_cast<size_t>(peer)];
  const size_t begins[] = {is_first(), flow.second, flow.pieces.size()};
  for (size_t part = 0; part < 2; ++part)
    if (const size_t at = begins[part], n = begins[part + 1] - at; n > 0)
      (is_out ? link.out : link.in)[part].begin(is_out, flow.pieces.data() + at, n, rank_of(peer), tag_);
}

bool Mpi::advance(Flows& flows, int peer) {
  Flow &out = flows.out[static_cast<size_t>(peer)], &in = flows.in[static_cast<size_t>(peer)];
  Link& link = *links_[static_cast<size_t>(peer)];
  if (!link.has_begun) {
    begin(flows, peer);
    return true;
  }
  bool goes_on = false;
  const auto ended = [&](Message& message, Flow& flow, size_t pieces) {
    if (!message.ends()) return false;
    flow.at += pieces;
    return goes_on = true;
  };
  ended(link.says, out, 1);
  if (ended(link.hears, in, 1) && calls_alike(peer)) begin_parts(false, in, peer);
  for (const size_t part : {0, 1}) {
    const auto pieces = [&](const Flow& f) { return part ? f.pieces.size() - f.second : f.second - is_first(); };
    ended(link.out[part], out, pieces(out));
    ended(link.in[part], in, pieces(in));
  }
  return goes_on;
}

void Mpi::exchange(Flows& flows) {
  const auto end = [&] {
    for (const auto& link : links_) {
      for (Message* m : {&link->says, &link->hears, link->out, link->out + 1, link->in, link->in + 1}) m->drop();
      link->has_begun = false;
    }
  };
  try {
    Exchanges::exchange(flows);
  } catch (...) {
    end();
    throw;
  }
  end();
}

void Mpi::sleep(const Flows&, int other, int64_t began) {
  const Control::Waiting waiting(*control_, self(), rank_of(other), began);
  rest(began);
  control_->look(began, self(), rank_of(other));
}

// ---- messages between two ranks: how many bytes, and they ----

void Mpi::wait(Message& message, int peer) {
  const int64_t began = now_ns();
  std::optional<Control::Waiting> waiting;
  while (!message.ends()) {
    if (!waiting) waiting.emplace(*control_, self(), rank_of(peer), began);
    rest(began);
    control_->look(began, self(), rank_of(peer));
  }
}

void Mpi::send(const char* data, int64_t bytes, int to) {
  control_->check();
  const CallLog::Scope logged(log_, message(Call::Kind::Send, bytes, to));
  const iovec head{&bytes, sizeof bytes}, tail{const_cast<char*>(data), static_cast<size_t>(bytes)};
  Message says, out;
  says.begin(true, &head, 1, rank_of(to), tag_ + 1);
  if (bytes > 0) out.begin(true, &tail, 1, rank_of(to), tag_ + 1);
  wait(says, to);
  if (bytes > 0) wait(out, to);
}

void Mpi::recv(char* data, int64_t bytes, int from) {
  control_->check();
  const CallLog::Scope logged(log_, message(Call::Kind::Recv, bytes, from));
  int64_t sent = 0;
  const iovec head{&sent, sizeof sent}, tail{data, static_cast<size_t>(bytes)};
  Message hears, in;
  hears.begin(false, &head, 1, rank_of(from), tag_ + 1);
  wait(hears, from);
  if (sent != bytes)
    throw Error(fmt::format("recv: {} bytes were expected of rank {}, which sent {}", bytes, from, sent));
  if (bytes == 0) return;
  in.begin(false, &tail, 1, rank_of(from), tag_ + 1);
  wait(in, from);
}

}  // namespace tessera::dist
