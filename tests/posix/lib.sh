# lib.sh: sourced by the runners of this folder. On top of ../mount/lib.sh: a mount of the broker profile
# with the smallest segments, nothing mirrored, and tiering that never rests, so that no suite can
# pass without it.
#
#   start_tiered [mount arguments...]   such a mount
#   churn_start, churn_stop             `seal`, `upload` and `evict` of everything, in random order
#   counter NAME                        the value of a counter of the mount
#   assert_tiered EVICTED FETCHED       at least so many segments were evicted, and fetches made
#   cargo_tool NAME VERSION             TOOL is its path: $NAME in capitals, PATH, or built once
. "$(dirname "${BASH_SOURCE[0]}")/../mount/lib.sh"
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/sluicefs-tests"
CHURN=
[ "$(id -u)" = 0 ] || skip "these suites need root"
chmod 755 "$W"

start_tiered() {
    start_fs -o profile=broker --set segment_bytes=64K --set mirror_below=0 --set seal_age=1s \
        --set local_age=1s --set delete_delay=5s --set manifest_delay=0 "$@"
}

churn() {
    RANDOM=$1
    while :; do
        case $((RANDOM % 4)) in 0) set -- seal ;; 1) set -- upload ;; *) set -- evict ;; esac
        timeout 20 "$SLUICEFS" "$1" "$MNT" >/dev/null 2>&1
        sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
    done
}

churn_start() {
    churn "${1:-1}" &
    CHURN=$!
}

churn_stop() {
    kill "$CHURN" 2>/dev/null
    wait "$CHURN" 2>/dev/null
    CHURN=
}

counter() {
    awk -v n="sluicefs_$1" '$1 == n { v = $2 } END { print v + 0 }' "$MNT/.sluice/stats"
}

assert_tiered() {
    local evicted fetched damaged
    evicted=$(counter evictions_total)
    fetched=$(counter 'store_requests_total{op="get",outcome="ok"}')
    damaged=$(counter damaged_blocks_total)
    echo "segments uploaded: $(counter 'uploads_total{outcome="ok"}')," \
        "opened again while they were: $(counter 'uploads_total{outcome="stale"}')," \
        "evicted: $evicted, fetches: $fetched"
    [ "$evicted" -ge "$1" ] || fail "only $evicted segments were evicted, wanted $1"
    [ "$fetched" -ge "$2" ] || fail "only $fetched fetches from the store, wanted $2"
    [ "$damaged" = 0 ] || fail "$damaged damaged blocks"
}

cargo_tool() {
    local name=$1 version=$2 env
    env=$(echo "$name" | tr '[:lower:]' '[:upper:]')
    TOOL=${!env:-}
    [ -n "$TOOL" ] || TOOL=$(command -v "$name") || TOOL=$CACHE/cargo/bin/$name
    [ -x "$TOOL" ] && return 0
    command -v cargo >/dev/null || skip "no $name and no cargo to build it"
    timeout 800 nice cargo install --quiet --locked --version "$version" --root "$CACHE/cargo" \
        "$name" >"$W/cargo.log" 2>&1 || skip "$name could not be built: $(tail -n 1 "$W/cargo.log")"
}

tool() {
    command -v "$1" >/dev/null || skip "no $1"
}
