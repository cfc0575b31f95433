// Operands of matrix instructions as distributions over one warp: A over (m, k), B over (n, k), C and D over
// (m, n). Registers count elements; two 16-bit elements share a hardware register.
#pragma once
#include "distribution.h"

TESSERA_TILE_BEGIN

/// mma.sync m16n8k16, f16 and bf16 (PTX ISA, matrix fragments for mma.m16n8k16).
struct MmaSync16x8x16 {
  struct A {
    static constexpr TESSERA_HD auto layout() {
      return named("mk", repeat(1, 2) * repeat(2, 1) * lanes(8, 4) * vec(1, 2));
    }
  };
  struct B {
    static constexpr TESSERA_HD auto layout() { return named("nk", repeat(1, 2) * lanes(8, 4) * vec(1, 2)); }
  };
  struct C {
    static constexpr TESSERA_HD auto layout() { return named("mn", repeat(2, 1) * lanes(8, 4) * vec(1, 2)); }
  };
};

/// mma.sync m16n8k8, f16 and bf16.
struct MmaSync16x8x8 {
  struct A {
    static constexpr TESSERA_HD auto layout() { return named("mk", repeat(2, 1) * lanes(8, 4) * vec(1, 2)); }
  };
  struct B {
    static constexpr TESSERA_HD auto layout() { return named("nk", lanes(8, 4) * vec(1, 2)); }
  };
  using C = MmaSync16x8x16::C;
};

/// mma.sync m16n8k8, tf32.
struct MmaSync16x8x8Tf32 {
  struct A {
    static constexpr TESSERA_HD auto layout() { return named("mk", repeat(1, 2) * repeat(2, 1) * lanes(8, 4)); }
  };
  struct B {
    static constexpr TESSERA_HD auto layout() { return named("nk", repeat(1, 2) * lanes(8, 4)); }
  };
  using C = MmaSync16x8x16::C;
};

/// The accumulator of wgmma m64nNk16, over the four warps of a warp group.
template <int N>
struct Wgmma64 {
  struct C {
    static constexpr TESSERA_HD auto layout() {
      return named("mn", warps(4, 1) * repeat(1, N / 8) * repeat(2, 1) * lanes(8, 4) * vec(1, 2));
    }
  };
};

/// v_mfma of 64 lanes for Edge x Edge sums (CDNA2 ISA, 7.1), 32 or 16; a lane has Held neighbours along k of an
/// operand: 4 of f16, bf16 or i8, 1 float.
template <int Edge, int Held>
struct Mfma {
  struct A {
    static constexpr TESSERA_HD auto layout() {
      return named("mk", lanes(1, 64 / Edge) * lanes(Edge, 1) * vec(1, Held));
    }
  };
  struct B {
    static constexpr TESSERA_HD auto layout() {
      return named("nk", lanes(1, 64 / Edge) * lanes(Edge, 1) * vec(1, Held));
    }
  };
  /// Row 256 / Edge * (r / 4) + 4 * (lane / Edge) + r % 4, column lane % Edge.
  struct C {
    static constexpr TESSERA_HD auto layout() {
      return named("mn", repeat(Edge * Edge / 256, 1) * lanes(64 / Edge, 1) * lanes(1, Edge) * vec(4, 1));
    }
  };
};
using Mfma32x32x8 = Mfma<32, 4>;
using Mfma16x16x16 = Mfma<16, 4>;
using Mfma32x32x2F32 = Mfma<32, 1>;
using Mfma16x16x4F32 = Mfma<16, 1>;

TESSERA_TILE_END
