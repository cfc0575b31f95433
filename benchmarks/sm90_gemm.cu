// The versions of the sm90 product, each a step from the one before, on one H100: compared with float64, then timed
// beside cuBLAS, all bf16, a row-major and b by columns. Built and started by sm90_gemm.sh.
#include <cublas_v2.h>
#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tile/arch/gpu/gemm.h"
#include "tile/arch/sm80/ptx.h"
#include "tile/arch/sm90/gemm.h"

namespace ladder {
using namespace tessera::tile;
using sm90::TensorMap;
using sm90::TileScheduler;
using sm90::TileWork;

#define CHECK(call)                                                                    \
  do {                                                                                 \
    if (const auto status = call; status != decltype(status){}) {                      \
      std::printf("%s:%d: status %d\n", __FILE__, __LINE__, static_cast<int>(status)); \
      std::exit(1);                                                                    \
    }                                                                                  \
  } while (false)

/// One version. Stays: a block takes one tile after the other. Leaves: results leave through TMA.
/// PingPong: groups of warps have tiles in turns.
template <int Rows, int Width, int Warps, int Stages, int Cluster, bool Stays, bool Leaves, bool PingPong = false>
struct Version {
  static constexpr Config config{Rows, Width, 64, Warps, Stages, Cluster};
  static constexpr bool stays = Stays, leaves = Leaves, ping_pong = PingPong;
  static constexpr int boxes = 2 * (Warps / 4 - 1);
};

struct Product {
  bf16 *a, *b, *c;
  int m, n, k;
};

/// What a kernel gets besides the operands.
struct Given {
  TensorMap c;
  Product product;
};

template <class V>
class Result {
 public:
  using Gemm = sm90::Gemm<V>;
  static constexpr int width = V::config.tile_n, box_bytes = 2048;  // two boxes for each warp
  TESSERA_DEVICE Result(const Given& given, const sm90::ResultBoxes& boxes)
      : given_(given), slab_(boxes.boxes + thread_in_block() / 32 * 2 * box_bytes) {}
  TESSERA_DEVICE void prepare(const TileWork&) {}

  TESSERA_DEVICE void store(const typename Gemm::Accumulators& acc, const TileWork& work) {
    unroll<Gemm::strips>([&](auto strip) {
      const int warp = thread_in_block() / 32, group = V::ping_pong ? 0 : warp / 4;
      const int row = work.row + (group * Gemm::strips + strip) * 64 + warp % 4 * 16;
      if constexpr (V::leaves) store_boxes(acc[strip], row, work.column);
      else store_elements(acc[strip], row, work.column);
    });
  }
  static TESSERA_DEVICE void assist(const TileScheduler&, const Given&, const sm90::ResultBoxes&) {}

 private:
  TESSERA_DEVICE void store_boxes(const float (&acc)[width / 2], int row, int column) const {
    const int lane = thread_in_block() % 32;
    unroll<width / 64>([&](auto box) {
      const u32 from = slab_ + box % 2 * box_bytes;
      constexpr int pending = box == 0 ? 0 : 1;
      if (lane == 0) sm90::tma_store_wait_read<pending>();
      sync_warp();
      unroll<4>([&](auto j) {
        const float* s = acc + box * 32 + j * 8;
        using sm80::pack;
        sm90::stmatrix(from + sm90::swizzled(lane % 16, j * 2 + lane / 16), pack<bf16>(s[0], s[1]),
                       pack<bf16>(s[2], s[3]), pack<bf16>(s[4], s[5]), pack<bf16>(s[6], s[7]));
      });
      sm90::fence_proxy_async();
      sync_warp();
      if (lane == 0) {
        sm90::tma_store(from, given_.c, column + box * 64, row, 0);
        sm90::tma_store_commit();
      }
    });
    if (lane == 0) sm90::tma_store_wait_read<0>();  // before the block ends
  }
  TESSERA_DEVICE void store_elements(const float (&acc)[width / 2], int row, int column) const {
    const int lane = thread_in_block() % 32;
    const Product& product = given_.product;
    unroll<width / 2>([&](auto i) {
      const int down = row + lane / 4 + i / 2 % 2 * 8, across = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (down < product.m && across < product.n) product.c[static_cast<i64>(down) * product.n + across] = bf16(acc[i]);
    });
  }

  const Given& given_;
  u32 slab_;
};

template <class V>
__global__ __launch_bounds__(V::config.warps * 32,
                             1) void kernel(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                                            const TileScheduler order, const __grid_constant__ Given given) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  sm90::Gemm<V>::template run<Result<V>>(a, b, order, shared, given);
}

TensorMap map_of(const bf16* data, int length, int lines, int box_lines) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    return reinterpret_cast<decltype(&::cuTensorMapEncodeTiled)>(found);
  }();
  TensorMap map;
  const auto pitch = static_cast<cuuint64_t>(length) * 2;
  const cuuint64_t lengths[] = {static_cast<cuuint64_t>(length), static_cast<cuuint64_t>(lines), 1};
  const cuuint64_t steps[] = {pitch, pitch};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_lines), 1}, every[] = {1, 1, 1};
  CHECK(encode(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(data),
               lengths, steps, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

template <class V>
void run(const Product& p) {
  using Gemm = sm90::Gemm<V>;
  constexpr int cluster = V::config.cluster;
  const int down = ceil_div(p.m, V::config.tile_m * cluster), across = ceil_div(p.n, V::config.tile_n),
            steps = ceil_div(p.k, 64);
  const TileScheduler order{.is_bf16 = true,
                            .transposed_a = false,
                            .transposed_b = false,
                            .batch_a = false,
                            .batch_b = false,
                            .cluster_m = cluster,
                            .cluster_n = 1,
                            .cluster_k = 1,
                            .split_k = 1,
                            .clusters_m = down,
                            .clusters_n = across,
                            .k_tiles = steps,
                            .group = 16 / cluster,
                            .count = down * across};
  int multiprocessors = 0;
  CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  CHECK(cudaFuncSetAttribute(kernel<V>, cudaFuncAttributeMaxDynamicSharedMemorySize, Gemm::shared_bytes));
  cudaLaunchConfig_t launch{};
  const i64 clusters = V::stays ? min(multiprocessors / cluster, order.count) : order.count;
  launch.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
  launch.blockDim = dim3(Gemm::threads);
  launch.dynamicSmemBytes = Gemm::shared_bytes;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&launch, kernel<V>, map_of(p.a, p.k, p.m, V::config.tile_m),
                           map_of(p.b, p.k, p.n, V::config.tile_n / cluster), order,
                           Given{map_of(p.c, p.n, p.m, 16), p}));
}

__global__ void fill(bf16* data, i64 count, u64 seed) {
  for (i64 i = block_in_grid() * blockDim.x + thread_in_block(); i < count; i += i64{gridDim.x} * blockDim.x) {
    u64 z = (static_cast<u64>(i) + seed) * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    data[i] = bf16(static_cast<float>(z >> 40) / 8388608.0f - 1.0f);
  }
}

/// Adds up squares of differences and of the truth, for every 97th element.
__global__ void compare(const Product p, double* acc) {
  const i64 step = 97;
  for (i64 i = (block_in_grid() * blockDim.x + thread_in_block()) * step; i < i64{p.m} * p.n;
       i += i64{gridDim.x} * blockDim.x * step) {
    double sum = 0;
    for (int k = 0; k < p.k; ++k)
      sum += static_cast<double>(static_cast<float>(p.a[i / p.n * p.k + k])) *
             static_cast<double>(static_cast<float>(p.b[i % p.n * p.k + k]));
    const double difference = static_cast<double>(static_cast<float>(p.c[i])) - sum;
    atomicAdd(acc, difference * difference);
    atomicAdd(acc + 1, sum * sum);
  }
}

struct Entry {
  const char* name;
  void (*run)(const Product&);
};
cublasHandle_t handle;
void cublas(const Product& p) {
  const float one = 1, zero = 0;
  CHECK(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, p.n, p.m, p.k, &one, p.b, CUDA_R_16BF, p.k, p.a, CUDA_R_16BF,
                     p.k, &zero, p.c, CUDA_R_16BF, p.n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}
constexpr Entry entries[] = {
    {"cuBLAS", cublas},
    {"1: tiles of 128x128, 2 stages, a tile a block, stores of elements",
     run<Version<128, 128, 12, 2, 1, false, false>>},
    {"2: 4 stages", run<Version<128, 128, 12, 4, 1, false, false>>},
    {"3: tiles of 128x256", run<Version<128, 256, 12, 4, 1, false, false>>},
    {"4: blocks stay", run<Version<128, 256, 12, 4, 1, true, false>>},
    {"5: results through TMA", run<Version<128, 256, 12, 4, 1, true, true>>},
    {"6: clusters of two share b", run<Version<128, 256, 12, 4, 2, true, true>>},
    {"7: like 5, tiles of 128x192", run<Version<128, 192, 12, 4, 1, true, true>>},
    {"8: like 7, groups of warps in turns", run<Version<128, 192, 12, 4, 1, true, true, true>>},
    {"9: like 5, tiles of 192x192, 3 groups", run<Version<192, 192, 16, 3, 1, true, true>>},
};

/// Median of launches queued in groups, over several sets of matrices where they fit into the cache.
double microseconds(const Entry& entry, const std::vector<Product>& sets) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  const Product& p = sets[0];
  const int count = std::clamp(static_cast<int>(2e12 / (2.0 * p.m * p.n * p.k)), 3, 40);
  std::vector<float> times;
  for (int turn = 0; turn < 7; ++turn) {
    CHECK(cudaEventRecord(begin));
    for (int i = 0; i < count; ++i) entry.run(sets[static_cast<size_t>(i) % sets.size()]);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (turn > 1) times.push_back(ms * 1000 / static_cast<float>(count));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

int main() {
  constexpr int sizes[][3] = {{2048, 2048, 2048}, {4096, 4096, 4096}, {8192, 8192, 8192},
                              {12288, 768, 768},  {12288, 3072, 768}, {12288, 768, 3072}};
  const i64 room = i64{1} << 28;
  bf16* memory;
  double* acc;
  CHECK(cudaMalloc(&memory, 3 * room * sizeof(bf16)));
  CHECK(cudaMalloc(&acc, 2 * sizeof(double)));
  fill<<<1024, 256>>>(memory, 2 * room, static_cast<u64>(std::rand()));
  CHECK(cublasCreate(&handle));
  std::printf("TFLOP/s:");
  for (const auto& s : sizes) std::printf("%18dx%dx%d", s[0], s[1], s[2]);
  std::printf("\n");
  for (const Entry& entry : entries) {
    for (const auto& s : sizes) {
      std::vector<Product> sets;
      const i64 m = s[0], n = s[1], k = s[2];
      for (i64 i = 0; i < 4 && (i + 1) * std::max({m * k, n * k, m * n}) <= room; ++i)
        sets.push_back(
            {memory + i * m * k, memory + room + i * n * k, memory + 2 * room + i * m * n, s[0], s[1], s[2]});
      CHECK(cudaMemset(memory + 2 * room, 0xff, room * sizeof(bf16)));
      CHECK(cudaMemset(acc, 0, 2 * sizeof(double)));
      entry.run(sets[0]);
      compare<<<256, 256>>>(sets[0], acc);
      double both[2];
      CHECK(cudaMemcpy(both, acc, sizeof both, cudaMemcpyDeviceToHost));
      const double time = microseconds(entry, sets);
      std::printf("%22.0f%s", 2e-6 * s[0] * s[1] * s[2] / time, std::sqrt(both[0] / both[1]) < 3e-3 ? "" : " WRONG");
    }
    std::printf("  %s\n", entry.name);
  }
  return 0;
}

}  // namespace ladder

int main() { return ladder::main(); }
