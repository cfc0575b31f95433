#include "dist/exchanges.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/util/processors.h"

namespace tessera::dist {
namespace {

constexpr int64_t kShare = 512 << 10;       // bytes of a rank's share of a chunk
constexpr int64_t kEachByItself = 8 << 10;  // up to which each rank combines all by itself: one exchange instead of two
constexpr int64_t kLine = 64;               // bytes, of which a share is made
constexpr double kDiffers = 1;              // seconds in which rank 0 says that calls differ
constexpr int kEverybody = -1;

/// A part of segments, as if they were one.
class Stretch {
 public:
  Stretch(std::span<const Segment> segments, int64_t size_of_one) : segments_(segments), size_(size_of_one) {
    for (const Segment& s : segments) begins_.push_back(std::exchange(all_, all_ + s.count * size_of_one));
  }
  /// fn(data, bytes) for each piece of [begin, end), in bytes.
  template <class Fn>
  void pieces(int64_t begin, int64_t end, const Fn& fn) const {
    if (begin >= end) return;
    size_t at = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin()) - 1;
    for (; begin < end; ++at) {
      const int64_t offset = begin - begins_[at], n = std::min(segments_[at].count * size_ - offset, end - begin);
      if (n > 0) fn(segments_[at].data + offset, n);
      begin += n;
    }
  }
  /// Where [begin, end) lies, if in one piece; otherwise null.
  char* whole(int64_t begin, int64_t end) const {
    char* out = nullptr;
    pieces(begin, end, [&](char* data, int64_t bytes) { out = bytes == end - begin ? data : nullptr; });
    return out;
  }

 private:
  std::span<const Segment> segments_;
  int64_t size_, all_ = 0;
  std::vector<int64_t> begins_;
};

/// A chunk of a large sum: shares of ranks, in bytes.
struct Chunk {
  int64_t at = 0, end = 0, share = 0;
  int64_t begin_of(int rank) const { return std::min(end, at + rank * share); }
  int64_t end_of(int rank) const { return begin_of(rank + 1); }
  int64_t bytes_of(int rank) const { return end_of(rank) - begin_of(rank); }
};

}  // namespace

Exchanges::Exchanges(std::shared_ptr<Control> control, uint64_t group, std::vector<int> members, int rank)
    : control_(std::move(control)),
      members_(std::move(members)),
      rank_(rank),
      log_(*control_, self(), group, size()),
      said_(members_.size()) {}

Exchanges::Turn::Turn(Exchanges& engine, const Call& call) : engine_(engine) {
  engine.control_->check();
  if (engine.busy_.exchange(true)) throw Error("dist: two threads call collectives of one group at once");
  std::memset(static_cast<void*>(&engine.mine_), 0, sizeof engine.mine_);  // also what lies between its members
  logged_.emplace(engine.log_, call);
  engine.mine_ = {call, engine.log_.calls()};
  engine.is_first_ = true;
  engine.unheard_ = engine.size() - 1;
  try {
    if (engine.log_.calls() == 1) engine.connect();
  } catch (...) {
    engine.busy_ = false;
    throw;
  }
}

// What a rank calls has come: it must be what this one calls.
void Exchanges::heard(int peer) {
  --unheard_;
  last_ = peer;
  last_came_ = now_ns();
  if (calls_alike(peer)) return;
  if (differing_ < 0) differs_since_ = last_came_;
  differing_ = differing_ < 0 ? peer : std::min(differing_, peer);
}

// Rank 0 says it of the lowest one that differs, once it knows; others where it has not.
void Exchanges::say_difference() {
  if (differing_ < 0) return;
  control_->check();
  const double waited = static_cast<double>(now_ns() - differs_since_) * 1e-9;
  if (rank_ == 0 ? unheard_ > 0 && waited < kDiffers / 2 : waited < kDiffers) return;
  const bool is_first = rank_ < differing_;
  const Said &other = said_[static_cast<size_t>(differing_)], &low = is_first ? mine_ : other,
             &high = is_first ? other : mine_;
  const std::string reason =
      fmt::format("collective {} differs: {} on rank {}, {} on rank {}", low.number, to_string(low.call),
                  members_[static_cast<size_t>(std::min(rank_, differing_))], to_string(high.call),
                  members_[static_cast<size_t>(std::max(rank_, differing_))]);
  control_->abort(reason);
  if (is_first) throw Error(reason);
  throw Aborted(reason);
}

bool Exchanges::calls_alike(int peer) const {
  const Said& other = said_[static_cast<size_t>(peer)];
  return other.call == mine_.call && other.number == mine_.number;
}

void Exchanges::lost(int peer, const std::string& why) {
  const int64_t began = now_ns();
  const int other = rank_of(peer);
  for (int i = 0; i < 250; ++i) {
    control_->look(began, self(), other);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  control_->abort(fmt::format("rank {} has lost its connection to rank {}: {}", self(), other, why));
  control_->check();
  throw Aborted("the run has ended");
}

// A rank from which something is to come, or else one that something goes to.
int Exchanges::waited_for(const Flows& flows) const {
  int out = -1;
  for (int r = 0; r < size(); ++r) {
    const auto p = static_cast<size_t>(r);
    if (!flows.in[p].ended()) return r;
    if (!flows.out[p].ended() && out < 0) out = r;
  }
  return out;
}

void Exchanges::exchange(Flows& flows) {
  if (is_first_)
    for (size_t p = 0; p < members_.size(); ++p) {
      if (static_cast<int>(p) == rank_) continue;
      flows.out[p].pieces.insert(flows.out[p].pieces.begin(), {&mine_, sizeof mine_});
      flows.in[p].pieces.insert(flows.in[p].pieces.begin(), {&said_[p], sizeof(Said)});
      ++flows.out[p].second, ++flows.in[p].second;
    }
  const int64_t came = is_first_ ? now_ns() : 0;  // later exchanges of a call wait for the same work
  std::vector<PhaseTimes> phases;
  bool has_waited = false;
  int64_t began = 0;  // when nothing went on any more
  for (int looks = 0;;) {
    say_difference();
    bool goes_on = false, ended = true;
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + i) % size();
      const auto p = static_cast<size_t>(peer);
      const bool waits = is_first_ && flows.in[p].at == 0 && !flows.in[p].ended();
      if (!flows.out[p].ended() || !flows.in[p].ended()) goes_on |= advance(flows, peer);
      if (waits && flows.in[p].at > 0) heard(peer);
      ended &= flows.out[p].ended() && flows.in[p].ended();
    }
    if (ended) break;
    if (goes_on) {
      looks = 0, began = 0;
      continue;
    }
    if (began == 0) began = now_ns();
    if (is_first_ && unheard_ > 0 && !std::exchange(has_waited, true))
      for (const int member : members_) phases.push_back(control_->place(member).phase.times());
    if (++looks < looks_ && !control_->is_crowded()) relax();
    else sleep(flows, waited_for(flows), began);
  }
  for (; differing_ >= 0; std::this_thread::sleep_for(std::chrono::milliseconds(5))) say_difference();
  // The time that this rank has waited is the last one's.
  if (has_waited)
    control_->charge(members_[static_cast<size_t>(last_)], phases[static_cast<size_t>(last_)], last_came_ - came);
  is_first_ = false;
}

// Chunk by chunk: an exchange brings this rank its share of a chunk from all, and the others' sums of the chunk before.
// With a root, sums go there alone, and data is read only elsewhere.
void Exchanges::combine_in_chunks(const Call& call, std::span<const Segment> data, int root) {
  const auto size_of_one = static_cast<int64_t>(size_of(call.dtype));
  const int64_t bytes = call.count * size_of_one;
  const Stretch stretch(data, size_of_one);
  const auto takes_sums = [&](int r) { return root == kEverybody || r == root; };
  const int64_t most = std::min(kShare, (bytes + size() * kLine - 1) / (size() * kLine) * kLine);
  parts_.resize(static_cast<size_t>(most * size()));
  own_.resize(static_cast<size_t>(most));
  result_.resize(static_cast<size_t>(most));
  const char* sums = nullptr;  // of this rank's share of the chunk before
  Chunk before;
  do {
    Chunk chunk{before.end, std::min(bytes, before.end + most * size()), 0};
    chunk.share = (chunk.end - chunk.at + size() * kLine - 1) / (size() * kLine) * kLine;
    const int64_t mine = chunk.bytes_of(rank_);
    std::vector<const char*> parts(members_.size());
    Flows flows(size());
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      Flow &out = flows.out[static_cast<size_t>(r)], &in = flows.in[static_cast<size_t>(r)];
      stretch.pieces(chunk.begin_of(r), chunk.end_of(r), [&](char* piece, int64_t n) { out.add(piece, n); });
      parts[static_cast<size_t>(r)] = parts_.data() + r * most;
      in.add(parts[static_cast<size_t>(r)], mine);
      out.begin_second(), in.begin_second();
      if (takes_sums(r)) out.add(sums, before.bytes_of(rank_));
      if (takes_sums(rank_))
        stretch.pieces(before.begin_of(r), before.end_of(r), [&](char* piece, int64_t n) { in.add(piece, n); });
    }
    exchange(flows);
    if (mine > 0) {
      char* const own = stretch.whole(chunk.begin_of(rank_), chunk.end_of(rank_));
      parts[static_cast<size_t>(rank_)] = own ? own : own_.data();
      if (!own) {
        char* to = own_.data();
        stretch.pieces(chunk.begin_of(rank_), chunk.end_of(rank_), [&](const char* piece, int64_t n) {
          std::memcpy(to, piece, static_cast<size_t>(n));
          to += n;
        });
      }
      char* const to = own && takes_sums(rank_) ? own : result_.data();
      combine(parts, to, mine / size_of_one, call.dtype, call.op);
      const char* from = sums = to;
      if (!own && takes_sums(rank_))
        stretch.pieces(chunk.begin_of(rank_), chunk.end_of(rank_), [&](char* piece, int64_t n) {
          std::memcpy(piece, from, static_cast<size_t>(n));
          from += n;
        });
    }
    before = chunk;
  } while (before.end > before.at);
}

// A small sum: each rank gets all and combines it by itself.
void Exchanges::all_reduce(const Call& call, std::span<const Segment> data) {
  const Turn turn(*this, call);
  const auto size_of_one = static_cast<int64_t>(size_of(call.dtype));
  const int64_t bytes = call.count * size_of_one;
  if (bytes * size() > kEachByItself * 2) return combine_in_chunks(call, data, kEverybody);
  const int64_t row = (bytes + kLine - 1) / kLine * kLine;
  parts_.resize(static_cast<size_t>(row * size()));
  char* to = parts_.data() + rank_ * row;
  for (const Segment& s : data) to = std::copy_n(s.data, s.count * size_of_one, to);  // empty ones may be null
  Flows flows(size());
  std::vector<const char*> parts;
  for (int r = 0; r < size(); ++r) {
    parts.push_back(parts_.data() + r * row);
    flows.out[static_cast<size_t>(r)].add(parts_.data() + rank_ * row, r == rank_ ? 0 : bytes);
    flows.in[static_cast<size_t>(r)].add(parts.back(), r == rank_ ? 0 : bytes);
  }
  exchange(flows);
  if (bytes == 0) return;
  result_.resize(static_cast<size_t>(bytes));
  combine(parts, result_.data(), call.count, call.dtype, call.op);
  const char* from = result_.data();
  for (const Segment& s : data) {
    std::copy_n(from, s.count * size_of_one, s.data);
    from += s.count * size_of_one;
  }
}

void Exchanges::reduce(const Call& call, char* data) {
  const Turn turn(*this, call);
  const Segment all{data, call.count};
  combine_in_chunks(call, {&all, 1}, call.root);
}

void Exchanges::reduce_scatter(const Call& call, const char* in, char* out) {
  const Turn turn(*this, call);
  const auto size_of_one = static_cast<int64_t>(size_of(call.dtype));
  const int64_t bytes = call.count * size_of_one, most = std::min(kShare, bytes);
  parts_.resize(static_cast<size_t>(most * size()));
  for (int64_t at = 0; at < std::max<int64_t>(bytes, 1); at += kShare) {
    const int64_t n = std::min(most, bytes - at);
    Flows flows(size());
    std::vector<const char*> parts;
    for (int r = 0; r < size(); ++r) {
      parts.push_back(r == rank_ ? in + r * bytes + at : parts_.data() + r * most);
      if (r == rank_) continue;
      flows.out[static_cast<size_t>(r)].add(in + r * bytes + at, n);
      flows.in[static_cast<size_t>(r)].add(parts.back(), n);
    }
    exchange(flows);
    if (n > 0) combine(parts, out + at, n / size_of_one, call.dtype, call.op);
  }
}

// Each rank's row for each other one: row_of(r) of `in` goes to r, from which row r of `out` comes; null: nothing.
template <class From, class To>
void Exchanges::move_rows(const Call& call, const From& from, const To& to) {
  const Turn turn(*this, call);
  const int64_t bytes = call.count * static_cast<int64_t>(size_of(call.dtype));
  Flows flows(size());
  for (int r = 0; r < size(); ++r) {
    const char* const row = from(r);
    char* const place = to(r);
    if (r != rank_) {
      flows.out[static_cast<size_t>(r)].add(row, row ? bytes : 0);
      flows.in[static_cast<size_t>(r)].add(place, place ? bytes : 0);
    } else if (row && place && row != place) {
      std::memcpy(place, row, static_cast<size_t>(bytes));
    }
  }
  exchange(flows);
}

void Exchanges::all_gather(const Call& call, const char* in, char* out) {
  const int64_t bytes = call.count * static_cast<int64_t>(size_of(call.dtype));
  move_rows(
      call, [&](int) { return in; }, [&](int r) { return out + r * bytes; });
}

void Exchanges::gather(const Call& call, const char* in, char* out) {
  const int64_t bytes = call.count * static_cast<int64_t>(size_of(call.dtype));
  move_rows(
      call, [&](int r) { return r == call.root ? in : nullptr; },
      [&](int r) { return rank_ == call.root ? out + r * bytes : nullptr; });
}

void Exchanges::scatter(const Call& call, const char* in, char* out) {
  const int64_t bytes = call.count * static_cast<int64_t>(size_of(call.dtype));
  move_rows(
      call, [&](int r) { return rank_ == call.root ? in + r * bytes : nullptr; },
      [&](int r) { return r == call.root ? out : nullptr; });
}

void Exchanges::broadcast(const Call& call, char* data) {
  move_rows(
      call, [&](int) { return rank_ == call.root ? data : nullptr; },
      [&](int r) { return r == call.root ? data : nullptr; });
}

void Exchanges::all_to_all(const Call& call, const char* in, char* out) {
  const int64_t bytes = call.count * static_cast<int64_t>(size_of(call.dtype));
  move_rows(
      call, [&](int r) { return in + r * bytes; }, [&](int r) { return out + r * bytes; });
}

void Exchanges::barrier() {
  const Turn turn(*this, {});
  Flows flows(size());
  exchange(flows);
}

}  // namespace tessera::dist
