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
  requires(!is_same_v<remove_cvref_t<E>, ExecutorRef>) ExecutorRef(E& executor)
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

/// One thread of an executor as an executor of its own: what a kernel passes on when it runs an operator, a product
/// for instance, on the block that this thread works on.
class OneThread {
 public:
  OneThread(const ExecutorRef& executor, int thread) : executor_(executor), thread_(thread) {}

  template <class Fn>
  void parallel(i64 count, const Fn& fn) const {
    for (i64 i = 0; i < count; ++i) fn(i, 0);
  }
  int threads() const { return 1; }
  void* scratch(int, i64 bytes) const { return executor_.scratch(thread_, bytes); }

 private:
  ExecutorRef executor_;
  int thread_;
};

TESSERA_TILE_END
