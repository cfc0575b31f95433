// Layers of recurrent nets in one kernel.
#include "sequence_plan.h"

namespace tessera::gpu_kernels {
namespace {

bool takes(const SequenceShape& s) {
  if (s.type == Scalar::f64 || s.steps < 1 || s.batch < 1 || s.hidden < 1 || s.hidden > 4096) return false;
  return sequence_plan(s, false, 1).blocks > 0 && sequence_plan(s, true, 1).blocks > 0;
}

template <CellKind kind, class Args>
void run_of(const Args& args, Executor& executor) {
  with_sequence_type(args.shape.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_sequences(args.shape, executor, [&](auto n) {
      if constexpr (std::is_same_v<Args, SequenceArgs>)
        launch_sequences<n>("sequence", sequence_kernel<T, kind, n>, args, false, executor);
      else launch_sequences<n>("sequence", sequence_backward_kernel<T, kind, n>, args, true, executor);
    });
  });
}

template <class Args>
void run(const Args& args, Executor& executor) {
  if (args.shape.cell == CellKind::lstm) return run_of<CellKind::lstm>(args, executor);
  if (args.shape.cell == CellKind::gru) return run_of<CellKind::gru>(args, executor);
  run_of<CellKind::rnn>(args, executor);
}

}  // namespace

const SequenceTable* device_sequence_table() {
  static const SequenceTable table{is_hopper, takes, run<SequenceArgs>, run<SequenceBackwardArgs>};
  return &table;
}

}  // namespace tessera::gpu_kernels
