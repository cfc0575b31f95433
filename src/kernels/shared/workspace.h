// Where kernels plan: scratch, and copies of operands that a kernel cannot take as they lie.
#pragma once
#include "kernels/shared/arguments.h"

namespace tessera::TESSERA_KERNELS {

/// Of the statistics that a kernel keeps of t.
inline DType statistics_dtype(const Operand& t) { return t.dtype() == Float64 ? Float64 : Float32; }

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

/// Where a kernel plans: its launches, its scratch, and copies of operands that it cannot take as they lie.
class Workspace {
 public:
  Workspace(const Call& call, Plan& plan) : call_(call), plan_(plan) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  Plan& plan() { return plan_; }
  /// 64-byte aligned memory; null for no bytes.
  void* take(long long bytes) { return plan_.take(bytes); }
  template <class Args>
  void launch(std::string_view name, void (*run)(const Args&, Executor&), const Args& args,
              std::source_location where = std::source_location::current()) {
    plan_.launch(name, run, args, where);
  }

  /// `t` as it lies where that `fits` and is of `dtype`, otherwise a row-major copy, or a dense one of these strides.
  Staged read(const Operand& t, DType dtype, bool fits = true, const Strides& strides = {}) {
    if (fits && t.dtype() == dtype) return {t.data_ptr(), scalar_of(dtype), t.strides()};
    Staged s = reserve(t, dtype, strides);
    convert(s, t, true);
    return s;
  }

  /// Like read, for a result: `finish` brings it to `t`. Its elements are undefined at first, or those of `t`.
  Staged write(const Operand& t, DType dtype, bool fits = true, bool keep_elements = false,
               const Strides& strides = {}) {
    if (fits && t.dtype() == dtype) return {t.data_ptr(), scalar_of(dtype), t.strides()};
    Staged s = reserve(t, dtype, strides);
    if (keep_elements) convert(s, t, true);
    results_.push_back({s, t});
    return s;
  }

  void finish() {
    for (auto& [staged, operand] : results_) convert(staged, operand, false);
    results_.clear();
  }

 private:
  Staged reserve(const Operand& t, DType dtype, const Strides& strides) {
    return {take(t.numel() * static_cast<long long>(size_of(dtype))), scalar_of(dtype),
            strides.empty() ? contiguous_strides(t.shape()) : strides};
  }

  void convert(const Staged& s, const Operand& t, bool to_staged) {
    CopyArgs args{};
    args.rank = checked_rank(call_, t);
    set_lengths(args.lengths, t);
    TensorArg staged{s.data, s.type, {}}, tensor = operand(t, args.rank);
    std::copy(s.strides.begin(), s.strides.end(), staged.strides);
    args.to = to_staged ? staged : tensor;
    args.from = to_staged ? tensor : staged;
    launch_copy(plan_, args);
  }

  struct Result {
    Staged staged;
    Operand operand;
  };
  const Call& call_;
  Plan& plan_;
  SmallVector<Result, 3> results_;
};

/// For kernels that say whether they support a call: what they would plan is dropped.
struct Trial {
  explicit Trial(const Call& call) : workspace(call, plan) {}
  Plan plan;
  Workspace workspace;
};

/// Whether the last `inner` dims are row-major and the others fold into rows `pitch` elements apart.
inline bool folds_to_rows(const Operand& t, int64_t inner, long long& pitch) {
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
inline long long inner_size(const Operand& t, int64_t inner) {
  long long count = 1;
  for (int64_t d = t.dim() - inner; d < t.dim(); ++d) count *= t.shape()[static_cast<size_t>(d)].value();
  return count;
}

/// `t` as contiguous rows, each of its last `inner` dims; copied where strides do not allow that.
inline RowArg read_rows(Workspace& workspace, const Operand& t, int64_t inner, DType dtype) {
  long long pitch;
  if (t.dtype() == dtype && folds_to_rows(t, inner, pitch)) return {t.data_ptr(), pitch};
  return {workspace.read(t, dtype, false).data, inner_size(t, inner)};
}
inline RowArg write_rows(Workspace& workspace, const Operand& t, int64_t inner, DType dtype) {
  long long pitch;
  if (t.dtype() == dtype && folds_to_rows(t, inner, pitch)) return {t.data_ptr(), pitch};
  return {workspace.write(t, dtype, false).data, inner_size(t, inner)};
}

/// A small operand such as a weight, contiguous; null where it is absent.
inline void* read_contiguous(Workspace& workspace, const Operand& t, DType dtype) {
  if (!t.defined()) return nullptr;
  return t.dtype() == dtype && t.is_contiguous() ? t.data_ptr() : workspace.read(t, dtype, false).data;
}

/// A kernel from a body that plans in a workspace.
template <auto body>
constexpr Kernel staged_kernel(const char* name, Reason (*supports)(const Call&) = nullptr,
                               std::source_location where = std::source_location::current()) {
  return {.name = name,
          .supports = supports,
          .plan =
              [](const Call& call, Plan& plan) {
                Workspace workspace(call, plan);
                body(call, workspace);
                workspace.finish();
              },
          .where = where};
}

}  // namespace tessera::TESSERA_KERNELS
