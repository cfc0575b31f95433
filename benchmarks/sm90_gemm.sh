#!/bin/bash
# sm90_gemm.sh: the versions of the sm90 product on the Hopper card at hand, beside cuBLAS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export PATH=$PATH:/usr/local/cuda/bin
program=$(mktemp)
trap 'rm -f "$program"' EXIT
nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++20 -t 0 -I ../src sm90_gemm.cu -lcublas -o "$program"
"$program"
