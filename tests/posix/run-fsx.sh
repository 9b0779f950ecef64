#!/usr/bin/env bash
# fsx: random reads, writes, mappings, truncates and holes of a file, every byte compared, while its
# segments are sealed, uploaded and evicted. FSX_OPS and FSX_SEEDS for longer runs. A quick machine may
# be done before tiering has done much: then further seeds follow.
. "$(dirname "$0")/lib.sh"
cargo_tool fsx 0.3.2
ops=${FSX_OPS:-6000}
start_tiered
{
    printf 'flen = 8388608\n[opsize]\nmax = 131072\n[weights]\nclose_open = 1\nread = 10\nwrite = 10\n'
    printf 'mapread = 5\nmapwrite = 5\ninvalidate = 1\ntruncate = 5\nfsync = 1\nfdatasync = 1\n'
    printf 'posix_fallocate = 1\npunch_hole = 2\nsendfile = 2\nposix_fadvise = 1\n'
    printf 'copy_file_range = 1\n'
} >"$W/fsx.toml"
churn_start 3
want=$((ops / 500))
for seed in ${FSX_SEEDS:-1 2} further-{3..8}; do
    if [ "${seed#further-}" != "$seed" ]; then
        [ "$(counter evictions_total)" -lt $want ] || break
        seed=${seed#further-}
    fi
    mkdir "$W/$seed"
    if "$TOOL" -q -f "$W/fsx.toml" -S "$seed" -N "$ops" -P "$W/$seed" "$MNT/fsx.$seed" \
        >"$W/$seed/log" 2>&1; then
        PASSED=$((PASSED + 1))
        echo "seed $seed: $ops operations"
        rm -f "$MNT/fsx.$seed"
    else
        fail "seed $seed: $(head -n 5 "$W/$seed/log")"
    fi
done
churn_stop
assert_tiered $want $((want / 2))
finish
