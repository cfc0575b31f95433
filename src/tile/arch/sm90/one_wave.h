// Products whose tiles are one wave: a block has one tile of 128 rows, of a width that is a multiple of 32, so that 96
// columns leave fewer multiprocessors idle than 64 or 128. What an epilogue reads arrives as one more stage, and is
// replaced there by the result, of which each warp stores its own 16 rows.
#pragma once
#include "result.h"

TESSERA_TILE_BEGIN
namespace sm90 {

template <int Width, int Stages>
struct OneWaveTile {
  static constexpr Config config{128, Width, 64, 12, Stages};
  static constexpr int threads = config.warps * 32, stage_bytes = (128 + Width) * line_bytes;
  static constexpr int shared_bytes = Stages * (stage_bytes + 16) + 1024;
};

/// C is a OneWaveTile; the result is of the operands' type. Maps move boxes of 64 columns and 128 rows of a, or 64 rows
/// if transposed; of 32 columns and 64 rows of b, or 64 rows and the width if it is not transposed; of 32 columns and
/// 128 rows of what is read; of 32 columns and 16 rows of the result.
template <class C, class Operand, bool TransposedA, bool TransposedB, class Epilogue, class... Inputs>
class OneWave : Elements<Operand, Epilogue, Inputs...> {
  using Base = Elements<Operand, Epilogue, Inputs...>;
  using Base::args_, Base::has_input;

 public:
  static constexpr int width = C::config.tile_n, stages = C::config.stages, stage_bytes = C::stage_bytes;
  using TileA = SharedOperand<128>;
  using TileB = conditional_t<TransposedB, NarrowOperand<width>, SharedOperand<width>>;
  static constexpr int columns = 32, box_bytes = 128 * 64, result_bytes = width / columns * box_bytes;
  static_assert(stage_bytes == TileA::bytes + TileB::bytes && C::shared_bytes <= 227 * 1024,
                "sm90 one wave: what a block has");
  static_assert(width % 32 == 0 && width >= 64 && width <= 128 && result_bytes <= stage_bytes && !Base::has_slope,
                "sm90 one wave: results of a width of 64, 96 or 128 take the place of a stage");

  /// Called by all threads of a block.
  static TESSERA_DEVICE void run(const ProductArgs& args, const char* shared) {
    OneWave one_wave(args, (shared_address(shared) + atom_bytes - 1) / atom_bytes * atom_bytes);
    const int warp = from_first_lane(thread_in_block() / 32);
    if (thread_in_block() == 0) one_wave.make_barriers();
    sync_block();
    launch_dependent_grids();
    const TileScheduler::Place at = args.order.place(static_cast<int>(blockIdx.x));
    const TileWork work{at.down * 128, at.across * width, 0};
    if (warp >= 8) {
      setmaxnreg_dec<24>();
      if (warp == 8) one_wave.produce(work);
    } else {
      setmaxnreg_inc<240>();
      one_wave.consume(work, warp);
    }
  }

 private:
  using State = PipelineState<stages>;
  using Place = UnitPlace<box_bytes>;

  TESSERA_DEVICE OneWave(const ProductArgs& args, u32 base) : Base(args), base_(base) {}
  TESSERA_DEVICE u32 stage_of(int stage) const { return base_ + stage * stage_bytes; }
  TESSERA_DEVICE u32 full_barrier(int stage) const { return base_ + stages * stage_bytes + stage * 16; }
  TESSERA_DEVICE u32 empty_barrier(int stage) const { return full_barrier(stage) + 8; }

  TESSERA_DEVICE void make_barriers() const {
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_init(full_barrier(stage), 1);
      mbarrier_init(empty_barrier(stage), 8);
    }
    fence_mbarrier_init();
    prefetch_tensor_map(args_.a);
    prefetch_tensor_map(args_.b);
    prefetch_tensor_map(args_.y);
    if constexpr (has_input) prefetch_tensor_map(args_.input);
  }

  TESSERA_DEVICE void produce(const TileWork& work) const {
    wait_on_dependent_grids();
    const int steps = args_.order.k_tiles;
    State state;
#pragma unroll 1
    for (int step = 0; step < steps + has_input; ++step, state.next()) {
      mbarrier_wait(empty_barrier(state.stage), state.parity ^ 1);
      if (!elect_one()) continue;
      const u32 full = full_barrier(state.stage), to = stage_of(state.stage);
      if (step < steps) {
        mbarrier_arrive_expect_tx(full, stage_bytes);
        load_a(to, full, work.row, step * 64);
        load_b(to + TileA::bytes, full, work.column, step * 64);
      } else {
        mbarrier_arrive_expect_tx(full, result_bytes);
        unroll<width / columns>(
            [&](auto i) { tma_load(to + i * box_bytes, args_.input, full, work.column + i * columns, work.row, 0); });
      }
    }
  }
  TESSERA_DEVICE void load_a(u32 to, u32 full, int row, int depth) const {
    if constexpr (TransposedA)
      unroll<2>([&](auto i) { tma_load(to + i * TileA::block_bytes, args_.a, full, row + i * 64, depth, 0); });
    else tma_load(to, args_.a, full, depth, row, 0);
  }
  TESSERA_DEVICE void load_b(u32 to, u32 full, int column, int depth) const {
    if constexpr (TransposedB)
      unroll<width / columns>(
          [&](auto i) { tma_load(to + i * TileB::block_bytes, args_.b, full, column + i * columns, depth, 0); });
    else tma_load(to, args_.b, full, depth, column, 0);
  }

  TESSERA_DEVICE void consume(const TileWork& work, int warp) {
    wait_on_dependent_grids();
    const int lane = thread_in_block() % 32, steps = args_.order.k_tiles;
    Base::begin(work, lane);
    float acc[width / 2];
    unroll<width / 2>([&](auto i) { acc[i] = 0; });
    State state;
    int last = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const u32 stage = stage_of(state.stage);
      const u64 a = TileA::descriptor(stage + warp / 4 * TileA::block_bytes),
                b = TileB::descriptor(stage + TileA::bytes);
      mbarrier_wait(full_barrier(state.stage), state.parity);
      wgmma_fence();
      unroll<4>([&](auto i) {
        wgmma<Operand, width, TransposedA, TransposedB>(acc, a + i * TileA::step(TransposedA),
                                                        b + i * TileB::step(TransposedB), i > 0 || step > 0);
      });
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        if (lane == 0) mbarrier_arrive(empty_barrier(last));
      }
      last = state.stage;
      state.next();
    }
    wgmma_wait<0>();
    wgmma_fence_operand(acc);
    // The result's stage: what is read has come, or all warps have read what was there.
    mbarrier_wait(has_input ? full_barrier(state.stage) : empty_barrier(state.stage), state.parity ^ !has_input);
    store(acc, stage_of(state.stage) + warp * 16 * 64, {work.row + warp * 16, work.column, 0}, lane);
  }

  /// 64 columns after the other.
  TESSERA_DEVICE void store(float* acc, u32 boxes, const TileWork& work, int lane) {
    unroll<ceil_div(width, 64)>([&](auto part) {
      constexpr int units = min(4, width / 16 - part * 4);
      const u32 box = boxes + part * 2 * box_bytes;
      const int column = work.column + part * 64;
      Base::each([&](auto, auto& input) { input.template ask<units>(Place{work.row, column, box, 0, lane}); });
      unroll<units>([&](auto unit) {
        Base::make_unit(acc + part * 32 + unit * 8,
                        Place{work.row + lane / 4, column + unit * 16 + lane % 4 * 2, box, unit, lane});
        if constexpr (unit % 2 == 1) leave(box + unit / 2 * box_bytes, column + unit / 2 * columns, work.row);
      });
      Base::each([](auto, auto& input) { input.next(); });
    });
    tma_store_wait_read<0>();  // before the block ends
  }
  TESSERA_DEVICE void leave(u32 box, int column, int row) const {
    fence_proxy_async();
    sync_warp();
    if (!elect_one()) return;
    tma_store(box, args_.y, column, row, 0);
    tma_store_commit();
  }

  u32 base_;
};

}  // namespace sm90
TESSERA_TILE_END
