// What a program does, seen from outside: calls of operators, memory, launches, modules. While nobody observes, each of
// them costs a look at one number.
//
//   struct Printer : Observer {
//     void returned(const CallSeen& call) override { std::puts(describe(call).c_str()); }
//   } printer;
//   Observing guard(printer);
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/tensor.h"

namespace tessera {

class Attrs;

/// A call of an operator, after autocast. What it refers to lives as long as the observer's function runs.
struct CallSeen {
  std::string_view op;
  const Attrs& attrs;
  std::span<const Tensor> inputs;        ///< undefined where optional ones are absent
  std::span<const Tensor> outputs = {};  ///< none before the call, and where it threw
  std::span<void* const> callers = {};   ///< return addresses from the call outwards; see ObserveOptions
  bool failed = false;
  std::span<const Tensor> hidden = {};  ///< what it keeps for backward alone; undefined where it does not
  int64_t sequence = -1;  ///< once it returned: the number by which its backward knows it, if one was recorded; in
                          ///< backward: the number of the call whose backward it is part of
};

/// An operator's kernels in a captured graph.
struct CapturedCall {
  std::string op, kernel, path;  ///< path: scope_path() then
  std::vector<TensorMeta> inputs;
  double flops = 0, bytes = 0;  ///< that it takes at least
  size_t end = 0;               ///< so many steps of the graph were there after it
};

/// A kernel that is started: on the CPU it runs at once, on a GPU on a stream.
struct LaunchSeen {
  std::string_view op;      ///< empty for a replay
  std::string_view kernel;  ///< its name in the operator's list, or "graph" for a replay of one
  Device device;
  void* stream = nullptr;                       ///< the vendor's handle
  uint64_t graph = 0;                           ///< of a replay: another one for each graph
  std::span<const CapturedCall> captured = {};  ///< of a replay: what it holds, in the order of its steps
};

/// Memory of tensors and workspaces.
struct MemorySeen {
  Device device;
  size_t bytes;         ///< as asked for; on a device without memory, what tensors would take
  const void* address;  ///< null without memory
};

/// Gets what happens, one at a time; what it does itself is not observed. What a function throws goes to the program
/// that is observed, but not from released() and left(), nor from returned() of a call that throws already.
class Observer {
 public:
  virtual ~Observer() = default;
  /// An operator is called. Operators that it is made of follow before it returns.
  virtual void called(const CallSeen&) {}
  virtual void returned(const CallSeen&) {}
  virtual void allocated(const MemorySeen&) {}
  virtual void released(const MemorySeen&) {}
  /// There is not so much memory: an OutOfMemoryError follows, whose message ends with what this returns.
  virtual std::string ran_out(Device, size_t) { return {}; }
  virtual void launched(const LaunchSeen&) {}
  /// A module, or what else NamedScope names, by its path, such as "h.3.attention".
  virtual void entered(const std::string&) {}
  virtual void left(const std::string&) {}
};

struct ObserveOptions {
  bool all_threads = false;  ///< otherwise what the thread does that made the guard
  bool call_sites = false;   ///< CallSeen::callers is wanted, which costs microseconds a call
};

/// Registers an observer for as long as it lives, and ends on the thread that made it. Throws Error within a function
/// of an observer.
class Observing {
 public:
  explicit Observing(Observer& observer, const ObserveOptions& options = {});
  ~Observing();
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;

 private:
  friend struct ObserverLists;
  Observer& observer_;
  ObserveOptions options_;
  Observing* next_ = nullptr;
};

/// "add(f32[2, 3] on cpu, f32[3] on cpu) -> f32[2, 3] on cpu", with the attributes that differ from their defaults.
std::string describe(const CallSeen& call);

/// Where the call comes from: the innermost function outside of namespace tessera, if the dynamic linker knows it (link
/// programs with -rdynamic); else addresses for addr2line, innermost first. Empty without CallSeen::callers.
std::string call_site(const CallSeen& call);

/// A name for what happens while it lives, on this thread; they nest, and an empty one is passed over. `name` must
/// outlive it, and is not copied.
class NamedScope {
 public:
  explicit NamedScope(std::string_view name, int64_t index = -1);
  ~NamedScope();
  NamedScope(const NamedScope&) = delete;
  NamedScope& operator=(const NamedScope&) = delete;

 private:
  friend std::string scope_path();
  std::string_view name_;
  int64_t index_;  // of several with that name: "h.3"; negative: none
  const NamedScope* outer_;
  bool seen_;
};

/// The names around what this thread does, outermost first, with dots between; empty outside.
std::string scope_path();

/// fn() in a scope of that name.
template <class Fn>
auto in_scope(std::string_view name, const Fn& fn) {
  const NamedScope scope(name);
  return fn();
}

}  // namespace tessera
