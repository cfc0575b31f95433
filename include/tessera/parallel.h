// Threads of the CPU: one small pool for the whole process.
// No standard header here: code compiled for one instruction set includes this file (see src/tile/base.h).
#pragma once

namespace tessera {

namespace detail {
template <class T>
struct RemoveReference {
  using type = T;
};
template <class T>
struct RemoveReference<T&> {
  using type = T;
};
}  // namespace detail

/// Runs indexed work on a set of threads. What a kernel computes for an index must not depend on the thread.
class Executor {
 public:
  /// Calls `fn(index, thread)` once for each index in [0, count); returns when all are done. The first exception
  /// thrown by `fn` is rethrown here. A call from inside `fn` runs serially.
  template <class Fn>
  __attribute__((always_inline)) void parallel(long long count, Fn&& fn) {
    using F = typename detail::RemoveReference<Fn>::type;
    run(
        count, [](void* f, long long index, int thread) { (*static_cast<F*>(f))(index, thread); },
        const_cast<void*>(static_cast<const volatile void*>(&fn)));
  }
  /// Threads that `parallel` spreads over, at least 1.
  virtual int threads() const = 0;
  /// Memory of that thread, 64-byte aligned, valid until the thread's next request. Throws OutOfMemoryError.
  virtual void* scratch(int thread, long long bytes) = 0;

 protected:
  ~Executor() = default;
  virtual void run(long long count, void (*fn)(void*, long long, int), void* arg) = 0;
};

/// The pool of the process. Its size is the number of processors this process may use, container limits included.
Executor& executor();
/// Threads used by `executor()` from the next call on. Throws Error unless 1 <= n <= 1024.
void set_num_threads(int n);
int num_threads();

}  // namespace tessera
