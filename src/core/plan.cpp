#include "core/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/kernel.h"

namespace tessera {
namespace {

// Places are addresses that no memory has: a slot's begin in the middle of 256 GB, so that offsets have either sign.
// The two bases differ in both halves of a word: an integer beside half a place that padding kept is no pointer.
constexpr int kSlotShift = 38;
constexpr uint64_t kMiddle = uint64_t{1} << (kSlotShift - 1);
constexpr uint64_t kBases[] = {uint64_t{0x5A0} << 52, (uint64_t{0x5A1} << 52) + (1 << 20)};
constexpr uint64_t kOnCpu = 64;  // by so much more on CPUs; elsewhere by twice the alignment, where it is small
constexpr uint32_t kMostSlots = 1u << (52 - kSlotShift);

constexpr uint64_t kWorkspaceAlignment = 256;  // as cuBLASLt wants its own

std::atomic<uint64_t> epoch{1};

// The first element of what is aligned to less than all places are.
uint64_t past_middle(int alignment) {
  return alignment != 0 && alignment < PlanMaker::kMostAlignment ? static_cast<uint64_t>(alignment) : 0;
}
uint64_t base_of(int base, int alignment, bool on_cpu) {
  const uint64_t past = past_middle(alignment);
  return kBases[base] + (base == 0 ? 0 : on_cpu ? kOnCpu : 2 * past);
}
uint64_t aligned(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

Operand::Operand(const TensorMeta& meta, void* place)
    : shape_(meta.shape),
      strides_(meta.strides.empty() ? contiguous_strides(meta.shape) : integers(meta.strides)),
      numel_(meta.shape.numel().value()),
      place_(place),
      dtype_(meta.dtype),
      device_(meta.device),
      defined_(true),
      contiguous_(!meta.packing && is_row_major(shape_, strides_)),
      spare_{meta.padded_rows, meta.padded_row_length, meta.storage_bytes},
      packing_(meta.packing) {}

Operand::Operand(const Tensor& t) {
  if (t.defined()) *this = Operand(t.meta(), t.device().meta ? nullptr : t.place());
}

Operand Operand::as_strided(const Shape& shape, const Strides& strides, int64_t offset) const {
  Operand o = *this;
  o.shape_ = shape;
  o.strides_ = strides;
  o.numel_ = shape.numel().value();
  o.contiguous_ = is_row_major(shape, strides);
  o.place_ = static_cast<std::byte*>(place_) + offset * static_cast<int64_t>(size_of(dtype_));
  o.spare_ = {};
  return o;
}

TensorMeta Operand::meta() const {
  TensorMeta meta{shape_, dtype_, device_};
  if (!contiguous_ && !packing_) meta.strides = dims_of(strides_);
  const auto address = reinterpret_cast<uintptr_t>(place_);
  if (place_) meta.alignment = static_cast<int>(std::min<uintptr_t>(address & -address, PlanMaker::kMostAlignment));
  meta.padded_rows = spare_.rows;
  meta.padded_row_length = spare_.row_length;
  meta.storage_bytes = spare_.bytes;
  meta.packing = packing_;
  return meta;
}

std::string describe(const Operand& o) { return o.defined() ? describe(o.meta()) : "undefined"; }

std::string text_of(const std::source_location& where) {
  std::string_view file = where.file_name();
  if (const auto at = file.rfind("/src/"); at != file.npos) file.remove_prefix(at + 1);
  return fmt::format("{}:{}", file, where.line());
}

void* Plan::take(int64_t bytes) {
  if (bytes == 0) return nullptr;
  auto* p = static_cast<std::byte*>(PlanMaker::place(slots_, base_, PlanMaker::kMostAlignment, on_cpu_)) + workspace_;
  workspace_ += aligned(static_cast<uint64_t>(bytes), kWorkspaceAlignment);
  return p;
}

void* Plan::keep_bytes(const void* bytes, size_t count) {
  const size_t at = bytes_.size();
  bytes_.resize(aligned(at + count, kAlignment));
  if (count > 0) std::memcpy(bytes_.data() + at, bytes, count);
  return static_cast<std::byte*>(PlanMaker::place(slots_ + 1, base_, PlanMaker::kMostAlignment, true)) + at;
}

void Plan::add(Launch launch, const void* args) {
  launch.at = static_cast<uint32_t>(bytes_.size());
  bytes_.resize(aligned(bytes_.size() + launch.bytes, kAlignment));
  std::memcpy(bytes_.data() + launch.at, args, launch.bytes);
  launches_.push_back(launch);
}

void Plan::run(std::span<void* const> slots, void* executor) const {
  if (launches_.empty()) return;
  alignas(64) std::byte room[4096];
  std::vector<std::byte> heap;
  std::byte* bytes = room;
  if (bytes_.size() > sizeof room) {
    heap.resize(bytes_.size());
    bytes = heap.data();
  }
  std::memcpy(bytes, bytes_.data(), bytes_.size());
  for (const Relocation& r : relocations_) {
    std::byte* const target = (r.slot < slots.size() ? static_cast<std::byte*>(slots[r.slot]) : bytes) + r.offset;
    std::memcpy(bytes + r.at, &target, sizeof target);
  }
  for (const Launch& l : launches_) l.thunk(l.run, bytes + l.at, executor);
}

static std::string padding_text(uint32_t inputs) {
  std::string text;
  for (int i = 0; inputs >> i != 0; ++i)
    if (inputs >> i & 1) text += fmt::format(", zeros to the padding of input {}", i);
  return text;
}

std::string Plan::describe() const {
  std::string text;
  for (const Launch& l : launches_)
    text += fmt::format("   launch {:<24} {} bytes of arguments{}{}  # {}\n", l.name, l.bytes,
                        l.library.empty() ? "" : fmt::format(", by {} {}", l.library, l.version),
                        padding_text(l.zeroes_padding_of), text_of(l.where));
  if (workspace_) text += fmt::format("   workspace {} bytes\n", workspace_);
  return text;
}

void* PlanMaker::place(uint32_t slot, int base, int alignment, bool on_cpu) {
  if (slot >= kMostSlots) throw Error(fmt::format("a call of {} tensors: at most {} are supported", slot, kMostSlots));
  return reinterpret_cast<void*>(base_of(base, alignment, on_cpu) + (uint64_t{slot} << kSlotShift) + kMiddle +
                                 past_middle(alignment));
}

void PlanMaker::relocate(Plan& plan, const Plan& other) {
  if (plan.bytes_.size() != other.bytes_.size() || plan.launches_.size() != other.launches_.size())
    throw Error(fmt::format("kernel '{}' plans other launches each time", plan.kernel_->name));
  for (uint32_t at = 0; at + 8 <= plan.bytes_.size(); at += 8) {
    uint64_t a, b;
    std::memcpy(&a, plan.bytes_.data() + at, 8);
    std::memcpy(&b, other.bytes_.data() + at, 8);
    if (a >> 52 != kBases[0] >> 52) continue;
    const auto slot = static_cast<uint32_t>(a >> kSlotShift & (kMostSlots - 1));
    if (slot > plan.slots_ + 1) continue;
    const bool tensor = slot<plan.slots_, own = slot> plan.slots_;  // else the workspace
    const bool on_cpu = tensor ? !plan.metas_[slot].device.is_gpu() : own || plan.on_cpu_;
    const int alignment = tensor ? plan.metas_[slot].alignment : PlanMaker::kMostAlignment;
    if (b - a != base_of(1, alignment, on_cpu) - base_of(0, alignment, on_cpu)) continue;
    const uint64_t first = kMiddle + past_middle(alignment);
    plan.relocations_.push_back({at, slot, static_cast<int64_t>((a & (2 * kMiddle - 1)) - first)});
  }
}

void forget_plans() { epoch.fetch_add(1, std::memory_order_relaxed); }
uint64_t plans_epoch() { return epoch.load(std::memory_order_relaxed); }

}  // namespace tessera
