// How a tensor goes to other ranks: from its own device, or through the host.
#pragma once
#include "dist/group.h"

namespace tessera::dist {

struct Way {
  Engine* engine;  ///< null where the rank is alone
  Device device, from;
  PageLocked* page_locked;
  bool through_host() const { return !(device == from); }
  /// Where it goes from, or where it comes to.
  Tensor room(const Shape& shape, DType dtype) const;
  /// A copy is on its way to memory of the host. The host waits for it in settle().
  Tensor begin_placing(const Tensor& x) const;
  /// Until copies have arrived.
  void settle() const;
  /// Row-major where it goes from.
  Tensor placed(const Tensor& x) const;
  /// The same in memory that this call alone writes.
  Tensor own_copy(const Tensor& x) const;
  /// What came, on the device of what went.
  Tensor back(const Tensor& out) const;
  /// Whether sums of GPUs are made in the order of the host's, which is slower than the library's own.
  bool in_order() const;
};

/// `of_all`: every rank of the group asks, so that an engine of the device may be made.
Way way_of(Device device, const Group& group, bool of_all = true);

/// x [size * n] of all ranks, combined along combine()'s tree: this rank's n.
Tensor combined_share(const Tensor& x, const Way& way, const Group& group, ReduceOp op);
/// All elements, combined so.
Tensor combined_whole(const Tensor& x, const Way& way, const Group& group, ReduceOp op);

/// x as a call says it to other ranks: `count` elements of the whole, or for each rank.
Call call_of(Call::Kind kind, const Tensor& x, int64_t count, int root = 0, ReduceOp op = Sum);
inline char* bytes_of(const Tensor& x) { return static_cast<char*>(x.data_ptr()); }

}  // namespace tessera::dist
