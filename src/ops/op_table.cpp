#include "ops/op_table.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ops/norm_conv.h"
#include "ops/registry.h"
#include "tessera/error.h"

namespace tessera {
namespace {

struct Table {
  std::vector<const Op*> ops;
  std::unordered_map<std::string_view, const Op*> by_name;
  Table() {
    for (auto family :
         {creation_ops(),   elementwise_ops(), reduction_ops(), shape_ops(),     window_ops(),   indexing_ops(),
          scatter_ops(),    bit_ops(),         recurrent_ops(), line_ops(),      plane_ops(),    sample_ops(),
          matmul_ops(),     fused_gemm_ops(),  pack_ops(),      conv_ops(),      conv_act_ops(), norm_ops(),
          batch_norm_ops(), norm_conv_ops(),   loss_ops(),      attention_ops(), random_ops(),   optim_ops(),
          transfer_ops(),   map_graph_ops(),   function_ops()})
      for (const Op* op : family) {
        if (!by_name.emplace(op->name, op).second) throw Error("two operators are named " + std::string(op->name));
        ops.push_back(op);
      }
  }
  static const Table& get() {
    static const Table table;
    return table;
  }
};

// The names that begin most like an unknown one, at most five, as the end of a sentence.
std::string nearest(std::string_view name) {
  size_t longest = 3, found = 0;
  std::string text;
  std::vector<const Op*> all = registered_ops();
  all.insert(all.begin(), Table::get().ops.begin(), Table::get().ops.end());
  for (const Op* op : all) {
    const size_t same = std::mismatch(name.begin(), name.end(), op->name.begin(), op->name.end()).first - name.begin();
    if (same > longest) longest = same, found = 0;
    if (same == longest && found < 5) text = (found++ ? text + ", " : "; the nearest are ") + std::string(op->name);
  }
  return text;
}

}  // namespace

std::span<const Op* const> op_table() { return Table::get().ops; }

const Op* find_built_in(std::string_view name) {
  auto& by_name = Table::get().by_name;
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : it->second;
}

const Op& find_op(std::string_view name) {
  if (const Op* op = find_built_in(name)) return *op;
  if (const Op* op = find_registered(name)) return *op;
  throw Error("unknown operator '" + std::string(name) + "'" + nearest(name));
}

}  // namespace tessera
