#!/usr/bin/env bash
# Writers and readers of the same pages, with and without O_DIRECT and through a mapping, while segments are sealed,
# uploaded and evicted below them: nobody reads less than what was acknowledged, not even for a moment.
# VERSIONS_SECONDS for each of three ways of tiering.
. "$(dirname "$0")/lib.sh"
seconds=${VERSIONS_SECONDS:-8}
start_tiered --set seal_age=1h --set local_age=1h
: "${TOOLS:?set TOOLS to the folder of the test tools}"
loop() { while :; do for c in "$@"; do "$SLUICEFS" "$c" "$MNT" >/dev/null 2>>"$W/said" || echo "$c: $?" >>"$W/said"; done; done; }
seed=0
for commands in "seal" "seal upload" "seal upload evict"; do
    seed=$((seed + 1))
    # shellcheck disable=SC2086
    loop $commands &
    LOOP=$!
    check "with $commands" "$TOOLS/pageversions" "$MNT/versions" "$seconds" "$seed"
    kill "$LOOP"
    wait "$LOOP" 2>/dev/null
done
check "no command failed for a segment that was written to again" test ! -s "$W/said"
[ ! -s "$W/said" ] || head -n 5 "$W/said"
assert_tiered 20 10
finish
