// Functions that have kernels of their own on GPUs, which are compiled when they are first called.
#include <cmath>
#include <functional>
#include <tuple>

#include "core/gpu_check.h"
#include "ops/on_card.h"
#include "tessera/autograd.h"
#include "tessera/ops_image.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_loss.h"
#include "tessera/ops_math.h"
#include "tessera/ops_pool.h"
#include "tessera/ops_shape.h"
#include "tessera/ops_signal.h"

namespace tessera {
namespace {

// The vendors' compilers need no card.
TEST(OnCard, EveryKernelIsCompiled) {
  ASSERT_GE(CardKernel::all().size(), 7u);
  int compilers = 0;
  for (const auto& [type, architecture] :
       {std::pair(DeviceType::CUDA, "sm_90"), std::pair(DeviceType::HIP, "gfx90a")}) {
    try {
      gpu::vendor_compiler(type);
    } catch (const Error&) {
      continue;
    }
    ++compilers;
    for (const CardKernel* kernel : CardKernel::all())
      EXPECT_GT(gpu::machine_code(kernel->program(Float32), type, architecture).size(), 1000u) << kernel->name();
  }
  if (compilers == 0) GTEST_SKIP() << "no compiler of a vendor";
}

class OnCardTest : public GpuTest {};

void expect_near(const Tensor& got, const Tensor& want, double limit, const std::string& what) {
  ASSERT_EQ(got.dtype(), want.dtype()) << what;
  ASSERT_EQ(to_string(got.shape()), to_string(want.shape())) << what;
  const auto a = got.detach().to(cpu()).to_vector<double>(), b = want.detach().to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE((a[i] != a[i] && b[i] != b[i]) || a[i] == b[i] || std::abs(a[i] - b[i]) <= limit * (1 + std::abs(b[i])))
        << what << ", element " << i << ": " << a[i] << ", not " << b[i];
}

using Scan = Tensor (*)(const Tensor&, int64_t);

TEST_F(OnCardTest, ScansAsTheCpu) {
  const std::pair<const char*, Scan> scans[] = {
      {"cummax", [](const Tensor& x, int64_t dim) { return cummax(x, dim).first; }},
      {"cummin", [](const Tensor& x, int64_t dim) { return cummin(x, dim).first; }},
      {"cumprod", [](const Tensor& x, int64_t dim) { return cumprod(x, dim); }},
      {"logcumsumexp", [](const Tensor& x, int64_t dim) { return logcumsumexp(x, dim); }}};
  Generator g(1);
  for (const auto& [name, scan] : scans)
    for (const DType dtype : {Float32, Float64, BFloat16})
      for (const Shape& shape : {Shape{1, 1}, Shape{7, 31}, Shape{300, 33}, Shape{3, 1000}, Shape{5, 64, 7},
                                 Shape{3, 5000}, Shape{5000, 3}, Shape{1, 9001}})
        for (const int64_t dim : {int64_t{0}, int64_t{1}, int64_t(shape.size()) - 1}) {
          const std::string what = std::string(name) + " " + to_string(shape) + " dim " + std::to_string(dim) + " " +
                                   std::string(tessera::name(dtype));
          const Tensor x = cast(rand(shape, g, Float64) * 0.6 + 0.7, dtype),
                       weight = cast(rand(shape, g, Float64), dtype);
          const Tensor here = x.clone().set_requires_grad(), there = x.to(card()).set_requires_grad();
          const Tensor want = scan(here, dim), got = scan(there, dim);
          const double limit = dtype == BFloat16 ? 2e-2 : dtype == Float64 ? 1e-10 : 2e-5;
          expect_near(got, want, limit, what);
          expect_near(grad({got}, {there}, {weight.to(card())})[0], grad({want}, {here}, {weight})[0], 4 * limit,
                      what + ", gradient");
        }
  const Tensor x = tensor<float>({1, NAN, 3, -INFINITY, 3, 2}, {6}), y = x.to(card());
  for (const bool largest : {true, false}) {
    const auto want = largest ? cummax(x, 0) : cummin(x, 0), got = largest ? cummax(y, 0) : cummin(y, 0);
    expect_near(got.first, want.first, 0, "values");
    expect_near(got.second, want.second, 0, "places");
  }
}

TEST_F(OnCardTest, SearchesAndCountsAsTheCpu) {
  Generator g(2);
  for (const DType dtype : {Float32, Float16, Int32, Int64}) {
    const Tensor numbers = cast(floor(rand({4, 100}, g, Float64) * 50.0), dtype);
    const Tensor sorted = sort(numbers, 1).first, wanted = cast(rand({4, 33}, g, Float64) * 50.0, dtype);
    for (const bool right : {false, true}) {
      const std::string what = std::string(name(dtype)) + (right ? " right" : " left");
      expect_near(searchsorted(sorted.to(card()), wanted.to(card()), right), searchsorted(sorted, wanted, right), 0,
                  what);
      const Tensor one = select(sorted, 0, 1);
      expect_near(bucketize(wanted.to(card()), one.to(card()), right), bucketize(wanted, one, right), 0, what);
    }
  }
  const Tensor x = randn({10'000}, g, Float32);
  for (const int64_t bins : {1, 50, 5000})
    expect_near(histc(x.to(card()), bins, -2, 2), histc(x, bins, -2, 2), 0, std::to_string(bins));
  const Tensor few = cast(floor(rand({70'000}, g, Float64) * 1000.0), Int64);
  const UniqueAlong want = unique_along(few, 0), got = unique_along(few.to(card()), 0);
  expect_near(got.values, want.values, 0, "values");
  expect_near(got.inverse, want.inverse, 0, "inverse");
  expect_near(got.counts, want.counts, 0, "counts");
}

TEST_F(OnCardTest, FourierTransformsAsTheCpu) {
  Generator g(2);
  for (const DType dtype : {Float32, Float64, BFloat16})
    for (const int64_t length : {1, 2, 3, 7, 12, 15, 60, 256, 400, 1000, 2048, 2500})
      for (const int64_t parts : {1, 2})
        for (const bool inverse : {false, true})
          for (const bool onesided : {false, true}) {
            if (onesided && (inverse ? parts == 1 || length < 2 : parts == 2)) continue;
            const int64_t in = inverse && onesided ? length / 2 + 1 : length;
            const std::string what = "length " + std::to_string(length) + ", " + std::to_string(parts) + " parts" +
                                     (inverse ? ", inverse" : "") + (onesided ? ", onesided " : " ") +
                                     std::string(tessera::name(dtype));
            const FourierOptions o{.length = length, .inverse = inverse, .onesided = onesided};
            const Tensor x = cast(randn({5, in, parts}, g, Float64), dtype);
            const Tensor here = x.to(Float64).clone().set_requires_grad(), there = x.to(card()).set_requires_grad();
            const Tensor want = dft(here, 1, o), got = dft(there, 1, o);
            const double scale = inverse ? 1.0 : std::sqrt(static_cast<double>(length));
            const double limit = scale * (dtype == BFloat16 ? 3e-2 : dtype == Float64 ? 1e-11 : 1e-5);
            expect_near(cast(got.detach(), Float64), want, limit, what);
            const Tensor weight = cast(randn(want.shape(), g, Float64), dtype);
            const Tensor back = grad({got}, {there}, {weight.to(card())})[0];
            expect_near(cast(back, Float64), grad({want}, {here}, {cast(weight, Float64)})[0], 4 * limit,
                        what + ", gradient");
          }
}

// Lines sorted at once and by bytes; numbers that are no usual ones come back as they were.
TEST_F(OnCardTest, SortsValuesAsTheCpu) {
  Generator g(7);
  for (const DType dtype : {Float32, Float64, Float16, BFloat16, Int32, Int64, UInt8})
    for (const int64_t size : {1, 130, 4096, 4097, 70001}) {
      const std::string what = std::string(tessera::name(dtype)) + " " + std::to_string(size);
      Tensor x = dtype == UInt8 ? cast(randint(0, 256, {3, size}, g), dtype)
                                : cast(randn({3, size}, g, Float64) * 50.0, dtype);
      if (is_floating(dtype) && size > 4)
        x = concat({x, expand(cast(tensor<double>({NAN, -INFINITY, -0.0, 0.0, INFINITY}, {1, 5}), dtype), {3, 5})}, 1);
      const auto expect_same = [&](const Tensor& there, const Tensor& here) {
        const auto got = cast(there, Float64).to_vector<double>(), want = cast(here, Float64).to_vector<double>();
        ASSERT_EQ(got.size(), want.size()) << what;
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_TRUE(got[i] == want[i] || (got[i] != got[i] && want[i] != want[i])) << what << " at " << i;
      };
      expect_same(sort_values(x.to(card()), 1), sort(x, 1).first);
      expect_same(unique(x.to(card()), false).values, unique(x).values);
    }
  const Tensor zeros_of_both = tensor<float>({0.0f, -0.0f, 1.0f, -0.0f}, {4}).to(card());
  EXPECT_TRUE(std::signbit(sort_values(zeros_of_both).to_vector<float>()[0]));
}

// Sizes at which lines and tiles end: of counts, places and running sums.
TEST_F(OnCardTest, CountsAndPlacesAsTheCpu) {
  Generator g(3);
  for (const int64_t size : {1, 31, 256, 2049, 16383, 70001}) {
    SCOPED_TRACE(size);
    const Tensor ints = randint(0, size > 1000 ? 6000 : 7, {size}, g), there = ints.to(card());
    const Unique want = unique(ints), got = unique(there);
    expect_near(got.values, want.values, 0, "values");
    expect_near(got.inverse, want.inverse, 0, "inverse");
    expect_near(got.counts, want.counts, 0, "counts");
    expect_near(unique(there, false).values, want.values, 0, "values alone");
    expect_near(unique(neg(there).to(Int32), false).values, unique(neg(ints).to(Int32), false).values, 0,
                "negative values");
    const Tensor far = add(ints, tensor<int64_t>({int64_t(1) << 60}, {1}));
    EXPECT_EQ(unique(far.to(card())).values.to_vector<int64_t>(), unique(far).values.to_vector<int64_t>());
    const Tensor wide = mul(ints, tensor<int64_t>({1 << 20}, {1}));  // sorted, not counted
    EXPECT_EQ(unique(wide.to(card())).inverse.to_vector<int64_t>(), want.inverse.to_vector<int64_t>());
    expect_near(bincount(there), bincount(ints), 0, "bincount");
    expect_near(bincount(there.to(Int32), {}, 9000), bincount(ints, {}, 9000), 0, "bincount, at least 9000");
    const Tensor mask = lt(rand({size}, g), full({}, 0.3));
    expect_near(nonzero(mask.to(card())), nonzero(mask), 0, "nonzero");
    expect_near(cumsum(there, 0), cumsum(ints, 0), 0, "cumsum of integers");
    const Tensor x = randn({size}, g);
    expect_near(cumsum(x.to(card()), 0), cumsum(x, 0), 1e-6, "cumsum");
    const Tensor rows = randn({3, size}, g), of_rows = rows.to(card());
    expect_near(cumsum(of_rows, 1), cumsum(rows, 1), 1e-6, "cumsum of rows");
    const Tensor here = x.clone().set_requires_grad(), on = x.to(card()).set_requires_grad(), weight = randn({size}, g);
    const Tensor slope = grad({sort(here, 0, true).first}, {here}, {weight})[0];
    expect_near(grad({sort(on, 0, true).first}, {on}, {weight.to(card())})[0], slope, 0, "gradient of sort");
  }
  EXPECT_THROW(bincount(full({1}, -1, Int64, card())), Error);
}

TEST_F(OnCardTest, FoldsWindowsAsTheCpu) {
  Generator g(4);
  for (const auto& [size, stride, dilation] : {std::tuple(9, 4, 1), {256, 64, 1}, {3, 1, 2}, {4, 6, 1}, {1, 1, 1}})
    for (const int64_t dim : {0, 1}) {
      SCOPED_TRACE(size);
      const Tensor x = randn({700, 701}, g);
      const Tensor here = x.clone().set_requires_grad(), there = x.to(card()).set_requires_grad();
      const Tensor want = sliding_windows(here, {dim}, {size}, {stride}, {dilation});
      const Tensor got = sliding_windows(there, {dim}, {size}, {stride}, {dilation});
      const Tensor weight = randn(want.shape(), g);
      expect_near(grad({got}, {there}, {weight.to(card())})[0], grad({want}, {here}, {weight})[0], 1e-5, "gradient");
    }
}

// Of a value and its gradient by x, where weights are drawn for the value.
void expect_same(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, double limit, const std::string& what,
                 Generator& g) {
  const Tensor here = x.clone().set_requires_grad(), there = x.to(card()).set_requires_grad();
  const Tensor want = f(here), got = f(there), weight = rand(want.shape(), g, want.dtype());
  expect_near(got, want, limit, what);
  expect_near(grad({got}, {there}, {weight.to(card())})[0], grad({want}, {here}, {weight})[0], 4 * limit,
              what + ", gradient");
}

TEST_F(OnCardTest, MarginsAndDistancesAsTheCpu) {
  Generator g(4);
  for (const DType dtype : {Float32, Float64})
    for (const auto& [rows, classes] : {std::pair<int64_t, int64_t>{1, 1}, {9, 5}, {70, 33}, {13, 300}, {3, 4096}}) {
      const double limit = dtype == Float64 ? 1e-12 : 1e-5;
      const std::string what = std::to_string(rows) + " x " + std::to_string(classes) + " " + std::string(name(dtype));
      const Tensor x = randn({rows, classes}, g, dtype), target = randint(0, classes, {rows}, g);
      const Tensor weight = rand({classes}, g, dtype);
      const auto on = [](const Tensor& t, const Tensor& like) { return t.to(like.device()); };
      for (const int64_t p : {1, 2})
        expect_same(
            [&, p = p](const Tensor& v) {
              return multi_margin_loss(v, on(target, v), p, 0.7, on(weight, v), Reduction::None);
            },
            x, limit, "multi_margin_loss " + what, g);
      const Tensor lists = where(lt(rand({rows, classes}, g), full({}, 0.1)), full({}, -1.0, Int64),
                                 randint(0, classes, {rows, classes}, g));  // classes may come twice
      expect_same([&](const Tensor& v) { return multilabel_margin_loss(v, on(lists, v), Reduction::None); }, x,
                  10 * limit, "multilabel_margin_loss " + what, g);
      expect_same([&](const Tensor& v) { return pdist(v); }, x, limit, "pdist " + what, g);
    }
  const Tensor same = full({3, 4}, 2.0, Float32, card()).set_requires_grad();
  expect_near(grad({sum(pdist(same))}, {same})[0], zeros({3, 4}), 0, "gradient of distances of 0");
  EXPECT_EQ(pdist(zeros({1, 3}, Float32, card())).numel(), 0);
}

TEST_F(OnCardTest, RefusesClassesThatAreNone) {
  const Tensor x = zeros({2, 3}, Float32, card());
  const auto read = [](const Tensor& t) { t.to(cpu()).to_vector<float>(); };
  EXPECT_THROW(read(multi_margin_loss(x, tensor<int64_t>({0, 3}, {2}).to(card()))), Error);
  EXPECT_THROW(read(multilabel_margin_loss(x, tensor<int64_t>({0, 1, 2, 3, -1, 0}, {2, 3}).to(card()))), Error);
}

TEST_F(OnCardTest, LogarithmsOfGammaAsTheCpu) {
  Generator g(5);
  for (const DType dtype : {Float32, Float64, BFloat16}) {
    const Tensor x = cast(randn({777}, g, Float64) * 4.0, dtype);
    expect_same([](const Tensor& v) { return lgamma(v); }, x,
                dtype == BFloat16  ? 2e-2
                : dtype == Float64 ? 1e-11
                                   : 1e-4,
                std::string(name(dtype)), g);
  }
  expect_near(lgamma(tensor<float>({0, -3, INFINITY, -INFINITY, 1, 2}, {6}).to(card())),
              tensor<float>({INFINITY, INFINITY, INFINITY, INFINITY, 0, 0}, {6}), 0, "ends");
}

TEST_F(OnCardTest, FunctionsOfTheVendorAsTheCpu) {
  Generator g(15);
  const auto near_half = [](const Tensor& x) { return x * 0.23 + 0.1; };
  const std::pair<const char*, std::function<Tensor(const Tensor&)>> functions[] = {
      {"sinh", sinh},
      {"cosh", cosh},
      {"asinh", asinh},
      {"acosh", [](const Tensor& x) { return acosh(abs(x) + 1.05); }},
      {"atanh", [=](const Tensor& x) { return atanh(near_half(x)); }},
      {"asin", [=](const Tensor& x) { return asin(near_half(x)); }},
      {"acos", [=](const Tensor& x) { return acos(near_half(x)); }},
      {"erfinv", [=](const Tensor& x) { return erfinv(near_half(x)); }},
      {"tan", [=](const Tensor& x) { return tan(near_half(x)); }},
      {"atan2", [](const Tensor& x) { return atan2(x, flip(x, {0})); }},
      {"hypot", [](const Tensor& x) { return hypot(x, flip(x, {0})); }}};
  for (const auto& [what, f] : functions)
    for (const DType dtype : {Float32, Float64, BFloat16}) {
      const double limit = dtype == BFloat16 ? 2e-2 : dtype == Float64 ? 1e-12 : 1e-5;
      for (const Shape& shape : {Shape{2051}, Shape{300, 85}})
        expect_same(f, clamp(cast(randn(shape, g, Float64), dtype), -3, 3), limit, what, g);
    }
}

TEST_F(OnCardTest, PlacesOfEveryKindAsTheCpu) {
  Generator g(6);
  const Tensor few = floor(rand({37, 5, 130}, g, Float64) * 3.0) - 1.0;
  for (const DType dtype : {Float32, Float64, Float16, BFloat16, Int64, Int32, Int8, UInt8, Bool}) {
    const Tensor x = cast(dtype == UInt8 ? abs(few) : few, dtype), there = x.to(card());
    expect_near(nonzero(there), nonzero(x), 0, std::string(name(dtype)));
    expect_near(nonzero(transpose(there, 0, 2)), nonzero(transpose(x, 0, 2)), 0, "turned " + std::string(name(dtype)));
    const auto part = [](const Tensor& t) { return slice(select(t, 1, 2), 1, 3, 100); };  // rows with gaps
    expect_near(nonzero(part(there)), nonzero(part(x)), 0, "rows of " + std::string(name(dtype)));
  }
  const Tensor odd = tensor<float>({-0.0f, NAN, 0, -INFINITY, 1e-45f}, {5});
  expect_near(nonzero(odd.to(card())), nonzero(odd), 0, "zeros with a sign, NaN, the smallest number");
  for (const auto& [rows, columns, offset] :
       {std::tuple<int64_t, int64_t, int64_t>{5, 5, 0}, {3, 7, 2}, {7, 3, -4}, {4, 4, 9}, {0, 3, 0}})
    expect_near(eye(rows, columns, offset, Float32, card()), eye(rows, columns, offset), 0, "eye");
}

// Values and gradients of a function on the card are those on the host, in f32 and f64, of rows with gaps, too.
void expect_as_the_cpu(const std::function<Tensor(const Tensor&)>& f, const Tensor& exact, const std::string& what,
                       double limit = 1e-10) {
  for (const DType dtype : {Float64, Float32}) {
    const Tensor x = cast(exact, dtype), here = x.clone().set_requires_grad(), there = x.to(card()).set_requires_grad();
    const Tensor want = f(here), got = f(there);
    const double most = dtype == Float64 ? limit : std::sqrt(limit);
    expect_near(got, want, most, what);
    Generator g(17);
    const Tensor weight = cast(rand(want.shape(), g, Float64), dtype);
    expect_near(grad({got}, {there}, {weight.to(card())})[0], grad({want}, {here}, {weight})[0], 10 * most,
                what + ", gradient");
  }
}

TEST_F(OnCardTest, SmallMatricesAsTheCpu) {
  Generator g(21);
  for (const int64_t n : {1, 2, 7, 16, 17})
    for (const int64_t batch : {1, 300}) {
      const Tensor root = rand({batch, n, n}, g, Float64), b = rand({n, 3}, g, Float64);
      const Tensor x = matmul(root, transpose(root, 1, 2)) * (1.0 / static_cast<double>(n)) + eye(n, -1, 0, Float64);
      const auto on = [](const Tensor& t, const Tensor& like) { return cast(t, like.dtype()).to(like.device()); };
      const std::string what = std::to_string(batch) + " of " + std::to_string(n);
      expect_as_the_cpu([](const Tensor& a) { return det(a); }, x, "det, " + what, 1e-11);
      expect_as_the_cpu([](const Tensor& a) { return inverse(a); }, x, "inverse, " + what, 1e-11);
      expect_as_the_cpu([](const Tensor& a) { return cholesky(a); }, x, "cholesky, " + what, 1e-11);
      expect_as_the_cpu([&](const Tensor& a) { return solve(a, on(b, a)); }, x, "solve, " + what, 1e-11);
      expect_as_the_cpu([&](const Tensor& a) { return solve(on(x, a), a); }, rand({batch, n, 5}, g, Float64),
                        "solve for b, " + what, 1e-11);
    }
  const Tensor singular = tensor<double>({1, 2, 2, 4}, {1, 2, 2}).to(card());
  EXPECT_TRUE(all(isnan(inverse(singular))).item<bool>());
  EXPECT_TRUE(all(isnan(cholesky(-singular))).item<bool>());
  const Tensor leaf = singular.detach().set_requires_grad();
  EXPECT_EQ(grad({det(leaf)}, {leaf}, {ones({1}, Float64, card())})[0].to(cpu()).to_vector<double>(),
            (std::vector<double>{4, -2, -2, 1}));
}

TEST_F(OnCardTest, LikelihoodsAsTheCpu) {
  Generator g(22);
  for (const Shape& shape : {Shape{1, 2}, Shape{300, 37}, Shape{5000, 3}}) {
    const Tensor x = log(rand(shape, g, Float64) * 0.9 + 0.05), weight = rand({shape[1]}, g, Float64);
    Tensor target = cast(floor(rand({shape[0]}, g, Float64) * static_cast<double>(shape[1].value())), Int64);
    target = where(eq(target, full({}, 1, Int64)), full({}, -100, Int64), target);
    target = concat({zeros({1}, Int64), slice(target, 0, Dim(1), shape[0])}, 0);
    for (const bool weighted : {false, true})
      for (const Reduction r : {Reduction::None, Reduction::Sum, Reduction::Mean})
        expect_as_the_cpu(
            [&](const Tensor& t) {
              const Tensor w = weighted ? cast(weight, t.dtype()).to(t.device()) : Tensor();
              return nll_loss(t, target.to(t.device()), w, -100, r);
            },
            x, "nll_loss " + to_string(shape), 1e-11);
  }
  const Tensor logs = zeros({2, 3}, Float32, card());
  for (const int64_t wrong : {3, -1}) {
    const Tensor target = tensor<int64_t>({0, wrong}, {2}).to(card());
    EXPECT_THROW(nll_loss(logs, target).item(), Error) << wrong;
    EXPECT_THROW(multi_margin_loss(logs, target).item(), Error) << wrong;
  }
  EXPECT_THROW(multilabel_margin_loss(logs, tensor<int64_t>({0, -1, 0, 1, 3, 0}, {2, 3}).to(card())).item(), Error);
  const Tensor on_the_host = zeros({2}, Int64);
  EXPECT_THROW(nll_loss(logs, on_the_host), Error);
  EXPECT_THROW(nll_loss(logs, on_the_host.to(card()), ones({3})), Error);
  EXPECT_THROW(multi_margin_loss(logs, on_the_host), Error);
  EXPECT_THROW(multilabel_margin_loss(logs, zeros({2, 3}, Int64)), Error);
}

TEST_F(OnCardTest, MeansOfAdaptiveWindowsAsTheCpu) {
  Generator g(23);
  const std::pair<Shape, Dims> cases[] = {{{2, 3, 100}, {7}},
                                          {{1, 1, 5}, {9}},
                                          {{2, 5, 64, 37}, {5, 5}},
                                          {{1, 3, 7, 11}, {7, 4}},
                                          {{2, 2, 13, 8, 9}, {3, 5, 2}},
                                          {{1, 2, 4, 5, 6}, {8, 3, 6}}};
  for (const auto& [shape, sizes] : cases)
    expect_as_the_cpu([&, &sizes = sizes](const Tensor& x) { return adaptive_avg_pool(x, sizes); },
                      rand(shape, g, Float64), to_string(shape));
}

TEST_F(OnCardTest, VolumesAreResizedAsOnTheCpu) {
  Generator g(24);
  for (const double scale : {2.0, 0.5, 3.0, 7.0}) {
    expect_as_the_cpu(
        [&](const Tensor& x) {
          return resize_by(x, {2, 3, 4}, {scale, scale, scale});
        },
        rand({2, 3, 5, 6, 7}, g, Float64), std::to_string(scale));
  }
}

TEST_F(OnCardTest, MediansAsTheCpu) {
  Generator g(25);
  for (const DType dtype : {Float32, Float64, BFloat16, Int32})
    for (const Shape& shape : {Shape{1, 1}, Shape{70, 5}, Shape{50, 33}, Shape{3, 512}, Shape{2, 513}, Shape{2, 4096},
                               Shape{2, 4097}, Shape{2, 40'000}, Shape{4, 17, 6}, Shape{4, 100, 3}}) {
      const Tensor drawn = cast(randn(shape, g, Float64) * 40.0, dtype);
      Tensor x = shape[0] == Dim(2) ? drawn : cast(floor(drawn), dtype);  // with equals
      if (is_floating(dtype)) x = where(eq(x, full({}, 3, x.dtype())), full({}, NAN, x.dtype()), x);
      for (const bool is_median : {true, false}) {
        const auto run = [&](const Tensor& t) {
          return is_median ? median(t, 1) : kthvalue(t, (t.size(1) + 2) / 3, 1);
        };
        const auto want = run(x), got = run(x.to(card()));
        expect_near(got.first, want.first, 0, to_string(shape));
        expect_near(got.second, want.second, 0, to_string(shape) + ", places");
      }
      for (const Tensor& all : {x, drawn}) expect_near(median(all.to(card())), median(all), 0, "of all");
    }
}

TEST_F(OnCardTest, OnesOnTheDiagonalsOfLargeMatrices) {
  for (const int64_t offset : {0, 3, -5})
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1911, 1911}, {1500, 2047}, {7, 3}})
      expect_near(eye(rows, columns, offset, Float32, card()), eye(rows, columns, offset), 0, "eye");
}

TEST_F(OnCardTest, NumbersBetweenTwoAsTheCpu) {
  for (const int64_t steps : {2, 3, 1000, 1001})
    for (const DType dtype : {Float32, Float64})
      expect_near(linspace(-1.5, 2.25, steps, dtype, card()), linspace(-1.5, 2.25, steps, dtype), 1e-15, "linspace");
}

}  // namespace
}  // namespace tessera
