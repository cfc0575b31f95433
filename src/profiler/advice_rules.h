// Rules of advice: each looks at one thing that slows a step down, and says what it costs.
#pragma once
#include <functional>
#include <vector>

#include "profiler/advice.h"
#include "profiler/analysis.h"
#include "profiler/summary.h"

namespace tessera::profiler {

/// What rules look at.
struct AdviceInput {
  explicit AdviceInput(const Trace& trace);
  bool on_host() const { return device < 0; }
  bool is_in_steps(int64_t at) const;
  /// An advice that would win so many nanoseconds of all steps together.
  Advice advice(std::string rule, double nanoseconds) const;

  const Trace& trace;
  int device, rank;
  std::vector<StepRow> steps;  // without the last one of a device, which ends too early, where there are others
  double step_seconds = 0;     // mean
  double busy_share = 0;
  int64_t thread = 0;  // of the host, where the steps are
  Intervals windows;   // of steps
  Intervals idle;      // in them; of a device. Rules take away what they explain.
  LaunchTimes launched;
};

/// Of a step, below which advice is not worth a line.
inline constexpr double kWorthwhile = 0.02;

using Advices = std::vector<Advice>;
Advices advise_on_loader(AdviceInput& in);
Advices advise_on_synchronisation(AdviceInput& in);
Advices advise_on_host(AdviceInput& in);
Advices advise_on_small_kernels(const AdviceInput& in);
Advices advise_on_matrix_cores(const AdviceInput& in);
Advices advise_on_copies(const AdviceInput& in);
Advices advise_on_imbalance(const AdviceInput& in);

}  // namespace tessera::profiler
