# shellcheck shell=bash
# lib.sh: what .ci/run, tests/run and examples/quickstart share. Source it from bash.
#
#   need_packages build|test|check    installs from Debian or Ubuntu what is missing of that set
#   jobs                              how many compilers to run at once
#   say TEXT                          a headline on the terminal
#
# Each set is one list, here and nowhere else.

PACKAGES_BUILD="gcc libc6-dev cmake ninja-build pkg-config libfuse3-dev liblmdb-dev \
libcurl4-openssl-dev libssl-dev libxxhash-dev fuse3 ca-certificates"
PACKAGES_TEST="$PACKAGES_BUILD libcriterion-dev python3 python3-venv curl procps util-linux \
git sqlite3 rsync logrotate inotify-tools fio stress-ng \
e2fsprogs xfsprogs btrfs-progs"
PACKAGES_CHECK="$PACKAGES_TEST clang clang-format clang-tidy shellcheck"

say() {
    printf '\n== %s\n' "$*"
}

jobs() {
    local n
    n=$(nproc 2>/dev/null || echo 2)
    echo "${SLUICE_JOBS:-$n}"
}

package_list() {
    case $1 in
    build) echo "$PACKAGES_BUILD" ;;
    test) echo "$PACKAGES_TEST" ;;
    check) echo "$PACKAGES_CHECK" ;;
    *) return 2 ;;
    esac
}

# Prints those of the given packages that are not installed.
missing_packages() {
    local p
    for p in "$@"; do
        dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$p"
    done
}

need_packages() {
    local missing as_root='' log
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        echo "note: not a Debian system; needed are the equivalents of: $(package_list "$1")"
        return 0
    fi
    # shellcheck disable=SC2046 # the list is words
    missing=$(missing_packages $(package_list "$1"))
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "missing packages, and neither root nor sudo; run as root: apt-get install $missing" >&2
            return 1
        fi
        as_root=sudo
    fi
    say "installing $missing"
    log=$(mktemp)
    if ! { $as_root timeout 300 apt-get -o DPkg::Lock::Timeout=120 -qq update &&
        $as_root env DEBIAN_FRONTEND=noninteractive timeout 900 apt-get -o DPkg::Lock::Timeout=120 \
            -qq install -y --no-install-recommends $missing; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        echo "the packages could not be installed" >&2
        return 1
    fi
    rm -f "$log"
}
