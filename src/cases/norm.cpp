#include "cases/cases.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

const std::vector<DType> kExact = {Float32, Float64};  // statistics are f32 beside half inputs, which a case cannot say

Shape outer(const Shape& x, size_t dims) { return Shape(x.begin(), x.end() - dims); }
Shape inner(const Shape& x, size_t dims) { return Shape(x.end() - dims, x.end()); }

OpCase layer_norm_case(std::string label, Shape x, size_t dims, bool weight, bool bias) {
  return {.op = "layer_norm",
          .label = std::move(label),
          .attrs = NormAttrs{},
          .inputs = [=](Generator& g) -> Tensors {
            return {uniform64(x, g, -2, 3), weight ? normal64(inner(x, dims), g) : Tensor(),
                    bias ? normal64(inner(x, dims), g) : Tensor()};
          },
          .gradients = 1u | weight << 1 | bias << 2};
}
OpCase rms_norm_case(std::string label, Shape x, bool weight) {
  return {.op = "rms_norm",
          .label = std::move(label),
          .attrs = NormAttrs{},
          .inputs = [=](Generator& g) -> Tensors {
            return {uniform64(x, g, -2, 3), weight ? normal64(inner(x, 1), g) : Tensor()};
          },
          .gradients = 1u | weight << 1};
}
OpCase layer_norm_backward_case(std::string label, Shape x, size_t dims, bool weight, bool dbias, bool addend) {
  NormAttrs attrs;
  attrs.dbias = dbias;
  return {.op = "layer_norm_backward",
          .label = std::move(label),
          .attrs = attrs,
          .inputs = [=](Generator& g) -> Tensors {
            return {normal64(x, g),
                    normal64(x, g),
                    weight ? normal64(inner(x, dims), g) : Tensor(),
                    normal64(outer(x, dims), g),
                    uniform64(outer(x, dims), g, 0.5, 2),
                    addend ? normal64(x, g) : Tensor()};
          },
          .dtypes = kExact};
}
OpCase add_layer_norm_case(std::string label, Shape x, size_t dims, bool branch_bias, bool weight, bool bias) {
  return {.op = "add_layer_norm",
          .label = std::move(label),
          .attrs = NormAttrs{},
          .inputs = [=](Generator& g) -> Tensors {
            const Shape columns = inner(x, dims);
            return {uniform64(x, g, -2, 3), normal64(x, g), branch_bias ? normal64(columns, g) : Tensor(),
                    weight ? normal64(columns, g) : Tensor(), bias ? normal64(columns, g) : Tensor()};
          },
          .gradients = 3u | branch_bias << 2 | weight << 3 | bias << 4};
}
OpCase add_layer_norm_backward_case(std::string label, Shape x, size_t dims, bool weight, bool dsum, bool branch_bias) {
  return {.op = "add_layer_norm_backward",
          .label = std::move(label),
          .attrs = NormAttrs{},
          .inputs = [=](Generator& g) -> Tensors {
            const Shape columns = inner(x, dims);
            return {normal64(x, g),
                    normal64(x, g),
                    weight ? normal64(columns, g) : Tensor(),
                    normal64(outer(x, dims), g),
                    uniform64(outer(x, dims), g, 0.5, 2),
                    dsum ? normal64(x, g) : Tensor(),
                    branch_bias ? normal64(columns, g) : Tensor()};
          },
          .dtypes = kExact};
}
OpCase rms_norm_backward_case(std::string label, Shape x, bool weight) {
  return {.op = "rms_norm_backward",
          .label = std::move(label),
          .attrs = NormAttrs{},
          .inputs = [=](Generator& g) -> Tensors {
            return {normal64(x, g), normal64(x, g), weight ? normal64(inner(x, 1), g) : Tensor(),
                    uniform64(outer(x, 1), g, 0.5, 2)};
          },
          .dtypes = kExact};
}

OpCase group_norm_case(std::string label, Shape x, int64_t groups, bool weight, bool bias) {
  return {
      .op = "group_norm",
      .label = std::move(label),
      .attrs = NormAttrs{.groups = groups},
      .inputs = [=](Generator& g) -> Tensors {
        return {uniform64(x, g, -2, 3), weight ? normal64({x[1]}, g) : Tensor(), bias ? normal64({x[1]}, g) : Tensor()};
      },
      .gradients = 1u | weight << 1 | bias << 2};
}
OpCase group_norm_backward_case(std::string label, Shape x, int64_t groups, bool weight) {
  return {.op = "group_norm_backward",
          .label = std::move(label),
          .attrs = NormAttrs{.groups = groups},
          .inputs = [=](Generator& g) -> Tensors {
            Shape statistics{x[0], Dim(groups)};
            return {normal64(x, g), normal64(x, g), weight ? normal64({x[1]}, g) : Tensor(), normal64(statistics, g),
                    uniform64(statistics, g, 0.5, 2)};
          },
          .dtypes = kExact,
          .symbolic = false};
}

OpCase batch_norm_case(std::string label, Shape x, bool weight, bool bias, bool relu = false, double high = INFINITY) {
  return {
      .op = "batch_norm",
      .label = std::move(label),
      .attrs = NormAttrs{.training = true, .relu = relu, .high = high},
      .inputs = [=](Generator& g) -> Tensors {
        return {uniform64(x, g, -2, 3), weight ? normal64({x[1]}, g) : Tensor(), bias ? normal64({x[1]}, g) : Tensor()};
      },
      .gradients = 1u | weight << 1 | bias << 2};
}
OpCase batch_norm_add_case(std::string label, Shape x, bool weight, bool bias, bool relu) {
  return {.op = "batch_norm_add",
          .label = std::move(label),
          .attrs = NormAttrs{.training = true, .relu = relu},
          .inputs = [=](Generator& g) -> Tensors {
            return {uniform64(x, g, -2, 3), normal64(x, g), weight ? normal64({x[1]}, g) : Tensor(),
                    bias ? normal64({x[1]}, g) : Tensor()};
          },
          .gradients = 3u | weight << 2 | bias << 3};
}
OpCase batch_norm_inference_case(std::string label, Shape x, bool weight, bool bias, bool relu, bool adds = false,
                                 double high = INFINITY) {
  return {.op = "batch_norm_inference",
          .label = std::move(label),
          .attrs = NormAttrs{.relu = relu, .high = high},
          .inputs = [=](Generator& g) -> Tensors {
            return {normal64(x, g),
                    normal64({x[1]}, g),
                    uniform64({x[1]}, g, 0.5, 2),
                    weight ? normal64({x[1]}, g) : Tensor(),
                    bias ? normal64({x[1]}, g) : Tensor(),
                    adds ? normal64(x, g) : Tensor()};
          },
          .gradients = 0b111u | weight << 3 | bias << 4 | adds << 5,
          .dtypes = kExact};
}
OpCase batch_norm_backward_case(std::string label, Shape x, bool weight, bool relu = false, bool training = true,
                                bool adds = false, double high = INFINITY) {
  return {.op = "batch_norm_backward",
          .label = std::move(label),
          .attrs = NormAttrs{.training = training, .relu = relu, .high = high},
          .inputs = [=](Generator& g) -> Tensors {
            return {normal64(x, g),
                    normal64(x, g),
                    weight ? normal64({x[1]}, g) : Tensor(),
                    normal64({x[1]}, g),
                    uniform64({x[1]}, g, 0.5, 2),
                    weight && relu ? normal64({x[1]}, g) : Tensor(),
                    adds ? normal64(x, g) : Tensor()};
          },
          .dtypes = kExact};
}

// 1x1 convolutions of what batch norm gives; `form`: without a norm, with one whose weight is absent, or with all.
enum class Form { Plain, Bare, Full };
OpCase norm_conv_case(std::string label, Shape x, int64_t filters, Form form, bool bias, bool training, bool relu,
                      int64_t rows = 1, int64_t columns = 1, ConvAttrs conv = {}) {
  const uint32_t norm = form == Form::Full ? 0b1100001u : 1u;
  return {.op = "norm_conv2d",
          .label = std::move(label),
          .attrs = NormConvAttrs{conv, {.training = training, .relu = relu}},
          .inputs = [=](Generator& g) -> Tensors {
            const Shape channel{x[1]};
            Tensors in{uniform64(x, g, -2, 3), normal64({Dim(filters), x[1] / conv.groups, Dim(rows), Dim(columns)}, g),
                       bias ? normal64({Dim(filters)}, g) : Tensor()};
            in.resize(7);
            if (form == Form::Plain) return in;
            in[3] = training ? mean(in[0], {0, 2, 3}) : normal64(channel, g);
            in[4] = training ? var(in[0], {0, 2, 3}) : uniform64(channel, g, 0.5, 2);
            if (form == Form::Full) in[5] = normal64(channel, g), in[6] = normal64(channel, g);
            return in;
          },
          .gradients = norm | 2u | bias << 2 | (form != Form::Plain && !training ? 0b11000u : 0u),
          .dtypes = kExact,
          .symbolic = false};
}
OpCase batch_norm_known_case(std::string label, Shape x, bool weight, bool relu, double high = INFINITY) {
  return {.op = "batch_norm_known",
          .label = std::move(label),
          .attrs = NormAttrs{.training = true, .relu = relu, .high = high},
          .inputs = [=](Generator& g) -> Tensors {
            const Tensor images = uniform64(x, g, -2, 3);
            return {images, mean(images, {0, 2, 3}), var(images, {0, 2, 3}), weight ? normal64({x[1]}, g) : Tensor(),
                    weight ? normal64({x[1]}, g) : Tensor()};
          },
          .gradients = weight ? 0b11001u : 1u,
          .dtypes = kExact};
}
OpCase norm_conv_grad_case(std::string label, Shape x, Shape dy, ConvAttrs conv, Form form, bool relu) {
  return {.op = "norm_conv2d_weight_grad",
          .label = std::move(label),
          .attrs = NormConvAttrs{conv, {.relu = relu}},
          .inputs = [=](Generator& g) -> Tensors {
            const Shape channel{x[1]};
            Tensors in{uniform64(x, g, -2, 3), normal64(dy, g)};
            in.resize(6);
            if (form == Form::Plain) return in;
            in[2] = normal64(channel, g);
            in[3] = uniform64(channel, g, 0.5, 2);
            if (form == Form::Full) in[4] = normal64(channel, g), in[5] = normal64(channel, g);
            return in;
          },
          .dtypes = kExact};
}

OpCase one_filter_backward_case(std::string label, Shape x, bool weight, bool training, bool relu) {
  return {.op = "norm_conv1x1_one_filter_backward",
          .label = std::move(label),
          .attrs = NormConvAttrs{{.size = {1, 1}}, {.training = training, .relu = relu}},
          .inputs = [=](Generator& g) -> Tensors {
            const Shape channel{x[1]};
            return {uniform64(x, g, -2, 3),
                    normal64({x[0], Dim(1), x[2], x[3]}, g),
                    normal64({Dim(1), x[1], Dim(1), Dim(1)}, g),
                    normal64(channel, g),
                    uniform64(channel, g, 0.5, 2),
                    weight ? normal64(channel, g) : Tensor(),
                    weight ? normal64(channel, g) : Tensor()};
          },
          .dtypes = kExact,
          .symbolic = false};
}

OpCase softmax_case(std::string_view op, std::string label, Shape x, int64_t dim) {
  return {.op = op,
          .label = std::move(label),
          .attrs = DimAttrs{dim},
          .inputs = [=](Generator& g) -> Tensors { return {uniform64(x, g, -5, 5)}; },
          .gradients = 1};
}
OpCase softmax_backward_case(std::string_view op, std::string label, Shape x, int64_t dim) {
  return {.op = op, .label = std::move(label), .attrs = DimAttrs{dim}, .inputs = [=](Generator& g) -> Tensors {
            return {normal64(x, g), uniform64(x, g, -1, 1)};
          }};
}

// Training of image networks: statistics and weights in f32 beside images of any type, whose elements are sums of two,
// which are soon made. The bytes are those of two passes.
void add_image_benchmarks(std::vector<OpCase>& cases, const Shape& shape, bool channels_last) {
  const auto images = [=](Generator& g) {
    const Tensor x = normal64({shape[0], Dim(1), shape[2], shape[3]}, g) + normal64({shape[1], Dim(1), Dim(1)}, g);
    return channels_last ? x.to(ChannelsLast) : x;
  };
  const auto channel = [=](Generator& g) { return uniform64({shape[1]}, g, 0.5, 2).to(Float32); };
  const std::string label = to_string(shape) + (channels_last ? " channels last" : " planes");
  const double pass = 4 * static_cast<double>(shape.numel().value());
  const auto add = [&](std::string_view op, const char* what, double passes, const auto& inputs) {
    const Attrs attrs = NormAttrs{.training = true, .relu = true};
    cases.push_back(
        {.op = op, .label = label + what, .attrs = attrs, .inputs = inputs, .benchmark = true, .bytes = passes * pass});
  };
  add("batch_norm", "", 3, [=](Generator& g) -> Tensors { return {images(g), channel(g), channel(g)}; });
  add("batch_norm_add", "", 4, [=](Generator& g) -> Tensors { return {images(g), images(g), channel(g), channel(g)}; });
  const auto backward = [=](Generator& g, bool adds) -> Tensors {
    return {images(g), images(g), channel(g), channel(g), channel(g), channel(g), adds ? images(g) : Tensor()};
  };
  add("batch_norm_backward", "", 5, [=](Generator& g) { return backward(g, false); });
  add("batch_norm_backward", " of a residual", 7, [=](Generator& g) { return backward(g, true); });
}

OpCase timed(OpCase c, double bytes) {
  c.benchmark = true;
  c.gradients = 0;
  c.bytes = bytes;
  return c;
}

}  // namespace

std::vector<OpCase> norm_cases() {
  constexpr double kBytes = 2.0 * 4096 * 768 * 4;  // read once, written once
  std::vector<OpCase> cases =
      {
          layer_norm_case("two columns", {3, 2}, 1, true, true),
          layer_norm_case("one row", {37}, 1, true, true),
          layer_norm_case("prime sizes", {7, 5, 53}, 1, true, true),
          layer_norm_case("without bias", {11, 129}, 1, true, false),
          layer_norm_case("without weight", {5, 31}, 1, false, false),
          layer_norm_case("over two dims", {3, 5, 7}, 2, true, true),
          layer_norm_case("wide", {2, 1031}, 1, true, true),
          layer_norm_case("no rows", {0, 5}, 1, true, true),
          layer_norm_case("whole packs", {70, 768}, 1, true, true),
          add_layer_norm_case("prime sizes", {7, 5, 53}, 1, true, true, true),
          add_layer_norm_case("only a sum and its norm", {11, 129}, 1, false, false, false),
          add_layer_norm_case("over two dims", {3, 5, 7}, 2, true, true, false),
          add_layer_norm_case("whole packs", {70, 768}, 1, true, true, true),
          add_layer_norm_case("no rows", {0, 5}, 1, true, true, true),
          add_layer_norm_backward_case("prime sizes", {7, 5, 53}, 1, true, true, true),
          add_layer_norm_backward_case("without weight", {5, 31}, 1, false, false, true),
          add_layer_norm_backward_case("over two dims", {67, 5, 7}, 2, true, true, false),
          add_layer_norm_backward_case("whole packs", {301, 768}, 1, true, true, true),
          layer_norm_backward_case("2056 columns", {37, 2056}, 1, true, true, true),
          layer_norm_backward_case("prime sizes", {7, 5, 53}, 1, true, true, true),
          layer_norm_backward_case("without weight", {5, 31}, 1, false, true, false),
          layer_norm_backward_case("over two dims", {67, 5, 7}, 2, true, false, true),
          layer_norm_backward_case("wide", {3, 1031}, 1, true, true, false),
          layer_norm_backward_case("whole packs", {301, 768}, 1, true, true, true),
          layer_norm_backward_case("1024 columns", {37, 1024}, 1, true, true, false),
          layer_norm_backward_case("a row of whole packs", {1, 64}, 1, false, true, true),
          rms_norm_case("one column", {3, 1}, true),
          rms_norm_case("prime sizes", {7, 5, 53}, true),
          rms_norm_case("without weight", {5, 129}, false),
          rms_norm_backward_case("prime sizes", {71, 53}, true),
          rms_norm_backward_case("without weight", {5, 31}, false),
          rms_norm_backward_case("whole packs", {67, 320}, true),
          group_norm_case("a group per channel", {2, 3, 5}, 3, true, true),
          group_norm_case("one group", {2, 5, 3, 7}, 1, true, true),
          group_norm_case("two groups", {3, 6, 5, 5}, 2, true, true),
          group_norm_case("without weight", {2, 4, 11}, 2, false, false),
          group_norm_case("no spatial dims", {5, 6}, 2, true, false),
          group_norm_backward_case("two groups", {3, 6, 5, 5}, 2, true),
          group_norm_backward_case("without weight", {2, 4, 11}, 2, false),
          group_norm_backward_case("no spatial dims", {5, 6}, 2, true),
          batch_norm_case("prime sizes", {3, 5, 7, 11}, true, true),
          batch_norm_case("no spatial dims", {13, 5}, true, true),
          batch_norm_case("without weight", {3, 2, 7}, false, false),
          batch_norm_case("relu", {3, 5, 7, 11}, true, true, true),
          batch_norm_case("relu without weight", {3, 2, 7}, false, false, true),
          batch_norm_case("in parts", {1, 2, 83, 1009}, true, true),
          batch_norm_case("pixels without planes", {21, 24, 1, 1}, true, true, true),
          batch_norm_case("relu up to 1.5", {3, 5, 7, 11}, true, true, true, 1.5),
          batch_norm_inference_case("relu up to 1.5", {4, 6, 14, 14}, true, true, true, false, 1.5),
          batch_norm_known_case("relu up to 1.5", {3, 5, 7, 11}, true, true, 1.5),
          batch_norm_backward_case("relu up to 1.5", {3, 5, 7, 11}, true, true, true, false, 1.5),
          batch_norm_backward_case("relu up to 1.5, given statistics", {4, 6, 14, 14}, true, true, false, false, 1.5),
          batch_norm_add_case("prime sizes", {3, 5, 7, 11}, true, true, true),
          batch_norm_add_case("without relu", {4, 6, 14, 14}, true, true, false),
          batch_norm_add_case("without weight", {3, 2, 7}, false, false, true),
          batch_norm_add_case("planes across packs", {5, 16, 7, 7}, true, true, true),
          batch_norm_backward_case("of a residual", {3, 5, 7, 11}, true, true, true, true),
          batch_norm_backward_case("of a residual, given statistics", {4, 6, 14, 14}, true, true, false, true),
          batch_norm_backward_case("of a residual, without weight", {5, 16, 7, 7}, false, true, true, true),
          batch_norm_inference_case("residual", {3, 5, 7, 11}, true, true, true, true),
          batch_norm_inference_case("residual without relu", {4, 6, 14, 14}, true, false, false, true),
          batch_norm_backward_case("prime sizes", {3, 5, 7, 11}, true),
          batch_norm_backward_case("no spatial dims", {13, 5}, true),
          batch_norm_backward_case("without weight", {3, 2, 7}, false),
          batch_norm_backward_case("relu", {3, 5, 7, 11}, true, true),
          batch_norm_backward_case("given statistics", {3, 5, 7, 11}, true, true, false),
          batch_norm_inference_case("prime sizes", {3, 5, 7, 11}, true, true, false),
          batch_norm_inference_case("relu", {2, 3, 4, 8}, true, true, true),
          batch_norm_inference_case("without weight", {13, 5}, false, false, false),
          batch_norm_backward_case("relu without weight", {3, 2, 7}, false, true),
          batch_norm_backward_case("in parts", {1, 2, 83, 1009}, true),
          {.op = "move_estimates_",
           .label = "a prime",
           .attrs = ScalarAttrs{0.1},
           .inputs = [](Generator& g) -> Tensors {
             const Shape channels{263};
             return {normal64(channels, g), uniform64(channels, g, 0.5, 2), normal64(channels, g),
                     uniform64(channels, g, 0.5, 2)};
           },
           .dtypes = kExact},
          batch_norm_known_case("prime sizes", {3, 5, 7, 11}, true, true),
          batch_norm_known_case("without weight", {2, 8, 4, 3}, false, false),
          norm_conv_case("prime sizes", {3, 5, 7, 11}, 13, Form::Full, true, true, true),
          norm_conv_case("without relu and bias", {2, 3, 4, 8}, 2, Form::Full, false, true, false),
          norm_conv_case("without weight", {2, 3, 4, 8}, 1, Form::Bare, true, true, true),
          norm_conv_case("without norm", {2, 2, 3, 5}, 7, Form::Plain, true, true, false),
          norm_conv_case("given statistics", {2, 3, 4, 8}, 5, Form::Full, true, false, true),
          norm_conv_case("given statistics, without weight", {1, 1, 3, 8}, 5, Form::Bare, false, false, false),
          norm_conv_case("windows", {2, 3, 5, 7}, 4, Form::Full, true, true, true, 3, 2, {.padding = {1, 1}}),
          norm_conv_case("windows apart, in groups", {2, 4, 7, 6}, 6, Form::Full, true, false, true, 2, 3,
                         {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2}),
          norm_conv_grad_case("prime sizes", {3, 5, 7, 11}, {3, 13, 7, 11}, {.size = {1, 1}}, Form::Full, true),
          norm_conv_grad_case("windows", {2, 3, 5, 7}, {2, 4, 5, 8}, {.padding = {1, 1}, .size = {3, 2}}, Form::Full,
                              true),
          norm_conv_grad_case("without weight", {2, 3, 4, 8}, {2, 1, 4, 8}, {.size = {1, 1}}, Form::Bare, false),
          one_filter_backward_case("prime sizes", {3, 5, 7, 11}, true, true, true),
          one_filter_backward_case("given statistics", {2, 3, 4, 8}, true, false, true),
          one_filter_backward_case("without relu", {2, 3, 4, 8}, true, true, false),
          one_filter_backward_case("without weight", {1, 2, 83, 1009}, false, true, true),
          norm_conv_grad_case("without norm", {2, 2, 3, 5}, {2, 7, 3, 5}, {.size = {1, 1}}, Form::Plain, false),
          timed(layer_norm_case("4096x768", {4096, 768}, 1, true, true), kBytes),
          timed(layer_norm_backward_case("12288x768", {12288, 768}, 1, true, true, true), kBytes),
          timed(softmax_case("softmax", "4096x768", {4096, 768}, -1), kBytes),
      };
  for (std::string_view op : {"softmax", "log_softmax"}) {
    cases.push_back(softmax_case(op, "one element", {1}, 0));
    cases.push_back(softmax_case(op, "last dim", {7, 53}, -1));
    cases.push_back(softmax_case(op, "wide", {3, 1031}, 1));
    cases.push_back(softmax_case(op, "first dim", {31, 5}, 0));
    cases.push_back(softmax_case(op, "middle dim", {3, 17, 5}, 1));
    cases.push_back(softmax_case(op, "no rows", {0, 5}, 1));
  }
  for (std::string_view op : {"softmax_backward", "log_softmax_backward"}) {
    cases.push_back(softmax_backward_case(op, "one element", {1}, 0));
    cases.push_back(softmax_backward_case(op, "last dim", {7, 53}, -1));
    cases.push_back(softmax_backward_case(op, "wide", {3, 1031}, 1));
    cases.push_back(softmax_backward_case(op, "first dim", {31, 5}, 0));
    cases.push_back(softmax_backward_case(op, "middle dim", {3, 17, 5}, 1));
  }
  for (const Shape& shape :
       {Shape{64, 64, 112, 112}, Shape{64, 256, 56, 56}, Shape{64, 512, 28, 28}, Shape{64, 1024, 14, 14},
        Shape{64, 2048, 7, 7}, Shape{128, 96, 112, 112}, Shape{128, 24, 56, 56}})
    add_image_benchmarks(cases, shape, true);
  for (const Shape& shape : {Shape{64, 256, 56, 56}, Shape{64, 1024, 14, 14}, Shape{64, 2048, 7, 7}})
    add_image_benchmarks(cases, shape, false);
  for (OpCase& c : cases)
    if (c.label == "no rows" || c.label == "in parts") c.gradients = 0;
  return cases;
}

}  // namespace tessera
