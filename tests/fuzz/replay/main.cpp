// Runs a fuzz target without libFuzzer: on every file of a folder, on the file cut at many lengths, and on
// copies with a few bytes changed by a seeded generator. A target fails by crashing or by letting an
// exception out. With SECONDS it goes on with other changes, and CASE is a file that has the case that runs.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// Targets that know their format change what it says.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed)
    __attribute__((weak));

namespace {

using Bytes = std::vector<std::uint8_t>;

// Of a seed; where there are many seeds, of all of them together thirty times as much.
constexpr std::size_t max_cuts = 500, max_mutations = 2000;

const char* kept = nullptr;
std::size_t runs = 0;

void run(const Bytes& bytes) {
  if (kept)
    std::ofstream(kept, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const Bytes exact(bytes.begin(), bytes.end());  // no spare capacity: sanitizers see a read past the end
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  ++runs;
}

void replay(const Bytes& seed, std::size_t seeds, std::mt19937& random) {
  run(seed);
  const std::size_t share = seeds > 30 ? (seeds + 29) / 30 : 1, mutations = max_mutations / share;
  const std::size_t step = seed.size() * share / max_cuts + 1;
  for (std::size_t size = 0; size < seed.size(); size += step) run(Bytes(seed.begin(), seed.begin() + size));
  for (std::size_t i = 0; i < mutations && !seed.empty(); ++i) {
    Bytes mutant = seed;
    if (LLVMFuzzerCustomMutator && i % 2) {
      mutant.resize(seed.size() + 4096);
      mutant.resize(LLVMFuzzerCustomMutator(mutant.data(), seed.size(), mutant.size(), random()));
      run(mutant);
      continue;
    }
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
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY [SECONDS [CASE]]\n", argv[0]);
    return 2;
  }
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::seconds(argc > 2 ? std::atoi(argv[2]) : 0);
  if (argc > 3) kept = argv[3];
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  unsigned round = 0;
  do {
    std::mt19937 random(++round);
    for (const auto& file : files) {
      if (round > 1 && Clock::now() > until) break;
      std::ifstream stream(file, std::ios::binary);
      replay(Bytes(std::istreambuf_iterator<char>(stream), {}), files.size(), random);
    }
    if (argc > 2)
      std::printf("round %u of %zu seeds, %zu runs in all\n", round, files.size(), runs), std::fflush(stdout);
  } while (Clock::now() < until && !files.empty());
  std::printf("%zu seeds\n", files.size());
  return files.empty() ? 1 : 0;
}
