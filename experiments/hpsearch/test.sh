#!/usr/bin/env bash
# The example launch of the main job: hydra_configs/v2.yaml under deepspeed_configs/v2.json.
#
#   bash experiments/hpsearch/test.sh [key=value ...]
#
# Works from any folder; relative paths in the overrides are relative to that folder.
#
#   NUM_GPU   processes, one a GPU (2). The global batch is the micro-batch x the accumulation x this.
#   MODEL     a folder or Hub name (gpt2-xl)
#   DATA      the folder with the shards (data/c4-en-html-with-metadata)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONSAFEPATH=1 # imports nothing from the working folder; see experiments/common.sh
packages=${root%/bsmeta/resources}
[[ ! -d $packages/bsmeta ]] || export PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}"

NUM_GPU=${NUM_GPU:-2}
MODEL=${MODEL:-gpt2-xl}
DATA=${DATA:-data/c4-en-html-with-metadata}
# The held-out file is one of the shards: it is left out of the training by its name.
TEST_FILE=c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz

accelerate launch \
  --config_file "$root/experiments/accelerate/zero2.yaml" \
  --deepspeed_config_file "$root/deepspeed_configs/v2.json" \
  --num_processes "$NUM_GPU" \
  -m bsmeta.train --config-name v2 \
  model_name="$MODEL" \
  data_config.train_file="$DATA/*.jsonl.gz" \
  data_config.validation_file="$DATA/$TEST_FILE" \
  extra_steps_to_eval_save_at='[100]' \
  "$@"
