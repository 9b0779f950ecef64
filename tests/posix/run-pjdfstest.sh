#!/usr/bin/env bash
# pjdfstest: errors, permissions, link counts and times of every call, while tiering runs.
. "$(dirname "$0")/lib.sh"
cargo_tool pjdfstest 0.2.2
getent passwd tests >/dev/null ||
    useradd --system --user-group --no-create-home --shell /usr/sbin/nologin tests ||
    skip "the user 'tests' cannot be made"
start_tiered
mkdir "$W/other"
conf() { # allow_remount
    printf '[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n'
    printf '[settings]\nnaptime = 0.01\nallow_remount = %s\nexpected_failures = []\n' "$1"
}
conf false >"$W/pjd.toml"
conf true >"$W/erofs.toml"
churn_start 2
# Its own files live for too short a time to be tiered: another one is, beside it. The suite takes a second
# or two: again, until some of that was evicted.
{ while head -c 300000 /dev/urandom; do sleep 0.1; done; } >>"$MNT/beside" &
beside=$!
for round in 1 2 3 4 5 6 7 8; do
    NO_COLOR=1 timeout 300 "$TOOL" -c "$W/pjd.toml" -p "$MNT" -s "$W/other" >"$W/pjd" 2>&1
    grep -A3 ' FAILED' "$W/pjd"
    summary=$(grep '^Summary' "$W/pjd") || fail "no summary: $(tail -n 3 "$W/pjd")"
    echo "round $round: $summary"
    # 14 are skipped: the 13 that mount read-only again, and the one that needs to know LINK_MAX.
    if echo "$summary" | awk '{ exit !($2 == 0 && $4 <= 14 && $6 >= 384) }'; then
        PASSED=$((PASSED + $(echo "$summary" | awk '{ print $6 }')))
    else
        fail "not what it should be"
        break
    fi
    [ "$(counter evictions_total)" -lt 5 ] || break
done
kill $beside
wait $beside 2>/dev/null
churn_stop
assert_tiered 1 0
# In a process of their own, since a mount with open files cannot become read-only.
if [ -x /sbin/mount.fuse.sluicefs ]; then
    NO_COLOR=1 timeout 100 "$TOOL" -c "$W/erofs.toml" -p "$MNT" erofs >"$W/erofs" 2>&1
    grep -A3 ' FAILED' "$W/erofs"
    summary=$(grep '^Summary' "$W/erofs") || fail "no summary: $(tail -n 3 "$W/erofs")"
    echo "$summary" | awk '{ exit !($2 == 0 && $6 >= 13) }' || fail "EROFS: $summary"
fi
finish
