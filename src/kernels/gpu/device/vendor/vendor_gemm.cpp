// cuBLASLt behind the GEMM's arguments: opened at run time where it is installed, never needed. Its column-major result
// is our row-major one transposed, so that the operands change places.
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "kernels/gpu/device/gemm/padded_operands.h"
#include "kernels/gpu/device/runtime/host.h"
#include "kernels/gpu/device/runtime/recent.h"
#include "kernels/shared/epilogue.h"
#include "tessera/error.h"

namespace tessera::gpu_kernels {
namespace {

/// The functions of the library that are used, under their own names.
struct Library {
// clang-format off
#define TESSERA_LT_FUNCTIONS(X) \
  X(cublasLtCreate) \
  X(cublasLtGetVersion) \
  X(cublasLtMatmulDescCreate) \
  X(cublasLtMatmulDescDestroy) \
  X(cublasLtMatmulDescSetAttribute) \
  X(cublasLtMatrixLayoutCreate) \
  X(cublasLtMatrixLayoutDestroy) \
  X(cublasLtMatrixLayoutSetAttribute) \
  X(cublasLtMatmulPreferenceCreate) \
  X(cublasLtMatmulPreferenceDestroy) \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic) \
  X(cublasLtMatmul)
// clang-format on
#define TESSERA_LT_MEMBER(name) decltype(&::name) name = nullptr;
  TESSERA_LT_FUNCTIONS(TESSERA_LT_MEMBER)
#undef TESSERA_LT_MEMBER
  bool complete = false;

  Library() {
    void* handle = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
      if (!handle) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return;
    complete = true;
#define TESSERA_LT_LOAD(name) \
  complete &= (this->name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name))) != nullptr;
    TESSERA_LT_FUNCTIONS(TESSERA_LT_LOAD)
#undef TESSERA_LT_LOAD
  }
};

const Library& library() {
  static const Library* loaded = new Library;
  return *loaded;
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(std::string("cublasLt: ") + what + " failed with status " + std::to_string(status));
}

cudaDataType_t data_type(Scalar type) {
  switch (type) {
    case Scalar::f16:
      return CUDA_R_16F;
    case Scalar::bf16:
      return CUDA_R_16BF;
    case Scalar::f64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

/// One operand of the library: column-major with a leading dimension, or the transpose of that.
struct Operand {
  bool transposed;
  i64 rows, columns, pitch;
};

/// The transpose of our [rows, columns] matrix, as the library sees it; pitch 0: not expressible.
Operand transposed_operand(const MatrixArg& m, i64 rows, i64 columns) {
  if (m.column == 1 && (m.row >= columns || rows == 1)) return {false, columns, rows, tile::max(m.row, columns)};
  if (m.row == 1 && (m.column >= rows || columns == 1)) return {true, rows, columns, tile::max(m.column, rows)};
  return {false, 0, 0, 0};
}

bool is_row_major(const MatrixArg& m, i64 rows, i64 columns) {
  return (m.column == 1 || columns == 1) && (m.row >= columns || rows == 1);
}

/// Whether the library stores what GELU is applied to beside its result: of operands as a linear layer has them, in
/// rows of whole 16 bytes; small products are not worth it.
bool stores_input(const GemmArgs& args) {
  const auto whole = [](const MatrixArg& m, i64 contiguous, i64 pitch) {
    return contiguous == 1 && pitch % 8 == 0 && alignment_of(m.data) == 16;
  };
  const MatrixArg &a = args.a, &b = args.b, &c = args.c, &input = args.slope;
  return args.activation == Activation::gelu_tanh && size_of(c.type) == 2 && input.type == c.type && c.type == a.type &&
         args.batch_rank == 0 && args.m >= 64 && args.n >= 64 && args.k >= 64 && args.n % 8 == 0 &&
         whole(a, a.column, a.row) && whole(b, b.row, b.column) && whole(c, c.column, c.row) &&
         whole(input, input.column, input.row) && (!args.bias.data || alignment_of(args.bias.data) == 16);
}

bool supports(const GemmArgs& args) {
  if (!library().complete) return false;
  const auto& [m, n, k] = std::tie(args.m, args.n, args.k);
  const bool types = args.a.type == args.b.type &&
                     (args.c.type == args.a.type || (args.c.type == Scalar::f32 && args.a.type != Scalar::f64));
  if (!types || m == 0 || n == 0 || k == 0 || args.batch_rank > 1) return false;
  if (args.factor.data || sums_lines(args) || (args.slope.data && !stores_input(args))) return false;
  if (args.activation != Activation::none && args.activation != Activation::relu &&
      !(args.activation == Activation::gelu_tanh && args.a.type != Scalar::f32 && args.a.type != Scalar::f64))
    return false;
  if (args.activation != Activation::none && args.addend.data) return false;
  if (!transposed_operand(args.a, m, k).pitch || !transposed_operand(args.b, k, n).pitch || !is_row_major(args.c, m, n))
    return false;
  if (args.addend.data && (args.addend.type != args.c.type || !is_row_major(args.addend, m, n))) return false;
  if (args.bias.data && (args.bias.type != args.c.type || args.bias.row != 0 || args.bias.column != 1 ||
                         args.a.type == Scalar::f64 || (args.batch_rank && args.bias.batch[0] != 0)))
    return false;
  return true;
}

constexpr int most_choices = 8;

/// A problem that was asked before, with the algorithms the library has for it, the one it takes for the fastest first.
/// All of it is the host's: work in flight needs none of it.
struct Plan {
  static constexpr bool kept = false;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm[most_choices];
  int choices = 0;

  Plan() = default;
  Plan(const Plan&) = delete;
  ~Plan() {
    if (operation) (void)library().cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {a, b, c, d})
      if (layout) (void)library().cublasLtMatrixLayoutDestroy(layout);
  }
};

/// What a plan depends on; alignments decide which algorithms are possible.
struct GemmKey {
  GemmArgs args;
  int device;
  size_t workspace;  // bytes
};

GemmKey key_of(const GemmArgs& args, int device, size_t workspace) {
  GemmKey key;
  std::memset(static_cast<void*>(&key), 0, sizeof key);
  std::memcpy(static_cast<void*>(&key.args), &args, sizeof args);
  for (MatrixArg* m : {&key.args.a, &key.args.b, &key.args.c, &key.args.addend, &key.args.bias, &key.args.slope})
    m->data = alignment_key(m->data);
  key.args.workspace = nullptr;
  key.device = device;
  key.workspace = workspace;
  return key;
}

class Planner {
 public:
  std::mutex mutex;  // held by whoever uses a plan, whose bias and input of GELU change from call to call

  const Plan& plan(const GemmArgs& args, size_t workspace) {
    int device = 0;
    (void)cudaGetDevice(&device);
    const GemmKey key = key_of(args, device, workspace);
    return plans_.at(bytes_of(key), [&](Plan& plan) { make(args, workspace, plan); });
  }
  template <class T>
  static void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(library().cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), "describing a product");
  }
  cublasLtHandle_t handle() {
    int device = 0;
    (void)cudaGetDevice(&device);
    cublasLtHandle_t& handle = handles_[device];
    if (!handle) check(library().cublasLtCreate(&handle), "starting");
    return handle;
  }

 private:
  static cublasLtMatrixLayout_t layout(Scalar type, const Operand& o, i64 batches, i64 step) {
    cublasLtMatrixLayout_t made;
    check(library().cublasLtMatrixLayoutCreate(&made, data_type(type), o.rows, o.columns, o.pitch),
          "describing a matrix");
    if (batches > 1) {
      const int count = static_cast<int>(batches);
      check(library().cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
            "batching");
      check(library().cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                                       sizeof step),
            "batching");
    }
    return made;
  }

  void make(const GemmArgs& args, size_t workspace, Plan& plan) {
    const i64 batches = args.batch_rank ? args.batch[0] : 1;
    auto step = [&](const MatrixArg& m) { return static_cast<i64>(args.batch_rank ? m.batch[0] : 0); };
    const Operand left = transposed_operand(args.b, args.k, args.n), right = transposed_operand(args.a, args.m, args.k);
    const bool wide = args.a.type == Scalar::f64;
    const auto narrow = args.tf32 && args.a.type == Scalar::f32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check(library().cublasLtMatmulDescCreate(&plan.operation, wide ? CUBLAS_COMPUTE_64F : narrow,
                                             wide ? CUDA_R_64F : CUDA_R_32F),
          "describing a product");
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(args));
    if (args.bias.data) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias.data);
      set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(args.bias.type));
    }
    if (args.slope.data) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.slope.data);
      set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{args.slope.row});
    }
    plan.a = layout(args.b.type, left, batches, step(args.b));
    plan.b = layout(args.a.type, right, batches, step(args.a));
    auto result = [&](const MatrixArg& m) {
      return layout(m.type, {false, args.n, args.m, tile::max<i64>(m.row, args.n)}, batches, step(m));
    };
    plan.d = result(args.c);
    plan.c = result(args.addend.data ? args.addend : args.c);
    choose(args, workspace, plan);
  }

  static cublasLtEpilogue_t epilogue(const GemmArgs& args) {
    const bool bias = args.bias.data != nullptr;
    if (args.activation == Activation::relu) return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    if (args.slope.data) return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (args.activation == Activation::gelu_tanh) return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }

  void choose(const GemmArgs& args, size_t workspace, Plan& plan) {
    cublasLtMatmulPreference_t preference;
    check(library().cublasLtMatmulPreferenceCreate(&preference), "asking for an algorithm");
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(library().cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
            "asking for an algorithm");
    };
    auto alignment = [](const MatrixArg& m) { return uint32_t{alignment_of(m.data)}; };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(args.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(args.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(args.addend.data ? args.addend : args.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(args.c));
    cublasLtMatmulHeuristicResult_t result[most_choices];
    int found = 0;
    const cublasStatus_t status = library().cublasLtMatmulAlgoGetHeuristic(
        handle(), plan.operation, plan.a, plan.b, plan.c, plan.d, preference, most_choices, result, &found);
    (void)library().cublasLtMatmulPreferenceDestroy(preference);
    check(status, "asking for an algorithm");
    if (found == 0 || result[0].state != CUBLAS_STATUS_SUCCESS)
      throw DeviceError("cublasLt: there is no algorithm for this product");
    for (int i = 0; i < found; ++i)
      if (result[i].state == CUBLAS_STATUS_SUCCESS) plan.algorithm[plan.choices++] = result[i].algo;
  }

  std::map<int, cublasLtHandle_t> handles_;
  Recent<Plan> plans_{256};
};

/// A call's workspace.
struct Room {
  void* memory;
  size_t bytes;
};

void run_plan(const GemmArgs& args, int choice, Room room, Executor& executor) {
  static auto* planner = new Planner;
  std::lock_guard lock(planner->mutex);
  const Plan& plan = planner->plan(args, room.bytes);
  if (args.bias.data) Planner::set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias.data);
  if (args.slope.data) Planner::set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.slope.data);
  const float alpha32 = static_cast<float>(args.alpha), beta32 = args.addend.data ? static_cast<float>(args.beta) : 0.f;
  const double alpha64 = args.alpha, beta64 = args.addend.data ? args.beta : 0.;
  const bool wide = args.a.type == Scalar::f64;
  check(library().cublasLtMatmul(planner->handle(), plan.operation,
                                 wide ? static_cast<const void*>(&alpha64) : &alpha32, args.b.data, plan.a, args.a.data,
                                 plan.b, wide ? static_cast<const void*>(&beta64) : &beta32,
                                 args.addend.data ? args.addend.data : args.c.data, plan.c, args.c.data, plan.d,
                                 &plan.algorithm[tile::min(choice, plan.choices - 1)], room.memory, room.bytes,
                                 static_cast<Queue>(executor.stream)),
        "a product");
}

MatrixArg part_of(MatrixArg m, i64 row, i64 column) {
  if (m.data) m.data = static_cast<char*>(m.data) + (row * m.row + column * m.column) * size_of(m.type);
  return m;
}
GemmArgs rows_of(GemmArgs args, i64 first, i64 count) {
  for (MatrixArg* x : {&args.a, &args.c, &args.addend, &args.bias, &args.slope}) *x = part_of(*x, first, 0);
  args.m = count;
  return args;
}
GemmArgs columns_of(GemmArgs args, i64 first, i64 count) {
  for (MatrixArg* x : {&args.b, &args.c, &args.addend, &args.bias, &args.slope}) *x = part_of(*x, 0, first);
  args.n = count;
  return args;
}
GemmArgs steps_of(GemmArgs args, i64 first, i64 count) {
  args.a = part_of(args.a, 0, first);
  args.b = part_of(args.b, first, 0);
  args.k = count;
  return args;
}

/// Whether a large product of halves, or in tf32, has rows that start at whole 16 bytes, wherever they end.
bool has_padded_rows(const GemmArgs& args) {
  const auto padded = [](const MatrixArg& m) {
    return !m.data || (tile::max(m.row, m.column) % (16 / size_of(m.type)) == 0 && alignment_of(m.data) >= 16);
  };
  const bool fast = size_of(args.a.type) == 2 || (args.tf32 && args.a.type == Scalar::f32);
  return fast && args.batch_rank == 0 && args.m * args.n * args.k >= (i64{1} << 30) && padded(args.a) &&
         padded(args.b) && padded(args.c) && padded(args.addend);
}

/// A product of few columns, rows or steps: the library's kernels for these count elements in 32 bits, so that operands
/// of 2^31 elements are cut (an illegal access was seen at one column of 65536 rows, 50264 apart).
void run_small(const GemmArgs& args, Room room, Executor& executor) {
  constexpr i64 limit = i64{1} << 31;
  const auto half_of = [](i64 n) { return n > 16 ? (n / 2 + 7) / 8 * 8 : n / 2; };
  const i64 row =
      tile::max(args.c.row, tile::max(args.addend.data ? args.addend.row : 0, args.a.column == 1 ? args.a.row : 0));
  if (args.m > 1 && args.m * row >= limit) {
    const i64 half = half_of(args.m);
    run_small(rows_of(args, 0, half), room, executor);
    return run_small(rows_of(args, half, args.m - half), room, executor);
  }
  const bool plain = !args.addend.data && args.activation == Activation::none;
  const i64 step =
      tile::max(args.a.column == 1 ? i64{1} : i64{args.a.column}, args.b.row == 1 ? i64{1} : i64{args.b.row});
  if (plain && args.k > 1 && args.k * step >= limit) {
    const i64 half = half_of(args.k);
    GemmArgs first = steps_of(args, 0, half), others = steps_of(args, half, args.k - half);
    first.bias.data = nullptr;
    run_small(first, room, executor);
    others.addend = args.c;
    others.beta = 1;
    return run_small(others, room, executor);
  }
  run_plan(args, 0, room, executor);
}

/// The library's fast algorithms want rows that end at whole 16 bytes, too, though padding may follow; the others take
/// seven times as long for a vocabulary of 50257. So the last few columns, rows or steps of k become a product of their
/// own.
void run(const GemmArgs& args, int choice, Room room, Executor& executor) {
  const auto& [m, n, k] = std::tie(args.m, args.n, args.k);
  const i64 unit = 16 / size_of(args.a.type);
  const auto rest = [&](const GemmArgs& part) { run_small(part, room, executor); };
  const bool split = has_padded_rows(args);
  if (split && n % unit != 0 && n > unit) {
    run(columns_of(args, 0, n / unit * unit), choice, room, executor);
    return rest(columns_of(args, n / unit * unit, n % unit));
  }
  if (split && m % unit != 0 && m > unit && args.a.row == 1) {
    run(rows_of(args, 0, m / unit * unit), choice, room, executor);
    return rest(rows_of(args, m / unit * unit, m % unit));
  }
  const bool along_k = args.a.column == 1 || args.b.row == 1;
  if (split && k % unit != 0 && k > unit && along_k && !args.addend.data && args.activation == Activation::none) {
    GemmArgs last = steps_of(args, k / unit * unit, k % unit), others = steps_of(args, 0, k / unit * unit);
    last.bias.data = nullptr;
    rest(last);
    others.addend = args.c;  // what the last few gave, rounded once more
    others.beta = 1;
    return run(others, choice, room, executor);
  }
  run_plan(args, choice, room, executor);
}

void run_product(const GemmArgs& args, int choice, void* workspace, Executor& executor) {
  run(args, choice, {workspace, vendor_bytes(args)}, executor);
}

size_t workspace_of(const GemmArgs& args, ProductPadding padding) {
  return vendor_bytes(args) + padded_product(args, padding).bytes();
}

unsigned zeroes(const GemmArgs& args, ProductPadding padding) {
  const PaddedProduct product = padded_product(args, padding);
  const auto in_place = [](const PaddedOperand& m) { return m.from && !m.copies(); };
  return (in_place(product.of[0]) ? 1u : 0u) | (in_place(product.of[1]) ? 2u : 0u);
}

/// Copies lie behind the library's own room, whose size is a multiple of theirs.
void run_padded(const GemmArgs& args, ProductPadding padding, int choice, void* workspace, Executor& executor) {
  const Room room{workspace, vendor_bytes(args)};
  const PaddedProduct product = padded_product(args, padding);
  run(pad_operands(product, static_cast<char*>(workspace) + room.bytes, executor), choice, room, executor);
}

size_t version() { return library().complete ? library().cublasLtGetVersion() : 0; }

}  // namespace

const VendorGemmTable* vendor_gemm_table() {
  static const VendorProductTable table{{supports, run_product, version}, workspace_of, zeroes, run_padded};
  return library().complete ? &table : nullptr;
}

}  // namespace tessera::gpu_kernels
