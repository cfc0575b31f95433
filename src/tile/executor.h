// Threads over tiles: what a kernel asks of whoever runs it.
#pragma once

#include "base.h"

TESSERA_TILE_BEGIN

/// Reference to any executor, so that a kernel's driver need not be a template. An executor has
///   void parallel(i64 count, Fn fn)          calls fn(index, thread) for every index in [0, count), then returns;
///   int threads()                            how many threads take part: thread < threads();
///   void* scratch(int thread, i64 bytes)     64-byte aligned memory, valid until the next request of that thread.
class ExecutorRef {
 public:
  template <class E>
  requires(!is_same_v<remove_cvref_t<E>, ExecutorRef>) explicit ExecutorRef(E& executor)
      : self_(const_cast<void*>(static_cast<const void*>(&executor))),
        parallel_([](void* self, i64 count, Body body, void* context) {
          static_cast<E*>(self)->parallel(count, [=](i64 index, int thread) { body(context, index, thread); });
        }),
        threads_([](void* self) { return static_cast<E*>(self)->threads(); }),
        scratch_([](void* self, int thread, i64 bytes) { return static_cast<E*>(self)->scratch(thread, bytes); }) {}

  template <class Fn>
  void parallel(i64 count, const Fn& fn) const {
    parallel_(
        self_, count, [](void* context, i64 index, int thread) { (*static_cast<const Fn*>(context))(index, thread); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }
  int threads() const { return threads_(self_); }
  void* scratch(int thread, i64 bytes) const { return scratch_(self_, thread, bytes); }

 private:
  using Body = void (*)(void* context, i64 index, int thread);
  void* self_;
  void (*parallel_)(void* self, i64 count, Body body, void* context);
  int (*threads_)(void* self);
  void* (*scratch_)(void* self, int thread, i64 bytes);
};

TESSERA_TILE_END
