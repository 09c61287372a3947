#!/usr/bin/env bash
# Reproduce GPT-2 124M in four stages: data, train, score and export.
#
#   reproduce/gpt2_124m.sh              all stages, on every GPU of this machine
#   reproduce/gpt2_124m.sh data         one stage, for example on a machine without a GPU
#   sbatch reproduce/gpt2_124m.slurm    the stages after data, on a Slurm cluster
#   TRAINER=train_gpt2.py HELLASWAG=hellaswag_val.jsonl reproduce/gpt2_124m.sh    with the one file
#
# If the script is interrupted at any point, run the same command again. It skips the stages that
# are complete and resumes the one that isn't. docs/reproduce_gpt2.md lists costs and losses.
set -euo pipefail

# Set these variables in the environment to change a run, for example for a small rehearsal.
TRAINER=${TRAINER:-library}              # library (saves when it's stopped), or train_gpt2.py
DATA=${DATA:-fineweb}                    # folder of shards, which the first stage makes
PARQUET=${PARQUET:-}                     # folder of downloaded parquet files (empty: the hub)
RUN_DIR=${RUN_DIR:-runs/gpt2-124m}       # folder of the run, which all machines must see
EXPORT=${EXPORT:-$RUN_DIR/export}        # folder of the exported model
HELLASWAG=${HELLASWAG-Rowan/hellaswag}   # dataset on the hub, or hellaswag_val.jsonl (empty: none)
PROMPT=${PROMPT:-"Hello, I'm a language model,"}
PRESET=${PRESET:-gpt2-124m}              # one of the library's presets in `cs336 train --help`
GPUS=${GPUS:-auto}                       # how many GPUs of this machine to use
PREPARE_FLAGS=${PREPARE_FLAGS:---val-fraction 0.01}
TRAIN_FLAGS=${TRAIN_FLAGS:---micro-batch-size 64 --eval-every 1000}
EVAL_FLAGS=${EVAL_FLAGS:---eval-tokens 10485760 --micro-batch-size 64}
LAUNCH=${LAUNCH:-}                       # how to start processes (empty: torchrun for several GPUs)
PYTHON=${PYTHON:-.venv/bin/python}       # the Python that has the package
command -v "$PYTHON" >/dev/null || PYTHON=python3

say() {
  echo "== $*" >&2
}

# Run a command that Ctrl-C and SIGTERM reach once, at which training saves a checkpoint. A terminal
# sends Ctrl-C to the command too, while SIGTERM may come to the script alone.
run() {
  local child code=0
  trap : INT
  (trap - INT; exec "$@") & # bash ignores SIGINT in the background
  child=$!
  trap 'kill -TERM "$child" 2>/dev/null || true' TERM
  wait "$child" || code=$?
  while kill -0 "$child" 2>/dev/null; do # the signal ended `wait`, but not yet the command
    code=0
    wait "$child" || code=$?
  done
  trap - INT TERM
  return "$code"
}

# Succeed if the run has the checkpoint of its last step.
trained() {
  if [ "$TRAINER" != library ]; then
    [ -f "$RUN_DIR/checkpoint.pt" ] || return 1
    "$PYTHON" -c 'import sys, torch
state = torch.load(sys.argv[1], mmap=True, weights_only=True)
sys.exit(state["step"] < state["config"]["max_steps"])' "$RUN_DIR/checkpoint.pt"
    return
  fi
  local config=$RUN_DIR/config.json steps
  [ -f "$config" ] || return 1
  steps=$("$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["max_steps"])' "$config")
  [ -d "$RUN_DIR/checkpoints/$(printf 'step_%08d' "$steps")" ]
}

data() {
  if [ -d "$DATA" ]; then
    say "data: $DATA is complete"
    return
  fi
  local flags source=(--hub HuggingFaceFW/fineweb-edu --hub-config sample-10BT)
  read -ra flags <<<"$PREPARE_FLAGS"
  if [ -n "$PARQUET" ]; then
    mapfile -d '' source < <(find -L "$PARQUET" -name '*.parquet' -print0 | LC_ALL=C sort -z)
    [ ${#source[@]} -gt 0 ] || { say "data: no .parquet file in $PARQUET"; exit 2; }
  fi
  say "data: tokenize ${PARQUET:-FineWeb-Edu} into $DATA"
  run "$PYTHON" -m cs336_lib prepare "${source[@]}" "${flags[@]}" --out "$DATA"
}

train() {
  if trained; then
    say "train: $RUN_DIR is complete"
    return
  fi
  local flags launch=("$PYTHON") torchrun=("$PYTHON" -m torch.distributed.run --shutdown-timeout=300)
  read -ra flags <<<"$TRAIN_FLAGS"
  if [ -n "$LAUNCH" ]; then
    read -ra launch <<<"$LAUNCH"
  else
    [ "$GPUS" != auto ] || GPUS=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())')
    [ "$GPUS" -lt 2 ] || launch=("${torchrun[@]}" --standalone --nproc_per_node="$GPUS")
  fi
  if [ "$TRAINER" = library ]; then
    say "train: $PRESET on $DATA in $RUN_DIR"
    run "${launch[@]}" -m cs336_lib train "$PRESET" \
      --train-data "$DATA" --run-dir "$RUN_DIR" --hellaswag "$HELLASWAG" --sample "$PROMPT" \
      "${flags[@]}" --resume
  else
    say "train: $TRAINER on $DATA in $RUN_DIR"
    if [ -d "$RUN_DIR/checkpoints" ]; then
      say "train: $RUN_DIR holds a run of the library; choose another RUN_DIR"
      exit 2
    fi
    run "${launch[@]}" "$TRAINER" \
      --data "$DATA" --out "$RUN_DIR" --hellaswag "$HELLASWAG" --prompt "$PROMPT" "${flags[@]}"
  fi
  trained || { say "train: stopped early; run the same command again to resume"; exit 1; }
}

score() {
  local flags file=$RUN_DIR/score.txt model=(--run-dir "$RUN_DIR")
  read -ra flags <<<"$EVAL_FLAGS"
  [ "$TRAINER" = library ] || model=(--model "$RUN_DIR" --val-data "$DATA")
  if [ ! -f "$file" ]; then
    say "score: evaluate the model in $RUN_DIR"
    run "$PYTHON" -m cs336_lib eval "${model[@]}" --hellaswag "$HELLASWAG" "${flags[@]}" >"$file.part"
    mv "$file.part" "$file"
  fi
  say "score: $file"
  cat "$file"
}

export_model() {
  [ "$TRAINER" = library ] || EXPORT=$RUN_DIR # the one file saves in the published layout
  if [ ! -d "$EXPORT" ]; then
    say "export: write the model to $EXPORT"
    run "$PYTHON" -m cs336_lib export --run-dir "$RUN_DIR" --out "$EXPORT"
  fi
  say "export: $EXPORT is complete"
}

case $HELLASWAG in
  *.json | *.jsonl) [ -f "$HELLASWAG" ] || { say "HELLASWAG: no file $HELLASWAG"; exit 2; } ;;
  ?*) [ "$TRAINER" = library ] || { say "HELLASWAG: $TRAINER reads a file in JSON lines"; exit 2; } ;;
esac
[ $# -gt 0 ] || set -- data train score export
for stage in "$@"; do
  case $stage in
    data | train | score) "$stage" ;;
    export) export_model ;;
    *) say "$stage: unknown stage; choose data, train, score or export"; exit 2 ;;
  esac
done
