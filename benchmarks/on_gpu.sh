#!/usr/bin/env bash
# The CUDA table, in under five minutes, on a machine with a CUDA build of torch and perhaps no way out. What it needs is made before, elsewhere:
#   PEERS=.carried python benchmarks/peers.py --beside-torch lossary liger cce torchrl
# `benchmarks/on_gpu.sh --device dry --quick` walks through the same steps without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
export PEERS="${PEERS:-$PWD/.carried}" OMP_NUM_THREADS=1
export PYTHONPATH="$PWD/.view:$PEERS/lossary/site"
exec timeout 290 "${PYTHON:-python3}" -m pytest benchmarks --device cuda "$@"
