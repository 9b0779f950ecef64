#!/usr/bin/env bash
# The mount against an ordinary file system, call by call, with tiering, kills and remounts in between;
# MODEL_OPS and MODEL_SEEDS for longer runs.
. "$(dirname "$0")/lib.sh"
touch "$LOG"
for seed in ${MODEL_SEEDS:-1 2}; do
    mkdir -p "$W/model"
    python3 "$HERE/model.py" --sluicefs "$SLUICEFS" --work "$W/model" --seed "$seed" \
        --ops "${MODEL_OPS:-4000}" --set segment_bytes=64K --set mirror_below=0 --set seal_age=2s \
        --set local_age=1s --set restarts=1000 || fail "seed $seed"
    if grep -E ' (err|error|warn|warning) |Assertion|Sanitizer|runtime error' "$W/model/daemon.log" |
        grep -v 'another one takes the mount over'; then
        fail "seed $seed: the daemon's log (above)"
    fi
    PASSED=$((PASSED + 1))
    rm -rf "$W/model"
done
finish
