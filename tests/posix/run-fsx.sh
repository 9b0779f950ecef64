#!/usr/bin/env bash
# fsx: random reads, writes, mappings, truncates and holes of a file, every byte compared, while its
# segments are sealed, uploaded and evicted. Files of 8 MiB one after another (FSX_OPS operations, FSX_SEEDS),
# of which much is cold, then small ones with many operations (FSX_MANY for each of FSX_FILES), four at a
# time. A quick machine may be done before tiering has done much: then further seeds follow.
. "$(dirname "$0")/lib.sh"
cargo_tool fsx 0.3.2
ops=${FSX_OPS:-6000} many=${FSX_MANY:-20000} files=${FSX_FILES:-4}
start_tiered

settings() { # FLUSHES BYTES LARGEST ALLOCATIONS
    printf 'flen = %s\n[opsize]\nmax = %s\n[weights]\nclose_open = 1\nread = 10\nwrite = 10\n' "$2" "$3"
    printf 'mapread = 5\nmapwrite = 5\ninvalidate = 1\ntruncate = 5\nfsync = %s\nfdatasync = %s\n' "$1" "$1"
    # Not in long runs: one with no bytes comes sooner or later, which is EINVAL, and fsx ends there.
    printf 'posix_fallocate = %s\npunch_hole = 2\nsendfile = 2\nposix_fadvise = 1\n' "$4"
    printf 'copy_file_range = 1\n'
}
settings 1 8388608 131072 1 >"$W/large.toml"
settings 0.1 262144 16384 0 >"$W/small.toml"

one() { # NAME SETTINGS SEED OPERATIONS
    mkdir "$W/$1"
    "$TOOL" -q -f "$W/$2.toml" -S "$3" -N "$4" -P "$W/$1" "$MNT/fsx.$1" >"$W/$1/log" 2>&1
}
judge() { # NAME SEED OPERATIONS CODE
    if [ "$4" = 0 ]; then
        PASSED=$((PASSED + 1))
        echo "$1, seed $2: $3 operations"
        rm -f "$MNT/fsx.$1"
    else
        fail "$1, seed $2: $(head -n 5 "$W/$1/log")"
    fi
}

churn_start 3
want=$((ops / 500))
for seed in ${FSX_SEEDS:-1 2} further-{3..8}; do
    if [ "${seed#further-}" != "$seed" ]; then
        [ "$(counter evictions_total)" -lt $want ] || break
        seed=${seed#further-}
    fi
    code=0
    one "large-$seed" large "$seed" "$ops" || code=$?
    judge "large-$seed" "$seed" "$ops" $code
done
evicted=$(counter evictions_total) fetched=$(counter 'store_requests_total{op="get",outcome="ok"}')
# It never unmaps what it has mapped, so that many short runs are quicker than a few long ones.
for first in $(seq 1 4 "$files"); do
    pids=()
    for seed in $(seq "$first" "$((first + 3 < files ? first + 3 : files))"); do
        one "small-$seed" small "$seed" "$many" &
        pids+=("$seed:$!")
    done
    for p in "${pids[@]}"; do
        code=0
        wait "${p#*:}" || code=$?
        judge "small-${p%:*}" "${p%:*}" "$many" $code
    done
done
churn_stop
assert_tiered $want $((want / 2))
[ "$(counter evictions_total)" -gt "$evicted" ] || fail "no small file was evicted"
[ "$(counter 'store_requests_total{op="get",outcome="ok"}')" -gt "$fetched" ] || fail "no small file was fetched"
finish
