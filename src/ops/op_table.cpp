#include "ops/op_table.h"

#include <unordered_map>
#include <vector>

#include "ops/norm_conv.h"
#include "tessera/error.h"

namespace tessera {
namespace {

struct Table {
  std::vector<const Op*> ops;
  std::unordered_map<std::string_view, const Op*> by_name;
  Table() {
    for (auto family :
         {creation_ops(), elementwise_ops(), reduction_ops(), shape_ops(), indexing_ops(), matmul_ops(), conv_ops(),
          norm_ops(), norm_conv_ops(), loss_ops(), attention_ops(), random_ops(), optim_ops(), transfer_ops()})
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

}  // namespace

std::span<const Op* const> op_table() { return Table::get().ops; }

const Op& find_op(std::string_view name) {
  auto& by_name = Table::get().by_name;
  if (auto it = by_name.find(name); it != by_name.end()) return *it->second;
  throw Error("unknown operator '" + std::string(name) + "'");
}

}  // namespace tessera
