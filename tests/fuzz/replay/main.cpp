// Runs a fuzz target without libFuzzer: on every file of a folder, on the file cut at many lengths, and on
// copies with a few bytes changed by a seeded generator. A target fails by crashing or by letting an
// exception out.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t max_cuts = 500;
constexpr int mutations = 2000;

void run(const Bytes& bytes) {
  const Bytes exact(bytes.begin(), bytes.end());  // no spare capacity: sanitizers see a read past the end
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void replay(const Bytes& seed, std::mt19937& random) {
  run(seed);
  const std::size_t step = seed.size() / max_cuts + 1;
  for (std::size_t size = 0; size < seed.size(); size += step) run(Bytes(seed.begin(), seed.begin() + size));
  for (int i = 0; i < mutations && !seed.empty(); ++i) {
    Bytes mutant = seed;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      // Headers are at the front and the most fragile: half of the changes go to the first 256 bytes.
      const std::size_t range = random() % 2 ? std::min<std::size_t>(seed.size(), 256) : seed.size();
      mutant[random() % range] = static_cast<std::uint8_t>(random());
    }
    run(mutant);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::mt19937 random(1);
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    replay(Bytes(std::istreambuf_iterator<char>(stream), {}), random);
  }
  std::printf("%zu seeds\n", files.size());
  return files.empty() ? 1 : 0;
}
