// tessera ops [NAME...]: the operators with their inputs, attributes and outputs.
#include <fmt/format.h>

#include "command.h"
#include "dist/collective_ops.h"
#include "ops/op_table.h"
#include "ops/schema.h"

namespace tessera::app {
namespace {

struct OpsOptions {
  std::vector<std::string> names;
  bool markdown = false;
};

void run(const OpsOptions& options) {
  dist::collective_ops();  // found by name from now on
  if (options.markdown) return fmt::print("{}", operators_page());
  if (options.names.empty())
    for (const auto& list : {std::vector(op_table().begin(), op_table().end()), registered_ops()})
      for (const Op* op : list) fmt::print("{}\n", signature(*op));
  try {
    for (const std::string& name : options.names) fmt::print("{}\n", signature(find_op(name)));
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
}

}  // namespace

void add_ops(Command app) {
  const Command command = app.command("ops", "Print operators with their inputs, attributes and outputs.");
  auto options = std::make_shared<OpsOptions>();
  command.option("names", options->names, "some operators; all of them without").take_all();
  command.flag("--markdown", options->markdown, "the page docs/operators.md");
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
