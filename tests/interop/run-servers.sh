#!/usr/bin/env bash
# run-servers.sh PROGRAM seaweed|versitygw|versitygw_tls: starts the server on a fresh directory, runs the program
# against it, stops it. Exit 0: all passed; 77: the server cannot be had; else failed.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../support/s3servers.sh"

program=$1 server=$2
shift 2
dir=$(mktemp -d "${TMPDIR:-/tmp}/s3interop-XXXXXX")
pid=
finish() {
    [ -n "$pid" ] && stop_server "$pid"
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 1' INT TERM

"start_$server" "$dir"
rc=$?
pid=${S3_PID:-}
if [ $rc = 77 ]; then
    echo "skipped: $S3_SKIP"
    exit 77
fi
if [ $rc != 0 ] || ! make_bucket interop; then
    echo "failed: $server did not start" >&2
    exit 1
fi
# Nothing of the user's own set-up may leak into the test.
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_CA_BUNDLE
export AWS_ACCESS_KEY_ID=testkey AWS_SECRET_ACCESS_KEY=testsecret AWS_REGION=us-east-1
if [ "$server" = versitygw_tls ]; then
    "$program" "s3://interop/pre?endpoint=$S3_ENDPOINT" untrusted || exit 1
    export AWS_CA_BUNDLE=$S3_CA
fi
timeout "${SLUICE_INTEROP_TIMEOUT:-240}" "$program" "s3://interop/pre?endpoint=$S3_ENDPOINT" "$@"
