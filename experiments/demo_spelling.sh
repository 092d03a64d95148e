#!/usr/bin/env bash
# Makes a test set of the held-out pages, trains a corrector and a detector on up to two GPUs or on
# two CPU processes, and shows the corrector on a sentence. `make demo-spelling` calls this in its
# environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
if [[ "$gpus" -gt 0 ]]; then
  # The number of processes must divide batch_shares, which is 2 for steps of this size.
  launch=(accelerate launch --config_file experiments/accelerate/ddp.yaml)
  launch+=(--num_processes "$((gpus < 2 ? gpus : 2))")
else
  # Two processes share the cores; more threads than cores would wait for each other.
  export OMP_NUM_THREADS=$((($(nproc) + 1) / 2))
  launch=(accelerate launch --config_file experiments/accelerate/cpu.yaml)
fi
python experiments/spelling_test_set.py examples/webdocs/*pq00-000.jsonl.gz \
  --out runs/demo_spelling_tests --group webdocs --lines 500
for name in demo_spelling_words demo_spelling; do
  "${launch[@]}" -m bsmeta.train --config-name "$name" overwrite_out_dir=true "$@"
done
python -m bsmeta.predict checkpoint=runs/demo_spelling input=- show=color \
  <<<'Returns the nubmer of rows that the fuction has recieved, or rises an error.'
