#!/usr/bin/env bash
# unit.sh: examples/sluicefs@.service: the commands in it work, READY=1 comes when the mount answers,
# SIGTERM ends it with exit code 0 and nothing mounted. systemd itself is asked about the syntax where
# it is there.
. "$(dirname "$0")/lib.sh"
need_fuse
[ "$(id -u)" = 0 ] || skip "the unit runs as root"
command -v python3 >/dev/null || skip "no python3"
unit=$ROOT/examples/sluicefs@.service
if command -v systemd-analyze >/dev/null; then
    sed "s|/usr/local/bin/sluicefs|$SLUICEFS|; s|^Documentation=.*||" "$unit" >"$W/sluicefs@.service"
    cp "$W/sluicefs@.service" "$W/sluicefs@logs.service"
    systemd-analyze verify "$W/sluicefs@logs.service" 2>"$W/verify" || true
    if grep -F "sluicefs@logs.service" "$W/verify" | grep -iE 'unknown|invalid|failed to parse'; then
        die "systemd does not understand the unit"
    fi
fi
mkdir -p "$W/etc" "$W/srv"
moved "$ROOT/examples/sluicefs.conf" | sed "s/20G/200M/" >"$W/etc/logs.conf"
line() {
    moved "$unit" | sed -n "s/^$1=//p" | sed "s/%i/logs/g; s|/usr/local/bin/sluicefs|$SLUICEFS|"
}
pre=$(line ExecStartPre)
start=$(line ExecStart)
$pre || die "ExecStartPre"
python3 - "$W" "$start" <<'PY' || die "start or stop"
import os, shlex, signal, socket, subprocess, sys
w, start = sys.argv[1:]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(w + "/notify")
s.settimeout(30)
p = subprocess.Popen(shlex.split(start), env={**os.environ, "NOTIFY_SOCKET": w + "/notify"})
try:
    while b"READY=1" not in s.recv(4096):
        pass
    point = shlex.split(start)[-1]
    assert os.path.ismount(point), "ready, but not mounted"
    with open(point + "/file", "a") as f:
        f.write("line\n")
    p.send_signal(signal.SIGTERM)
    code = p.wait(30)
    assert code == 0, f"exit code {code}"
    assert not os.path.ismount(point), "still mounted"
finally:
    p.kill()
    p.wait()
PY
