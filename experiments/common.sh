# shellcheck shell=bash
# What the launch scripts share; sourced, never run. Every setting is an environment variable
# (docs/launching.md lists them); every argument but --dry-run and --help is an override of a key.

EXPERIMENTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$EXPERIMENTS")
EXIT_FAILURE=1
EXIT_USER_ERROR=2
MACHINES=1 # of the run; several_machines.sh sets both
NODE_RANK=0
# Python imports nothing from the working folder, in which other people's files may lie, but the
# package that these scripts belong to, in a checkout or a wheel. (accelerate adds the working folder
# to PYTHONPATH for DeepSpeed; `bsmeta` removes it again.)
export PYTHONSAFEPATH=1
PACKAGES=${ROOT%/bsmeta/resources}
[[ ! -d $PACKAGES/bsmeta ]] || export PYTHONPATH="$PACKAGES${PYTHONPATH:+:$PYTHONPATH}"

say() { echo "$(basename "$0"): $*" >&2; }

fail() {
  say "$*"
  exit "$EXIT_USER_ERROR"
}

# Sets DRY_RUN and OVERRIDES; --help prints the comment at the head of the script.
read_arguments() {
  DRY_RUN=false
  OVERRIDES=()
  local argument
  for argument in "$@"; do
    case $argument in
      --dry-run) DRY_RUN=true ;;
      -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
      -*) fail "$argument: expected key=value, --dry-run or --help" ;;
      *) OVERRIDES+=("$argument") ;;
    esac
  done
}

number() { # the value of a variable that must be a positive number
  local value=${!1:-$2}
  [[ $value =~ ^[1-9][0-9]*$ ]] || fail "$1=$value: expected a positive number"
  echo "$value"
}

# Sets RUN: which configuration.
choose_run() {
  local config=${BSMETA_CONFIG:-} resume=${BSMETA_RESUME:-}
  [[ -z $config || -z $resume ]] ||
    fail "BSMETA_CONFIG=$config and BSMETA_RESUME=$resume: expected one of them; unset the other"
  if [[ -n $resume ]]; then
    [[ -f $resume/config.yaml ]] ||
      fail "BSMETA_RESUME=$resume: no config.yaml there; expected the folder of a run (its out_dir)"
    resume=$(cd "$resume" && pwd)
    RUN=(--config-dir "$resume" --config-name config "out_dir='$resume'")
    RUN+=(overwrite_out_dir=false resume_from_checkpoint_dir=latest)
  elif [[ $config == */* || $config == *.yaml ]]; then
    [[ -f $config ]] || fail "BSMETA_CONFIG=$config: there is no such file"
    RUN=(--config-dir "$(cd "$(dirname "$config")" && pwd)")
    RUN+=(--config-name "$(basename "$config" .yaml)")
  elif [[ -n $config ]]; then
    [[ -f $ROOT/hydra_configs/$config.yaml ]] ||
      fail "BSMETA_CONFIG=$config: there is no $ROOT/hydra_configs/$config.yaml; expected its name" \
        "or the path of a YAML file"
    RUN=(--config-name "$config")
  else
    fail "neither BSMETA_CONFIG (a name in hydra_configs/, or a YAML file) nor BSMETA_RESUME (the" \
      "folder of a run to resume) is set; expected one of them"
  fi
}

# Sets OUT_DIR. A misspelt key ends here, before any process starts.
find_out_dir() {
  OUT_DIR=$(python -m bsmeta.train --cfg job --package out_dir \
    "${RUN[@]}" "${OVERRIDES[@]}") || exit "$EXIT_USER_ERROR"
  OUT_DIR=${OUT_DIR##*$'\n'} # after a line that names the package
  OUT_DIR=${OUT_DIR/#\~\//$HOME/}
}

# Sets LAUNCH_FILE, ON_CPU (true where it hides the GPUs), and PROCESSES (of this machine; empty: as
# many as the launch file says).
find_launch_file() { # GPUS, where BSMETA_LAUNCH_FILE is not set
  PROCESSES=${BSMETA_PROCESSES:-}
  [[ -z $PROCESSES ]] || PROCESSES=$(number BSMETA_PROCESSES) || exit
  LAUNCH_FILE=${BSMETA_LAUNCH_FILE:-}
  if [[ -z $LAUNCH_FILE ]]; then
    LAUNCH_FILE=zero2.yaml
    [[ $1 -gt 0 ]] || LAUNCH_FILE=cpu_zero2.yaml
  fi
  [[ -f $LAUNCH_FILE ]] || LAUNCH_FILE=$EXPERIMENTS/accelerate/$LAUNCH_FILE
  [[ -f $LAUNCH_FILE ]] ||
    fail "BSMETA_LAUNCH_FILE=$BSMETA_LAUNCH_FILE: no such file, here or in $EXPERIMENTS/accelerate"
  ON_CPU=$(python "$EXPERIMENTS/launch_file.py" "$LAUNCH_FILE" "$PROCESSES") ||
    exit "$EXIT_USER_ERROR"
}

# Sets the same, and CUDA_VISIBLE_DEVICES where the run takes fewer GPUs than there are.
choose_launch() {
  local gpus=
  command -v accelerate >/dev/null ||
    fail "accelerate is not in PATH; activate the environment first (. .venv/bin/activate)"
  [[ -n ${BSMETA_LAUNCH_FILE:-} ]] || gpus=$(count_gpus)
  find_launch_file "$gpus"
  [[ $ON_CPU != true ]] || return 0
  gpus=${gpus:-$(count_gpus)}
  PROCESSES=${PROCESSES:-$gpus}
  [[ $PROCESSES -le $gpus && $gpus -gt 0 ]] ||
    fail "$(basename "$LAUNCH_FILE") starts one process a GPU: found $gpus GPUs, expected" \
      "${BSMETA_PROCESSES:-at least 1}. See nvidia-smi, CUDA_VISIBLE_DEVICES and" \
      "BSMETA_PROCESSES, or train on the CPU: BSMETA_LAUNCH_FILE=cpu_zero2.yaml"
  choose_gpus "$PROCESSES" "$gpus"
}

# Where the run takes fewer GPUs than there are, the least busy ones.
choose_gpus() { # PROCESSES GPUS
  [[ $1 -lt $2 ]] || return 0
  local chosen
  chosen=$(python "$EXPERIMENTS/gpus.py" "$1")
  [[ -z $chosen ]] || export CUDA_VISIBLE_DEVICES=$chosen
  ! $DRY_RUN || say "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-}"
}

count_gpus() { python -c 'import torch; print(torch.cuda.device_count())'; }

port_is_open() { timeout 5 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null; }

# Starts a command in the background and waits for its end. The first signal to this script is passed
# on, once and as SIGNAL, and the command ignores the others: torchrun gives up waiting for its
# processes on a second signal, and srun or a terminal signal all processes beside this script.
# Sets LAUNCHER_CODE, and SIGNALLED: the name of that first signal.
run_with_signals() { # SIGNAL COMMAND...
  local passed=$1 child signal
  SIGNALLED=
  shift
  for signal in TERM INT HUP USR1 USR2; do
    # shellcheck disable=SC2064  # the name of now
    trap "pass_on $signal" "$signal"
  done
  (
    trap '' TERM INT HUP USR1 USR2
    trap - "$passed"
    exec "$@"
  ) &
  child=$!
  while kill -0 "$child" 2>/dev/null; do # a signal ends a wait, not the child
    wait "$child" || true
  done
  LAUNCHER_CODE=0
  wait "$child" || LAUNCHER_CODE=$?
  trap - TERM INT HUP USR1 USR2
}

# Called by the traps of run_with_signals, with whose variables it works.
# shellcheck disable=SC2317,SC2329
pass_on() { # NAME
  [[ -z $SIGNALLED ]] || return 0
  SIGNALLED=$1
  say "SIG$1: passed on; waiting until the run has saved and ended"
  kill -s "$passed" "$child" 2>/dev/null || true
}

status_mark() { stat -c '%i %y' "$OUT_DIR/status.json" 2>/dev/null || true; }

# Sets STATE and CODE from what the run has left in status.json, because the launchers turn every code
# of a process into 1. A status that was there before, $1, is not that of this run: a start that was
# refused may leave the status of a finished run as it is, and only its exit code.
read_outcome() {
  local mark
  STATE=unknown
  CODE=0
  if [[ $LAUNCHER_CODE -ne 0 ]]; then
    CODE=$EXIT_FAILURE
    [[ $LAUNCHER_CODE -ne $EXIT_USER_ERROR ]] || CODE=$EXIT_USER_ERROR
    [[ ! -s ${BSMETA_EXIT_CODE_FILE:-} ]] || CODE=$(<"$BSMETA_EXIT_CODE_FILE")
  fi
  mark=$(status_mark)
  [[ -n $mark && $mark != "$1" ]] || return 0
  STATE=$(sed -n 's/^{"state": "\([^"]*\)".*/\1/p' "$OUT_DIR/status.json")
  # A signal that comes after the end still makes the launcher fail.
  [[ $STATE != "done" ]] || CODE=0
  [[ $CODE -eq 0 ]] || CODE=$(sed -n 's/.*"exit_code": \([1-9][0-9]*\).*/\1/p' "$OUT_DIR/status.json")
  [[ -n $CODE ]] || CODE=$EXIT_FAILURE
}

# Starts the run on this machine and exits with the run's own code: 0, 75, 2 or 1.
start_run() {
  local stop_timeout start_timeout port before command=(accelerate launch --config_file "$LAUNCH_FILE")
  stop_timeout=$(number BSMETA_STOP_TIMEOUT 600) || exit
  start_timeout=$(number BSMETA_START_TIMEOUT 600) || exit
  port=$(number BSMETA_MASTER_PORT 29500) || exit
  if [[ $MACHINES -gt 1 ]]; then
    command+=(--num_machines "$MACHINES" --machine_rank "$NODE_RANK" --same_network)
    command+=(--main_process_ip "$MASTER_ADDR" --main_process_port "$port")
    command+=(--rdzv_conf "timeout=$start_timeout" --deepspeed_multinode_launcher standard)
    PROCESSES=${PROCESSES:-$(sed -n 's/^num_processes: *\([0-9]*\).*/\1/p' "$LAUNCH_FILE")}
    # accelerate divides by the machines; torchrun adds up what each of them really starts.
    command+=(--num_processes "$((PROCESSES * MACHINES))")
  elif [[ -n $PROCESSES ]]; then
    command+=(--num_processes "$PROCESSES")
  fi
  command+=(-m bsmeta.train "${RUN[@]}" "${OVERRIDES[@]}")
  if $DRY_RUN; then
    printf '%q ' "${command[@]}"
    echo
    exit 0
  fi
  [[ $MACHINES -eq 1 ]] || meet "$port" "$start_timeout"
  before=$(status_mark)
  BSMETA_EXIT_CODE_FILE=$(mktemp)
  export BSMETA_EXIT_CODE_FILE
  PET_SIGNALS_TO_HANDLE=SIGUSR2 PET_SHUTDOWN_TIMEOUT=$stop_timeout \
    run_with_signals USR2 "${command[@]}"
  read_outcome "$before"
  # A process that noted its code has started, and has said itself what is wrong.
  [[ $STATE != unknown || $CODE -eq 0 || -n $SIGNALLED || $MACHINES -eq 1 ||
    -s $BSMETA_EXIT_CODE_FILE ]] ||
    say "the run has not begun: $MACHINES machines must meet at $MASTER_ADDR:$port within" \
      "$start_timeout s (BSMETA_START_TIMEOUT); is each started, with the same address, port and" \
      "number of machines, and a number (BSMETA_NODE_RANK) of its own?"
  rm -f "$BSMETA_EXIT_CODE_FILE"
  if [[ $STATE == unknown && $CODE -ne 0 ]]; then
    say "ended with code $CODE, before it could say why in $OUT_DIR/status.json; see above"
  elif [[ $CODE -ne 0 ]]; then
    say "ended with code $CODE ($STATE); see $OUT_DIR/status.json"
  fi
  exit "$CODE"
}

# Returns when all machines have come, with the same number of machines, and the launcher of machine 0
# listens at the port. Exports the interface that connects the machines, for Gloo.
meet() { # PORT SECONDS
  local deadline=$((SECONDS + $2)) interface
  [[ $NODE_RANK -ne 0 ]] || ! port_is_open 127.0.0.1 "$1" ||
    fail "port $1 of this machine is in use; choose another, on all machines: BSMETA_MASTER_PORT"
  interface=$(mktemp)
  run_with_signals TERM python "$EXPERIMENTS/meeting.py" \
    "$NODE_RANK" "$MACHINES" "$MASTER_ADDR" "$1" "$2" "${BSMETA_WORLD_SIZE:-}" >"$interface"
  [[ ! -s $interface ]] || export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$(<"$interface")}"
  rm -f "$interface"
  [[ -z $SIGNALLED ]] || exit "$EXIT_FAILURE"
  [[ $LAUNCHER_CODE -eq 0 ]] || exit "$LAUNCHER_CODE"
  [[ $NODE_RANK -ne 0 ]] || return 0
  until port_is_open "$MASTER_ADDR" "$1"; do
    [[ $SECONDS -lt $deadline ]] ||
      fail "machine 0 ($MASTER_ADDR:$1) did not start its launcher within $2 s" \
        "(BSMETA_START_TIMEOUT); its output says why"
    sleep 1
  done
}
