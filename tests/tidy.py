#!/usr/bin/env python3
"""tidy.py [ROOT [BUILD]]: checks of the repository itself that no compiler makes.

Which folder may include which, who may include FUSE, LMDB, curl and OpenSSL, that every .c begins
with its map and every folder has a README, banned calls, long files, leftovers, and (with BUILD, a
directory with compile_commands.json) that every source is built. Each finding is one line
FILE:LINE: WHAT. Exit 0: none. To see that the checks can fail: tidy.py --self-test.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

# Calls go downward: what each layer may include besides itself.
LAYERS = {
    "fs/base": [],
    "cache": ["fs/base"],
    "objstore": ["fs/base"],
    "fs/meta": ["fs/base"],
    "fs/seg": ["fs/base"],
    "fs/ns": ["fs/base", "fs/meta"],
    "fs/policy": ["fs/base", "fs/meta", "fs/ns", "fs/volume"],
    "fs/data": ["fs/base", "fs/meta", "fs/seg", "fs/ns", "fs/policy", "fs/volume", "cache", "objstore"],
    "fs/tier": ["fs/base", "fs/meta", "fs/seg", "fs/ns", "fs/policy", "fs/data", "fs/volume",
                "cache", "objstore"],
    "fs/volume": ["fs/base", "fs/meta", "fs/seg", "fs/ns", "fs/policy", "fs/data", "fs/tier",
                  "cache", "objstore"],
    "fs/daemon": ["fs/base", "fs/ns", "fs/policy", "fs/data", "fs/tier", "fs/volume", "fs/meta", "cache"],
    "tools": ["fs/base", "fs/policy", "fs/volume", "fs/daemon"],
}

# Headers of other projects, and where they may be included.
FOREIGN = [
    (r"<(fuse3/)?fuse\w*\.h>", r"fs/daemon/"),
    (r"<lmdb\.h>", r"fs/meta/kv_lmdb\.c$"),
    (r"<curl/", r"objstore/(http|s3)\w*\.[ch]$"),
    (r"<openssl/", r"(fs/base/hash\.c|objstore/s3_\w+\.c)$"),
    (r"<xxhash\.h>|<xxh\w+\.h>", r"fs/base/hash\w*\.[ch]$"),
]

PRODUCT = ("fs/", "cache/", "objstore/", "tools/")

# Anywhere in C.
BANNED = {
    "gets": "read a line with its bound",
    "tmpnam": "use mkstemp or mkdtemp",
    "mktemp": "use mkstemp or mkdtemp",
    "vsprintf": "use vsnprintf",
    "alloca": "the stack has no bound check",
}
# In the product.
BANNED_PRODUCT = {
    "strtok": "it keeps state; use strcspn or strtok_r",
    "strcpy": "use snprintf or memcpy with the length",
    "strcat": "use snprintf",
    "sprintf": "use snprintf",
    "strncat": "use snprintf",
    "atoi": "it cannot fail; use strtol or parse the digits",
    "atol": "use strtol",
    "atoll": "use strtoll",
    "usleep": "wait for an event with a deadline",
    "sleep": "wait for an event with a deadline",
    "rand": "use getrandom or the seeded generator",
    "system": "use posix_spawn",
    "popen": "use posix_spawn",
    "exit": "return an error; only the command decides to end",
    # These hide short transfers, EINTR, faults to be injected and the simulated disk.
    "fsync": "use fs/base/io.h",
    "fdatasync": "use fs/base/io.h",
    "pwrite": "use fs/base/io.h",
    "pread": "use fs/base/io.h",
    "pwritev": "use fs/base/io.h",
    "preadv": "use fs/base/io.h",
    "ftruncate": "use fs/base/io.h",
    "sync_file_range": "use fs/base/io.h",
}
# Where such a call is right, and why.
ALLOWED_CALLS = {
    ("fs/base/io.c", "*"): "the one place of these calls",
    ("fs/meta/kv_lmdb.c", "fsync"): "of LMDB's folder, which LMDB leaves out",
    ("fs/daemon/session.c", "pread"): "a memory file with the kernel's first request",
    ("objstore/fault.c", "pread"): "a probe of the caller's descriptor, not data",
    ("objstore/fault.c", "pwrite"): "damages a byte on purpose",
}

# Files over LINES_MAX, and why they are not split.
LINES_MAX = 600
LONG = {
    "fs/volume/restore_tree.c": "one pass over what the manifests say",
    "fs/daemon/daemon.c": "the life of a mount from start to stop, read in one go",
    "fs/volume/control.c": "one server: connections, commands, their end",
    "fs/volume/volume.c": "opening and closing in mirrored order",
    "objstore/breaker.c": "one state machine",
    "objstore/http.c": "one event loop",
    "objstore/s3_cred.c": "one chain of sources, tried in order",
    "fs/tier/manifest.c": "one state machine per topic",
    "tests/interop/test_s3_real.c": "the list of everything that is asked of a server",
    "tests/support/fakes3.py": "one server, second implementation of the protocol",
    "tests/support/records.c": "one program without libraries of the project",
}
LONG_FOLDERS = ("tests/unit/", "tests/accept/", "tests/mount/")  # lists of cases, in order
LONG_TESTS_MAX = 1000

TEXT = (".c", ".h", ".py", ".sh", ".md", ".txt", ".json", ".conf", ".service", ".yml")
NO_README = ("tests/fuzz/corpus", "tests/support/tsan/criterion")   # inputs; headers explained above

found = []
included = set()


def finding(path, line, what):
    found.append(f"{path}:{line}: {what}")


def listed(root):
    """Every file of the project, relative: what git tracks, or everything where there is no git."""
    try:
        out = subprocess.run(["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z"],
                             check=True, capture_output=True)
        names = [n for n in out.stdout.decode().split("\0") if n]
        return sorted(n for n in names if os.path.isfile(os.path.join(root, n)))
    except (OSError, subprocess.CalledProcessError):
        names = []
        for folder, subs, files in os.walk(root):
            subs[:] = [s for s in subs if s != ".git" and not s.startswith("build")]
            names += [os.path.relpath(os.path.join(folder, f), root) for f in files]
        return sorted(names)


def without_comments(text):
    """Comments and string contents blanked, lines kept."""
    def blank(m):
        s = m.group(0)
        if s[0] in "\"'":
            return s[0] + s[0]
        return re.sub(r"[^\n]", " ", s)
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text,
                  flags=re.S)


def layer_of(path):
    for layer in sorted(LAYERS, key=len, reverse=True):
        if path.startswith(layer + "/"):
            return layer
    return None


def check_includes(path, text):
    layer = layer_of(path)
    for n, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#\s*include\s+("([^"]+)"|<[^>]+>)', line)
        if not m:
            continue
        if not m.group(2):
            for pattern, where in FOREIGN:
                if path.startswith(PRODUCT) and re.match(pattern, m.group(1)) and \
                        not re.match(where, path):
                    finding(path, n, f"{m.group(1)} belongs into {where}")
            continue
        included.add(m.group(2))
        target = layer_of(m.group(2))
        if layer and target and target != layer and target not in LAYERS[layer]:
            finding(path, n, f"{layer} must not include {target} (calls go downward)")
        if layer and not target and not m.group(2).startswith("fs/"):
            finding(path, n, f'"{m.group(2)}" is not rooted at the project (write "fs/...")')
        if layer and m.group(2).startswith("tests/"):
            finding(path, n, "the product must not include tests")


def check_calls(path, text):
    banned = dict(BANNED)
    if path.startswith(PRODUCT):
        banned.update(BANNED_PRODUCT)
    names = "|".join(banned)
    for n, line in enumerate(without_comments(text).split("\n"), 1):
        for m in re.finditer(rf"(?<![\w.>])({names})\s*\(", line):
            call = m.group(1)
            if (path, call) in ALLOWED_CALLS or (path, "*") in ALLOWED_CALLS:
                continue
            finding(path, n, f"{call}(): {banned[call]}")


def check_c(path, text):
    head = text.lstrip()
    if path.endswith(".c") and not head.startswith("/*"):
        finding(path, 1, "does not begin with a comment that maps the file")
    if path.endswith(".h") and "#ifndef" not in text and "#pragma once" not in text:
        finding(path, 1, "has no include guard")
    check_includes(path, text)
    check_calls(path, text)


def check_text(path, text):
    if path == "tests/tidy.py":
        return
    for n, line in enumerate(text.split("\n"), 1):
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            finding(path, n, "a promise instead of a result (TODO, FIXME, XXX)")
        if re.search(r"(^|[\s\"'=:(])/work/|/tmp/build", line):
            finding(path, n, "a path of one machine")
        if line.endswith((" ", "\t")) and not path.endswith(".md"):
            finding(path, n, "white space at the end of the line")
        if path.endswith((".c", ".h")) and "\t" in line:
            finding(path, n, "a tab")
    if text and not text.endswith("\n"):
        finding(path, text.count("\n") + 1, "no newline at the end")


def check_length(path, text):
    lines = text.count("\n")
    if not path.endswith((".c", ".h", ".py", ".sh")) or lines <= LINES_MAX:
        return
    if path.startswith(LONG_FOLDERS):
        if lines > LONG_TESTS_MAX:
            finding(path, lines, f"longer than {LONG_TESTS_MAX} lines: split it")
    elif path not in LONG:
        finding(path, lines, f"longer than {LINES_MAX} lines: split it, or say in tidy.py why not")


def check_folders(names):
    folders = {os.path.dirname(n) for n in names}
    for folder in sorted(folders):
        top = folder.split("/")[0]
        if top.startswith(".") or folder.startswith(NO_README):
            continue
        readme = os.path.join(folder, "README.md") if folder else "README.md"
        if readme not in names:
            finding(readme, 1, "a folder without a README.md that says what it is")


def check_built(root, names, build):
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        built = {os.path.relpath(os.path.realpath(e["file"]), os.path.realpath(root))
                 for e in json.load(f)}
    for path in names:
        if not path.endswith(".c") or path in built:
            continue
        if path.startswith("examples/"):     # built by their own test, as a user would
            continue
        if path in included:                 # as text, by tests that are one file a program
            continue
        finding(path, 1, "is built by no target")


def check_all(root, build):
    names = listed(root)
    for path in names:
        if not path.endswith(TEXT) or path.startswith("tests/fuzz/corpus/"):
            continue
        with open(os.path.join(root, path), encoding="utf-8", errors="surrogateescape") as f:
            text = f.read()
        if path.endswith((".c", ".h")):
            check_c(path, text)
        check_text(path, text)
        check_length(path, text)
    check_folders(set(names))
    for path, call in ALLOWED_CALLS:
        if path not in names:
            finding("tests/tidy.py", 1, f"allows a call in {path}, which is gone")
    for path in LONG:
        if path not in names:
            finding("tests/tidy.py", 1, f"excuses {path}, which is gone")
    if build:
        check_built(root, names, build)


def self_test():
    """A small project with one fault of each kind: each must be found."""
    files = {
        "cache/a.c": '#include "objstore/objstore.h"\n',
        "fs/ns/b.c": '/* b */\n#include <lmdb.h>\n#include <fuse_lowlevel.h>\n'
                     'int f(char *p)\n{\n    sprintf(p, "x"); /* strcpy( */\n    return atoi(p);\n}\n',
        "objstore/c.c": "/* c */\nint g(int fd)\n{\n    return fsync(fd); \n}\n",
        "tools/d.c": "/* d: TO" "DO */\n" + "\n" * 700,
        "fs/base/e.h": "int e;\t",
        "tests/unit/test_f.c": '/* f */\nchar *p = "/wo' 'rk/x";\nvoid h(void) { mktemp(p); }\n',
    }
    expected = ["cache must not include objstore", "cache/a.c:1: does not begin", "<lmdb.h> belongs",
                "<fuse_lowlevel.h> belongs", "sprintf()", "atoi()", "fsync()", "white space",
                "a promise", "longer than", "no include guard", "a tab", "no newline",
                "a path of one machine", "mktemp()", "cache/README.md:1:", "is built by no target"]
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as f:
                f.write(text)
        with open(os.path.join(root, "compile_commands.json"), "w", encoding="utf-8") as f:
            json.dump([{"file": os.path.join(root, "cache/a.c")}], f)
        check_all(root, root)
    missing = [e for e in expected if not any(e in line for line in found)]
    wrong = [line for line in found if "strcpy" in line]
    for e in missing:
        print(f"self-test: not found: {e}")
    for line in wrong:
        print(f"self-test: found in a comment: {line}")
    print(f"self-test: {len(expected) - len(missing)} of {len(expected)} kinds of fault found")
    return 1 if missing or wrong else 0


def main(args):
    if args[:1] == ["--self-test"]:
        return self_test()
    root = args[0] if args else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    check_all(root, args[1] if len(args) > 1 else None)
    for line in found:
        print(line)
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
