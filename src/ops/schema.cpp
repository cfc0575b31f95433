#include "ops/schema.h"

#include <fmt/format.h>

#include "kernels/map_table.h"
#include "ops/op_table.h"
#include "ops/registry.h"

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

std::vector<Family> families() {
  std::vector<Family> all{{"Creation", creation_ops()},
                          {"Elementwise", elementwise_ops()},
                          {"Reductions", reduction_ops()},
                          {"Shapes and views", shape_ops()},
                          {"Sliding windows", window_ops()},
                          {"Indexing", indexing_ops()},
                          {"Writing to places", scatter_ops()},
                          {"Bits", bit_ops()},
                          {"Recurrent layers", recurrent_ops()},
                          {"Sparse matrices along a dim", line_ops()},
                          {"Windows of planes", plane_ops()},
                          {"Images at points", sample_ops()},
                          {"Products", matmul_ops()},
                          {"Products whose epilogue is text, on GPUs", fused_gemm_ops()},
                          {"Convolution", conv_ops()},
                          {"Convolution with what is behind it", conv_act_ops()},
                          {"Norms and softmax", norm_ops()},
                          {"Batch norm", batch_norm_ops()},
                          {"Losses", loss_ops()},
                          {"Attention", attention_ops()},
                          {"Random numbers", random_ops()},
                          {"Optimizers", optim_ops()},
                          {"Devices", transfer_ops()},
                          {"Constant inputs", pack_ops()},
                          {"Functions of elements", map_graph_ops()},
                          {"Functions of a program", function_ops()}};
  for (const Family& added : added_families()) all.push_back(added);
  return all;
}

}  // namespace

std::vector<OpValue> inputs_of(const Op& op) { return values_of(op.inputs); }
std::vector<OpValue> outputs_of(const Op& op) { return values_of(op.outputs); }

Attrs default_attrs(const Op& op) { return op.registered ? registered_defaults(*op.registered) : op.attrs(); }

void require_inputs_of(const Op& op, size_t count, const std::function<bool(size_t)>& is_absent) {
  const std::vector<OpValue> wanted = inputs_of(op);
  size_t least = 0;
  bool list = false;
  for (const OpValue& v : wanted) least += !v.list, list |= v.list;
  if (count < least || (!list && count > wanted.size()))
    throw Error(fmt::format("{} takes {}{} inputs, not {}", op.name, list ? "at least " : "", least, count));
  for (size_t i = 0; !list && i < wanted.size(); ++i)
    if (!wanted[i].optional && is_absent(i)) throw Error(fmt::format("{}: {} is absent", op.name, wanted[i].name));
}

std::string signature(const Op& op) {
  std::string text(op.inputs);
  const Attrs attrs = default_attrs(op);
  for (const AttrField& f : attrs.type().fields)
    text += fmt::format("{}{}: {} = {}", text.empty() ? "" : ", ", f.name, name(f.kind), to_text(attrs.get(f.name)));
  return fmt::format("{}({}) -> {}", op.name, text, op.outputs);
}

Attrs read_attrs(const Op& op, std::string_view text) {
  Attrs attrs = default_attrs(op);
  try {
    attrs.read(text);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", op.name, e.what()));
  }
  return attrs;
}

void require_attrs(const Op& op, const Attrs& attrs) {
  if (&attrs.type() != &default_attrs(op).type())
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
