#!/usr/bin/env bash
# Everyday programs: SQLite, git, rsync, logrotate, tar, a compiler, tail, flock, inotify.
. "$(dirname "$0")/lib.sh"
for t in sqlite3 git rsync logrotate inotifywait gcc; do tool $t; done
start_tiered
churn_start 6
bash "$HERE/apps-check.sh" "$MNT" >"$W/apps" || fail "some of them"
PASSED=$((PASSED + $(grep -c '^ok' "$W/apps")))
churn_stop
grep -v '^ok' "$W/apps"
assert_tiered 10 1
finish
