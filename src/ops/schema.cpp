#include "ops/schema.h"

#include <fmt/format.h>

#include "kernels/map_table.h"
#include "ops/op_table.h"

namespace tessera {
namespace {

std::vector<OpValue> values_of(std::string_view names) {
  std::vector<OpValue> values;
  for (std::string_view name : split_names(names)) {
    const bool list = name.ends_with("..."), optional = name.ends_with("?");
    name.remove_suffix(list ? 3 : optional ? 1 : 0);
    values.push_back({name, optional, list});
  }
  return values;
}

struct Family {
  std::string_view title;
  std::span<const Op* const> ops;
};
std::vector<Family> families() {
  return {{"Creation", creation_ops()},      {"Elementwise", elementwise_ops()}, {"Reductions", reduction_ops()},
          {"Shapes and views", shape_ops()}, {"Indexing", indexing_ops()},       {"Products", matmul_ops()},
          {"Convolution", conv_ops()},       {"Norms and softmax", norm_ops()},  {"Losses", loss_ops()},
          {"Attention", attention_ops()},    {"Random numbers", random_ops()},   {"Optimizers", optim_ops()},
          {"Devices", transfer_ops()}};
}

}  // namespace

std::vector<OpValue> inputs_of(const Op& op) { return values_of(op.inputs); }
std::vector<OpValue> outputs_of(const Op& op) { return values_of(op.outputs); }

std::string signature(const Op& op) {
  std::string text(op.inputs);
  const Attrs attrs = op.attrs();
  for (const AttrField& f : attrs.type().fields)
    text += fmt::format("{}{}: {} = {}", text.empty() ? "" : ", ", f.name, name(f.kind), to_text(attrs.get(f.name)));
  return fmt::format("{}({}) -> {}", op.name, text, op.outputs);
}

Attrs read_attrs(const Op& op, std::string_view text) {
  Attrs attrs = op.attrs();
  try {
    attrs.read(text);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", op.name, e.what()));
  }
  return attrs;
}

void require_attrs(const Op& op, const Attrs& attrs) {
  if (&attrs.type() != &op.attrs().type())
    throw Error(fmt::format("{}: these are attributes of another operator: {}", op.name, attrs.describe()));
}

std::string_view scalar_expression(const Op& op) {
  for (const MapText& map : map_table)
    if (map.op == op.name) return map.expression;
  return {};
}

std::string operators_page() {
  std::string page =
      "# Operators\n\nMade by `tessera ops --markdown > docs/operators.md`; a test compares. `?` may be absent, `...` "
      "is "
      "any number, a name\nthat ends in `_` is in place. What autocast does is in [amp.md](amp.md).\n";
  constexpr std::string_view policies[] = {"none", "lower", "f32", "norm", "promote"};
  for (const Family& family : families()) {
    page += fmt::format("\n## {}\n\n| operator | gradient | autocast |\n|---|---|---|\n", family.title);
    for (const Op* op : family.ops)
      page += fmt::format("| `{}` | {} | {} |\n", signature(*op), op->vjp ? "yes" : "no",
                          policies[static_cast<int>(op->autocast)]);
  }
  return page;
}

}  // namespace tessera
