// Bulk tensor copies, their barriers, and matrix multiplication by warpgroups on NVIDIA's Hopper cards (compute
// capability 9.0; PTX ISA, chapters "mbarrier", "cp.async.bulk.tensor" and "wgmma").
#pragma once
#include "../../types.h"
#include "../gpu/block.h"

#if !defined(__CUDACC__)
#error "arch/sm90 is code for NVIDIA cards: compile it with nvcc or NVRTC"
#elif defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "arch/sm90 needs the target sm_90a"
#endif

TESSERA_TILE_BEGIN
namespace sm90 {

/// What cuTensorMapEncodeTiled fills in: where a matrix lies in memory and what box of it a copy moves.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

TESSERA_DEVICE u32 shared_address(const void* shared) { return static_cast<u32>(__cvta_generic_to_shared(shared)); }

// ---- barriers: 8 bytes of shared memory, named by their address. A phase ends when as many threads as it was made for
// have arrived and all bytes that it was told to expect are there; phases have parities 0, 1, 0, ...

TESSERA_DEVICE void mbarrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// After mbarrier_init: TMA and other blocks of the cluster may use them.
TESSERA_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// Arrives, and announces bytes that copies will bring.
TESSERA_DEVICE void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
TESSERA_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives as so many do.
TESSERA_DEVICE void mbarrier_arrive(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Arrives at the barrier of the same name in block `rank` of the cluster.
TESSERA_DEVICE void mbarrier_arrive_cluster(u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
/// Whether the phase of this parity has ended; waits a while for it.
TESSERA_DEVICE bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 ended;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
               : "=r"(ended)
               : "r"(barrier), "r"(parity)
               : "memory");
  return ended != 0;
}
/// Waits for the end of the phase of this parity. TESSERA_BOUNDED_WAITS: a wait of two seconds is an error.
TESSERA_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
#if defined(TESSERA_BOUNDED_WAITS)
  if (mbarrier_try_wait(barrier, parity)) return;
  u64 begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  while (!mbarrier_try_wait(barrier, parity)) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (now - begin > 2000000000) __trap();
  }
#else
  while (!mbarrier_try_wait(barrier, parity)) {
  }
#endif
}

/// Waits for so many threads of the block, all of their warps, by barrier 1 to 15 of the block.
TESSERA_DEVICE void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// The same without waiting.
TESSERA_DEVICE void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- clusters

/// Waits for all threads of all blocks of the cluster.
TESSERA_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// Four floats to the shared memory of block `rank` of the cluster, at the address that it has in this one.
TESSERA_DEVICE void store_four_cluster(u32 shared, u32 rank, const float* r) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.v4.f32 [remote], {%2, %3, %4, %5};\n}" ::"r"(shared),
      "r"(rank), "f"(r[0]), "f"(r[1]), "f"(r[2]), "f"(r[3])
      : "memory");
}

// ---- kernels that follow each other

/// Waits for the kernel before this one, if this one was launched without waiting for its end, and what it wrote.
TESSERA_DEVICE void wait_on_dependent_grids() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// The next kernel may be launched, once all blocks have said so.
TESSERA_DEVICE void launch_dependent_grids() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/// Up to twice so many nanoseconds; a million at most.
TESSERA_DEVICE void nanosleep(int nanoseconds) { asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds)); }

// ---- bulk tensor copies, each started by one thread

/// Starts copying the box at (x, y, z) to shared memory; its bytes count for `barrier`.
TESSERA_DEVICE void tma_load(u32 shared, const TensorMap& map, u32 barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(shared),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
/// The same of a tensor of four dims.
TESSERA_DEVICE void tma_load(u32 shared, const TensorMap& map, u32 barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
/// Of images [image, row, column, channel] whose map says how windows lie: neighbouring windows from the one at
/// (column, row) of an image on, of each the element that is so far right and down from its first one, and channels
/// from `channel` on; zeros where there are none.
TESSERA_DEVICE void tma_load_im2col(u32 shared, const TensorMap& map, u32 barrier, int channel, int column, int row,
                                    int image, u32 right, u32 down) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], [%2], {%7, %8};" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(channel), "r"(column), "r"(row), "r"(image), "h"(static_cast<unsigned short>(right)),
      "h"(static_cast<unsigned short>(down))
      : "memory");
}
/// Of three dims, to every block of the cluster in `mask`, at the same place and for the barrier of the same name.
TESSERA_DEVICE void tma_load_multicast(u32 shared, const TensorMap& map, u32 barrier, int x, int y, int z, u32 mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4, %5}], [%2], %6;" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(static_cast<unsigned short>(mask))
      : "memory");
}
/// Starts copying a box of shared memory to (x, y, z), as far as that exists.
TESSERA_DEVICE void tma_store(u32 shared, const TensorMap& map, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%1, {%2, %3, %4}], [%0];" ::"r"(shared),
               "l"(&map), "r"(x), "r"(y), "r"(z)
               : "memory");
}
/// Starts copying lines of shared memory to neighbouring windows of images, of one element each, as tma_load_im2col has
/// them.
TESSERA_DEVICE void tma_store_im2col(u32 shared, const TensorMap& map, int channel, int column, int row, int image) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%1, {%2, %3, %4, %5}], [%0];" ::"r"(
          shared),
      "l"(&map), "r"(channel), "r"(column), "r"(row), "r"(image)
      : "memory");
}
TESSERA_DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most N groups of this thread's stores have not read their shared memory yet.
template <int N>
TESSERA_DEVICE void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
/// What this thread wrote to shared memory may be read by TMA, once a barrier is passed.
TESSERA_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
TESSERA_DEVICE void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// ---- registers

/// Gives registers of this warpgroup back, or takes more; all of its warps do.
template <int Count>
TESSERA_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
TESSERA_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

/// Stores four 8x8 matrices of 16-bit elements: lane l points at row l % 8 of matrix l / 8.
TESSERA_DEVICE void stmatrix(u32 shared, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}
/// The same from shared memory.
TESSERA_DEVICE void ldmatrix(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

/// Two or four floats to and from shared memory.
TESSERA_DEVICE void store_pair(u32 shared, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(x), "f"(y) : "memory");
}
TESSERA_DEVICE void load_pair(float& x, float& y, u32 shared) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(shared) : "memory");
}
TESSERA_DEVICE void load_four(float (&r)[4], u32 shared) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3])
               : "r"(shared)
               : "memory");
}

/// 2, 4 or 8 bytes.
template <class Bits>
TESSERA_DEVICE Bits load_shared(u32 shared) {
  Bits bits;
  if constexpr (sizeof(Bits) == 2) asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(shared) : "memory");
  else if constexpr (sizeof(Bits) == 4) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bits) : "r"(shared) : "memory");
  else asm volatile("ld.shared.u64 %0, [%1];" : "=l"(bits) : "r"(shared) : "memory");
  return bits;
}

// ---- functions of the card's own, to about 1e-7 of the result; results below 2^-126 are 0

TESSERA_DEVICE float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TESSERA_DEVICE float quick_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// What the first lane of a warp has: the same in all, as the compiler then knows.
TESSERA_DEVICE int from_first_lane(int x) { return __shfl_sync(~0u, x, 0); }

/// True in one lane of a whole warp, as the compiler knows: what it starts then needs no loop over lanes.
TESSERA_DEVICE bool elect_one() {
  u32 elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

/// To 2^-11.
TESSERA_DEVICE float quick_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- multiplication by a warpgroup

/// Rows and columns of a thread's sums: register 4 j + 2 h + e is row() + 8 h, column() + 8 j + e of 64 rows.
TESSERA_DEVICE int accumulator_row() { return thread_in_block() % 128 / 32 * 16 + thread_in_block() % 32 / 4; }
TESSERA_DEVICE int accumulator_column() { return thread_in_block() % 4 * 2; }

/// Before the first multiplication of a group: registers of the sums have their values.
TESSERA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TESSERA_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most N groups are under way.
template <int N>
TESSERA_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/// After the wait: what follows reads these sums no earlier.
template <int N>
TESSERA_DEVICE void wgmma_fence_operand(float (&sums)[N]) {
  unroll<N>([&](auto i) { asm volatile("" : "+f"(sums[i])::"memory"); });
}
/// After the wait: until here these left operands stay in their registers.
template <int N>
TESSERA_DEVICE void wgmma_fence_operand(u32 (&words)[N][4]) {
  unroll<N * 4>([&](auto i) { asm volatile("" : "+r"(words[i / 4][i % 4])::"memory"); });
}

// clang-format off
#define TESSERA_SUMS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TESSERA_SUMS_48 \
  TESSERA_SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TESSERA_SUMS_64 \
  TESSERA_SUMS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TESSERA_SUMS_96 \
  TESSERA_SUMS_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TESSERA_SUMS_128 \
  TESSERA_SUMS_96 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TESSERA_8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TESSERA_32(d, i) TESSERA_8(d, i), TESSERA_8(d, i + 8), TESSERA_8(d, i + 16), TESSERA_8(d, i + 24)
#define TESSERA_WGMMA(columns, type, sums, first, second, third, fourth, fifth, ...)                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " third ", 0;\n"                                                \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" sums "}, " first ", " second \
               ", p, 1, 1, " fourth ", " fifth ";\n}"                                                              \
               : __VA_ARGS__                                                                                        \
               : "l"(a), "l"(b), "r"(add), "n"(int{TransposedA}), "n"(int{TransposedB}))
#define TESSERA_WGMMA_WIDTHS(type)                                                                                    \
  if constexpr (Columns == 64)                                                                                        \
    TESSERA_WGMMA("64", type, TESSERA_SUMS_32, "%32", "%33", "%34", "%35", "%36", TESSERA_32(d, 0));                   \
  else if constexpr (Columns == 96)                                                                                   \
    TESSERA_WGMMA("96", type, TESSERA_SUMS_48, "%48", "%49", "%50", "%51", "%52", TESSERA_32(d, 0), TESSERA_8(d, 32),  \
                  TESSERA_8(d, 40));                                                                                  \
  else if constexpr (Columns == 128)                                                                                  \
    TESSERA_WGMMA("128", type, TESSERA_SUMS_64, "%64", "%65", "%66", "%67", "%68", TESSERA_32(d, 0), TESSERA_32(d, 32)); \
  else if constexpr (Columns == 192)                                                                                  \
    TESSERA_WGMMA("192", type, TESSERA_SUMS_96, "%96", "%97", "%98", "%99", "%100", TESSERA_32(d, 0), TESSERA_32(d, 32), \
                  TESSERA_32(d, 64));                                                                                 \
  else                                                                                                                \
    TESSERA_WGMMA("256", type, TESSERA_SUMS_128, "%128", "%129", "%130", "%131", "%132", TESSERA_32(d, 0),            \
                  TESSERA_32(d, 32), TESSERA_32(d, 64), TESSERA_32(d, 96))
#define TESSERA_WGMMA_KEPT(columns, type, sums, first, second, third, fourth, fifth, sixth, seventh, ...)              \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " sixth ", 0;\n"                                                     \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" sums "}, {" first ", " second \
               ", " third ", " fourth "}, " fifth ", p, 1, 1, " seventh ";\n}"                                         \
               : __VA_ARGS__                                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(int{TransposedB}))
#define TESSERA_WGMMA_KEPT_WIDTHS(type)                                                                               \
  if constexpr (Columns == 64)                                                                                        \
    TESSERA_WGMMA_KEPT("64", type, TESSERA_SUMS_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", TESSERA_32(d, 0)); \
  else if constexpr (Columns == 128)                                                                                  \
    TESSERA_WGMMA_KEPT("128", type, TESSERA_SUMS_64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", TESSERA_32(d, 0), \
                       TESSERA_32(d, 32));                                                                            \
  else                                                                                                                \
    TESSERA_WGMMA_KEPT("256", type, TESSERA_SUMS_128, "%128", "%129", "%130", "%131", "%132", "%133", "%134",         \
                       TESSERA_32(d, 0), TESSERA_32(d, 32), TESSERA_32(d, 64), TESSERA_32(d, 96))
// clang-format on

/// d (+)= a b for 64 rows of a, 16 deep, and Columns columns of b, both in shared memory, see SharedOperand;
/// transposed: lines of shared memory run along rows of a, or columns of b. Register 4 j + 2 h + e of thread t holds
/// row t / 32 * 16 + h * 8 + t % 32 / 4, column 8 j + t % 4 * 2 + e.
template <class T, int Columns, bool TransposedA, bool TransposedB>
TESSERA_DEVICE void wgmma(float (&d)[Columns / 2], u64 a, u64 b, int add) {
  static_assert(Columns == 64 || Columns == 96 || Columns == 128 || Columns == 192 || Columns == 256,
                "wgmma: 64, 96, 128, 192 or 256 columns");
  static_assert(is_same_v<T, f16> || is_same_v<T, bf16>, "wgmma: operands are f16 or bf16");
  if constexpr (is_same_v<T, f16>) {
    TESSERA_WGMMA_WIDTHS("f16");
  } else {
    TESSERA_WGMMA_WIDTHS("bf16");
  }
}

/// The same with a in registers, pairs of neighbours along its depth: a[i] holds row t / 32 * 16 + i % 2 * 8 + t % 32 /
/// 4, depths i / 2 * 8 + t % 4 * 2 and one more: rounded pairs of sums whose columns are the depth.
template <class T, int Columns, bool TransposedB>
TESSERA_DEVICE void wgmma(float (&d)[Columns / 2], const u32 (&a)[4], u64 b, int add) {
  static_assert(Columns == 64 || Columns == 128 || Columns == 256, "wgmma from registers: 64, 128 or 256 columns");
  static_assert(is_same_v<T, f16> || is_same_v<T, bf16>, "wgmma: operands are f16 or bf16");
  if constexpr (is_same_v<T, f16>) {
    TESSERA_WGMMA_KEPT_WIDTHS("f16");
  } else {
    TESSERA_WGMMA_KEPT_WIDTHS("bf16");
  }
}
#undef TESSERA_WGMMA_KEPT_WIDTHS
#undef TESSERA_WGMMA_KEPT
#undef TESSERA_WGMMA_WIDTHS
#undef TESSERA_WGMMA
#undef TESSERA_32
#undef TESSERA_8
#undef TESSERA_SUMS_128
#undef TESSERA_SUMS_96
#undef TESSERA_SUMS_64
#undef TESSERA_SUMS_48
#undef TESSERA_SUMS_32

}  // namespace sm90
TESSERA_TILE_END
