// A plugin of another build: its tables are not those that the command knows.
#include "core/gpu/runtime.h"

extern "C" const tessera::gpu::Plugin* tessera_plugin() {
  static const tessera::gpu::Plugin plugin{1, nullptr, nullptr};
  return &plugin;
}
