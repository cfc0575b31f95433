#include "mixture.h"

#include <fmt/format.h>

#include <charconv>

namespace tessera::app {
namespace {

// Calls give(i, number) with a number for each of the streams.
template <class T, class Give>
void numbers(const std::string& option, const std::string& text, size_t streams, const Give& give) {
  if (text.empty()) return;
  size_t count = 0;
  const char *at = text.data(), *const end = at + text.size();
  while (at < end) {
    T number{};
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || (next < end && *next != ','))
      throw UsageError(fmt::format("{} {}: no {}numbers", option, text, std::is_integral_v<T> ? "whole " : ""));
    if (count < streams) give(count, number);
    ++count;
    at = next + 1;
  }
  if (count != streams) throw UsageError(fmt::format("{} has {} numbers for {} streams", option, count, streams));
}

}  // namespace

void Mixture::add_to(Command app) {
  app.option("--proportions", proportions, "of streams: the share that each has of an epoch, such as 0.7,0.3");
  app.option("--repeats", repeats, "of streams: how often an epoch has the samples of each, such as 1,2.5");
  app.option("--choose", chosen, "of streams: how many samples of each an epoch has, such as 900,100");
  app.option("--epoch-size", epoch_size, "of streams: samples of an epoch; 0: as many as there are").with_default();
}

bool Mixture::given() const { return epoch_size != 0 || !proportions.empty() || !repeats.empty() || !chosen.empty(); }

std::vector<DataStream> Mixture::streams(const std::vector<std::string>& folders) const {
  std::vector<DataStream> out;
  for (const std::string& folder : folders) out.push_back({.folder = folder});
  numbers<double>("--proportions", proportions, out.size(), [&](size_t i, double n) { out[i].proportion = n; });
  numbers<double>("--repeats", repeats, out.size(), [&](size_t i, double n) { out[i].repeat = n; });
  numbers<int64_t>("--choose", chosen, out.size(), [&](size_t i, int64_t n) { out[i].choose = n; });
  return out;
}

}  // namespace tessera::app
