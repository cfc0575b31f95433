#include "run_cost.h"

#include "ops/cost.h"
#include "ops/op_table.h"
#include "tessera/observer.h"

namespace tessera::app {
namespace {

struct Counter : Observer {
  std::map<std::string, Share> operators;
  void returned(const CallSeen& call) override {
    const Op& op = find_op(call.op);
    if (op.view || call.failed) return;
    std::vector<TensorMeta> in, out;
    for (const Tensor& t : call.inputs) in.push_back(t.defined() ? t.meta() : TensorMeta{});
    for (const Tensor& t : call.outputs) out.push_back(t.defined() ? t.meta() : TensorMeta{});
    const Cost cost = cost_of(op, in, out, call.attrs);
    Share& share = operators[std::string(call.op)];
    ++share.calls;
    share.flops += cost.flops;
    share.bytes += cost.bytes;
  }
};

}  // namespace

std::map<std::string, Share> cost_of_run(const std::function<void()>& run) {
  Counter counter;
  const Observing guard(counter);
  run();
  return counter.operators;
}

double flops_of_run(const std::function<void()>& run) {
  double all = 0;
  for (const auto& [name, share] : cost_of_run(run)) all += share.flops;
  return all;
}

}  // namespace tessera::app
