#include "dist/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tessera::dist {
namespace {

constexpr int64_t kSlot = 512 << 10;  // bytes of a rank in a round: two ranks' fit into a second-level cache
constexpr int64_t kSmall = 4 << 10;   // up to which each rank combines all by itself: one round instead of two
constexpr int64_t kMail = 16 << 10;   // bytes on the way from one rank to another: 1024 ranks have a million mailboxes
constexpr int64_t kAlignment = 64;    // of a rank's share of a chunk, in bytes: a line of a cache

}  // namespace

/// What a rank says of itself in a group.
struct Neighbours::Line {
  Counter arrived;
  std::atomic<int64_t> came[2];  // when, at the meeting of a round and of the one before
  struct alignas(64) Said {
    Call call;
    uint64_t number;
  } said[2];  // in a round, and in the one before
};

/// Messages of one rank to another.
struct Neighbours::Mailbox {
  Counter written, read;
  int64_t bytes;  // of the message, in all its pieces
  char data[kMail];
};

uint64_t Neighbours::allocate(Control& control, int size) {
  const auto n = static_cast<uint64_t>(size);
  return control.allocate(n * sizeof(Line) + n * n * sizeof(Mailbox) + n * 2 * kSlot);
}

Neighbours::Neighbours(std::shared_ptr<Control> control, uint64_t at, std::vector<int> members, int rank)
    : control_(std::move(control)),
      base_(control_->at(at)),
      members_(std::move(members)),
      rank_(rank),
      log_(*control_, members_[static_cast<size_t>(rank)], at, size()) {}

Neighbours::Line& Neighbours::line(int rank) const { return reinterpret_cast<Line*>(base_)[rank]; }

Neighbours::Mailbox& Neighbours::mailbox(int from, int to) const {
  return reinterpret_cast<Mailbox*>(base_ + size() * sizeof(Line))[from * size() + to];
}

char* Neighbours::slot(int rank, uint32_t round) const {
  const auto n = static_cast<uint64_t>(size());
  return base_ + n * sizeof(Line) + n * n * sizeof(Mailbox) + (static_cast<uint64_t>(rank) * 2 + round % 2) * kSlot;
}

Neighbours::Turn::Turn(Neighbours& engine, const Call& call) : engine_(engine) {
  engine.control_->check();
  if (engine.busy_.exchange(true)) throw Error("dist: two threads call collectives of one group at once");
  engine.call_ = call;
  engine.is_first_ = true;
  logged_.emplace(engine.log_, call);
}

void Neighbours::meet() {
  const uint32_t round = round_;
  const int64_t came = is_first_ ? now_ns() : 0;  // later rounds of a call wait for the same work
  if (is_first_) line(rank_).said[round % 2] = {call_, log_.calls()};
  line(rank_).came[round % 2].store(came, std::memory_order_relaxed);
  line(rank_).arrived.advance_to(++round_);
  PhaseTimes phases[kMaxRanks];
  bool waits = false;
  for (int i = 1; i < size(); ++i) {
    const int other = (rank_ + i) % size();
    if (line(other).arrived.reached(round_)) continue;
    if (!std::exchange(waits, true) && is_first_)
      for (int r = 0; r < size(); ++r) phases[r] = control_->place(members_[r]).phase.times();
    control_->wait(line(other).arrived, round_, members_[rank_], members_[other]);
  }
  if (!std::exchange(is_first_, false)) return;
  if (waits) charge(round, came, phases);
  compare();
}

// The time that this rank has waited is the last one's.
void Neighbours::charge(uint32_t round, int64_t came, const PhaseTimes* phases) {
  const auto time_of = [&](int r) { return line(r).came[round % 2].load(std::memory_order_relaxed); };
  int last = rank_;
  for (int r = 0; r < size(); ++r)
    if (time_of(r) > time_of(last)) last = r;
  if (last != rank_) control_->charge(members_[last], phases[last], time_of(last) - came);
}

// All ranks find the same difference, and rank 0 says it.
void Neighbours::compare() {
  const Line::Said& first = line(0).said[(round_ - 1) % 2];
  for (int r = 1; r < size(); ++r) {
    const Line::Said& other = line(r).said[(round_ - 1) % 2];
    if (other.call == first.call && other.number == first.number) continue;
    const std::string reason = fmt::format("collective {} differs: {} on rank {}, {} on rank {}", first.number,
                                           to_string(first.call), members_[0], to_string(other.call), members_[r]);
    control_->abort(reason);
    if (rank_ == 0) throw Error(reason);
    throw Aborted(reason);
  }
}

/// Walks over segments as if they were one.
class Neighbours::Cursor {
 public:
  Cursor(std::span<const Segment> segments, int64_t size) : segments_(segments), size_(size) {}
  /// The next bytes of them, piece by piece: fn(data, bytes).
  template <class Fn>
  void next(int64_t bytes, const Fn& fn) {
    while (bytes > 0) {
      const int64_t left = segments_[at_].count * size_ - offset_, n = std::min(left, bytes);
      if (n > 0) fn(segments_[at_].data + offset_, n);
      bytes -= n;
      offset_ += n;
      if (n == left) ++at_, offset_ = 0;
    }
  }

 private:
  std::span<const Segment> segments_;
  int64_t size_, offset_ = 0;
  size_t at_ = 0;
};

// out = the elements from `first` on of all slots of the round that was met, combined. `own`: this rank's, where they
// are not in its slot.
void Neighbours::combine_round(int64_t first, int64_t count, char* out, const Call& call, const char* own) {
  if (count <= 0) return;
  std::vector<const char*> parts;
  const int64_t offset = first * static_cast<int64_t>(size_of(call.dtype));
  for (int r = 0; r < size(); ++r) parts.push_back(r == rank_ && own ? own : theirs(r) + offset);
  combine(parts, out, count, call.dtype, call.op);
}

// Rounds over `bytes`, at most `step` each: write(at, n) fills this rank's slot, read(at, n) follows the meeting.
template <class Write, class Read>
void Neighbours::in_chunks(int64_t bytes, int64_t step, const Write& write, const Read& read) {
  for (int64_t at = 0; at < std::max<int64_t>(bytes, 1); at += step) {
    const int64_t n = std::min(step, bytes - at);
    write(at, n);
    meet();
    read(at, n);
  }
}

// Writes n bytes for each rank, whose rows are so far apart.
void Neighbours::deal(const char* in, int64_t row, int64_t n) {
  for (int r = 0; r < size(); ++r) copy_to_others(mine() + r * n, in + r * row, static_cast<size_t>(n));
}

void Neighbours::all_reduce(const Call& call, std::span<const Segment> data) {
  const Turn turn(*this, call);
  const auto size_of_one = static_cast<int64_t>(size_of(call.dtype));
  const int64_t bytes = call.count * size_of_one;
  if (bytes > kSmall) return reduce_shares(call, data);
  Cursor from(data, size_of_one), to(data, size_of_one);
  const auto write = [&](int64_t, int64_t n) {
    char* out = mine();
    from.next(n, [&](const char* piece, int64_t some) {
      copy_to_others(out, piece, static_cast<size_t>(some));
      out += some;
    });
  };
  alignas(64) char sum[kSmall];
  in_chunks(bytes, kSlot, write, [&](int64_t, int64_t n) {
    combine_round(0, n / size_of_one, sum, call);
    const char* next = sum;
    to.next(n, [&](char* piece, int64_t some) {
      std::memcpy(piece, next, static_cast<size_t>(some));
      next += some;
    });
  });
}

// Each rank combines its share of a chunk, which alone it does not write for others before, and writes the sum.
void Neighbours::reduce_shares(const Call& call, std::span<const Segment> data) {
  const auto size_of_one = static_cast<int64_t>(size_of(call.dtype));
  Cursor from(data, size_of_one), to(data, size_of_one);
  int64_t begin = 0, end = 0;  // of this rank's share, in bytes of the chunk
  char* own = nullptr;         // where it lies
  const auto share_of = [&](int64_t n) {
    const int64_t line = size() * kAlignment;
    return (n + line - 1) / line * kAlignment;
  };
  const auto begin_of = [&](int r, int64_t n) { return std::min(n, share_of(n) * r); };
  const auto write = [&](int64_t, int64_t n) {
    begin = begin_of(rank_, n), end = begin_of(rank_ + 1, n);
    share_.resize(static_cast<size_t>(share_of(n)));
    char* out = mine();
    const auto for_others = [&](const char* piece, int64_t some) {
      copy_to_others(out, piece, static_cast<size_t>(some));
      out += some;
    };
    from.next(begin, for_others);
    char* next = own = share_.data();
    from.next(end - begin, [&](char* piece, int64_t some) {
      if (some == end - begin) own = piece;
      else std::memcpy(std::exchange(next, next + some), piece, static_cast<size_t>(some));
    });
    out += end - begin;
    from.next(n - end, for_others);
  };
  in_chunks(call.count * size_of_one, kSlot, write, [&](int64_t, int64_t n) {
    combine_round(begin / size_of_one, (end - begin) / size_of_one, own, call, own);
    copy_to_others(mine(), own, static_cast<size_t>(end - begin));
    meet();
    for (int r = 0; r < size(); ++r) {
      const char* next = r == rank_ ? own : theirs(r);
      to.next(begin_of(r + 1, n) - begin_of(r, n), [&](char* piece, int64_t some) {
        if (piece != next) std::memcpy(piece, next, static_cast<size_t>(some));
        next += some;
      });
    }
  });
}

void Neighbours::reduce(const Call& call, char* data) {
  const Turn turn(*this, call);
  const auto size_of_one = static_cast<int64_t>(size_of(call.dtype));
  in_chunks(
      call.count * size_of_one, kSlot,
      [&](int64_t at, int64_t n) { copy_to_others(mine(), data + at, static_cast<size_t>(n)); },
      [&](int64_t at, int64_t n) {
        if (rank_ == call.root) combine_round(0, n / size_of_one, data + at, call);
      });
}

void Neighbours::reduce_scatter(const Call& call, const char* in, char* out) {
  const Turn turn(*this, call);
  const auto size_of_one = static_cast<int64_t>(size_of(call.dtype));
  const int64_t bytes = call.count * size_of_one, step = kSlot / size() / kAlignment * kAlignment;
  in_chunks(
      bytes, step, [&](int64_t at, int64_t n) { deal(in + at, bytes, n); },
      [&](int64_t at, int64_t n) { combine_round(rank_ * (n / size_of_one), n / size_of_one, out + at, call); });
}

// `out` is null where nothing is to be read.
void Neighbours::collect(const Call& call, const char* in, char* out) {
  const Turn turn(*this, call);
  const int64_t bytes = call.count * static_cast<int64_t>(size_of(call.dtype));
  in_chunks(
      bytes, kSlot, [&](int64_t at, int64_t n) { copy_to_others(mine(), in + at, static_cast<size_t>(n)); },
      [&](int64_t at, int64_t n) {
        for (int r = 0; r < size() && out; ++r) std::memcpy(out + r * bytes + at, theirs(r), static_cast<size_t>(n));
      });
}

void Neighbours::all_gather(const Call& call, const char* in, char* out) { collect(call, in, out); }

void Neighbours::gather(const Call& call, const char* in, char* out) {
  collect(call, in, rank_ == call.root ? out : nullptr);
}

void Neighbours::scatter(const Call& call, const char* in, char* out) {
  const Turn turn(*this, call);
  const int64_t bytes = call.count * static_cast<int64_t>(size_of(call.dtype));
  const int64_t step = kSlot / size() / kAlignment * kAlignment;
  in_chunks(
      bytes, step,
      [&](int64_t at, int64_t n) {
        if (rank_ == call.root) deal(in + at, bytes, n);
      },
      [&](int64_t at, int64_t n) { std::memcpy(out + at, theirs(call.root) + rank_ * n, static_cast<size_t>(n)); });
}

void Neighbours::broadcast(const Call& call, char* data) {
  const Turn turn(*this, call);
  in_chunks(
      call.count * static_cast<int64_t>(size_of(call.dtype)), kSlot,
      [&](int64_t at, int64_t n) {
        if (rank_ == call.root) copy_to_others(mine(), data + at, static_cast<size_t>(n));
      },
      [&](int64_t at, int64_t n) {
        if (rank_ != call.root) std::memcpy(data + at, theirs(call.root), static_cast<size_t>(n));
      });
}

void Neighbours::all_to_all(const Call& call, const char* in, char* out) {
  const Turn turn(*this, call);
  const int64_t bytes = call.count * static_cast<int64_t>(size_of(call.dtype));
  const int64_t step = kSlot / size() / kAlignment * kAlignment;
  in_chunks(
      bytes, step, [&](int64_t at, int64_t n) { deal(in + at, bytes, n); },
      [&](int64_t at, int64_t n) {
        for (int r = 0; r < size(); ++r)
          std::memcpy(out + r * bytes + at, theirs(r) + rank_ * n, static_cast<size_t>(n));
      });
}

void Neighbours::barrier() {
  const Turn turn(*this, {});
  meet();
}

void Neighbours::send(const char* data, int64_t bytes, int to) {
  control_->check();
  const CallLog::Scope logged(log_, message(Call::Kind::Send, bytes, to));
  Mailbox& box = mailbox(rank_, to);
  for (int64_t at = 0; at < std::max<int64_t>(bytes, 1); at += kMail) {
    const uint32_t sent = box.written.value.load(std::memory_order_relaxed);
    control_->wait(box.read, sent, members_[rank_], members_[to]);  // until what was sent before is taken
    box.bytes = bytes;
    copy_to_others(box.data, data + at, static_cast<size_t>(std::min(kMail, bytes - at)));
    box.written.advance_to(sent + 1);
  }
}

void Neighbours::recv(char* data, int64_t bytes, int from) {
  control_->check();
  const CallLog::Scope logged(log_, message(Call::Kind::Recv, bytes, from));
  Mailbox& box = mailbox(from, rank_);
  for (int64_t at = 0; at < std::max<int64_t>(bytes, 1); at += kMail) {
    const uint32_t taken = box.read.value.load(std::memory_order_relaxed);
    control_->wait(box.written, taken + 1, members_[rank_], members_[from]);
    if (box.bytes != bytes)
      throw Error(fmt::format("recv: {} bytes were expected of rank {}, which sent {}", bytes, from, box.bytes));
    std::memcpy(data + at, box.data, static_cast<size_t>(std::min(kMail, bytes - at)));
    box.read.advance_to(taken + 1);
  }
}

}  // namespace tessera::dist
