#!/usr/bin/env bash
# Trains the demo under DeepSpeed, on the GPUs that are there or on two CPU processes, and evaluates
# the result with and without metadata. `make demo` calls this in its environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
if [[ "$gpus" -gt 0 ]]; then
  processes=1 # the largest power of two, because the processes must divide the demo's 8 streams
  while [[ $((processes * 2)) -le "$gpus" && "$processes" -lt 8 ]]; do
    processes=$((processes * 2))
  done
  train=(accelerate launch --config_file experiments/accelerate/zero2.yaml)
  train+=(--num_processes "$processes")
  evaluate=(python)
else
  # Two processes share the cores; more threads than cores would wait for each other.
  export OMP_NUM_THREADS=$((($(nproc) + 1) / 2))
  train=(accelerate launch --config_file experiments/accelerate/cpu_zero2.yaml)
  evaluate=(accelerate launch --config_file experiments/accelerate/cpu.yaml)
fi

"${train[@]}" -m bsmeta.train --config-name demo overwrite_out_dir=true
"${evaluate[@]}" -m bsmeta.evaluate checkpoint=runs/demo
