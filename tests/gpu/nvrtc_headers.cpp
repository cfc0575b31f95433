// nvrtc_headers TILE_FOLDER HEADER: compiles HEADER alone with NVRTC for sm_90a. The headers are handed over
// in memory and there is no include path, as in a library that carries its headers inside itself. Needs no
// GPU.
#include <nvrtc.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

/// The text of `file` with its quoted includes rewritten from "relative to the file" to "relative to `root`":
/// NVRTC compares the names of headers in memory literally.
std::string read_rooted(const fs::path& root, const fs::path& file) {
  std::ifstream in(root / file);
  std::ostringstream out;
  const std::string directive = "#include \"";
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(directive, 0) == 0) {
      std::string name = line.substr(directive.size(), line.rfind('"') - directive.size());
      line = directive + (file.parent_path() / name).lexically_normal().string() + '"';
    }
    out << line << '\n';
  }
  return out.str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: nvrtc_headers TILE_FOLDER HEADER\n"), 2;
  const fs::path root = argv[1];
  std::vector<std::string> names, texts;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".h") continue;
    names.push_back(fs::relative(entry.path(), root).string());
    texts.push_back(read_rooted(root, names.back()));
  }
  std::vector<const char*> name_pointers, text_pointers;
  for (const auto& name : names) name_pointers.push_back(name.c_str());
  for (const auto& text : texts) text_pointers.push_back(text.c_str());

  const std::string source = "#include \"" + std::string(argv[2]) + "\"\nextern \"C\" __global__ void probe() {}\n";
  nvrtcProgram program;
  if (nvrtcCreateProgram(&program, source.c_str(), "probe.cu", static_cast<int>(names.size()), text_pointers.data(),
                         name_pointers.data()) != NVRTC_SUCCESS)
    return std::fprintf(stderr, "NVRTC refused the program\n"), 1;
  // Functions for the host only (executors, dumps) are let through: a kernel that called one would not link.
  const char* options[] = {"--gpu-architecture=sm_90a", "--std=c++20", "--device-as-default-execution-space"};
  const nvrtcResult result = nvrtcCompileProgram(program, 3, options);
  std::size_t length = 0;
  nvrtcGetProgramLogSize(program, &length);
  std::string log(length, '\0');
  nvrtcGetProgramLog(program, log.data());
  nvrtcDestroyProgram(&program);
  std::printf("%s: %s\n%s", argv[2], nvrtcGetErrorString(result), log.c_str());
  return result == NVRTC_SUCCESS ? 0 : 1;
}
