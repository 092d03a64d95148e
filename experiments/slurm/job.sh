#!/usr/bin/env bash
# Trains on all machines of the SLURM job that it is called in: in the shell of an allocation
# (salloc), through experiments/train.sh, or from train.sbatch, which then has it queue the job again
# when it was stopped. Each start resumes from the newest intact checkpoint.
#
#   BSMETA_CONFIG=v2 experiments/slurm/job.sh [--dry-run] [key=value ...]
#
#   BSMETA_PROCESSES    processes a machine (--ntasks-per-node of the job, or else one a GPU)
#   BSMETA_MASTER_ADDR  the first machine as the others reach it (its name in the list of the job)
#   BSMETA_MASTER_PORT  a free port of it (made from the number of the job)
set -euo pipefail
# shellcheck source=experiments/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

# A line for each checkpoint. Steps alone would not show progress: a run that skips damaged
# checkpoints sets them aside, and begins at an earlier step than the newest one.
checkpoints() {
  stat -c '%n %i %y' "$OUT_DIR"/checkpoint-*step/manifest.json 2>/dev/null | sort || true
}

# Queues the job again if it was stopped before its end; not if it can never get further.
requeue() { # CHECKPOINTS that were there before
  [[ $STATE == preempted || (-n $SIGNALLED && $STATE != "done" && $CODE -ne $EXIT_USER_ERROR) ]] ||
    return 0
  if [[ -z $(comm -13 <(echo "$1") <(checkpoints)) ]]; then
    say "stopped without a new checkpoint: not queued again, because it would never end." \
      "Give the job more time (--time), or earlier notice (--signal=B:USR1@SECONDS)"
    exit "$EXIT_FAILURE"
  fi
  say "stopped; queued again, to resume from the newest checkpoint"
  scontrol requeue "$SLURM_JOB_ID"
}

[[ -n ${SLURM_JOB_ID:-} && -n ${SLURM_JOB_NODELIST:-} ]] ||
  fail "not in a SLURM job; expected sbatch $EXPERIMENTS/slurm/train.sbatch, or salloc"
read_arguments resume_from_checkpoint_dir=latest "$@"
choose_run
[[ -z ${BSMETA_LAUNCH_FILE:-} ]] || find_launch_file # else each machine chooses by its GPUs
find_out_dir
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
BSMETA_NODES=$(wc -l <<<"$hosts")
BSMETA_MASTER_ADDR=${BSMETA_MASTER_ADDR:-${hosts%%$'\n'*}}
BSMETA_MASTER_PORT=${BSMETA_MASTER_PORT:-$((20000 + SLURM_JOB_ID % 10000))}
export BSMETA_NODES BSMETA_MASTER_ADDR BSMETA_MASTER_PORT
export BSMETA_PROCESSES=${BSMETA_PROCESSES:-${SLURM_NTASKS_PER_NODE:-}}
command=(srun --nodes="$BSMETA_NODES" --ntasks="$BSMETA_NODES" --ntasks-per-node=1 --cpu-bind=none)
command+=("$EXPERIMENTS/several_machines.sh" "${OVERRIDES[@]}")
if $DRY_RUN; then
  env | grep '^BSMETA_' | sort
  printf '%q ' "${command[@]}"
  echo
  exit 0
fi

before=$(status_mark)
saved=$(checkpoints)
run_with_signals USR1 "${command[@]}"
read_outcome "$before"
[[ ${BSMETA_REQUEUE:-false} != true ]] || requeue "$saved"
exit "$CODE"
