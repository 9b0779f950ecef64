#!/usr/bin/env bash
# The directory .sluice is hidden, readable and nobody's to change.
. "$(dirname "$0")/lib.sh"
start_fs

check "it is not listed" test -z "$(ls -A "$MNT")"
check "it can be entered" test -d "$MNT/.sluice"
check "its files are listed" test "$(ls "$MNT/.sluice")" = $'stats\nstatus.json'
check "ls -l of it" ls -l "$MNT/.sluice"
check "stats are Prometheus text" grep -q '^sluicefs_fuse_requests_total{op="lookup"} [1-9]' "$MNT/.sluice/stats"
check "status is JSON" python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$MNT/.sluice/status.json"
check_py "a reader sees one moment, whatever the size of its reads" '
f = os.open(m + "/.sluice/stats", os.O_RDONLY)
whole = os.pread(f, 1 << 20, 0)
parts = b"".join(os.pread(f, 100, k) for k in range(0, len(whole), 100))
assert whole == parts and os.pread(f, 10, len(whole)) == b""
'
check_py "100 readers at once" '
fds = [os.open(m + "/.sluice/stats", os.O_RDONLY) for _ in range(100)]
for f in fds: assert os.pread(f, 16, 0).startswith(b"# HELP")
for f in fds: os.close(f)
'
check_errno "no name in it" ENOENT 'os.stat(m + "/.sluice/x")'
check_errno "nothing can be made in it" EPERM 'open(m + "/.sluice/x", "w")'
check_errno "nor removed from it" EPERM 'os.unlink(m + "/.sluice/stats")'
check_errno "nor written to it" EACCES 'os.open(m + "/.sluice/stats", os.O_WRONLY)'
check_errno "its name is taken: mkdir" EEXIST 'os.mkdir(m + "/.sluice")'
check_errno "its name is taken: rename" EPERM 'os.mkdir(m + "/a"); os.rename(m + "/a", m + "/.sluice")'
check_errno "it does not move" EPERM 'os.rename(m + "/.sluice", m + "/b")'
check_errno "nor go" EPERM 'os.rmdir(m + "/.sluice")'
check_errno "chmod" EPERM 'os.chmod(m + "/.sluice/stats", 0o777)'
check_errno "link" EPERM 'os.link(m + "/.sluice/stats", m + "/l")'
check_py "the same name below the root is an ordinary one" '
os.makedirs(m + "/d/.sluice"); assert os.listdir(m + "/d") == [".sluice"]
'
finish
