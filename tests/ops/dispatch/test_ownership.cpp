// What a vjp returns as new is new: the walk backwards may overwrite it.
#include <gtest/gtest.h>

#include "ops/op_table_checks.h"

namespace tessera {
namespace {

using namespace op_table_test;

bool shares(const Tensor& a, const Tensor& b) { return a.defined() && b.defined() && a.storage() == b.storage(); }
bool shares(const Tensor& a, const Tensors& list) {
  return std::any_of(list.begin(), list.end(), [&](const Tensor& t) { return shares(a, t); });
}

// Records the case, and looks at what one step backwards from it returns.
void check_results(const Op& op, const OpCase& c, bool composed) {
  const Prepared prepared = prepare(c, Float64, Form::Contiguous);
  Tensors in = prepared.run;
  for (size_t i = 0; i < in.size() && i < 32; ++i)
    if (in[i].defined() && (c.gradients >> i & 1)) in[i].set_requires_grad();
  if (op.in_place)
    for (Tensor& t : in)
      if (t.defined()) t = t.clone();
  const Tensors out = dispatch(op, Tensors(in), c.attrs);
  Ref<Node> node;
  for (const Tensor& t : out)
    if (t.requires_grad()) node = t.impl().autograd->node;
  if (!node) return;
  const GradMode mode(composed);
  Tensors grads(node->outputs.size());
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].requires_grad()) grads[i] = ones(out[i].shape(), out[i].dtype());
  BackwardStep step{.last = true};
  const Tensors results = node->backward(grads, step);
  Tensors others = prepared.run;
  others.append(in.begin(), in.end());
  others.append(out.begin(), out.end());
  for (size_t i = 0; i < results.size(); ++i)
    EXPECT_TRUE(shares(results[i], grads) || shares(results[i], step.kept) || !shares(results[i], others))
        << c.op << " '" << c.label << "' gradient " << i;
}

TEST(Ownership, ResultsOfBackwardAreNewUnlessTheySayOtherwise) {
  for (const OpCase& c : op_cases()) {
    const Op& op = find_op(c.op);
    if (c.benchmark || !op.vjp || c.gradients == 0) continue;
    for (const bool composed : {false, true}) check_results(op, c, composed);
  }
}

}  // namespace
}  // namespace tessera
