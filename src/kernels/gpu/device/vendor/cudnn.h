// cuDNN's backend API as far as it is used, opened at run time: graphs of operations, and the plans that the library
// makes of them. The values are part of its binary interface, so that no header of it is needed to build.
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::gpu_kernels::cudnn {

using Handle = struct Context*;

enum class DataType : int { f32 = 0, f16 = 2, i32 = 4, bf16 = 9, boolean = 11 };
enum class ConvolutionMode : int { cross_correlation = 1 };
enum class ReductionMode : int { sum = 0, largest = 3 };
enum class PointwiseMode : int {
  add = 0,
  multiply = 1,
  divide = 6,
  subtract = 9,
  exponential = 13,
  logarithm = 15,
  identity = 21,
  greater_or_equal = 303,
  index_along_axis = 501,
  select = 601,
};
enum class HeuristicMode : int { by_model = 1, fallback = 2, by_tree = 3 };
/// What a result may suffer by an engine.
enum class Note : int {
  tensor_core = 0,
  down_converts = 1,
  reduces_in_lower_precision = 2,
  fft = 3,
  nondeterministic = 4,
  winograd = 5,
  winograd_4x4 = 6,
  winograd_6x6 = 7,
  winograd_13x13 = 8,
};

enum class Kind : int {
  pointwise = 0,
  convolution = 1,
  engine = 2,
  engine_config = 3,
  heuristic = 4,
  plan = 5,
  convolution_forward = 10,
  convolution_backward_filters = 11,
  convolution_backward_images = 12,
  operation_pointwise = 13,
  graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  operation_matmul = 19,
  reduction = 21,
  operation_reduction = 22,
  operation_reshape = 31,
  device_properties = 38,
};

enum class Attribute : int {
  pointwise_mode = 0,
  pointwise_type = 1,
  pointwise_axis = 9,
  convolution_type = 100,
  convolution_mode = 101,
  convolution_dilations = 102,
  convolution_strides = 103,
  convolution_post_paddings = 104,
  convolution_pre_paddings = 105,
  convolution_dims = 106,
  heuristic_mode = 200,
  heuristic_graph = 201,
  heuristic_results = 202,
  heuristic_device = 204,
  config_engine = 300,
  plan_handle = 400,
  plan_config = 401,
  plan_workspace = 402,
  plan_device = 407,
  forward_alpha = 700,  // and beta, convolution, w, x, y
  backward_images_alpha = 706,
  backward_filters_alpha = 712,
  operation_pointwise = 750,  // and x, b, y
  operation_pointwise_t = 758,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_lengths = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_virtual = 907,
  tensor_by_value = 908,
  pack_ids = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  engine_notes = 1303,
  matmul_type = 1500,
  operation_matmul_a = 1520,  // and b, c, the matmul
  reduction_mode = 1600,
  reduction_type = 1601,
  operation_reduction_x = 1610,  // and y, the reduction
  operation_reshape_x = 2200,    // and y
  device_json = 2702,
};
constexpr Attribute operator+(Attribute a, int n) { return static_cast<Attribute>(static_cast<int>(a) + n); }

/// The library refused something, for example a graph that no engine runs.
struct Refusal {
  int status;
  /// Not by what was asked but by the state of things: memory that is short, a driver that is busy.
  bool may_pass() const { return status / 1000 != 2 && status / 1000 != 3; }
};

inline constexpr int type_descriptor = 15;
template <class T>
inline constexpr int type_of = -1;
template <>
inline constexpr int type_of<Handle> = 0;
template <>
inline constexpr int type_of<DataType> = 1;
template <>
inline constexpr int type_of<bool> = 2;
template <>
inline constexpr int type_of<int64_t> = 3;
template <>
inline constexpr int type_of<float> = 4;
template <>
inline constexpr int type_of<void*> = 6;
template <>
inline constexpr int type_of<ConvolutionMode> = 7;
template <>
inline constexpr int type_of<HeuristicMode> = 8;
template <>
inline constexpr int type_of<Note> = 11;
template <>
inline constexpr int type_of<PointwiseMode> = 14;
template <>
inline constexpr int type_of<ReductionMode> = 18;
template <>
inline constexpr int type_of<char> = 24;

/// Its functions, all null where it is not installed: libcudnn.so.9 of TESSERA_CUDNN, a file or its folder, or of the
/// system. It opens the libraries that it consists of by itself, when they are needed.
struct Library {
  size_t (*version)();
  int (*create)(Handle*);
  int (*set_stream)(Handle, void*);
  int (*make)(Kind, void**);
  int (*destroy)(void*);
  int (*finalize)(void*);
  int (*set)(void*, Attribute, int type, int64_t count, const void* values);
  int (*get)(const void*, Attribute, int type, int64_t room, int64_t* count, void* values);
  int (*execute)(Handle, void* plan, void* pack);
  bool complete = true;

  Library() : handle_(open()) {
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find(name));
      complete = complete && function;
    };
    load(version, "cudnnGetVersion");
    load(create, "cudnnCreate");
    load(set_stream, "cudnnSetStream");
    load(make, "cudnnBackendCreateDescriptor");
    load(destroy, "cudnnBackendDestroyDescriptor");
    load(finalize, "cudnnBackendFinalize");
    load(set, "cudnnBackendSetAttribute");
    load(get, "cudnnBackendGetAttribute");
    load(execute, "cudnnBackendExecute");
  }
  /// Another of its functions, or null.
  void* find(const char* name) const { return handle_ ? dlsym(handle_, name) : nullptr; }

 private:
  void* handle_;
  static void* open() {
    constexpr int mode = RTLD_NOW | RTLD_LOCAL;
    const char* name = "libcudnn.so.9";
    const char* path = std::getenv("TESSERA_CUDNN");
    if (!path || !*path) return dlopen(name, mode);
    void* file = dlopen(path, mode);
    return file ? file : dlopen((std::string(path) + "/" + name).c_str(), mode);
  }
};

inline const Library& library() {
  static const Library* loaded = new Library;
  return *loaded;
}

inline void check(int status) {
  if (status != 0) throw Refusal{status};
}

/// A descriptor that someone else keeps.
struct Ref {
  void* it = nullptr;
};
template <>
inline constexpr int type_of<Ref> = type_descriptor;
static_assert(sizeof(Ref) == sizeof(void*));

/// One descriptor: attributes, then finish().
class Object {
 public:
  explicit Object(Kind kind) { check(library().make(kind, &it_)); }
  Object(Object&& other) noexcept : it_(std::exchange(other.it_, nullptr)) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(it_, other.it_);
    return *this;
  }
  ~Object() {
    if (it_) (void)library().destroy(it_);
  }
  Ref ref() const { return {it_}; }

  template <class T>
  Object& set(Attribute name, const T& value) {
    return put(name, type_of<T>, 1, &value);
  }
  template <class T>
  Object& set(Attribute name, std::span<const T> values) {
    return put(name, type_of<T>, values.size(), values.data());
  }
  Object& set(Attribute name, const Object& value) { return set(name, value.ref()); }
  Object&& finish() {
    check(library().finalize(it_));
    return std::move(*this);
  }

  /// As many values as there are, at most `room`.
  template <class T>
  std::vector<T> get(Attribute name, int64_t room) const {
    std::vector<T> values(static_cast<size_t>(room));
    int64_t count = 0;
    check(library().get(it_, name, type_of<T>, room, &count, values.data()));
    values.resize(static_cast<size_t>(std::min(count, room)));
    return values;
  }
  /// The same for descriptors, of one kind.
  std::vector<Object> get(Attribute name, Kind kind, int64_t room) const {
    std::vector<Object> values;
    std::vector<void*> pointers;
    for (int64_t i = 0; i < room; ++i) pointers.push_back(values.emplace_back(kind).it_);
    int64_t count = 0;
    check(library().get(it_, name, type_descriptor, room, &count, pointers.data()));
    values.erase(values.begin() + std::min(count, room), values.end());
    return values;
  }

 private:
  Object& put(Attribute name, int type, size_t count, const void* values) {
    check(library().set(it_, name, type, static_cast<int64_t>(count), values));
    return *this;
  }
  void* it_ = nullptr;
};

/// A tensor, to which more can be said before it is finished.
inline Object tensor(int64_t id, DataType type, std::span<const int64_t> lengths, std::span<const int64_t> strides,
                     int64_t alignment) {
  Object t(Kind::tensor);
  t.set(Attribute::tensor_id, id).set(Attribute::tensor_type, type).set(Attribute::tensor_alignment, alignment);
  t.set(Attribute::tensor_lengths, lengths).set(Attribute::tensor_strides, strides);
  return t;
}

/// Operations, and all descriptors that they refer to.
struct Graph {
  std::vector<Object> parts;
  std::vector<Ref> operations;

  Ref keep(Object& part) {
    parts.push_back(part.finish());
    return parts.back().ref();
  }
  Ref keep(Object&& part) { return keep(part); }
  void add(Object& operation) { operations.push_back(keep(operation)); }
};

/// What plans are made for: this process's device or, for tests without one, its properties.
struct Target {
  Handle handle = nullptr;
  const Object* properties = nullptr;

  void tell(Object& object, Attribute handle_name) const {
    if (handle) object.set(handle_name, handle);
  }
  void tell_properties(Object& object, Attribute name) const {
    if (!handle) object.set(name, *properties);
  }
};

struct Plan {
  std::vector<Object> parts;  // what the plan is made of
  Object plan{Kind::plan};
  int64_t workspace = 0;
  bool on_matrix_cores = false;
};

inline bool has_note(const Object& config, uint32_t notes) {
  const std::vector<Object> engine = config.get(Attribute::config_engine, Kind::engine, 1);
  const std::vector<Note> found = engine.at(0).get<Note>(Attribute::engine_notes, 16);
  return std::ranges::any_of(found, [&](Note note) { return notes >> static_cast<int>(note) & 1; });
}

/// Which notes an engine may not bear.
class Rules {
 public:
  constexpr Rules(std::initializer_list<Note> forbidden) {
    for (Note note : forbidden) forbidden_ |= 1u << static_cast<int>(note);
  }
  constexpr Rules without(Note note) const {
    Rules rules = *this;
    rules.forbidden_ &= ~(1u << static_cast<int>(note));
    return rules;
  }
  bool allow(const Object& config) const { return !has_note(config, forbidden_); }

 private:
  uint32_t forbidden_ = 0;
};

/// The plan that the library thinks fastest among those which the rules allow and which fit into the workspace. Throws
/// Refusal where there is none now, but there may be one later.
inline std::optional<Plan> find_plan(const Target& target, Graph&& graph, Rules rules, int64_t most_workspace) {
  Object whole(Kind::graph);
  target.tell(whole, Attribute::graph_handle);
  whole.set(Attribute::graph_operations, std::span<const Ref>(graph.operations));
  const Ref asked_for = graph.keep(whole);
  std::optional<Refusal> for_now;
  const auto note = [&](const Refusal& refusal) {
    if (refusal.may_pass()) for_now = refusal;
  };
  // The first proposes nothing for some halves, for which the second has plans on matrix cores.
  for (HeuristicMode mode : {HeuristicMode::by_tree, HeuristicMode::by_model, HeuristicMode::fallback}) try {
      Object heuristic(Kind::heuristic);
      heuristic.set(Attribute::heuristic_graph, asked_for).set(Attribute::heuristic_mode, mode);
      target.tell_properties(heuristic, Attribute::heuristic_device);
      const Object asked = heuristic.finish();
      for (Object& config : asked.get(Attribute::heuristic_results, Kind::engine_config, 24)) try {
          if (!rules.allow(config)) continue;
          Plan found;
          target.tell(found.plan, Attribute::plan_handle);
          target.tell_properties(found.plan, Attribute::plan_device);
          found.plan.set(Attribute::plan_config, config).finish();
          found.workspace = found.plan.get<int64_t>(Attribute::plan_workspace, 1).at(0);
          if (found.workspace > most_workspace) continue;
          found.on_matrix_cores = has_note(config, 1u << static_cast<int>(Note::tensor_core));
          found.parts = std::move(graph.parts);
          found.parts.push_back(std::move(config));
          return found;
        } catch (const Refusal& refusal) {  // proposed, but not able: the next one
          note(refusal);
        }
    } catch (const Refusal& refusal) {  // nothing is proposed
      note(refusal);
    }
  if (for_now) throw *for_now;
  return std::nullopt;
}

/// Whether a problem has a plan, and which. A failure that may pass is tried again at the 2nd, 4th, 8th, ... call, so
/// that what always fails costs little.
class Outcome {
 public:
  /// make() returns the plan, if there is one, or throws Refusal.
  template <class Make>
  void settle(const Make& make) {
    if (settled_ || !std::has_single_bit(++asked_)) return;
    try {
      plan_ = make();
      settled_ = true;
    } catch (const Refusal& refusal) {
      settled_ = !refusal.may_pass();
    }
  }
  const std::optional<Plan>& plan() const { return plan_; }

 private:
  std::optional<Plan> plan_;
  uint64_t asked_ = 0;
  bool settled_ = false;
};

/// Queues a plan: `pointers` are the tensors named by `ids`.
inline void execute(Handle handle, const Plan& plan, std::span<const int64_t> ids, std::span<void* const> pointers,
                    void* workspace) {
  Object pack(Kind::variant_pack);
  pack.set(Attribute::pack_ids, ids).set(Attribute::pack_pointers, pointers);
  pack.set(Attribute::pack_workspace, workspace).finish();
  check(library().execute(handle, plan.plan.ref().it, pack.ref().it));
}

}  // namespace tessera::gpu_kernels::cudnn
