#!/usr/bin/env bash
# Trains the classifier's demo on the GPUs that are there or on two CPU processes; the test set, the
# baselines and the report follow at its end. `make demo-classification` calls this in its environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
if [[ "$gpus" -gt 0 ]]; then
  launch=(accelerate launch --config_file experiments/accelerate/ddp.yaml --num_processes "$gpus")
else
  # Two processes share the cores; more threads than cores would wait for each other.
  export OMP_NUM_THREADS=$((($(nproc) + 1) / 2))
  launch=(accelerate launch --config_file experiments/accelerate/cpu.yaml)
fi
"${launch[@]}" -m bsmeta.train --config-name demo_classification overwrite_out_dir=true "$@"
