#!/usr/bin/env bash
# policy.sh: examples/policy/*.ini: each is accepted and says the right thing of the files that its broker
# makes, when the mount is the data directory and when that is a directory in the mount; all are installed.
. "$(dirname "$0")/lib.sh"
need_fuse
command -v python3 >/dev/null || skip "no python3"
M=$W/mnt
mkdir "$M"
: >"$W/rules.ini"
"$SLUICEFS" mount --state "$W/state" --device "$W/device=200M" --store "dir://$W/store" --profile broker \
    --policy "$W/rules.ini" "$M" || die "does not mount"

# BROKER WHAT FILE: what is tiered, mirror or local.
cat >"$W/files" <<'END'
kafka tiered t-0/00000000000000000000.log
kafka tiered t-0/00000000000000000000.log.swap
kafka tiered t-0/leader-epoch-checkpoint
kafka tiered meta.properties
kafka mirror t-0/00000000000000000000.index
kafka mirror t-0/00000000000000000000.timeindex
kafka mirror t-0/00000000000000000000.txnindex
kafka mirror t-0/00000000000000000012.snapshot
kafka mirror __consumer_offsets-3/00000000000000000000.log
kafka mirror __transaction_state-3/00000000000000000000.log
kafka mirror __cluster_metadata-0/00000000000000000000.log
kafka local t-0/00000000000000000000.log.deleted
kafka local t-0/00000000000000000000.index.cleaned
kafka local recovery-point-offset-checkpoint.tmp
kafka local t-0.1f5e6d7c8b9a-delete/00000000000000000000.log
kafka local t-0.1f5e6d7c8b9a-delete/00000000000000000000.index
kafka local .kafka_cleanshutdown
kafka local .lock
nats tiered jetstream/$G/streams/S/msgs/1.blk
nats mirror jetstream/$G/streams/S/msgs/1.idx
nats mirror jetstream/$G/streams/S/msgs/index.db
nats mirror jetstream/$G/streams/S/meta.inf
nats mirror jetstream/$G/streams/S/meta.key
nats mirror jetstream/$G/streams/S/obs/C/o.dat
nats mirror jetstream/$SYS/_js_/_meta_/msgs/1.blk
nats local jetstream/$G/streams/S/__msgs__/1.blk
nats local jetstream/_test_123
rabbitmq tiered mnesia/rabbit@h/stream/__q_16/00000000000000000000.segment
rabbitmq mirror mnesia/rabbit@h/stream/__q_16/00000000000000000000.index
rabbitmq mirror mnesia/rabbit@h/quorum/rabbit@h/00000001.wal
rabbitmq mirror mnesia/rabbit@h/quorum/rabbit@h/2F_Q/00000001.segment
rabbitmq mirror mnesia/rabbit@h/msg_stores/vhosts/V/msg_store_persistent/0.rdq
rabbitmq mirror mnesia/rabbit@h/schema.DAT
rabbitmq local .erlang.cookie
rabbitmq local mnesia/rabbit@h.pid
redis tiered appendonlydir/appendonly.aof.1.incr.aof
redis tiered appendonlydir/appendonly.aof.1.base.rdb
redis tiered dump.rdb
redis mirror appendonlydir/appendonly.aof.manifest
redis local appendonlydir/temp-appendonly.aof.manifest
redis local temp-rewriteaof-77.aof
zookeeper tiered version-2/log.1
zookeeper tiered version-2/snapshot.0
zookeeper mirror version-2/acceptedEpoch
zookeeper local version-2/currentEpoch.tmp
zookeeper local zookeeper_server.pid
END
python3 - "$SLUICEFS" "$M" "$ROOT/examples/policy" "$W/rules.ini" "$W/files" <<'PY' || exit 1
import json, os, shutil, subprocess, sys
program, mount, presets, rules, files = sys.argv[1:]
def run(*args):
    return subprocess.run([program, *args], check=True, capture_output=True, text=True).stdout
asked, now = 0, None
for broker, want, path in (line.split() for line in open(files)):
    if broker != now:
        now = broker
        preset = os.path.join(presets, broker + ".ini")
        run("config", "--profile", "broker", "--policy", preset)
        shutil.copy(preset, rules)
        run("reload", mount)
    for place in ("", "srv/" + broker):
        file = os.path.join(mount, place, path)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        open(file, "a").close()
        d = json.loads(run("status", "--json", file))
        mirror = any(r["setting"] == "mirror" and r["value"] == "yes" for r in d["rules"])
        got = "local" if not d["tiered"] else "mirror" if mirror else "tiered"
        if got != want:
            sys.exit(f"FAIL: {broker}.ini: {path} is {got}, wanted {want}")
        asked += 1
if asked < 80:
    sys.exit(f"FAIL: only {asked} files were asked for")
PY
for f in "$ROOT"/examples/policy/*.ini; do
    grep -q "($(basename "$f"))" "$ROOT/examples/policy/README.md" || die "$f is not in the README beside it"
done
"$SLUICEFS" umount "$M" || die "does not unmount"
if [ -n "${BUILD:-}" ]; then
    cmake --install "$BUILD" --prefix "$W/installed" >"$W/out" || die "does not install"
    for f in "$ROOT"/examples/policy/*.ini; do
        cmp "$f" "$W/installed/share/sluicefs/policy/$(basename "$f")" || die "$f is not installed"
    done
fi
