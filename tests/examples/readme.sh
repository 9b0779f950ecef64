#!/usr/bin/env bash
# readme.sh: what the README says is so: its commands and settings exist, each setting's default and
# bounds stand there as the program has them, its links lead somewhere, and the block of commands under
# "Common tasks" marked <!-- tried --> runs.
. "$(dirname "$0")/lib.sh"
need_fuse
readme=$ROOT/README.md
command -v python3 >/dev/null || skip "no python3"
"$SLUICEFS" config --json >"$W/config.json" || die "config --json"
"$SLUICEFS" config | tail -n +2 >"$W/config.txt"
python3 - "$readme" "$ROOT" "$W" "$SLUICEFS" <<'PY' || exit 1
import os, re, subprocess, sys
readme, root, w, program = sys.argv[1:]
text = open(readme, encoding="utf-8").read()
wrong = []
for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
    if not os.path.exists(os.path.join(root, link)):
        wrong.append(f"link to {link}, which is not there")
table = {}
for line in open(os.path.join(w, "config.txt"), encoding="utf-8"):
    f = re.split(r" {2,}", line.rstrip("\n").strip(), maxsplit=4)
    if len(f) == 5:
        table[f[0]] = (f[1] if f[2] == "default" else None, f[3]) # allow_other, for root
rows = dict()
for m in re.finditer(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.M):
    rows[m.group(1)] = (m.group(2).strip(), m.group(3).strip())
for name, want in table.items():
    said = rows.get(name)
    if not said or said[1] != want[1] or want[0] not in (None, said[0]):
        wrong.append(f"setting {name}: the README says {rows.get(name)}, the program {want}")
for name in rows:
    if name not in table:
        wrong.append(f"setting {name}: not known to the program")
helptext = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
for name in re.findall(r"^  ([a-z]+) +\w", helptext, re.M):
    if f"`sluicefs {name}" not in text:
        wrong.append(f"command {name}: not in the README")
for line in wrong:
    print("FAIL:", line)
sys.exit(1 if wrong else 0)
PY
# The tried blocks, in order, in one shell, in an empty folder, with sluicefs in PATH.
python3 - "$readme" >"$W/tried.sh" <<'PY'
import re, sys
text = open(sys.argv[1], encoding="utf-8").read()
print("set -eu")
for block in re.findall(r"<!-- tried -->\n```(?:sh|console)?\n(.*?)```", text, re.S):
    print(block)
PY
mkdir "$W/bin" "$W/run"
ln -s "$(realpath "$SLUICEFS")" "$W/bin/sluicefs"
cd "$W/run" || exit 1
grep -q 'sluicefs mount' "$W/tried.sh" || die "no block is marked as tried"
PATH=$W/bin:$PATH HOME=$W XDG_DATA_HOME=$W/data timeout 120 bash -x "$W/tried.sh" >"$W/out" 2>&1 || {
    tail -n 40 "$W/out"
    die "a command of the README failed"
}
