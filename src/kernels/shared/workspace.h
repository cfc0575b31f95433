// A call's workspace: scratch of kernels, and copies of operands that a kernel cannot take as they lie.
#pragma once
#include "kernels/shared/arguments.h"

namespace tessera::TESSERA_KERNELS {

/// Of the statistics that a kernel keeps of t.
inline DType statistics_dtype(const Tensor& t) { return t.dtype() == Float64 ? Float64 : Float32; }

/// Where an operand lies for a kernel, with its strides in elements.
struct Staged {
  void* data = nullptr;
  Scalar type = Scalar::f32;
  Strides strides;
};

/// As an operand of a loop nest of `rank` dims, aligned at the last one.
inline TensorArg operand(const Staged& s, int rank) {
  TensorArg arg{s.data, s.type, {}};
  std::copy(s.strides.begin(), s.strides.end(), arg.strides + rank - static_cast<int>(s.strides.size()));
  return arg;
}

/// Handed twice to the body of a kernel: first to count bytes, when nothing may be computed, then to run.
class Workspace {
 public:
  explicit Workspace(const Call& call, bool counting) : call_(call), counting_(counting) {}
  ~Workspace() = default;
  Workspace(const Workspace&) = delete;

  bool counting() const { return counting_; }
  size_t bytes() const { return used_; }

  /// 64-byte aligned memory; null while counting.
  void* take(long long bytes) {
    std::byte* p = counting_ ? nullptr : static_cast<std::byte*>(call_.workspace) + used_;
    used_ += (static_cast<size_t>(bytes) + 63) / 64 * 64;
    return p;
  }

  /// `t` as it lies where that `fits` and is of `dtype`, otherwise a row-major copy, or a dense one of these strides.
  Staged read(const Tensor& t, DType dtype, bool fits = true, const Strides& strides = {}) {
    if (fits && t.dtype() == dtype) return {t.data_ptr(), scalar_of(dtype), t.strides()};
    Staged s = reserve(t, dtype, strides);
    if (!counting_) convert(s, t, true);
    return s;
  }

  /// Like read, for a result: `finish` brings it to `t`. Its elements are undefined at first, or those of `t`.
  Staged write(const Tensor& t, DType dtype, bool fits = true, bool keep_elements = false,
               const Strides& strides = {}) {
    if (fits && t.dtype() == dtype) return {t.data_ptr(), scalar_of(dtype), t.strides()};
    Staged s = reserve(t, dtype, strides);
    if (keep_elements && !counting_) convert(s, t, true);
    results_.push_back({s, t});
    return s;
  }

  void finish() {
    for (auto& [staged, tensor] : results_) convert(staged, tensor, false);
  }

 private:
  Staged reserve(const Tensor& t, DType dtype, const Strides& strides) {
    return {take(t.numel() * static_cast<long long>(size_of(dtype))), scalar_of(dtype),
            strides.empty() ? contiguous_strides(t.shape()) : strides};
  }

  void convert(const Staged& s, const Tensor& t, bool to_staged) {
    CopyArgs args;
    args.rank = checked_rank(call_, t);
    set_lengths(args.lengths, t);
    TensorArg staged{s.data, s.type, {}}, tensor = operand(t, args.rank);
    std::copy(s.strides.begin(), s.strides.end(), staged.strides);
    args.to = to_staged ? staged : tensor;
    args.from = to_staged ? tensor : staged;
    elementwise_table().copy(args, executor());
  }

  struct Result {
    Staged staged;
    Tensor tensor;
  };
  const Call& call_;
  bool counting_;
  size_t used_ = 0;
  SmallVector<Result, 3> results_;
};

/// Whether the last `inner` dims are row-major and the others fold into rows `pitch` elements apart.
inline bool folds_to_rows(const Tensor& t, int64_t inner, long long& pitch) {
  int64_t rank = t.dim();
  long long width = 1, span = -1;
  const auto size = [&](int64_t d) { return t.shape()[static_cast<size_t>(d)].value(); };
  for (int64_t d = rank - 1; d >= rank - inner; --d) {
    if (size(d) != 1 && t.strides()[d] != width) return false;
    width *= size(d);
  }
  pitch = width;
  for (int64_t d = rank - inner - 1; d >= 0; --d) {
    if (size(d) == 1) continue;
    if (span < 0) pitch = t.strides()[d];
    else if (t.strides()[d] != span) return false;
    span = t.strides()[d] * size(d);
  }
  return true;
}

/// Elements of the last `inner` dims.
inline long long inner_size(const Tensor& t, int64_t inner) {
  long long count = 1;
  for (int64_t d = t.dim() - inner; d < t.dim(); ++d) count *= t.shape()[static_cast<size_t>(d)].value();
  return count;
}

/// `t` as contiguous rows, each of its last `inner` dims; copied where strides do not allow that.
inline RowArg read_rows(Workspace& workspace, const Tensor& t, int64_t inner, DType dtype) {
  long long pitch;
  if (t.dtype() == dtype && folds_to_rows(t, inner, pitch)) return {t.data_ptr(), pitch};
  return {workspace.read(t, dtype, false).data, inner_size(t, inner)};
}
inline RowArg write_rows(Workspace& workspace, const Tensor& t, int64_t inner, DType dtype) {
  long long pitch;
  if (t.dtype() == dtype && folds_to_rows(t, inner, pitch)) return {t.data_ptr(), pitch};
  return {workspace.write(t, dtype, false).data, inner_size(t, inner)};
}

/// A small operand such as a weight, contiguous; null where it is absent.
inline void* read_contiguous(Workspace& workspace, const Tensor& t, DType dtype) {
  if (!t.defined()) return nullptr;
  return t.dtype() == dtype && t.is_contiguous() ? t.data_ptr() : workspace.read(t, dtype, false).data;
}

/// A kernel from a body `void body(const Call&, Workspace&)`, which returns early while counting.
template <auto body>
constexpr Kernel staged_kernel(const char* name, Reason (*supports)(const Call&) = nullptr) {
  return {.name = name,
          .supports = supports,
          .workspace_bytes =
              [](const Call& call) {
                Workspace workspace(call, true);
                body(call, workspace);
                return workspace.bytes();
              },
          .run =
              [](const Call& call) {
                Workspace workspace(call, false);
                body(call, workspace);
                workspace.finish();
              }};
}

/// What a call is launched with while its workspace is counted, and the bytes of that; final where there are none.
template <class Args>
struct Prepared {
  Args args;
  size_t bytes;
};

template <auto prepare>
auto prepared(const Call& call) {
  Workspace workspace(call, true);
  auto args = prepare(call, workspace);
  return Prepared<decltype(args)>{args, workspace.bytes()};
}

/// A kernel from `Args prepare(const Call&, Workspace&)` and `void launch(const Args&)`: what needs no workspace is
/// prepared once.
template <auto prepare, auto launch>
constexpr Kernel prepared_kernel(const char* name) {
  return {.name = name,
          .workspace_bytes = [](const Call& call) { return call.once(prepared<prepare>).bytes; },
          .run =
              [](const Call& call) {
                if (const auto& known = call.once(prepared<prepare>); known.bytes == 0) return launch(known.args);
                Workspace workspace(call, false);
                launch(prepare(call, workspace));
                workspace.finish();
              }};
}

}  // namespace tessera::TESSERA_KERNELS
