#!/usr/bin/env bash
# Trains on this machine, or on all machines of the SLURM job that it is called in.
#
#   BSMETA_CONFIG=demo experiments/train.sh [--dry-run] [key=value ...]
#   BSMETA_RESUME=runs/demo experiments/train.sh [--dry-run] [key=value ...]
#
#   BSMETA_CONFIG       a name in hydra_configs/, or the path of a YAML file
#   BSMETA_RESUME       or: the folder of a run, to resume from its newest intact checkpoint
#   BSMETA_LAUNCH_FILE  a file of experiments/accelerate/, or a path (zero2.yaml, or cpu_zero2.yaml
#                       where there is no GPU)
#   BSMETA_PROCESSES    processes of this machine (one a GPU; what the file says on a CPU)
#   BSMETA_FORCE_LOCAL  true: this machine alone, also in a SLURM job
#
# Exits with the run's own code: 0 done, 75 stopped by a signal (with a checkpoint saved, if training
# had begun), 2 an error that you can fix, 1 anything else. SIGTERM, SIGINT (Ctrl-C), SIGHUP, SIGUSR1
# and SIGUSR2 make it save and stop; BSMETA_STOP_TIMEOUT seconds (600) later it is killed.
set -euo pipefail
# shellcheck source=experiments/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ -n ${SLURM_JOB_ID:-} && ${BSMETA_FORCE_LOCAL:-false} != true ]]; then
  exec "$EXPERIMENTS/slurm/job.sh" "$@"
fi
read_arguments "$@"
choose_run
choose_launch
find_out_dir
start_run
