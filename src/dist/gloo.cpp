#include "dist/gloo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "dist/engine_plugin.h"
#include "dist/gloo_functions.h"
#include "dist/tcp.h"

namespace tessera::dist {
namespace {

// For one message while another may be done or fail: milliseconds, as many as the wait has taken so far.
constexpr int64_t kLeastTurn = 1, kMostTurn = 20;
// In which the last message of a rank that has ended comes, or its connection ends: nanoseconds.
constexpr int64_t kLast = 30'000'000'000;

struct GlooLibrary {
  const GlooFunctions* functions = nullptr;
  std::string why_not;
};

GlooLibrary open_gloo() {
  GlooLibrary library;
  library.functions =
      open_engine_plugin<GlooFunctions>("libtessera_gloo.so", "tessera_gloo", "Gloo", RTLD_LOCAL, library.why_not);
  return library;
}

const GlooLibrary& gloo_library() {
  static const auto* const opened = new GlooLibrary(open_gloo());  // never destroyed: engines may outlive everything
  return *opened;
}
const GlooFunctions& gloo() { return *gloo_library().functions; }

}  // namespace

/// A message of Gloo has one piece: several are packed into one.
struct Gloo::Packed {
  void* message = nullptr;
  std::vector<char> bytes;    // empty: it lies in one piece
  std::vector<iovec> pieces;  // of one that is received
  int peer = 0;
  bool is_done = false;
  ~Packed() { gloo().drop(message); }
};

std::string Gloo::why_not() { return gloo_library().why_not; }

Gloo::Gloo(std::shared_ptr<Control> control, std::shared_ptr<Mesh> mesh, uint64_t group, std::vector<int> members,
           int rank)
    : Messages(std::move(control), group, std::move(members), rank), left_(members_.size()) {
  looks_ = 0;  // what has come shows to those who wait for it alone
  try {
    connect_pairs(std::move(mesh), group);
  } catch (...) {
    if (context_) gloo().close(context_);
    throw;
  }
}
Gloo::~Gloo() { gloo().close(context_); }

// Over streams of our own, whose ends have proved the secret, ranks tell each other where their pairs are.
void Gloo::connect_pairs(std::shared_ptr<Mesh> mesh, uint64_t group) {
  struct Address {
    uint64_t size = 0;
    char bytes[GlooFunctions::kMostOfAddress] = {};
  };
  Tcp streams(control_, std::move(mesh), ~group, members_, rank_);
  streams.barrier();
  context_ = gloo().open(to_string(streams.address()).c_str(), rank_, size());
  if (!context_) throw Error(fmt::format("gloo: {}", gloo().error()));
  std::vector<Address> mine(members_.size()), theirs(members_.size());
  for (int r = 0; r < size(); ++r) {
    Address& own = mine[static_cast<size_t>(r)];
    if (r != rank_ && (own.size = gloo().address(context_, r, own.bytes)) == 0)
      throw Error(fmt::format("gloo: {}", gloo().error()));
  }
  const Call call{.kind = Call::Kind::AllToAll,
                  .dtype = UInt8,
                  .count = sizeof(Address),
                  .dims = 1,
                  .shape = {static_cast<int64_t>(sizeof(Address) * mine.size())}};
  streams.all_to_all(call, reinterpret_cast<const char*>(mine.data()), reinterpret_cast<char*>(theirs.data()));
  for (int r = 0; r < size(); ++r) {
    const Address& other = theirs[static_cast<size_t>(r)];
    if (r == rank_) continue;
    control_->check();
    if (other.size > sizeof other.bytes || !gloo().connect(context_, r, other.bytes, other.size))
      throw Error(fmt::format("gloo: rank {} does not reach rank {}: {}", self(), rank_of(r), gloo().error()));
  }
  streams.barrier();  // whoever left at once would close what others connect to
}

void* Gloo::begin_message(bool is_out, const iovec* pieces, size_t count, int peer, Lane lane) {
  auto packed = std::make_unique<Packed>();
  void* data = pieces[0].iov_base;
  size_t bytes = pieces[0].iov_len;
  if (count > 1) {
    bytes = 0;
    for (size_t i = 0; i < count; ++i) bytes += pieces[i].iov_len;
    packed->bytes.resize(bytes);
    data = packed->bytes.data();
    if (is_out)
      for (char* to = packed->bytes.data(); const iovec& piece : std::span(pieces, count)) {
        std::memcpy(to, piece.iov_base, piece.iov_len);
        to += piece.iov_len;
      }
    else packed->pieces.assign(pieces, pieces + count);
  }
  packed->peer = peer;
  packed->message = (is_out ? gloo().send : gloo().receive)(context_, data, bytes, peer, static_cast<uint64_t>(lane));
  if (!packed->message) lost(peer, gloo().error());
  return packed.release();
}

bool Gloo::is_done(void* message) {
  auto* const packed = static_cast<Packed*>(message);
  if (!packed->is_done) return false;
  const char* from = packed->bytes.data();
  for (const iovec& piece : packed->pieces) {
    std::memcpy(piece.iov_base, from, piece.iov_len);
    from += piece.iov_len;
  }
  delete packed;
  return true;
}

void Gloo::drop(void* message) { delete static_cast<Packed*>(message); }

// For one of them, by turns: what another rank calls instead of this shows in its message alone. What a rank that has
// ended had sent before may be on its way yet: it comes, or the connection ends.
int Gloo::rest(std::span<void* const> messages, int other, int64_t began) {
  if (messages.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return other;
  }
  auto& packed = *static_cast<Packed*>(messages[turn_++ % messages.size()]);
  const int64_t turn = std::clamp((now_ns() - began) / 1'000'000, kLeastTurn, kMostTurn);
  const GlooFunctions::Waited waited = gloo().wait(packed.message, static_cast<int>(turn));
  if (waited == GlooFunctions::Lost) lost(packed.peer, gloo().error());
  if (packed.is_done = waited == GlooFunctions::Done; packed.is_done) return -1;
  if (!control_->place(rank_of(packed.peer)).has_left) return packed.peer;
  std::atomic<int64_t>& left = left_[static_cast<size_t>(packed.peer)];
  int64_t never = 0;
  left.compare_exchange_strong(never, now_ns());
  if (now_ns() - left > kLast) return packed.peer;
  control_->check();
  return -1;
}

}  // namespace tessera::dist
