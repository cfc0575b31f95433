// What is made on the host once and kept on its device for the next calls.
#pragma once
#include <fmt/format.h>

#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "core/capture_state.h"
#include "tessera/tensor.h"

namespace tessera {

/// make(), or what it gave for the same name, type and device; `name` says all that it is made from. Recent ones are
/// kept, and none while a function is captured.
template <class Make>
auto kept(const std::string& name, DType dtype, Device device, const Make& make) {
  using T = decltype(make());
  if (is_capturing() || device.meta) return make();
  constexpr size_t most = 64;
  static std::mutex mutex;
  static auto* all = new std::deque<std::pair<std::string, T>>;  // outlives what runs at exit
  const std::string key = fmt::format("{} {} {}", name, tessera::name(dtype), to_string(device));
  const std::lock_guard lock(mutex);
  for (const auto& [other, value] : *all)
    if (other == key) return value;
  if (all->size() == most) all->pop_back();
  return all->emplace_front(key, make()).second;
}

}  // namespace tessera
