#!/usr/bin/env bash
# The mount against an ordinary file system, call by call, with tiering, kills and remounts in between;
# MODEL_OPS and MODEL_SEEDS for longer runs. Each seed has its own mount, and all run at once: they
# mostly wait.
. "$(dirname "$0")/lib.sh"
touch "$LOG"
read -ra seeds <<<"${MODEL_SEEDS:-1 2}"
pids=()
for seed in "${seeds[@]}"; do
    mkdir -p "$W/$seed"
    python3 "$HERE/model.py" --sluicefs "$SLUICEFS" --work "$W/$seed" --seed "$seed" \
        --ops "${MODEL_OPS:-4000}" --set segment_bytes=64K --set mirror_below=0 --set seal_age=2s \
        --set local_age=1s --set restarts=1000 >"$W/$seed/out" 2>&1 &
    pids+=($!)
done
for k in "${!seeds[@]}"; do
    seed=${seeds[k]} code=0
    wait "${pids[k]}" || code=$?
    cat "$W/$seed/out"
    [ $code = 0 ] || fail "seed $seed"
    if grep -E ' (err|error|warn|warning) |Assertion|Sanitizer|runtime error' "$W/$seed/daemon.log" |
        grep -v 'another one takes the mount over'; then
        fail "seed $seed: the daemon's log (above)"
    fi
    PASSED=$((PASSED + 1))
done
finish
