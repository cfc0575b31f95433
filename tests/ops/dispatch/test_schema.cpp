// Schemas of operators: true of every case, attributes by name, and the page made of them.
#include "ops/schema.h"

#include <fstream>
#include <set>
#include <sstream>

#include "cases/cases.h"
#include "dist/collective_ops.h"
#include "gtest/gtest.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

size_t least_inputs(const std::vector<OpValue>& inputs) {
  size_t least = 0;
  for (const OpValue& v : inputs) least += !v.list;
  return least;
}

TEST(Schema, IsTrueOfEveryCase) {
  Generator generator(1);
  for (const OpCase& c : op_cases()) {
    if (c.benchmark) continue;
    SCOPED_TRACE(std::string(c.op) + " " + c.label);
    const Op& op = find_op(c.op);
    const std::vector<OpValue> inputs = inputs_of(op);
    const bool list = std::any_of(inputs.begin(), inputs.end(), [](const OpValue& v) { return v.list; });
    const Tensors in = c.inputs(generator);
    EXPECT_EQ(&c.attrs.type(), &op.attrs().type());
    EXPECT_NO_THROW(require_attrs(op, c.attrs));
    if (list) {
      EXPECT_GE(in.size(), least_inputs(inputs));
      continue;
    }
    ASSERT_LE(in.size(), inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      EXPECT_TRUE(inputs[i].optional || (i < in.size() && in[i].defined())) << inputs[i].name;
  }
}

TEST(Schema, NamesEachValueOnce) {
  for (const Op* op : op_table()) {
    EXPECT_FALSE(op->outputs.empty()) << op->name;
    std::set<std::string> names;
    for (const OpValue& v : inputs_of(*op)) EXPECT_TRUE(names.insert(std::string(v.name)).second) << op->name;
    for (const AttrField& f : op->attrs().type().fields)
      EXPECT_TRUE(names.insert(std::string(f.name)).second) << op->name << ": " << f.name;
  }
}

TEST(Schema, AttributesOfEveryCaseReadBackEqual) {
  for (const OpCase& c : op_cases()) {
    if (c.op == "custom_function" || c.op == "map_graph") continue;  // closures are no text
    const Attrs again = read_attrs(find_op(c.op), c.attrs.describe());
    EXPECT_TRUE(again == c.attrs) << c.op << " " << c.attrs.describe() << " and " << again.describe();
  }
}

TEST(Schema, SignaturesShowKindsAndDefaults) {
  EXPECT_EQ(signature(find_op("softmax")), "softmax(x, dim: int = 0, keepdim: bool = false) -> y");
  EXPECT_EQ(signature(find_op("add")), "add(a, b) -> y");
  EXPECT_EQ(signature(find_op("linear")),
            "linear(x, weight, bias?, residual?, activation: text = \"none\") -> y, slope?");
}

TEST(Schema, ThePageOfOperatorsIsMadeOfIt) {
  dist::collective_ops();
  std::ifstream file(TESSERA_SOURCE_DIR "/docs/operators.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == operators_page()) << "make it anew: tessera ops --markdown > docs/operators.md";
}

TEST(Attributes, AreSetAndReadByName) {
  Attrs attrs = find_op("topk").attrs();
  attrs.set("k", int64_t{3});
  attrs.set_text("largest", "false");
  EXPECT_TRUE(attrs == Attrs(TopkAttrs{-1, 3, false}));
  EXPECT_EQ(std::get<int64_t>(attrs.get("dim")), -1);
  EXPECT_EQ(attrs.describe(), "k=3, largest=false");
  EXPECT_FALSE(attrs == Attrs(TopkAttrs{}));
  EXPECT_FALSE(attrs == Attrs(DimAttrs{}));
}

TEST(Attributes, TakeWholeNumbersWhereFractionsAndDimsAre) {
  Attrs scalar = ScalarAttrs{};
  scalar.set("value", int64_t{2});
  EXPECT_EQ(scalar.as<ScalarAttrs>().value, 2.0);
  Attrs slice = SliceAttrs{};
  slice.set("end", int64_t{7});
  slice.set_text("start", "batch");
  EXPECT_EQ(slice.describe(), "start=batch, end=7");
  Attrs shape = ShapeAttrs{};
  shape.set("shape", IntList{2, 3});
  EXPECT_EQ(shape.as<ShapeAttrs>().shape.shape(), (Shape{2, 3}));
}

TEST(Attributes, WrongOnesAreOneClearLine) {
  const Op& softmax = find_op("softmax");
  EXPECT_EQ(error_of([&] { read_attrs(softmax, "axis=1"); }), "softmax: no attribute 'axis', of: dim, keepdim");
  EXPECT_EQ(error_of([&] { read_attrs(softmax, "dim=x"); }), "softmax: attribute 'dim': 'x' is no int");
  EXPECT_EQ(error_of([&] { read_attrs(softmax, "dim=1, dim=2"); }), "softmax: attribute 'dim' stands twice");
  EXPECT_EQ(error_of([&] { read_attrs(softmax, "dim"); }), "softmax: 'dim' is no attribute: name=value is");
  EXPECT_EQ(error_of([&] { read_attrs(softmax, "dim=[1"); }), "softmax: '[' is not closed");
  EXPECT_EQ(error_of([&] { read_attrs(find_op("exp"), "dim=1"); }), "exp: no attribute 'dim', there are none");
  EXPECT_EQ(error_of([&] { read_attrs(find_op("conv2d"), "stride=[1]"); }),
            "conv2d: 'stride' is a list of 2 ints, not [1]");
  EXPECT_EQ(error_of([&] { read_attrs(find_op("linear"), "activation=gelu"); }),
            "linear: 'activation' is of kind text, and \"gelu\" is none it takes");
  Attrs attrs = softmax.attrs();
  EXPECT_EQ(error_of([&] { attrs.set("dim", true); }), "'dim' is of kind int, and true is none it takes");
  EXPECT_EQ(error_of([&] { require_attrs(softmax, ScalarAttrs{2}); }),
            "softmax: these are attributes of another operator: value=2");
}

// What operators of a program's own may carry.
struct OwningAttrs {
  std::string label = "none";
  Tensor table;
  Ref<AttrObject> body;
  static constexpr std::string_view attr_names = "label, table, body";
  auto members() { return std::tie(label, table, body); }
  auto members() const { return std::tie(label, table, body); }
};
struct Body final : AttrObject {
  explicit Body(int* alive) : alive(alive) { ++*alive; }
  ~Body() override { --*alive; }
  std::string text() const override { return "{ body }"; }
  int* alive;
};

TEST(Attributes, OwnStringsTensorsAndObjects) {
  int alive = 0;
  {
    Attrs attrs = OwningAttrs{"a, \"b\"\n", tensor<float>({1, 0.1F, -2}, {3}), make_ref<Body>(&alive)};
    Attrs copy = attrs, other;
    other = copy;
    EXPECT_TRUE(other == attrs);
    copy.set_text("label", "x");
    EXPECT_EQ(copy.as<OwningAttrs>().label, "x");
    EXPECT_EQ(attrs.as<OwningAttrs>().label, "a, \"b\"\n");  // copies share until one is changed
    EXPECT_FALSE(copy == attrs);
    EXPECT_EQ(attrs.describe(),
              "label=\"a, \\\"b\\\"\\n\", table=tensor(f32[3], 1, 0.10000000149011612, -2), body={ body }");
    EXPECT_EQ(alive, 1);
    Attrs read = OwningAttrs{};
    read.read("label=\"a, \\\"b\\\"\\n\", table=tensor(f32[3], 1, 0.10000000149011612, -2)");
    read.set("body", attrs.get("body"));
    EXPECT_TRUE(read == attrs);
  }
  EXPECT_EQ(alive, 0);
}

TEST(Attributes, TextOfTensorsIsChecked) {
  for (const char* text : {"tensor(f32[3], 1, 2)", "tensor(f32[n], 1)", "tensor(f99[1], 1)", "tensor(f32[1], x)",
                           "tensor(f32, 1)", "tensor(", "f32[1]", "tensor(f32[-1], 1)"}) {
    Attrs attrs = OwningAttrs{};
    EXPECT_NE(error_of([&] { attrs.set_text("table", text); }), "no error") << text;
  }
}

TEST(Dims, ReadBackEqual) {
  const Dim batch = Dim::symbol("batch"), odd = Dim::symbol("a b/2");
  for (const Dim d : {Dim(0), Dim(-3), Dim(12), batch, 2 * batch + 1, batch * batch - 3, (batch + 1) / 2,
                      (batch + odd) / (batch * 2) + 5, odd * 4}) {
    EXPECT_EQ(Dim::parse(d.to_string()), d) << d.to_string();
  }
}

TEST(Dims, TextIsChecked) {
  for (const char* text : {"", "+", "2*", "(batch", "batch)", "floor(2)", "'batch", "''", "99999999999999999999", "2 3",
                           "floor((1)/(0))", "#"})
    EXPECT_NE(error_of([&] { Dim::parse(text); }), "no error") << text;
  EXPECT_EQ(error_of([&] { Dim::parse(std::string(100000, '(')); }), "'" + std::string(80, '(') + "' is no dim");
  EXPECT_EQ(error_of([&] { Dim::symbol("it's"); }), "'it's' cannot be the name of a dim");
}

}  // namespace
}  // namespace tessera
