// rtc_headers cuda|hip HEADER...: compiles a program of these headers of the tile library with NVRTC for sm_90, or
// hipRTC for gfx90a, from what the library carries inside itself. Needs no GPU.
#include <cstdio>
#include <string_view>

#include "kernels/gpu/rtc/compiler.h"

using namespace tessera;

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: rtc_headers cuda|hip HEADER...\n"), 2;
  const bool hip = std::string_view(argv[1]) == "hip";
  std::string source;
  for (int i = 2; i < argc; ++i) source += "#include <tessera/tile/" + std::string(argv[i]) + ">\n";
  source += "extern \"C\" __global__ void probe() {}\n";
  gpu::Compiler* compiler = nullptr;
  try {
    compiler = &gpu::vendor_compiler(hip ? DeviceType::HIP : DeviceType::CUDA);
  } catch (const Error& error) {
    return std::printf("skipped: %s\n", error.what()), 0;
  }
  try {
    const size_t bytes = compiler->compile(source, hip ? "gfx90a" : "sm_90", {}).size();
    std::printf("%s: %zu bytes of code\n", compiler->name().c_str(), bytes);
  } catch (const gpu::CompileError& error) {
    return std::printf("%s\n%s\n", error.what(), error.log.c_str()), 1;
  }
  return 0;
}
