#!/usr/bin/env bash
# run.sh NAME [--full]: one broker on a mount (NAME up to a _): finds or installs it, then runs check_NAME.py. Exit codes: 0
# passed, 1 failed, 77 skipped (something is missing, said why).
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/brokers.sh"
name=${1:?which broker}
shift
[ -r /dev/fuse ] && [ -w /dev/fuse ] || { echo "SKIP: no access to /dev/fuse"; exit 77; }
"find_${name%%_*}" || { echo "SKIP: $BROKER_SKIP"; exit 77; }
exec "$BROKER_PYTHON" "$here/check_$name.py" "$@"
