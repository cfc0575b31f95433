#include "core/gpu_check.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/autograd.h"
#include "tessera/ops_indexing.h"
#include "tessera/parallel.h"

namespace tessera {
namespace {

Tensor index(std::vector<int64_t> values) {
  auto n = static_cast<int64_t>(values.size());
  return tensor(values, {n});
}

TEST(Indexing, ReadsAndAddsAtPlaces) {
  Tensor x = arange(0, 12).reshape({3, 4});
  EXPECT_EQ(gather(x, 1, tensor<int64_t>({3, 0, 1, 1, 2, 2}, {3, 2})).to_vector<int64_t>(),
            (std::vector<int64_t>{3, 0, 5, 5, 10, 10}));
  EXPECT_EQ(index_select(x, 1, index({3, 3})).to_vector<int64_t>(), (std::vector<int64_t>{3, 3, 7, 7, 11, 11}));
  EXPECT_EQ(index_select(x.transpose(0, 1), 0, index({1})).to_vector<int64_t>(), (std::vector<int64_t>{1, 5, 9}));
  EXPECT_EQ(scatter_add(zeros({3}, Int64), 0, index({2, 0, 2}), index({5, 6, 7})).to_vector<int64_t>(),
            (std::vector<int64_t>{6, 0, 12}));
  EXPECT_EQ(one_hot(index({1, 0}), 3).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(embedding(tensor<int32_t>({2, 1}, {2}), x).to_vector<int64_t>(),
            (std::vector<int64_t>{8, 9, 10, 11, 4, 5, 6, 7}));
}

// Rows longer than one block of places, as they lie and turned round.
TEST(Indexing, FindsWhatIsNotZero) {
  Generator g(5);
  const Tensor x = where(gt(normal64({7, 1031}, g), full({}, 0.3)), full({}, NAN), full({}, 0.0));
  const std::vector<double> all = x.to_vector<double>();
  for (const bool turned : {false, true}) {
    std::vector<int64_t> wanted;
    for (int64_t i = 0; i < (turned ? 1031 : 7); ++i)
      for (int64_t j = 0; j < (turned ? 7 : 1031); ++j)
        if (all[static_cast<size_t>(turned ? j * 1031 + i : i * 1031 + j)] != 0) wanted.insert(wanted.end(), {i, j});
    EXPECT_EQ(nonzero(turned ? x.transpose(0, 1) : x).to_vector<int64_t>(), wanted) << turned;
  }
  EXPECT_EQ(to_string(nonzero(zeros({3, 5, 2})).shape()), "[0, 3]");
  EXPECT_EQ(nonzero(ones({2}, Bool)).to_vector<int64_t>(), (std::vector<int64_t>{0, 1}));
}

// Rows wider than a block of columns, by any number of threads; an index that repeats along them.
TEST(Indexing, AddsAndReadsWholeRows) {
  Generator g(6);
  constexpr int64_t rows = 5, width = 1237, count = 9;
  const Tensor x = normal64({rows, width}, g), source = normal64({count, width}, g), at = indices({count}, rows, g);
  std::vector<double> wanted = x.to_vector<double>();
  const std::vector<double> added = source.to_vector<double>();
  const std::vector<int64_t> places = at.to_vector<int64_t>();
  for (size_t i = 0; i < count; ++i)
    for (size_t c = 0; c < width; ++c) wanted[static_cast<size_t>(places[i]) * width + c] += added[i * width + c];
  const int before = num_threads();
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    EXPECT_EQ(index_add(x, 0, at, source).to_vector<double>(), wanted) << threads;
    EXPECT_EQ(
        index_add(x.transpose(0, 1), 1, at, source.transpose(0, 1)).transpose(0, 1).contiguous().to_vector<double>(),
        wanted);
  }
  set_num_threads(before);
  const Tensor repeated = expand(reshape(at, {count, 1}), {count, width});
  EXPECT_EQ(gather(x, 0, repeated).to_vector<double>(), index_select(x, 0, at).to_vector<double>());
}

// A slice of everything has its own gradient, without a copy into zeros.
TEST(Indexing, ASliceOfAllGivesItsGradientOn) {
  const Tensor x = ones({3, 4}).set_requires_grad(), seed = arange(0, 12).reshape({3, 4}).to(Float32);
  const Tensor y = slice(x, 1, 0, 4);
  EXPECT_EQ(grad({y}, {x}, {seed})[0].data_ptr(), seed.data_ptr());
  EXPECT_EQ(grad({sum(slice(x, 1, 0, 4, 3))}, {x})[0].to_vector<float>(),
            (std::vector<float>{1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1}));
}

TEST(Indexing, HandlesEmptyIndices) {
  EXPECT_EQ(to_string(embedding(zeros({0}, Int64), ones({3, 4})).shape()), "[0, 4]");
  EXPECT_EQ(to_string(gather(ones({3, 4}), 0, zeros({0, 4}, Int64)).shape()), "[0, 4]");
  EXPECT_EQ(sum(scatter_add(ones({3}), 0, zeros({0}, Int64), zeros({0}))).item(), 3);
  Tensor weight = ones({3, 4}).set_requires_grad();
  sum(embedding(zeros({0}, Int64), weight)).backward();
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(12, 0));
}

TEST(Indexing, GradientsOfEmbeddingDoNotDependOnThreads) {
  Generator g(7);
  Tensor where = indices({5003}, 17, g), weight = normal64({17, 33}, g).to(Float32),
         seed = normal64({5003, 33}, g).to(Float32);
  int before = num_threads();
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Tensor w = weight.detach().set_requires_grad();
    embedding(where, w).backward(seed);
    results.push_back(w.grad().to_vector<float>());
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Indexing, RefusesIndicesOutOfRange) {
  Tensor x = ones({3, 4});
  EXPECT_EQ(error_of([&] { gather(x, 0, full({3, 4}, 3, Int64)); }), "gather: index 3 is out of range for size 3");
  EXPECT_EQ(error_of([&] { gather(x, 0, full({3, 4}, -1, Int64)); }), "gather: index -1 is out of range for size 3");
  EXPECT_EQ(error_of([&] {
              scatter_add(x, 1, full({3, 4}, 4, Int64), x);
            }),
            "scatter_add: index 4 is out of range for size 4");
  EXPECT_EQ(error_of([&] { index_select(x, 0, index({0, 9})); }), "index_select: index 9 is out of range for size 3");
  EXPECT_EQ(error_of([&] { embedding(index({int64_t{1} << 60}), x); }),
            "embedding: index 1152921504606846976 is out of range for size 3");
  EXPECT_EQ(error_of([&] { one_hot(index({2}), 2); }), "one_hot: index 2 is out of range for size 2");
}

TEST(Indexing, NamesTheRuleThatIsBroken) {
  Tensor x = ones({3, 4});
  EXPECT_EQ(error_of([&] { gather(x, 0, ones({3, 4})); }), "gather: the index is f32, not i64 or i32");
  EXPECT_EQ(error_of([&] {
              gather(x, 0, zeros({3, 5}, Int64));
            }),
            "gather: the index [3, 5] does not fit [3, 4] outside of dim 0");
  EXPECT_EQ(error_of([&] { gather(x, 0, index({0})); }), "gather: the index [1] does not fit [3, 4] outside of dim 0");
  EXPECT_EQ(error_of([&] {
              scatter_add(x, 0, zeros({3, 4}, Int64), ones({2, 4}));
            }),
            "scatter_add: the source must be like the index [3, 4] and of dtype f32, not f32[2, 4] on cpu");
  EXPECT_EQ(error_of([&] { scatter_add(ones({}), 0, zeros({}, Int64), ones({})); }),
            "scatter_add: dim 0 is out of range for []");
  EXPECT_EQ(error_of([&] { index_select(x, 0, zeros({1, 1}, Int64)); }), "index_select: the index [1, 1] is not 1-d");
  EXPECT_EQ(error_of([&] { embedding(index({0}), ones({3})); }), "embedding: the weight [3] is not [rows, width]");
  EXPECT_EQ(error_of([&] { embedding(index({0}), {}); }), "embedding: input 1 is undefined");
  EXPECT_EQ(error_of([&] { one_hot(index({0}), 0); }), "one_hot: 0 classes");
}

TEST(Indexing, AGradientOfAnEmbeddingHasARowForEachIndex) {
  const Tensor where = index({0, 2});
  EXPECT_EQ(error_of([&] {
              dispatch(find_op("embedding_backward"), {where, ones({3, 4})}, ScatterAttrs{0, 5, 0, 1});
            }),
            "embedding_backward: the gradient [3, 4] has not a row for each index of [2]");
  EXPECT_EQ(error_of([&] {
              dispatch(find_op("embedding_backward_"), {ones({5, 4}), where, ones({2, 1, 4})}, {});
            }),
            "embedding_backward_: the gradient [2, 1, 4] has not a row for each index of [2]");
}

class GpuEmbedding : public GpuTest {};

// Rows of few entries and of many go to different kernels.
TEST_F(GpuEmbedding, GradientsOfAnyNumberOfEntries) {
  Generator g(5);
  const Op& op = find_op("embedding_backward");
  std::vector<int64_t> rows;
  for (int64_t row = 0; const int64_t entries : {1, 31, 0, 32, 33, 7, 34, 1000, 65, 2, 1500, 8})
    rows.resize(rows.size() + static_cast<size_t>(entries), row++ * 301);
  std::vector<int64_t> mixed(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) mixed[i * 1009 % rows.size()] = rows[i];
  const Tensor where = tensor(mixed, {static_cast<int64_t>(mixed.size())});
  for (int64_t width : {1, 131, 132}) {
    const ScatterAttrs attrs{0, 3312, 0, 1};
    const Tensor gradient = randn({where.numel(), width}, g);
    const Tensor want = dispatch(op, {where, gradient.to(Float64)}, attrs)[0];
    const auto made = [&] { return dispatch(op, {where.to(card()), gradient.to(card())}, attrs)[0].to(cpu()); };
    const Tensor got = made();
    EXPECT_LE(relative_error(got, want), 1e-6) << width;
    EXPECT_EQ(got.to_vector<float>(), made().to_vector<float>()) << width;
  }
}

// Rows that are summed may lie anywhere: what lies between them stays.
TEST_F(GpuEmbedding, GradientsGoToRowsWithGaps) {
  Generator g(3);
  const Op& op = find_op("embedding_backward");
  const Tensor where = index({4, 0, 4, 2}), gradient = randn({4, 8}, g);
  const Tensor want = dispatch(op, {where, gradient}, ScatterAttrs{0, 5, 0, 1})[0];
  for (const Strides& strides : {Strides{12, 1}, {16, 2}, {1, 5}}) {
    const Tensor memory = full({80}, 7.0, Float32, card());
    const Tensor out = as_strided(memory.storage(), {5, 8}, strides, 0, Float32);
    const Tensor in[] = {where.to(card()), gradient.to(card())};
    run_op(op, in, ScatterAttrs{0, 5, 0, 1}, {&out, 1});
    EXPECT_LE(relative_error(out.to(cpu()), want), 1e-6);
    EXPECT_EQ(sum(eq(memory, full({}, 7.0, Float32, card()))).item(), 40);
  }
}

}  // namespace
}  // namespace tessera
