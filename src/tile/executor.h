// Threads over tiles: what a kernel asks of whoever runs it.
#pragma once

#include "base.h"

namespace tessera::tile {

/// An executor as plain function pointers, so that it crosses from code built for the baseline processor into
/// code built for one instruction set. It lives outside the per-ISA namespaces and holds no code.
struct ExecutorTable {
  void* self;
  void (*parallel)(void* self, long long count, void (*body)(void* context, long long index, int thread),
                   void* context);
  int (*threads)(void* self);
  void* (*scratch)(void* self, int thread, long long bytes);
};

inline namespace TESSERA_ISA {

/// Reference to any executor. An executor has
///   void parallel(i64 count, Fn fn)          calls fn(index, thread) for every index in [0, count), then returns;
///   int threads()                            how many threads take part: thread < threads();
///   void* scratch(int thread, i64 bytes)     64-byte aligned memory, valid until the next request of that thread.
class ExecutorRef {
 public:
  explicit ExecutorRef(const ExecutorTable& table) : table_(table) {}

  template <class E>
    requires(!is_same_v<remove_cvref_t<E>, ExecutorRef> && !is_same_v<remove_cvref_t<E>, ExecutorTable>)
  explicit ExecutorRef(E& executor)
      : table_{const_cast<void*>(static_cast<const void*>(&executor)),
               [](void* self, i64 count, void (*body)(void*, i64, int), void* context) {
                 static_cast<E*>(self)->parallel(
                     count, [=](i64 index, int thread) { body(context, index, thread); });
               },
               [](void* self) { return static_cast<E*>(self)->threads(); },
               [](void* self, int thread, i64 bytes) { return static_cast<E*>(self)->scratch(thread, bytes); }} {}

  template <class Fn>
  void parallel(i64 count, const Fn& fn) const {
    table_.parallel(
        table_.self, count,
        [](void* context, i64 index, int thread) { (*static_cast<const Fn*>(context))(index, thread); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }
  int threads() const { return table_.threads(table_.self); }
  void* scratch(int thread, i64 bytes) const { return table_.scratch(table_.self, thread, bytes); }

  /// What to hand across an instruction-set boundary.
  const ExecutorTable& table() const { return table_; }

 private:
  ExecutorTable table_;
};

}  // namespace TESSERA_ISA
}  // namespace tessera::tile
