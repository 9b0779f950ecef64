#!/usr/bin/env bash
# Rules for paths: what they keep from the store, a reload, a rename, each path's age; errors; a new daemon.
. "$(dirname "$0")/lib.sh"
ALLOW_LOG='rules\.ini:3: tierd|another one takes the mount over'
S=$SLUICEFS
R=$W/rules.ini
cat >"$R" <<'END'
# Rules of this test
[*.keep]
tiered = no
[ages/short-*]
local_age = 1s
[log/*]
profile = topics
[m/**]
mirror = yes
local_age = 0
[sync/*]
flush_interval = 0
END

status_of() { # status_of FILE PYTHON-EXPRESSION over d
    "$S" status --json "$1" | python3 -c "import json, sys
d = json.load(sys.stdin)
s = d.get('segments')
sys.exit(not ($2))"
}
never_uploaded() { # its bytes are at rest, and there is no object
    wait_for 30 status_of "$1" "s and all(x['state'] == 'sealed' for x in s)" &&
        status_of "$1" "not d['tiered'] and not any(x['remote'] or x['key'] for x in s)"
}
uploaded() { wait_for 30 status_of "$1" "s and all(x['remote'] for x in s)"; }
on_device() { status_of "$1" "s and all(x['local'] for x in s)"; }
not_on_device() { wait_for 30 status_of "$1" "s and not any(x['local'] for x in s)"; }
nothing_waits() { wait_for 30 status_of "$MNT" "d['queues']['upload'] == 0 and d['bytes']['pending_upload'] == 0"; }
refused() { # refused CODE WORD COMMAND...
    local want=$1 word=$2 code=0
    shift 2
    timeout 60 "$@" >"$W/stdout" 2>"$W/err" || code=$?
    [ "$code" = "$want" ] && [ "$(wc -l <"$W/err")" = 1 ] && grep -qF -e "$word" "$W/err" && grep -q ';' "$W/err" ||
        { echo "exit code $code"; cat "$W/err"; return 1; }
}
objects_hold() { grep -rqF "$1" "$W/store/segments"; }

OPTS=(--profile broker --set seal_age=200ms --set mirror_below=0 --set segment_bytes=64K)
start_fs "${OPTS[@]}" --policy "$R"
mkdir "$MNT/ages" "$MNT/log" "$MNT/m" "$MNT/sub" "$MNT/sync"
secret=do-not-upload-$RANDOM-$RANDOM
yes "$secret" | head -c 300000 >"$MNT/sub/a.keep"
yes public | head -c 300000 >"$MNT/a.log"
echo mine >"$MNT/ages/short-1"
echo mine >"$MNT/ages/long-1"

check "a local file is never uploaded" never_uploaded "$MNT/sub/a.keep"
check "a tiered one is" uploaded "$MNT/a.log"
check "nothing waits" nothing_waits
check "status tells what is kept" wait_for 10 status_of "$MNT" "d['bytes']['kept'] == 300000"
check "no object holds its bytes" bash -c "! grep -rqF '$secret' '$W/store/segments'"
check "those of the other are there" objects_hold public
check "evict leaves it out of a directory" "$S" evict "$MNT"
check "it is still here" on_device "$MNT/sub/a.keep"
check "and says why by name" refused 1 "tiered = no" "$S" evict "$MNT/sub/a.keep"
check "seal works" "$S" seal "$MNT/sub/a.keep"

check "status: the rule of a file" bash -c "'$S' status '$MNT/sub/a.keep' | grep -qF 'tiered = no, line 3, [*.keep]'"
check "status: none" bash -c "'$S' status '$MNT/a.log' | grep -q 'none matches'"
check "status: of the mount" bash -c "'$S' status '$MNT' | grep -qF '$R, 5 sections'"

# Ages. The other file is there at the end, long after the first has gone.
echo more >"$MNT/ages/short-2"
echo more >"$MNT/ages/long-2"
echo mirrored >"$MNT/m/x"
check "a mirror is uploaded" "$S" upload "$MNT/m/x"
check "an age of its own" not_on_device "$MNT/ages/short-2"
check "of the others: a day" on_device "$MNT/ages/long-2"
check "a mirror stays, whatever its age" on_device "$MNT/m/x"

check_errno "append-only by rule" EPERM '
f = os.open(m + "/log/l", os.O_CREAT | os.O_RDWR); os.write(f, b"12345"); os.pwrite(f, b"x", 0)'
check_errno "not cut" EPERM 'os.truncate(m + "/log/l", 2)'
check_py "appended" '
f = os.open(m + "/log/l", os.O_APPEND | os.O_RDWR); os.write(f, b"678"); assert os.pread(f, 9, 0) == b"12345678"'
check_py "the others are not" 'f = os.open(m + "/a.log", os.O_RDWR); os.pwrite(f, b"x", 0)'

check_py "each write is flushed before it returns, by rule, also into what is remote" '
import re, subprocess
def flushes():
    return int(re.search(r"device_sync_seconds_count (\d+)", open(m + "/.sluice/stats").read())[1])
f = os.open(m + "/sync/f", os.O_CREAT | os.O_RDWR)
for at in (0, 1000, 0, 70000, 3):
    before = flushes()
    assert os.pwrite(f, b"x" * 1000, at) == 1000
    assert flushes() > before, at
subprocess.run([os.environ["SLUICEFS"], "evict", m + "/sync/f"], check=True)
before = flushes()
assert os.pwrite(f, b"y" * 10, 5) == 10
assert flushes() > before
assert os.pread(f, 20, 0) == b"xxxxx" + b"y" * 10 + b"xxxxx"
'
# A rename puts it under other rules, and back; of a directory too.
mv "$MNT/sub/a.keep" "$MNT/sub/a"
check "renamed: goes up" uploaded "$MNT/sub/a"
check "its bytes are there now" objects_hold "$secret"
echo second >"$MNT/sub/b"
mv "$MNT/sub/b" "$MNT/sub/b.keep"
check "renamed before it went: stays" never_uploaded "$MNT/sub/b.keep"

# Reload.
cat >"$R" <<'END'
[later/*]
tiered = no
[ages/long-*]
local_age = 1s
END
check "reload" bash -c "'$S' reload '$MNT' | grep -qF '2 sections from $R'"
check "another rule: goes up" uploaded "$MNT/sub/b.keep"
check "another age: goes" not_on_device "$MNT/ages/long-2"
check_py "append-only no more" 'f = os.open(m + "/log/l", os.O_RDWR); os.pwrite(f, b"x", 0)'
mkdir "$MNT/now"
echo third >"$MNT/now/c"
mv "$MNT/now" "$MNT/later"
check "a renamed directory takes its files along" never_uploaded "$MNT/later/c"
printf '[a]\n\ntierd = no\n' >"$R"
check "a bad file is refused with its line" refused 2 "$R:3: tierd" "$S" reload "$MNT"
echo fourth >"$MNT/later/d"
check "and the old rules stay" never_uploaded "$MNT/later/d"
check "config refuses it too" refused 2 "$R:3: tierd" "$S" config --policy "$R"
check "of something else" refused 2 "is not a mount point" "$S" reload "$MNT/later"

# A daemon that takes over has the rules that were taken, whatever is in the file by now.
pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1] + "/.sluice/status.json"))["pid"])' "$MNT")
if [ "$pid" != "$PID" ]; then
    kill -9 "$pid"
    check "another daemon" wait_for 20 status_of "$MNT" "d['pid'] != $pid"
    echo fifth >"$MNT/later/e"
    check "with the same rules" never_uploaded "$MNT/later/e"
    check "the file is still refused" refused 2 "$R:3: tierd" "$S" reload "$MNT"
fi
stop_fs
fsck() { "$S" fsck --state "$W/state" --device "$W/device" --store "dir://$W/store" --profile broker; }
check "fsck knows the queue of what is kept" fsck
check "a mount with it is refused" refused 2 "$R:3: tierd" "$S" mount --state "$W/state" \
    --device "$W/device" --store "dir://$W/store" --policy "$R" --profile broker "$MNT"
start_fs "${OPTS[@]}"
check "without rules everything goes up" uploaded "$MNT/later/c"
check "no rules to reload" refused 2 "without rules" "$S" reload "$MNT"
finish
