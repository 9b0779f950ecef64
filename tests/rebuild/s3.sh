#!/usr/bin/env bash
# Rebuild, check and clean-up over the S3 protocol: conditional writes, ranged reads, listings in pages,
# against a strict server; and with answers that are lost.
. "$(dirname "$0")/kit.sh"
ALLOW_LOG='was not written|upload of .* failed|503|store is (down|degraded)'
coproc FAKE { exec python3 "$HERE/../support/fakes3.py" --bucket bucket --access-key k --secret-key s --until-eof; }
read -r _ port _ control <&"${FAKE[0]}"
[ -n "$control" ] || { echo "FAIL: the server did not start"; exit 1; }
export AWS_ACCESS_KEY_ID=k AWS_SECRET_ACCESS_KEY=s
URL="s3://bucket/v?endpoint=http://127.0.0.1:$port&region=us-east-1"
post() { # PATH JSON
    python3 - "$control" "$1" "$2" <<'PY'
import sys, urllib.request
urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}{sys.argv[2]}", sys.argv[3].encode(), timeout=10).close()
PY
}
hits() {
    python3 - "$control" <<'PY'
import json, sys, urllib.request
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/state", timeout=10) as r:
    print(json.load(r)["orders_hit"])
PY
}
forget() {
    python3 - "$control" <<'PY'
import sys, urllib.request
urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/orders", method="DELETE"), timeout=10).close()
PY
}
tool() { # COMMAND [arguments]
    local c=$1
    shift
    "$SLUICEFS" "$c" --state "$W/state" --device "$W/device" --store "$URL" "$@" >"$W/restored" 2>&1
}
start_s3() {
    "$SLUICEFS" mount --state "$W/state" --device "$W/device" --store "$URL" -f "$@" "$MNT" >>"$LOG" 2>&1 &
    PID=$!
    wait_for 30 mount_answers && is_mounted || { echo "FAIL: the mount did not come up"; exit 1; }
}

start_s3 --set segment_bytes=64KiB
make_tree "$MNT"
python3 - "$MNT" <<'PY'
import os, sys
for i in range(1100): # more than a page of a listing
    os.makedirs(f"{sys.argv[1]}/many/{i % 10}", exist_ok=True)
    with open(f"{sys.argv[1]}/many/{i % 10}/{i}", "wb") as f:
        f.write(str(i).encode() * 10)
PY
upload_all
facts "$MNT" >"$W/before"
stop_fs
check "fsck, deep" expect_code 0 tool fsck --deep
rm -rf "$W/state" "$W/device"
post /orders '[{"op": "put", "key": "*topics/*", "count": 3, "lost_reply": true},
               {"op": "put", "key": "*/volume", "nth": 1, "count": 1, "lost_reply": true},
               {"op": "put", "key": "*nodes/*", "nth": 1, "count": 1, "lost_reply": true},
               {"op": "get", "key": "*topics/*", "nth": 3, "count": 2, "status": 503, "code": "SlowDown", "message": "slow down"},
               {"op": "get", "key": "*topics/*", "nth": 7, "count": 2, "truncate": 100}]'
check "restore, with answers lost and cut" expect_code 0 tool restore --json --deep
check "nothing is lost" test "$(json "$W/restored" 'd["lost_files"], d["damaged"]')" = "(0, 0)"
check "answers were lost and cut" test "$(hits)" -ge 3
forget
start_s3
facts "$MNT" >"$W/after"
check "all is as it was" diff "$W/before" "$W/after"
echo more >>"$MNT/single"
check "its first commits go through" "$SLUICEFS" upload "$MNT"
check "fsck beside the daemon" expect_code 0 "$SLUICEFS" fsck --deep "$MNT"
check "gc beside the daemon" expect_code 0 "$SLUICEFS" gc "$MNT"
stop_fs
key=$(python3 - "$control" <<'PY'
import json, sys, urllib.request
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/state", timeout=10) as f:
    print(next(k for k, n in sorted(json.load(f)["objects"].items()) if "/segments/" in "/" + k and n > 60000))
PY
)
post /damage "{\"key\": \"$key\", \"offset\": 1000}"
check "a damaged object" expect_code 4 tool fsck --deep --json
check "is named" grep -q "\"key\":\"${key#v/}\"" "$W/restored"
# Pages of manifests that were merged into larger ones, and whose deletion was queued in the state that is gone.
check "gc" expect_code 0 tool gc --set gc_grace=0 --json
check "finds only pages of manifests" test "$(json "$W/restored" '[f["key"] for f in d["findings"] if "/pages/" not in f["key"]]')" = "[]"
check "gc finds nothing" expect_code 0 tool gc --set gc_grace=0 --json
check "nothing at all" test "$(json "$W/restored" 'd["orphans"]')" = 0
check "having seen all pages of the listing" test "$(json "$W/restored" 'd["listed"] > 1100')" = True
eval "exec ${FAKE[1]}>&-"
finish
