#!/bin/bash
# run_on_gpu.sh [ARCHITECTURE [check]]: builds the tile GEMMs for the card at hand (90a), compares them with float64 and,
# unless told only to check, times them beside cuBLAS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export PATH=$PATH:/usr/local/cuda/bin
architecture=${1:-90a}
program=$(mktemp)
trap 'rm -f "$program"' EXIT
nvcc -gencode=arch=compute_$architecture,code=sm_$architecture -O3 -std=c++20 -t 0 run_on_gpu.cu -lcublas -o "$program"
"$program" "${@:2}"
