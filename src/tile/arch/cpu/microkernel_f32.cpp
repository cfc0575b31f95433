// What all products that are summed up in float share, compiled once for each instruction set.
#include "pack.h"

TESSERA_TILE_BEGIN
namespace cpu {

TESSERA_MICROKERNELS(template, float)
namespace detail {
TESSERA_PACK_ALONG_K(template, float, float)
TESSERA_PACK_ALONG_K(template, float, f16)
TESSERA_PACK_ALONG_K(template, float, bf16)
}  // namespace detail

}  // namespace cpu
TESSERA_TILE_END
