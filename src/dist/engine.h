// How the ranks of a group exchange bytes of the host: what each engine can do.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dist.h"

namespace tessera::dist {

/// A collective as all ranks must call it alike.
struct Call {
  enum class Kind : uint8_t {
    AllReduce,
    ReduceScatter,
    Reduce,
    AllGather,
    Gather,
    Scatter,
    Broadcast,
    AllToAll,
    Barrier,
    Send,
    Recv
  };
  Kind kind = Kind::Barrier;
  DType dtype = UInt8;
  ReduceOp op = ReduceOp::Sum;
  int32_t root = 0;
  int64_t count = 0;      ///< elements: of the whole, or for each rank
  int32_t dims = -1;      ///< of the tensor; negative: of several tensors
  int64_t shape[6] = {};  ///< the first of them
  bool operator==(const Call&) const = default;
};
/// What a rank notes of a message of so many bytes to or from another one of the group.
inline Call message(Call::Kind kind, int64_t bytes, int other) {
  return {.kind = kind, .dtype = UInt8, .root = other, .count = bytes, .dims = 1, .shape = {bytes}};
}
inline bool is_message(const Call& call) { return call.kind == Call::Kind::Send || call.kind == Call::Kind::Recv; }
std::string_view name_of(Call::Kind kind);
/// "all_reduce sum of f32[3, 4]".
std::string to_string(const Call& call);

/// Elements that lie one after another, of one dtype.
struct Segment {
  char* data = nullptr;
  int64_t count = 0;
};

/// All calls return when this rank's part is done, throw Aborted when the run is, and are made by one thread at a time.
/// `count` is in elements of `call.dtype`; sums are those of combine().
class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::string_view name() const = 0;
  /// In place, of all segments together, of which call.count is the sum.
  virtual void all_reduce(const Call& call, std::span<const Segment> data) = 0;
  /// in [size, count] of each rank, combined: row r to rank r.
  virtual void reduce_scatter(const Call& call, const char* in, char* out) = 0;
  /// In place at the root; elsewhere `data` is only read.
  virtual void reduce(const Call& call, char* data) = 0;
  /// in [count] of each rank -> out [size, count].
  virtual void all_gather(const Call& call, const char* in, char* out) = 0;
  virtual void gather(const Call& call, const char* in, char* out) = 0;
  virtual void scatter(const Call& call, const char* in, char* out) = 0;
  virtual void broadcast(const Call& call, char* data) = 0;
  /// in [size, count] -> out [size, count]: row r goes to rank r.
  virtual void all_to_all(const Call& call, const char* in, char* out) = 0;
  virtual void barrier() = 0;
  virtual void send(const char* data, int64_t bytes, int to) = 0;
  virtual void recv(char* data, int64_t bytes, int from) = 0;
};

/// What each of `size` ranks says.
std::vector<int64_t> numbers_of_ranks(Engine& host, int size, int64_t mine);
/// Of the list of engines, counted from 1.
std::string_view engine_name(int number);

/// out[i] = parts[0][i] combined with parts[1][i] ..., along a tree: neighbours pair at each level, an odd last one
/// passes up. Halves are added in f32 and rounded once. `out` may be one of the parts.
void combine(std::span<const char* const> parts, char* out, int64_t count, DType dtype, ReduceOp op);
/// Throws Error where elements of that dtype are not combined so.
void check_combines(std::string_view what, DType dtype, ReduceOp op);

}  // namespace tessera::dist
