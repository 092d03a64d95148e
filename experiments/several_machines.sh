#!/usr/bin/env bash
# Trains on several machines: start it on each of them, with the same BSMETA_CONFIG or BSMETA_RESUME
# (see train.sh). The machines may have different numbers of GPUs.
#
#   BSMETA_MACHINES=machines.json BSMETA_CONFIG=v2 experiments/several_machines.sh [key=value ...]
#
#   BSMETA_MACHINES     a JSON file, the same on every machine: {"first.host": 1, "second.host": 3},
#                       the processes of each; the first is the master
#   BSMETA_NODE_RANK    which of them this one is (0, 1, ...), where its names do not tell
#
# or without a file:
#
#   BSMETA_NODES        number of machines
#   BSMETA_NODE_RANK    0 on the master, 1, 2, ... on the others
#   BSMETA_MASTER_ADDR  name or address of machine 0, as the others reach it
#   BSMETA_PROCESSES    processes of this machine
#   BSMETA_WORLD_SIZE   optional: processes of all machines; another number is refused
#
#   BSMETA_MASTER_PORT    a free port of machine 0, the same on every machine (29500)
#   BSMETA_START_TIMEOUT  seconds that the machines wait for each other (600)
#
# Exit codes and signals are those of train.sh; a signal to one machine stops all.
set -euo pipefail
# shellcheck source=experiments/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

read_arguments "$@"
if [[ -n ${BSMETA_MACHINES:-} ]]; then
  [[ -z ${BSMETA_NODES:-}${BSMETA_MASTER_ADDR:-}${BSMETA_PROCESSES:-}${BSMETA_WORLD_SIZE:-} ]] ||
    fail "BSMETA_MACHINES=$BSMETA_MACHINES says all about the machines: unset BSMETA_NODES," \
      "BSMETA_MASTER_ADDR, BSMETA_PROCESSES and BSMETA_WORLD_SIZE"
  machine=$(python "$EXPERIMENTS/machines.py" "$BSMETA_MACHINES" "${BSMETA_NODE_RANK:-}") ||
    exit "$EXIT_USER_ERROR"
  read -r NODE_RANK BSMETA_PROCESSES MACHINES MASTER_ADDR BSMETA_WORLD_SIZE <<<"$machine"
  export BSMETA_WORLD_SIZE
else
  BSMETA_NODE_RANK=${BSMETA_NODE_RANK:-${SLURM_NODEID:-}}
  for name in BSMETA_NODES BSMETA_NODE_RANK BSMETA_MASTER_ADDR; do
    [[ -n ${!name:-} ]] ||
      fail "$name is not set; expected BSMETA_MACHINES, or BSMETA_NODES, BSMETA_NODE_RANK and" \
        "BSMETA_MASTER_ADDR (--help says more)"
  done
  MACHINES=$(number BSMETA_NODES) || exit
  NODE_RANK=$BSMETA_NODE_RANK
  MASTER_ADDR=$BSMETA_MASTER_ADDR
  [[ $NODE_RANK =~ ^(0|[1-9][0-9]*)$ && $NODE_RANK -lt $MACHINES ]] ||
    fail "BSMETA_NODE_RANK=$NODE_RANK: expected 0 to $((MACHINES - 1)), as BSMETA_NODES=$MACHINES"
fi
choose_run
choose_launch
find_out_dir
start_run
