// The k first in order along one dim.
#include "order.h"

namespace tessera::gpu_kernels {
namespace {

inline constexpr int sorted_items = 2048;

/// Where an item lies in shared memory: every second eight of them in reverse.
constexpr TESSERA_HD int item_place(int i) { return i ^ i / 8 % 2 * 7; }
/// The first of the pair that a thread compares, and the other `apart` behind it.
constexpr TESSERA_HD int low_of_pair(int thread, int apart) { return thread / apart * apart * 2 + thread % apart; }

constexpr TESSERA_HD bool pairs_meet_no_bank_twice() {
  for (int apart = 1; apart < 64; apart *= 2)
    for (auto memory : {tile::SharedMemory::amd_read, tile::SharedMemory::amd_write})
      for (int other : {0, apart}) {
        const auto place = [&](const auto& c) { return item_place(low_of_pair(c[0], apart) + other); };
        if (!tile::bank_use(tile::named("t", tile::lanes(64)), memory, sizeof(Item), place).is_conflict_free())
          return false;
      }
  return true;
}
static_assert(pairs_meet_no_bank_twice());

/// Sorts `size` items, a power of two (Batcher, "Sorting networks and their applications", 1968).
TESSERA_DEVICE void sort_items(Item* items, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      for (int i = tile::thread_in_block(); i < size / 2; i += 512) {
        const int first = low_of_pair(i, apart), low = item_place(first), high = item_place(first + apart);
        const Item a = items[low], b = items[high];
        if (before(b, a) == ((low & run) == 0)) {
          items[low] = b;
          items[high] = a;
        }
      }
      tile::sync_block();
    }
  }
}

struct TopkWork {
  OrderedLines lines;
  i64 k;
  bool largest;
  int size, kept;  // items sorted at a time, and how many of them are those found so far
};

/// A block for each line: sorts what it has found with the next elements, again and again. More than `kept` results
/// take more walks along the line, each of which finds those that come after the last.
TESSERA_KERNEL(512)
void topk_kernel(const TopkWork work) {
  __shared__ Item items[sorted_items];
  __shared__ Item last;
  const OrderedLines& lines = work.lines;
  const Item none{~0ull, 0x7fffffffffffffffll};
  const int thread = tile::thread_in_block();
  i64 at[3];
  lines.starts.locate(tile::block_in_grid(), 1, at);
  for (i64 done = 0; done < work.k; done += work.kept) {
    for (int i = thread; i < work.kept; i += 512) items[item_place(i)] = none;
    for (i64 begin = 0; begin < lines.length; begin += work.size - work.kept) {
      for (int i = thread; i < work.size; i += 512) {
        if (i < work.kept) continue;
        const i64 index = begin + i - work.kept;
        Item item = none;
        if (index < lines.length) {
          item = {key_at<u64>(lines, at[0] + index * lines.step[0], work.largest), index};
          if (done > 0 && !before(last, item)) item = none;
        }
        items[item_place(i)] = item;
      }
      tile::sync_block();
      sort_items(items, work.size);
    }
    for (int i = thread; i < work.kept && done + i < work.k; i += 512)
      store_ordered(lines, at, done + i, items[item_place(i)].index);
    if (thread == 0) last = items[item_place(work.kept - 1)];
    tile::sync_block();
  }
}

}  // namespace

i64 topk_workspace(const TopkArgs& args) {
  const auto lines = lines_of<3>(args, {&args.in, &args.values, &args.indices});
  return !is_sorted_at_once(lines) && is_sorted_by_bytes(lines, args.k) ? bytes_workspace(lines) : 0;
}

void topk(const TopkArgs& args, Executor& executor) {
  if (args.k == 0) return;
  const auto lines = lines_of<3>(args, {&args.in, &args.values, &args.indices});
  if (is_sorted_at_once(lines)) return sort_at_once(lines, args.k, args.largest, executor);
  if (is_sorted_by_bytes(lines, args.k)) return sort_by_bytes(lines, args.k, args.largest, args.workspace, executor);
  TopkWork work{lines, args.k, args.largest, sorted_items, 1};
  while (work.kept < work.size / 2 && work.kept < work.k) work.kept *= 2;
  launch("topk", topk_kernel, work.lines.starts.total, 512, 0, executor, work);
}

}  // namespace tessera::gpu_kernels
