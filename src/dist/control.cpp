#include "dist/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/util/processors.h"

namespace tessera::dist {
namespace {

constexpr uint64_t kMemory = uint64_t{1} << 35;  // of addresses; pages are used once they are touched
constexpr uint64_t kPage = 4096;
constexpr uint64_t kOfRanks = (sizeof(ControlBlock) + kPage - 1) / kPage * kPage;  // behind the block

}  // namespace

Control::Control(SharedMemory memory, int ranks_of_host)
    : memory_(std::move(memory)), is_crowded_(ranks_of_host > available_processors()) {}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::shared_ptr<Control> Control::create(int ranks, const Hosts& hosts) {
  if (ranks < 1 || ranks > kMaxRanks) throw Error(fmt::format("dist: {} ranks are not 1 to {}", ranks, kMaxRanks));
  const int of_host = hosts.count > 0 ? hosts.count : ranks;
  std::shared_ptr<Control> out(new Control(SharedMemory::create(kMemory), of_host));
  out->block().hosts = hosts;
  out->block().hosts.count = of_host;
  out->block().ranks = static_cast<uint32_t>(ranks);
  const uint64_t of_ranks = static_cast<uint64_t>(ranks) * sizeof(OfRank);
  out->block().used = kOfRanks + (of_ranks + kPage - 1) / kPage * kPage;
  out->block().magic = ControlBlock::kMagic;
  return out;
}

std::shared_ptr<Control> Control::join(int fd) {
  SharedMemory memory = SharedMemory::open(fd);
  if (memory.bytes() != kMemory) throw Error("dist: what the launcher left is not its memory");
  const auto& block = *reinterpret_cast<const ControlBlock*>(memory.data());
  const uint32_t ranks = block.ranks;
  if (block.magic != ControlBlock::kMagic || ranks > kMaxRanks) throw Error("dist: the launcher is of another version");
  const int of_host = block.hosts.count;
  return std::shared_ptr<Control>(new Control(std::move(memory), of_host));
}

void Control::abort(const std::string& reason) {
  uint32_t none = 0;
  if (!block().aborted.compare_exchange_strong(none, 1)) return;
  const size_t length = std::min(reason.size(), sizeof(block().reason) - 1);
  std::memcpy(block().reason, reason.data(), length);
  block().aborted = 2;
}

std::string Control::abort_reason() const { return block().aborted == 2 ? std::string(block().reason) : ""; }

void Control::check() const {
  if (block().aborted.load(std::memory_order_acquire) == 2) throw Aborted(block().reason);
}

uint64_t Control::allocate(uint64_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  const uint64_t at = block().used.fetch_add(bytes);
  if (at > kMemory || bytes > kMemory - at) throw Error("dist: no room for another group of ranks");
  return at;
}

Control::OfRank& Control::of_rank(int rank) const { return reinterpret_cast<OfRank*>(memory_.data() + kOfRanks)[rank]; }

CallLog::Begun CallLog::begin(const Call& call) {
  Place& me = control_.place(self_);
  me.kind.store(static_cast<uint8_t>(call.kind), std::memory_order_relaxed);
  CallRecord record{.number = me.calls.fetch_add(1, std::memory_order_relaxed) + 1,
                    .began = now_ns(),
                    .group = group_,
                    .in_group = is_message(call) ? 0 : calls_.fetch_add(1, std::memory_order_relaxed) + 1,
                    .step = me.step.load(std::memory_order_relaxed),
                    .ranks = ranks_,
                    .call = call};
  control_.recorder(self_).begin(record);
  return {record.number, record.in_group};
}

uint8_t PhaseClock::enter(uint8_t phase) {
  const int64_t at = now_ns();
  const uint8_t left = now.exchange(phase, std::memory_order_relaxed);
  ended[left % kPhases].fetch_add(at - since.exchange(at, std::memory_order_relaxed), std::memory_order_relaxed);
  return left;
}

PhaseTimes PhaseClock::times() const {
  PhaseTimes out;
  for (size_t p = 0; p < kPhases; ++p) out[p] = ended[p].load(std::memory_order_relaxed);
  out[now.load(std::memory_order_relaxed) % kPhases] += now_ns() - since.load(std::memory_order_relaxed);
  return out;
}

void Control::charge(int other, uint8_t phase, int64_t ns) {
  place(other).kept_waiting[phase % kPhases].fetch_add(ns, std::memory_order_relaxed);
}

void Control::charge(int other, const PhaseTimes& before, int64_t ns) {
  PhaseTimes spent = place(other).phase.times();
  int64_t all = 0;
  for (size_t p = 0; p < kPhases; ++p) all += spent[p] = std::clamp<int64_t>(spent[p] - before[p], 0, ns);
  if (all == 0) return charge(other, place(other).phase.now, ns);
  for (size_t p = 0; p < kPhases; ++p)
    charge(other, static_cast<uint8_t>(p),
           static_cast<int64_t>(static_cast<double>(ns) * static_cast<double>(spent[p]) / static_cast<double>(all)));
}

Control::Waiting::Waiting(const Control& control, int self, int other, int64_t began)
    : me_(control.place(self)), began_(now_ns()) {
  me_.since.store(began, std::memory_order_relaxed);
  me_.waits_for.store(other + 1, std::memory_order_relaxed);
}
Control::Waiting::~Waiting() {
  me_.waits_for.store(0, std::memory_order_relaxed);
  me_.waited.fetch_add(now_ns() - began_, std::memory_order_relaxed);
}

void Control::look(int64_t began, int self, int other) {
  check();
  const uint8_t mine = place(self).engine, theirs = place(other).engine;
  if (mine != 0 && theirs != 0 && mine != theirs) {
    abort(fmt::format("dist: rank {} has the engine {}, and rank {} the engine {}", self, engine_name(mine), other,
                      engine_name(theirs)));
    check();
  }
  const bool has_left = place(other).has_left != 0;
  if (!has_left && static_cast<double>(now_ns() - began) * 1e-9 < timeout) return;
  abort(has_left ? fmt::format("rank {} has ended, and rank {} waits for it", other, self)
                 : fmt::format("rank {} has waited {:g} s for rank {}", self, timeout, other));
  check();
}

void Control::wait(Counter& counter, uint32_t target, int self, int other) {
  if (counter.reached(target)) return;
  const int64_t began = now_ns();
  const Waiting waiting(*this, self, other, began);
  counter.wait_for(target, is_crowded_, [&] { look(began, self, other); });
}

}  // namespace tessera::dist
