// A map is a line in tile/kernels/maps.h: what there is of it elsewhere is made of that, and its expression is what its
// kernels compute.
#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "kernels/kernel_lists.h"
#include "kernels/map_table.h"
#include "kernels/shared/kernel_tables.h"
#include "ops/op_table_checks.h"
#include "ops/schema.h"

namespace tessera {
namespace {

using namespace op_table_test;

bool is_operator(std::string_view name) {
  for (const Op* op : elementwise_ops())
    if (op->name == name) return true;
  return false;
}

bool has_row(std::span<const KernelTableEntry> table, std::string_view op) {
  for (const KernelTableEntry& entry : table)
    if (entry.op == op) return !entry.kernels.empty() && !entry.kernels.back().supports;
  return false;
}

TEST(Maps, AreOperatorsWithKernelsAndCases) {
  std::set<std::string_view> maps;
  for (const MapText& text : map_table) {
    SCOPED_TRACE(std::string(text.op));
    maps.insert(text.map);
    EXPECT_FALSE(text.expression.empty());
    if (!is_operator(text.op)) {  // operators of other names run it
      EXPECT_TRUE(std::any_of(std::begin(map_table), std::end(map_table),
                              [&](const MapText& other) { return other.map == text.op && is_operator(other.op); }));
      continue;
    }
    EXPECT_EQ(scalar_expression(find_op(text.op)), text.expression);
    EXPECT_TRUE(has_row(cpu_kernel_table(), text.op));
    EXPECT_TRUE(has_row(gpu_kernel_table(), text.op));
    EXPECT_FALSE(cases_of(text.op).empty());
  }
  maps.erase("copy");
  EXPECT_EQ(maps.size(), static_cast<size_t>(cpu_kernels::MapOp::count));
  for (size_t op = 0; op < maps.size(); ++op)
    for (cpu_kernels::Scalar type : {cpu_kernels::Scalar::f32, cpu_kernels::Scalar::f64})
      EXPECT_TRUE(cpu_kernels::elementwise_table().supports(static_cast<cpu_kernels::MapOp>(op), type)) << op;
}

TEST(Maps, EveryElementwiseOperatorHasAnExpression) {
  for (const Op* op : elementwise_ops()) EXPECT_FALSE(scalar_expression(*op).empty()) << op->name;
  EXPECT_EQ(scalar_expression(find_op("relu")), "max(x, V(0))");
  EXPECT_EQ(scalar_expression(find_op("clamp")), "min(max(x, number<V>(low)), number<V>(high))");
  EXPECT_EQ(scalar_expression(find_op("mul_")), "a * b");
  EXPECT_EQ(scalar_expression(find_op("matmul")), "");
}

TEST(Maps, FunctionsOfIntegersAreF32) {
  NoGrad guard;
  std::set<std::string_view> tried;
  for (const Op* op : elementwise_ops()) {
    if (op->in_place || inputs_of(*op).size() != 1 || op->attrs().type().fields.size() != 0) continue;
    for (DType type : {Bool, UInt8, Int32, Int64}) {
      const Tensor x = tensor<double>({1, 1, 0, 1, 1}, {5}).to(type);
      const Tensor y = dispatch_one(*op, {x});
      if (y.dtype() != Float32) continue;
      tried.insert(op->name);
      EXPECT_EQ(relative_error(elements(y), elements(dispatch_one(*op, {x.to(Float32)}))), 0) << op->name;
    }
  }
  for (const char* name : {"sin", "tan", "atan", "exp2", "sqrt"}) EXPECT_TRUE(tried.contains(name)) << name;
}

// ---- what a new operator costs

bool is_of_a_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The files that name one of these, or the entry of one.
std::set<std::string> files_that_name(const std::set<std::string>& names) {
  namespace fs = std::filesystem;
  std::set<std::string> files;
  for (const char* folder : {"src", "include", "apps", "cmake"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(fs::path(TESSERA_SOURCE_DIR) / folder)) {
      if (!entry.is_regular_file()) continue;
      std::stringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      const std::string all = text.str();
      for (size_t begin = 0; begin < all.size();) {
        size_t end = begin;
        while (end < all.size() && is_of_a_name(all[end])) ++end;
        std::string word = all.substr(begin, end - begin);
        if (word.ends_with("_op")) word.resize(word.size() - 3);
        if (names.contains(word)) files.insert(fs::relative(entry.path(), TESSERA_SOURCE_DIR).generic_string());
        begin = end + 1;
      }
    }
  return files;
}

// The scalar function, the operator, its declaration, and what it is called in ONNX.
TEST(Maps, ANewOperatorIsNamedInFourFiles) {
  const std::set<std::string> names{"exp2"};  // an operator that nothing else calls
  for (const std::string& name : names) EXPECT_TRUE(is_operator(name)) << name;
  std::set<std::string> files = files_that_name(names);
  // Of the scalar function: itself, if there was none, and who calls it.
  for (const char* scalar : {"src/tile/math.h", "src/tile/attention_problem.h"}) files.erase(scalar);
  EXPECT_EQ(files, (std::set<std::string>{"include/tessera/ops.h", "src/onnx/writers/elementwise.cpp",
                                          "src/ops/elementwise.cpp", "src/tile/kernels/maps.h"}));
}

// ---- expressions, compiled

constexpr DType kTypes[] = {Float32, Float64};

// Every expression as a function of one element after another: `(out, in, numbers, n)`, all of them doubles.
std::string program() {
  std::string text = "#include \"tile/kernels/functors.h\"\nnamespace tessera::tile::op {\n";
  for (const Op* op : elementwise_ops()) {
    const size_t inputs = inputs_of(*op).size();
    std::string numbers, values;
    const Attrs attrs = op->attrs();
    size_t count = 0;
    for (const AttrField& f : attrs.type().fields)
      numbers += fmt::format("  [[maybe_unused]] const double {} = numbers[{}];\n", f.name, count++);
    for (size_t i = 0; i < inputs; ++i)
      values += fmt::format("    [[maybe_unused]] const V {} = in[{}][i];\n", inputs == 1 ? 'x' : "abc"[i], i);
    for (DType type : kTypes)
      text += fmt::format(
          "extern \"C\" void {}_{}(double* out, const double* const* in, const double* numbers, long n) {{\n"
          "  using V = {};\n{}  for (long i = 0; i < n; ++i) {{\n{}    out[i] = {};\n  }}\n}}\n",
          op->name, name(type), type == Float32 ? "float" : "double", numbers, values, scalar_expression(*op));
  }
  return text + "}\n";
}

class CompiledExpressions : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string base = testing::TempDir() + fmt::format("tessera_maps_{}", getpid());
    std::ofstream(base + ".cpp") << program();
    const std::string command = fmt::format("'{}' -std=c++20 -O1 -shared -fPIC -fwrapv -I'{}/src' -o '{}.so' '{}.cpp'",
                                            TESSERA_CXX_COMPILER, TESSERA_SOURCE_DIR, base, base);
    if (std::system(command.c_str()) == 0) library = dlopen((base + ".so").c_str(), RTLD_NOW);
    for (const char* end : {".cpp", ".so"}) std::filesystem::remove(base + end);
  }
  static void TearDownTestSuite() {
    if (library) dlclose(library);
  }

  static std::vector<double> run(const Op& op, const OpCase& c, const Prepared& p, DType type, const Shape& shape) {
    std::vector<std::vector<double>> in;
    std::vector<const double*> pointers;
    for (const Tensor& x : p.exact) in.push_back(elements(x.expand(shape)));
    for (const auto& list : in) pointers.push_back(list.data());
    std::vector<double> numbers;
    for (const AttrField& f : c.attrs.type().fields) {
      const AttrValue value = c.attrs.get(f.name);
      numbers.push_back(std::holds_alternative<double>(value) ? std::get<double>(value) : 0);
    }
    std::vector<double> out(shape.numel().value());
    using Function = void (*)(double*, const double* const*, const double*, long);
    void* found = dlsym(library, fmt::format("{}_{}", op.name, name(type)).c_str());
    EXPECT_NE(found, nullptr);
    if (found)
      reinterpret_cast<Function>(found)(out.data(), pointers.data(), numbers.data(), static_cast<long>(out.size()));
    return out;
  }

  inline static void* library = nullptr;
};

TEST_F(CompiledExpressions, AreWhatTheOperatorsCompute) {
  ASSERT_NE(library, nullptr) << TESSERA_CXX_COMPILER << " did not compile this:\n" << program();
  NoGrad guard;
  for (const Op* op : elementwise_ops())
    for (const OpCase& c : cases_of(op->name))
      for (DType type : kTypes) {
        SCOPED_TRACE(where(c, type, Form::Contiguous));
        const Prepared p = prepare(c, type, Form::Contiguous);
        const Tensor want = op->reference({p.exact.data(), p.exact.size()}, c.attrs)[0];
        const std::vector<double> got = run(*op, c, p, type, want.shape());
        const double limit = is_floating(want.dtype()) ? tolerance(op->name, type) : 0;
        EXPECT_LE(relative_error(elements(tensor(got, want.shape()).to(want.dtype())), elements(want)), limit);
      }
}

}  // namespace
}  // namespace tessera
