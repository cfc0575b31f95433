#include "kernels/args/gpu/random.h"

#include "kernels/gpu/rows.h"
#include "kernels/shared/tables.h"

namespace tessera::gpu_kernels {
namespace {

StreamArg stream(const Operand& state) {
  const auto* s = static_cast<const long long*>(state.data_ptr());
  return {s, s + state.strides()[0]};
}

// Rows are of no account without gaps.
long long length_of_rows(const Operand& t, bool gaps) { return gaps ? t.size(-1) : 0; }

template <RandomOp op>
void generate(const Call& call, Plan& plan) {
  const auto& a = call.attrs.as<CreateAttrs>();
  const Operand& out = call.out[0];
  const long long gap = gap_of_rows(out).value();
  plan.launch("draw", draw_table().draw,
              {op, stream(call.in[0]), out.numel(), out.data_ptr(), scalar_of(out.dtype()), a.a, a.b,
               length_of_rows(out, gap != 0), gap});
}

void drop(const Call& call, Plan& plan, const Operand& in) {
  const Operand& out = call.out[0];
  const double p = call.attrs.as<DropoutAttrs>().p;
  const long long in_gap = gap_of_rows(in).value(), out_gap = gap_of_rows(out).value();
  plan.launch("drop", draw_table().drop,
              {stream(call.in[1]), out.numel(), in.data_ptr(), out.data_ptr(), scalar_of(out.dtype()), p,
               length_of_rows(out, in_gap != 0 || out_gap != 0), in_gap, out_gap});
}

Reason lies_in_rows(const Call& call) { return gap_of_rows(call.in[0]) ? Reason::Ok : Reason::Layout; }
void dropout(const Call& call, Plan& plan) { drop(call, plan, call.in[0]); }

// Other layouts are gathered in the output, which is then overwritten.
void dropout_gathered(const Call& call, Plan& plan) {
  copy(call, plan, call.out[0], call.in[0]);
  drop(call, plan, call.out[0]);
}

void multinomial(const Call& call, Plan& plan) {
  const auto& attrs = call.attrs.as<MultinomialAttrs>();
  const Operand& x = call.in[0];
  MultinomialArgs args{};
  args.op = call.op.name.data();
  args.stream = stream(call.in[1]);
  args.weights = x.data_ptr();
  args.type = scalar_of(x.dtype());
  args.n = x.size(-1);
  args.rows = args.n ? x.numel() / args.n : 0;
  args.row_step = x.dim() == 2 ? x.strides()[0] : 0;
  args.step = x.strides().back();
  args.samples = attrs.samples;
  args.replacement = attrs.replacement;
  args.workspace = static_cast<double*>(plan.take(x.numel() * static_cast<int64_t>(sizeof(double))));
  args.out = static_cast<long long*>(call.out[0].data_ptr());
  plan.launch("multinomial", draw_table().multinomial, args);
}

template <RandomOp op>
constexpr Kernel generate_kernel[] = {{.name = "philox", .plan = generate<op>}};
constexpr Kernel dropout_kernels[] = {{.name = "philox", .supports = lies_in_rows, .plan = dropout},
                                      {.name = "gather_philox", .plan = dropout_gathered}};
constexpr Kernel multinomial_kernels[] = {{.name = "rows", .plan = multinomial}};

}  // namespace

std::span<const KernelTableEntry> random_kernels() {
  static constexpr KernelTableEntry entries[] = {{"uniform", generate_kernel<RandomOp::uniform>},
                                                 {"normal", generate_kernel<RandomOp::normal>},
                                                 {"randint", generate_kernel<RandomOp::integers>},
                                                 {"dropout", dropout_kernels},
                                                 {"multinomial", multinomial_kernels}};
  return entries;
}

}  // namespace tessera::gpu_kernels
