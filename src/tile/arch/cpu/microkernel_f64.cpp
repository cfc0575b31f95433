// What all products that are summed up in double share, compiled once for each instruction set.
#include "pack.h"

TESSERA_TILE_BEGIN
namespace cpu {

TESSERA_MICROKERNELS(template, double)
namespace detail {
TESSERA_PACK_ALONG_K(template, double, double)
}  // namespace detail

}  // namespace cpu
TESSERA_TILE_END
