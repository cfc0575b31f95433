// What operators take while something runs.
#pragma once
#include <functional>
#include <map>
#include <string>

namespace tessera::app {

struct Share {
  int64_t calls = 0;
  double flops = 0, bytes = 0;
};
/// Of each operator of the library, but views, by name.
std::map<std::string, Share> cost_of_run(const std::function<void()>& run);
/// The FLOPs of all.
double flops_of_run(const std::function<void()>& run);

}  // namespace tessera::app
