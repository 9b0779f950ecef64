# kit.sh: sourced by every test of this folder, after the tools of ../mount/lib.sh.
. "$(dirname "${BASH_SOURCE[0]}")/../mount/lib.sh"

# Everything stat(2) and read(2) say about the tree at $1, one line per name.
facts() {
    python3 - "$1" <<'PY'
import hashlib, os, sys
m = os.fsencode(sys.argv[1])
def line(p, rel):
    s = os.lstat(p)
    body, xattrs = "", []
    if os.path.islink(p):
        body = os.fsdecode(os.readlink(p))
    elif os.path.isfile(p):
        with open(p, "rb") as f:
            body = hashlib.sha256(f.read()).hexdigest()
    try:
        xattrs = [(k, os.getxattr(p, k, follow_symlinks=False).hex())
                  for k in sorted(os.listxattr(p, follow_symlinks=False))]
    except OSError:
        pass
    print(repr(os.fsdecode(rel)), s.st_ino, oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink,
          s.st_size, s.st_rdev, s.st_mtime_ns, s.st_ctime_ns, repr(body), xattrs)
line(m, b".")
for d, dirs, files in os.walk(m):
    dirs.sort()
    for n in sorted(dirs + files):
        p = os.path.join(d, n)
        line(p, os.path.relpath(p, m))
PY
}

# A tree with everything in it: sizes around blocks and segments, links, times, owners, odd names.
make_tree() {
    python3 - "$1" "${2:-0}" <<'PY'
import os, random, stat, sys
m, xattr = sys.argv[1], sys.argv[2] == "1"
rnd = random.Random(7)
def write(name, size):
    p = os.path.join(m, name)
    os.makedirs(os.path.dirname(p), exist_ok=True)
    with open(p, "ab") as f:
        left = size
        while left:
            n = min(left, 1 << 20)
            f.write(rnd.randbytes(n))
            left -= n
    return p
for i, size in enumerate([0, 1, 4095, 4096, 262143, 262144, 262145, 524288, 700001, 3000000]):
    write(f"topic-{i % 3}/part-{i}/{i:020}.log", size)
write("single", 1234567)
write("deep/a/b/c/d/e/f/file", 5000)
write("odd/name with spaces and \u00fc\u4e2d", 10)
write(os.fsdecode(b"odd/not utf-8 \xff\xfe"), 11)
write("odd/" + "n" * 255, 12)
os.makedirs(os.path.join(m, "empty/dir"))
os.symlink("topic-1/part-1", os.path.join(m, "link"))
os.symlink("x" * 3000, os.path.join(m, "odd/long link"))
os.symlink("nowhere", os.path.join(m, "deep/dangling"))
p = write("odd/twice", 333)
os.link(p, os.path.join(m, "odd/thrice"))
os.link(p, os.path.join(m, "odd/again"))
os.unlink(os.path.join(m, "odd/again"))
os.mkfifo(os.path.join(m, "odd/fifo"), 0o640)
os.chmod(os.path.join(m, "topic-1"), 0o751)
os.chmod(os.path.join(m, "single"), 0o604)
os.chmod(os.path.join(m, "deep/a"), 0o1770)
if os.geteuid() == 0:
    os.chown(os.path.join(m, "topic-2"), 77, 88)
    os.chown(os.path.join(m, "single"), 12, 34)
    os.mknod(os.path.join(m, "odd/null"), 0o600 | stat.S_IFCHR, os.makedev(1, 3))
os.utime(os.path.join(m, "deep/a/b/c/d/e/f/file"), ns=(1111111111222222222, 1333333333444444444))
os.utime(os.path.join(m, "topic-0"), ns=(5, 6))
if xattr:
    os.setxattr(os.path.join(m, "single"), "user.key", bytes(range(256)))
    os.setxattr(os.path.join(m, "deep"), "user.of.a.directory", b"")
    os.setxattr(os.path.join(m, "deep"), "user.large", b"v" * 20000)
PY
}

# Everything below the mount point is in the bucket, the manifests are written, nothing is queued.
settled() {
    python3 - "$MNT" <<'PY'
import json, sys
s = json.load(open(sys.argv[1] + "/.sluice/status.json"))
q = s["queues"]
sys.exit(0 if not (s["bytes"]["pending_upload"] or q["upload"] or q["uploading"] or q["manifest"])
         and s["segments"]["sealed"] == s["segments"]["uploaded"] == s["segments"]["open"] == 0 else 1)
PY
}

upload_all() {
    "$SLUICEFS" upload "$MNT" || exit 1
    wait_for 60 settled || {
        echo "FAIL: the queues did not become empty"
        exit 1
    }
}

# restore_fs [arguments]: rebuilds from the bucket into $W/state and $W/device; output in $W/restored.
restore_fs() {
    "$SLUICEFS" restore --state "$W/state" --device "$W/device" --store "dir://$W/store" "$@" \
        >"$W/restored" 2>&1
}

# json FILE EXPRESSION: the expression (of d, the document) as text.
json() {
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
print(eval(sys.argv[2]))' "$1" "$2"
}

expect_code() {
    local want=$1 code=0
    shift
    "$@" || code=$?
    [ "$code" = "$want" ] || {
        echo "exit code $code, wanted $want"
        return 1
    }
}
