# shellcheck shell=bash
# lib.sh: what the examples of brokers share. Source it from bash.
#
#   begin NAME            finds the server (or ends: SKIP), mounts a volume in a new folder: $DATA is the data directory
#   mount_volume          mounts it again
#   server COMMAND...     starts it in the background, its output in ./server.log; SERVER is its process
#   ready PATTERN         waits until the server says so
#   finish_server         SIGTERM, and waits for its end
#   client ARGUMENTS...   python with the client library; the program comes on standard input
#   evict_all             moves everything to the store, and shows what is left here
#   fetched               how much came back since; what the kernel still had in its page cache did not need to
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../lib.sh
. "$here/lib.sh"
# shellcheck source=../../tests/brokers/brokers.sh
. "$here/../tests/brokers/brokers.sh"

begin() {
    local code=0
    find_sluicefs
    "find_$1" || code=$?
    if [ $code != 0 ]; then
        echo "SKIP: $BROKER_SKIP" >&2
        exit 77
    fi
    make_world
    show "A volume for a broker: local device, directory as the object store, segments of 1 MiB"
    mount_volume
    DATA=$MNT/$1
    mkdir "$DATA"
    PORT=$("$BROKER_PYTHON" -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
}

mount_volume() {
    run "$SLUICEFS" mount --profile broker --state state --device device=1G --store dir://store \
        --set segment_bytes=1M --set seal_age=10s mnt
}

server() {
    : >server.log
    setsid "$@" >>server.log 2>&1 </dev/null &
    SERVER=$!
    PIDS=$SERVER
}

ready() {
    local end=$((SECONDS + 180))
    until grep -qE "$1" server.log; do
        if [ $SECONDS -ge $end ] || ! kill -0 "$SERVER" 2>/dev/null; then
            tail -n 20 server.log >&2
            echo "the server did not start" >&2
            exit 1
        fi
        sleep 0.1
    done
}

finish_server() {
    kill "$SERVER"
    wait "$SERVER" || true
    PIDS=''
}

client() {
    "$BROKER_PYTHON" - "$@"
}

evict_all() {
    run "$SLUICEFS" evict mnt
    run "$SLUICEFS" status mnt
    run du -sh --apparent-size device store
}

fetched() {
    run grep -E '^sluicefs_(cache_fetched_bytes|evictions)_total' mnt/.sluice/stats
}
