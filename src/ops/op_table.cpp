#include "ops/op_table.h"

#include <algorithm>
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

// The names that begin most like an unknown one, at most five, as the end of a sentence.
std::string nearest(std::string_view name) {
  size_t longest = 3, found = 0;
  std::string text;
  for (const Op* op : Table::get().ops) {
    const size_t same = std::mismatch(name.begin(), name.end(), op->name.begin(), op->name.end()).first - name.begin();
    if (same > longest) longest = same, found = 0;
    if (same == longest && found < 5) text = (found++ ? text + ", " : "; the nearest are ") + std::string(op->name);
  }
  return text;
}

}  // namespace

std::span<const Op* const> op_table() { return Table::get().ops; }

const Op& find_op(std::string_view name) {
  auto& by_name = Table::get().by_name;
  if (auto it = by_name.find(name); it != by_name.end()) return *it->second;
  throw Error("unknown operator '" + std::string(name) + "'" + nearest(name));
}

}  // namespace tessera
