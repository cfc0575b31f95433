#include "core/util/observers.h"

#include <execinfo.h>

#include <mutex>

namespace tessera {
namespace observers {

constinit std::atomic<int> count{0};

}  // namespace observers

namespace {

constinit std::atomic<int> call_sites_wanted{0};
constinit thread_local bool notifying = false;
constinit thread_local const NamedScope* innermost_scope = nullptr;

std::recursive_mutex& all_threads_mutex() {
  static auto* const mutex = new std::recursive_mutex;  // threads may outlive static destructors
  return *mutex;
}

}  // namespace

/// Those of each thread, and under the mutex those of all threads.
struct ObserverLists {
  static inline constinit thread_local Observing* mine = nullptr;
  static inline constinit Observing* everywhere = nullptr;

  static Observing*& list_of(const Observing& o) { return o.options_.all_threads ? everywhere : mine; }
  static void insert(Observing& o) {
    o.next_ = list_of(o);
    list_of(o) = &o;
  }
  static void erase(Observing& o) {
    Observing** at = &list_of(o);
    while (*at && *at != &o) at = &(*at)->next_;
    if (*at) *at = o.next_;
  }

  /// Calls fn(observer) for those that see this thread.
  template <class Fn>
  static void notify(const Fn& fn) {
    if (notifying) return;
    struct Notifying {
      Notifying() { notifying = true; }
      ~Notifying() { notifying = false; }
    } flag;
    for (const Observing* o = mine; o; o = o->next_) fn(o->observer_);
    const std::lock_guard lock(all_threads_mutex());
    for (const Observing* o = everywhere; o; o = o->next_) fn(o->observer_);
  }
  /// The same where nothing may be thrown.
  template <class Fn>
  static void notify_quietly(const Fn& fn) noexcept {
    try {
      notify(fn);
    } catch (...) {
    }
  }
};

Observing::Observing(Observer& observer, const ObserveOptions& options) : observer_(observer), options_(options) {
  if (notifying) throw Error("Observing: a function of an observer registers another");
  const std::lock_guard lock(all_threads_mutex());
  ObserverLists::insert(*this);
  call_sites_wanted += options_.call_sites;
  ++observers::count;
}

Observing::~Observing() {
  const std::lock_guard lock(all_threads_mutex());
  ObserverLists::erase(*this);
  call_sites_wanted -= options_.call_sites;
  --observers::count;
}

NamedScope::NamedScope(std::string_view name, int64_t index)
    : name_(name), index_(index), outer_(innermost_scope), seen_(observers::exist() && !name.empty()) {
  innermost_scope = this;
  if (!seen_) return;
  try {
    ObserverLists::notify([](Observer& o) { o.entered(scope_path()); });
  } catch (...) {
    innermost_scope = outer_;
    throw;
  }
}

NamedScope::~NamedScope() {
  if (seen_) ObserverLists::notify_quietly([](Observer& o) { o.left(scope_path()); });
  innermost_scope = outer_;
}

observers::ScopeOf::ScopeOf(std::string_view path) : outer_(innermost_scope) {
  if (path.empty()) return;
  innermost_scope = nullptr;
  scope_.emplace(path);
}
observers::ScopeOf::~ScopeOf() {
  scope_.reset();
  innermost_scope = outer_;
}

std::string scope_path() {
  std::string path;
  for (const NamedScope* s = innermost_scope; s; s = s->outer_) {
    if (s->name_.empty()) continue;
    std::string part(s->name_);
    if (s->index_ >= 0) part += '.' + std::to_string(s->index_);
    path = path.empty() ? part : part + '.' + path;
  }
  return path;
}

namespace observers {

void allocated(const MemorySeen& memory) {
  ObserverLists::notify([&](Observer& o) { o.allocated(memory); });
}
void released(const MemorySeen& memory) noexcept {
  ObserverLists::notify_quietly([&](Observer& o) { o.released(memory); });
}
std::string ran_out(Device device, size_t bytes) noexcept {
  std::string text;
  ObserverLists::notify_quietly([&](Observer& o) { text += o.ran_out(device, bytes); });
  return text;
}
void launched(const LaunchSeen& launch) {
  ObserverLists::notify([&](Observer& o) { o.launched(launch); });
}

Call::Call(std::string_view op, const Attrs& attrs, std::span<const Tensor> inputs) : seen_{op, attrs, inputs} {
  seen_.sequence = backward_of;
  if (call_sites_wanted.load(std::memory_order_relaxed)) {
    const int found = backtrace(callers_.data(), static_cast<int>(callers_.size()));
    seen_.callers = {callers_.data(), static_cast<size_t>(found)};
  }
  ObserverLists::notify([&](Observer& o) { o.called(seen_); });
}

Call::~Call() {
  if (over_) return;
  seen_.failed = true;
  ObserverLists::notify_quietly([&](Observer& o) { o.returned(seen_); });
}

void Call::returns(std::span<const Tensor> outputs, std::span<const Tensor> hidden, int64_t sequence) {
  over_ = true;
  if (sequence >= 0) seen_.sequence = sequence;
  seen_.outputs = outputs;
  seen_.hidden = hidden;
  ObserverLists::notify([&](Observer& o) { o.returned(seen_); });
}

}  // namespace observers
}  // namespace tessera
