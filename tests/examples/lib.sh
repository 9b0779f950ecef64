# shellcheck shell=bash
# lib.sh: a world of its own for each test of an example file: $W, removed at the end; whatever is
# mounted below it goes too. Exit codes: 0 passed, 1 failed, 77 skipped.
set -u
: "${SLUICEFS:?set SLUICEFS to the sluicefs program}"
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
W=$(mktemp -d "${TMPDIR:-/var/tmp}/slex.XXXXXX")
cleanup() {
    local code=$? m
    awk -v d="$W/" 'index($2, d) == 1 { print $2 }' /proc/self/mounts | while read -r m; do
        "$SLUICEFS" umount -l "$m" 2>/dev/null || umount -l "$m" || fusermount3 -uz "$m"
    done
    rm -rf --one-file-system "$W"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

skip() {
    echo "SKIP: $*"
    exit 77
}

die() {
    echo "FAIL: $*"
    exit 1
}

need_fuse() {
    [ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "no access to /dev/fuse"
}

# The example file with its absolute places moved below $W.
moved() {
    sed -e "s|/var/lib/sluicefs|$W/var|g; s|/etc/sluicefs|$W/etc|g; s|/srv/|$W/srv/|g" "$1"
}
