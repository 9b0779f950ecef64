#!/usr/bin/env bash
# s3.sh URL: mounts an S3 bucket, appends, uploads, evicts, reads back. For example
#
#   export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...      (or AWS_PROFILE, or an instance role)
#   ./s3.sh 's3://my-bucket/sluicefs-example?region=eu-west-1'
#   ./s3.sh 's3://my-bucket/example?endpoint=http://127.0.0.1:9000&region=us-east-1&addressing=path'
#
# Credentials are found as every AWS tool finds them and never stand in the URL. The prefix must be
# unused: a volume is created in it, and its objects stay (a few requests and 4 MiB).
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"
[ $# = 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
find_sluicefs
make_world

run "$SLUICEFS" mount --state state --device device=256M --store "$1" \
    --set segment_bytes=1M mnt
show "Append 4 MiB"
head -c 4M /dev/urandom | tee original >>mnt/events
run "$SLUICEFS" status mnt/events
show "Everything into the bucket, nothing left here"
run "$SLUICEFS" evict mnt/events
run "$SLUICEFS" status mnt/events
show "Read back"
cmp original mnt/events
run "$SLUICEFS" status mnt
grep -E '^sluicefs_store_(requests|bytes)_total.* [1-9]' mnt/.sluice/stats
run "$SLUICEFS" umount mnt
echo "identical after a round trip through the bucket"
