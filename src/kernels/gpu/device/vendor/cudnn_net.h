// cuDNN's recurrent nets: its functions for them, and what it makes of a net's shape. The values are part of the
// library's binary interface.
#pragma once
#include <vector>

#include "cudnn.h"
#include "kernels/args/gpu/tables.h"

namespace tessera::gpu_kernels::cudnn {

struct NetFunctions {
  using Pointer = void*;
  int (*create_net)(Pointer*);
  int (*destroy_net)(Pointer);
  int (*create_steps)(Pointer*);
  int (*destroy_steps)(Pointer);
  int (*create_tensor)(Pointer*);
  int (*destroy_tensor)(Pointer);
  int (*create_dropout)(Pointer*);
  int (*destroy_dropout)(Pointer);
  int (*set_dropout)(Pointer, Handle, float p, void* states, size_t bytes, unsigned long long seed);
  int (*set_net)(Pointer, int algorithm, int kind, int biases, int directions, int input, int type, int compute,
                 int math, int32_t in, int32_t hidden, int32_t projection, int32_t layers, Pointer dropout,
                 uint32_t flags);
  int (*set_steps)(Pointer, int type, int layout, int steps, int batch, int width, const int* lengths, void* padding);
  int (*set_tensor)(Pointer, int type, int rank, const int* lengths, const int* strides);
  int (*room)(Handle, Pointer net, int training, Pointer x, size_t* workspace, size_t* reserve);
  int (*weights_room)(Handle, Pointer net, size_t* bytes);
  int (*place)(Handle, Pointer net, int32_t layer, size_t bytes, const void* weights, int32_t product, Pointer matrix,
               void** matrix_at, Pointer bias, void** bias_at);
  int (*forward)(Handle, Pointer net, int training, const int32_t* lengths, Pointer x_steps, const void* x,
                 Pointer y_steps, void* y, Pointer h, const void* hidden, void* last_hidden, Pointer c,
                 const void* cell, void* last_cell, size_t weight_bytes, const void* weights, size_t workspace_bytes,
                 void* workspace, size_t reserve_bytes, void* reserve);
  int (*backward)(Handle, Pointer net, const int32_t* lengths, Pointer y_steps, const void* y, const void* dy,
                  Pointer x_steps, void* dx, Pointer h, const void* hidden, const void* dlast_hidden, void* dhidden,
                  Pointer c, const void* cell, const void* dlast_cell, void* dcell, size_t weight_bytes,
                  const void* weights, size_t workspace_bytes, void* workspace, size_t reserve_bytes, void* reserve);
  int (*backward_weights)(Handle, Pointer net, int add, const int32_t* lengths, Pointer x_steps, const void* x,
                          Pointer h, const void* hidden, Pointer y_steps, const void* y, size_t weight_bytes,
                          void* dweights, size_t workspace_bytes, void* workspace, size_t reserve_bytes, void* reserve);
  bool complete = true;

  NetFunctions() {
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library().find(name));
      complete = complete && function;
    };
    load(create_net, "cudnnCreateRNNDescriptor");
    load(destroy_net, "cudnnDestroyRNNDescriptor");
    load(create_steps, "cudnnCreateRNNDataDescriptor");
    load(destroy_steps, "cudnnDestroyRNNDataDescriptor");
    load(create_tensor, "cudnnCreateTensorDescriptor");
    load(destroy_tensor, "cudnnDestroyTensorDescriptor");
    load(create_dropout, "cudnnCreateDropoutDescriptor");
    load(destroy_dropout, "cudnnDestroyDropoutDescriptor");
    load(set_dropout, "cudnnSetDropoutDescriptor");
    load(set_net, "cudnnSetRNNDescriptor_v8");
    load(set_steps, "cudnnSetRNNDataDescriptor");
    load(set_tensor, "cudnnSetTensorNdDescriptor");
    load(room, "cudnnGetRNNTempSpaceSizes");
    load(weights_room, "cudnnGetRNNWeightSpaceSize");
    load(place, "cudnnGetRNNWeightParams");
    load(forward, "cudnnRNNForward");
    load(backward, "cudnnRNNBackwardData_v8");
    load(backward_weights, "cudnnRNNBackwardWeights_v8");
  }
};

inline const NetFunctions& net_functions() {
  static const auto* loaded = new NetFunctions;
  return *loaded;
}

/// A descriptor of one of those kinds.
class Described {
 public:
  Described(int (*create)(void**), int (*destroy)(void*)) : destroy_(destroy) { check(create(&it_)); }
  Described(Described&& other) noexcept : it_(std::exchange(other.it_, nullptr)), destroy_(other.destroy_) {}
  ~Described() {
    if (it_) (void)destroy_(it_);
  }
  operator void*() const { return it_; }

 private:
  void* it_ = nullptr;
  int (*destroy_)(void*);
};

/// Steps one after another, or kernels that hold the weights throughout: large ones, and those of narrow layers.
enum class NetAlgorithm : int { standard = 0, persistent = 1, persistent_narrow = 3 };

/// What the library makes of a shape.
struct Net {
  Described net, x, y, states, dropout;
  NetRoom room{};
  std::vector<long long> places;  // of each layer's and direction's products, each a matrix and a bias

  Net(Handle handle, const NetShape& s, NetAlgorithm algorithm)
      : net(net_functions().create_net, net_functions().destroy_net),
        x(net_functions().create_steps, net_functions().destroy_steps),
        y(net_functions().create_steps, net_functions().destroy_steps),
        states(net_functions().create_tensor, net_functions().destroy_tensor),
        dropout(net_functions().create_dropout, net_functions().destroy_dropout) {
    const NetFunctions& f = net_functions();
    const auto i = [](long long n) { return static_cast<int>(n); };
    const int type = s.type == Scalar::f16    ? static_cast<int>(DataType::f16)
                     : s.type == Scalar::bf16 ? static_cast<int>(DataType::bf16)
                                              : static_cast<int>(DataType::f32);
    constexpr int linear_input = 0, padded = 1, step_after_step = 0;
    constexpr int default_math = 0, matrix_cores = 1, exact_math = 3;
    const int math = s.type != Scalar::f32 ? matrix_cores : s.tf32 ? default_math : exact_math;
    check(f.set_dropout(dropout, handle, 0, nullptr, 0, 0));
    check(f.set_net(net, static_cast<int>(algorithm), static_cast<int>(s.kind), s.biases ? 2 : 0, s.both, linear_input,
                    type, static_cast<int>(DataType::f32), math, i(s.in), i(s.hidden), i(s.hidden), i(s.layers),
                    dropout, padded));
    const long long directions = s.both ? 2 : 1;
    const std::vector<int> lengths(static_cast<size_t>(s.batch), i(s.steps));
    check(f.set_steps(x, type, step_after_step, i(s.steps), i(s.batch), i(s.in), lengths.data(), nullptr));
    check(f.set_steps(y, type, step_after_step, i(s.steps), i(s.batch), i(directions * s.hidden), lengths.data(),
                      nullptr));
    const int sizes[] = {i(s.layers * directions), i(s.batch), i(s.hidden)};
    const int strides[] = {i(s.batch * s.hidden), i(s.hidden), 1};
    check(f.set_tensor(states, type, 3, sizes, strides));

    size_t inference = 0, training = 0, reserve = 0, none = 0, weights = 0;
    check(f.room(handle, net, 0, x, &inference, &none));
    check(f.room(handle, net, 1, x, &training, &reserve));
    check(f.weights_room(handle, net, &weights));
    const auto bytes = [](size_t n) { return static_cast<long long>(n); };
    room = {true, bytes(weights), bytes(inference), bytes(training), bytes(reserve)};
    find_places(handle, s);
  }

 private:
  // Places are found with a base that is no memory, and of which the library computes only.
  void find_places(Handle handle, const NetShape& s) {
    const NetFunctions& f = net_functions();
    const Described matrix(f.create_tensor, f.destroy_tensor), bias(f.create_tensor, f.destroy_tensor);
    char* const base = reinterpret_cast<char*>(size_t(1) << 32);
    const long long element = s.type == Scalar::f32 ? 4 : 2;
    for (int layer = 0; layer < s.layers * (s.both ? 2 : 1); ++layer)
      for (int product = 0; product < 2 * gates_of(s.kind); ++product) {
        void *matrix_at = nullptr, *bias_at = nullptr;
        check(f.place(handle, net, layer, static_cast<size_t>(room.weights), base, product, matrix, &matrix_at, bias,
                      &bias_at));
        for (void* at : {matrix_at, bias_at}) places.push_back((static_cast<char*>(at) - base) / element);
      }
  }
};

}  // namespace tessera::gpu_kernels::cudnn
