// The copy of a f32 parameter in halves, which stays from step to step. Its optimizer owns it and names it in its
// steps, whose kernels write both, so that no cast follows; autocast makes it and finds it through the parameter.
#pragma once
#include <memory>
#include <mutex>

#include "core/gpu/runtime.h"
#include "tessera/tensor.h"

namespace tessera {

/// What a copy was made of, and where. On GPUs: other streams do not wait for it, and what graphs write, while they are
/// captured or replayed, has no version.
struct CopyOrigin {
  Ref<Storage> storage;
  int graph = 0;
  uint64_t replays = 0;
  gpu::StreamHandle stream = nullptr;

  CopyOrigin() = default;
  explicit CopyOrigin(const Tensor& source);
  bool operator==(const CopyOrigin&) const = default;
};

/// One of a parameter on a GPU. A call that overwrites parameter and copy keeps it fresh; any other write to the
/// parameter does not.
class LowerCopy {
 public:
  /// Keeps `copy`, which is the parameter as it is now. Not while a graph is captured, whose replays must cast anew.
  void keep(const Tensor& parameter, const Tensor& copy);
  /// The copy, if it is the parameter as it is now; undefined otherwise, and while a function is captured.
  Tensor fresh(const Tensor& parameter) const;
  /// The same for a call that overwrites both; undefined where somebody else holds it, too, such as a graph that
  /// backward has yet to walk, and while a graph of the device is captured.
  Tensor writable(const Tensor& parameter) const;
  /// Gives its memory back.
  void drop();

 private:
  bool is_fresh(const Tensor& parameter) const;

  mutable std::mutex mutex_;
  Tensor copy_;
  CopyOrigin origin_;
  uint32_t lead_ = 0;  // by so much the parameter's version is ahead of the copy's: a call that writes both raises both
};

/// The parameter's, for an optimizer to own; several that have the same parameter share it.
std::shared_ptr<LowerCopy> share_lower_copy(const Tensor& parameter);
/// Null for what no optimizer has.
std::shared_ptr<LowerCopy> find_lower_copy(const Tensor& parameter);

}  // namespace tessera
