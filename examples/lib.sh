# shellcheck shell=bash
# lib.sh: what the examples share. Source it from bash, with the examples' folder in $here.
#
#   find_sluicefs    sets SLUICEFS: the environment's, the one just built, or the one in PATH
#   show TEXT        a headline
#   run COMMAND...   prints the command as one would type it, then runs it
#   make_world       goes into a new folder $W with the mount point mnt; all of it goes at the end
#   keep_world       ... except the folder, from now on
find_sluicefs() {
    : "${here:?the folder of the examples}"
    if [ -z "${SLUICEFS:-}" ]; then
        if [ -x "$here/../build/tools/sluicefs" ]; then
            SLUICEFS=$here/../build/tools/sluicefs
        else
            SLUICEFS=$(command -v sluicefs) || {
                echo "sluicefs is neither built nor installed; run examples/quickstart" >&2
                exit 1
            }
        fi
    fi
    if ! [ -r /dev/fuse ] || ! [ -w /dev/fuse ]; then
        echo "SKIP: no access to /dev/fuse" >&2
        exit 77
    fi
}

show() {
    printf '\n\033[1m# %s\033[0m\n' "$*"
}

run() {
    local words=$*
    words=${words//$SLUICEFS/sluicefs}
    printf '$ %s\n' "$words"
    "$@"
}

make_world() {
    W=$(mktemp -d "${TMPDIR:-/tmp}/sluicefs-example.XXXXXX")
    MNT=$W/mnt
    mkdir "$MNT"
    SLUICEFS=$(realpath "$SLUICEFS")
    cd "$W" || exit 1
    trap end_world EXIT
    trap 'exit 1' INT TERM
}

keep_world() {
    KEEP=1
}

# Background programs of an example are listed in $PIDS.
end_world() {
    local code=$? pid
    cd /
    for pid in ${PIDS:-}; do
        kill "$pid" 2>/dev/null || true
    done
    if mountpoint -q "$MNT"; then
        "$SLUICEFS" umount -l "$MNT" || umount -l "$MNT" 2>/dev/null || fusermount3 -uz "$MNT"
    fi
    if [ "$code" != 0 ] && [ -s "$W/state/log" ]; then
        echo "-- the daemon's log:" >&2
        tail -n 20 "$W/state/log" >&2
    fi
    [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$W"
    exit "$code"
}
