// Lists of memory by size, each thread's own, for objects that live as long as a call or a recorded node.
#include <array>
#include <new>
#include <utility>

#include "tessera/intrusive.h"

namespace tessera {
namespace {

constexpr size_t kGrain = 64, kLists = 16;
#if defined(__SANITIZE_ADDRESS__)
constexpr int kMost = 0;  // reuse would hide use-after-free from the sanitizer
#else
constexpr int kMost = 256;  // of a list
#endif

struct Free {
  Free* next;
};
struct List {
  Free* first = nullptr;
  int left = kMost;  // room for so many more
};
constinit thread_local std::array<List, kLists> lists{};

// Gives all back when the thread ends; what is destroyed later finds no room.
struct AtThreadEnd {
  ~AtThreadEnd() {
    for (size_t i = 0; i < kLists; ++i)
      for (lists[i].left = 0; lists[i].first;) ::operator delete(std::exchange(lists[i].first, lists[i].first->next));
  }
};

void note_thread() {
  static thread_local AtThreadEnd end;
  (void)end;
}

}  // namespace

void* Recycled::operator new(size_t bytes) {
  const size_t i = (bytes - 1) / kGrain;
  if (i >= kLists) return ::operator new(bytes);
  List& list = lists[i];
  if (!list.first) return ::operator new((i + 1) * kGrain);
  ++list.left;
  return std::exchange(list.first, list.first->next);
}

void Recycled::operator delete(void* memory, size_t bytes) noexcept {
  const size_t i = (bytes - 1) / kGrain;
  if (i >= kLists) return ::operator delete(memory);
  List& list = lists[i];
  if (list.left == 0) return ::operator delete(memory);
  if (!list.first) note_thread();
  --list.left;
  list.first = new (memory) Free{list.first};
}

}  // namespace tessera
