// Images as the threads of a card go through them, whether their channels lie last or in planes. A line is what threads
// take at once: the channels of a pixel, an image's small planes one behind the other, or 16 bytes of a large plane. A
// thread has the same channels in each of its lines, so that it sums them up, and scales them, in registers.
#pragma once
#include "rows.h"

namespace tessera::gpu_kernels {

inline constexpr int line_threads = 512, most_channels = 128;  // of a block

/// Elements that are taken at once where they lie at whole 16 bytes; of f64 one, which spares kernels.
template <class T>
inline constexpr int line_width = sizeof(T) == 8 ? 1 : 16 / sizeof(T);

/// How blocks share images: each has a group of channels, in one part of the lines.
struct Lines {
  i64 images, in_image;  // lines of an image are more than one where each is a part of a plane
  i64 channels;          // of all
  int size;              // elements of a channel in a line
  int group;             // channels of a block,
  int packs;             // what they take of a line,
  int abreast;           // and lines that a block takes at once
  int groups, parts;

  i64 blocks() const { return static_cast<i64>(groups) * parts; }
  double elements() const { return static_cast<double>(images * in_image) * size; }  // of a channel
};

/// Channels after which planes of `size` elements, one behind the other, begin at a whole pack again.
inline i64 channels_to_packs(i64 size, int width) { return width / tile::gcd(width, static_cast<int>(size % width)); }

/// Whether packs of `width` elements, of `bytes` each, lie at multiples of their size: within planes, or across those
/// that lie one behind the other.
template <class... P>
bool lie_in_packs(int width, int bytes, i64 channels, i64 size, const P&... planes) {
  const auto all = [&](const auto& holds) { return ((!planes.data || holds(planes)) && ...); };
  if (!all([&](const PlanesArg& p) {
        return reinterpret_cast<size_t>(p.data) % (width * bytes) == 0 && p.batch_stride % width == 0;
      }))
    return false;
  if (size % width == 0 && all([&](const PlanesArg& p) { return p.channel_stride % width == 0; })) return true;
  return channels * size % width == 0 && channels_to_packs(size, width) * size / width <= line_threads &&
         all([&](const PlanesArg& p) { return p.channel_stride == size; });
}

/// Parts for so many groups, at most so many: as few rounds of blocks, one for each multiprocessor, as fill it well.
inline int parts_for(i64 groups, i64 most, int multiprocessors, double& fill) {
  i64 best = 1;
  fill = 0;
  for (int rounds = 1; rounds <= 4 && fill < 0.9; ++rounds) {
    const i64 parts = tile::max<i64>(1, tile::min(most, rounds * multiprocessors / tile::max<i64>(1, groups))),
              blocks = parts * groups;
    const double full = static_cast<double>(blocks) /
                        static_cast<double>(tile::ceil_div<i64>(blocks, multiprocessors) * multiprocessors);
    if (full > fill) best = parts, fill = full;
  }
  return static_cast<int>(best);
}

/// `behind`: an image's planes lie one behind the other.
inline Lines lines_of(i64 batch, i64 channels, i64 size, bool behind, int width, int multiprocessors) {
  Lines best{batch, 1, channels, static_cast<int>(size), 1, 1, line_threads, 0, 1};
  double fill;
  if (size % width == 0 && (size >= 8 * width || !behind)) {
    best.in_image = size / width;
    best.size = width;
    best.groups = static_cast<int>(channels);
    best.parts = parts_for(channels, batch * best.in_image / (2 * line_threads), multiprocessors, fill);
    return best;
  }
  double share = 0;  // of threads and blocks that have something to do
  const i64 step = channels_to_packs(size, width);
  for (i64 group = step; group <= most_channels && group * size <= line_threads * width; group += step) {
    const i64 packs = group * size / width, abreast = line_threads / packs, groups = tile::ceil_div(channels, group);
    if (packs < 8 && group < channels) continue;  // a line of memory
    const int parts = parts_for(groups, batch / (2 * abreast), multiprocessors, fill);
    const double all = static_cast<double>(groups * group) * static_cast<double>(line_threads);
    fill *= static_cast<double>(channels) * static_cast<double>(packs * abreast) / all;
    if (fill > 1.02 * share) {  // small groups have fewer sums to join
      share = fill;
      best.group = static_cast<int>(group);
      best.packs = static_cast<int>(packs);
      best.abreast = static_cast<int>(abreast);
      best.groups = static_cast<int>(groups);
      best.parts = parts;
    }
    if (group >= channels) break;
  }
  return best;
}
/// What `parts` may come to.
inline i64 most_line_parts(i64 channels, i64 elements) {
  constexpr i64 most_blocks = 4 * 160;
  return tile::max<i64>(1, tile::min(most_blocks / tile::max<i64>(1, tile::ceil_div<i64>(channels, most_channels)),
                                     elements / (2 * line_threads / most_channels)));
}

/// A pack as it is held until it is used: halves in whole registers, or each load would be waited for to split them.
template <class T, int width>
using Words = tile::conditional_t<(sizeof(T) * width >= 4), Pack<u32, (sizeof(T) * width + 3) / 4>, Pack<T, width>>;
template <class T, int width>
TESSERA_DEVICE Words<T, width> words_at(const T* p) {
  return *reinterpret_cast<const Words<T, width>*>(p);
}
template <class T, int width>
TESSERA_DEVICE Lanes<T, width> lanes_of(const Words<T, width>& words) {
  return Lanes<T, width>(tile::bit_cast<Pack<T, width>>(words));
}

/// A thread's part of a block's lines: the same pack of lines that are `apart`.
struct LinePart {
  const Lines& of;
  int part, first_channel;  // of the block
  int pack, steps;
  i64 image, place, images_apart, places_apart;

  explicit TESSERA_DEVICE LinePart(const Lines& lines, int width) : of(lines) {
    const int block = static_cast<int>(tile::block_in_grid());
    part = block / of.groups;
    first_channel = (block - part * of.groups) * of.group;
    const int thread = tile::thread_in_block(), row = thread / of.packs;
    pack = thread - row * of.packs;
    const i64 first = static_cast<i64>(part) * of.abreast + row, apart = static_cast<i64>(of.parts) * of.abreast;
    image = tile::quotient(first, of.in_image);
    place = first - image * of.in_image;
    images_apart = tile::quotient(apart, of.in_image);
    places_apart = apart - images_apart * of.in_image;
    const i64 left = of.images * of.in_image - first, columns = (of.channels - first_channel) * of.size;
    const bool inside = row < of.abreast && pack * width < columns;
    steps = inside && left > 0 ? static_cast<int>(tile::quotient(left + apart - 1, apart)) : 0;
  }
  /// Of the block's channels, that of a lane.
  TESSERA_DEVICE int channel_of(int lane, int width) const { return (pack * width + lane) / of.size; }
  TESSERA_DEVICE bool has(int channel) const { return channel < of.group && first_channel + channel < of.channels; }

  /// use(load()) for each line, some loads ahead; meanwhile() by all threads, while the first are under way.
  template <int ahead, class Load, class Use, class Meanwhile>
  TESSERA_DEVICE void each(const Load& load, const Use& use, const Meanwhile& meanwhile) const {
    decltype(load()) held[ahead];
    tile::unroll<ahead>([&](auto k) {
      if (k < steps) held[k] = load();
    });
    meanwhile();
    int i = 0;
    for (; i + 2 * ahead <= steps; i += ahead)
      tile::unroll<ahead>([&](auto k) {
        use(held[k]);
        held[k] = load();
      });
    for (; i < steps; i += ahead)
      tile::unroll<ahead>([&](auto k) {
        if (i + k < steps) use(held[k]);
        if (i + k + ahead < steps) held[k] = load();
      });
  }
};

/// Operands as a thread goes through them, from the last line to the first where it goes `back`.
template <class T, int width, int operands>
class Walk {
 public:
  using Element = tile::remove_cvref_t<T>;
  struct Held {
    Words<Element, width> words[operands];
    TESSERA_DEVICE Lanes<Element, width> operator[](int k) const { return lanes_of<Element, width>(words[k]); }
  };

  TESSERA_DEVICE Walk(const LinePart& part, const PlanesArg (&planes)[operands], bool back = false)
      : place_(static_cast<int>(part.place)),
        step_(static_cast<int>(part.places_apart)),
        places_(static_cast<int>(part.of.in_image)) {
    const i64 image = back ? part.of.images - 1 - part.image : part.image,
              place = back ? part.of.in_image - 1 - part.place : part.place, sign = back ? -1 : 1;
    tile::unroll<operands>([&](auto k) {
      const PlanesArg& p = planes[k];
      at_[k] = static_cast<T*>(p.data) + image * p.batch_stride + part.first_channel * p.channel_stride +
               (place + part.pack) * width;
      apart_[k] = sign * (part.images_apart * p.batch_stride + part.places_apart * width);
      turn_[k] = sign * (p.batch_stride - part.of.in_image * width);
    });
  }

  TESSERA_DEVICE Held load() {
    Held held;
    tile::unroll<operands>([&](auto k) { held.words[k] = words_at<Element, width>(at_[k]); });
    go_on();
    return held;
  }
  TESSERA_DEVICE void store(const Pack<T, width> (&packs)[operands]) {
    tile::unroll<operands>([&](auto k) { store_at_once(at_[k], packs[k]); });
    go_on();
  }

 private:
  TESSERA_DEVICE void go_on() {
    place_ += step_;
    const bool turns = place_ >= places_;
    if (turns) place_ -= places_;
    tile::unroll<operands>([&](auto k) { at_[k] += turns ? apart_[k] + turn_[k] : apart_[k]; });
  }

  T* at_[operands];
  i64 apart_[operands], turn_[operands];
  int place_, step_, places_;
};

// ---- sums of a block

template <class C>
TESSERA_DEVICE Sums<double> widened(const Sums<C>& s) {
  return {static_cast<double>(s.first), static_cast<double>(s.second)};
}

/// Threads that share the work for a block's channels: number `index` of those for `channel`, in turns.
struct Share {
  int index, channel, count;

  explicit TESSERA_DEVICE Share(int channels) : count(tile::min(16, line_threads / channels)) {
    index = tile::thread_in_block() / channels;
    channel = tile::thread_in_block() - index * channels;
  }
  /// The sums of all shares, for the first.
  TESSERA_DEVICE Sums<double> join(Sums<double> mine, int channels) const {
    __shared__ __attribute__((aligned(16))) Sums<double> room[line_threads];
    room[tile::thread_in_block()] = mine;
    tile::sync_block();
    if (index == 0)
      for (int i = 1; i < count; ++i) mine = mine + room[i * channels + channel];
    return mine;
  }
};

/// store(channel of the block, sums over it) by a thread for each, from those of every thread's lanes.
template <int width, class C, class Store>
TESSERA_DEVICE void sum_up_block(const LinePart& part, const C (&first)[width], const C (&second)[width],
                                 const Store& store) {
  const Lines& of = part.of;
  if (of.group == 1) {
    Sums<double> mine{0, 0};
    tile::unroll<width>([&](auto j) { mine = mine + widened(Sums<C>{first[j], second[j]}); });
    mine = join_block<line_threads>(mine, Plus{});
    if (tile::thread_in_block() == 0) store(0, mine);
    return;
  }
  __shared__ Sums<C> room[width][line_threads + 8];  // by lanes, which begin in other banks
  tile::unroll<width>([&](auto j) { room[j][tile::thread_in_block()] = {first[j], second[j]}; });
  tile::sync_block();
  const Share share(of.group);
  int channel = share.channel;
  if (of.size == 1) channel = channel % of.packs * width + channel / of.packs;  // neighbours read neighbours
  Sums<double> mine{0, 0};
  if (share.index < share.count)
    for (int i = share.index; i < of.abreast * of.size; i += share.count) {
      const int row = i / of.size, element = channel * of.size + i - row * of.size;
      mine = mine + widened(room[element % width][row * of.packs + element / width]);
    }
  mine = share.join(mine, of.group);
  if (share.index == 0 && part.has(channel)) store(channel, mine);
}

/// What blocks have found for a channel of this one, for the first thread that shares it: [parts, channels].
template <class C>
TESSERA_DEVICE Sums<double> join_parts(const LinePart& part, const Share& share, const Sums<C>* sums) {
  const Lines& of = part.of;
  Sums<C> mine{C(0), C(0)};
  if (share.index < share.count && part.has(share.channel)) {
    const Sums<C>* const of_channel = sums + part.first_channel + share.channel;
#pragma unroll 8
    for (int i = share.index; i < of.parts; i += share.count) mine = mine + of_channel[i * of.channels];
  }
  return share.join(widened(mine), of.group);
}

/// A number for each of a block's channels.
template <class C>
struct BlockChannels {
  C items[most_channels];

  template <int width>
  TESSERA_DEVICE void read(const LinePart& part, C (&own)[width]) const {
    tile::unroll<width>([&](auto j) { own[j] = items[tile::min(part.channel_of(j, width), most_channels - 1)]; });
  }
};

}  // namespace tessera::gpu_kernels
