#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what a Debian machine lacks, fetches libfuse's release, configures and builds hintfs.
# Called by people, tools/quickstart.sh, tests/run.sh and .ci/run; running it again is cheap.
#
# libfuse's tarball comes from upstream's release page (the URL in subprojects/fuse3.wrap) or, where
# that is out of reach, from Debian 13's source package, which is the same file: the machine's own
# package sources with another suite. Its hash is verified either way.
set -eu

usage() {
    cat <<'EOF'
usage: tools/setup.sh [options] [-- MESON-OPTION...]

Installs the packages that are missing (Debian and relatives, as root or with sudo), fetches libfuse,
configures and builds into build/. On another distribution it lists what to install.

  --no-build      stop after the packages and the libfuse tarball
  --no-install    never call the package manager: fail, with the list, when something is missing
  --ci            also install what .ci/run needs (clang, clang-tidy, cppcheck)
  --werror        compiler warnings are errors
  --build DIR     build directory (default: $BUILD, else build)
  -q, --quiet     print errors only
  -h, --help      this text

Environment: BUILD (build directory), JOBS (parallel compilers, default all cores), CC.
EOF
}

root=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-$root/build}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
want_build=1 want_install=1 want_ci=0 quiet=0
meson_args=

while [ $# -gt 0 ]; do
    case $1 in
    --no-build) want_build=0 ;;
    --no-install) want_install=0 ;;
    --ci) want_ci=1 ;;
    --werror) meson_args="$meson_args -Dwerror=true" ;;
    --build)
        [ $# -ge 2 ] || { usage >&2; exit 1; }
        build=$2
        shift
        ;;
    -q | --quiet) quiet=1 ;;
    -h | --help) usage; exit 0 ;;
    --) shift; meson_args="$meson_args $*"; break ;;
    *) echo "setup: unknown option: $1" >&2; usage >&2; exit 1 ;;
    esac
    shift
done

say() { [ "$quiet" = 1 ] || echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }

work=$(mktemp -d "${TMPDIR:-/tmp}/hintfs-setup.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- What is needed ---------------------------------------------------------------------------------

# probe TEST... : quiet success when the command succeeds
probe() { "$@" >/dev/null 2>&1; }
has_module() { probe pkg-config --exists "$1"; }
has_header() { echo "#include <$1>" | probe "${CC:-cc}" -E -x c -; }
system_python() { if [ -x /usr/bin/python3 ]; then echo /usr/bin/python3; else echo python3; fi; }
has_sanitizer_runtime() { probe ls "$(clang --print-resource-dir)"/lib/linux/libclang_rt.tsan-*.a; }
has_pytest() { probe "$(system_python)" -c 'import pytest'; }

# One line a need: Debian package, then the probe that says it is there (also on other systems).
needs() {
    cat <<'EOF'
gcc probe command -v cc
libc6-dev has_header stdio.h
linux-libc-dev has_header linux/fuse.h
pkg-config probe command -v pkg-config
meson probe command -v meson
ninja-build probe command -v ninja
python3 probe command -v python3
ca-certificates probe test -e /etc/ssl/certs
fuse3 probe command -v fusermount3
libxxhash-dev has_module libxxhash
libjansson-dev has_module jansson
uthash-dev has_header uthash.h
libcriterion-dev has_module criterion
liburing-dev has_module liburing
python3-pytest has_pytest
rsync probe command -v rsync
procps probe command -v ps
util-linux probe command -v unshare
scdoc probe command -v scdoc
EOF
    if [ "$want_ci" = 1 ]; then
        cat <<'EOF'
clang probe command -v clang
clang-tidy probe command -v clang-tidy
cppcheck probe command -v cppcheck
libclang-rt-dev has_sanitizer_runtime
binutils probe command -v nm
shellcheck probe command -v shellcheck
EOF
    fi
}

missing_packages() {
    needs | while read -r package test; do
        eval "$test" </dev/null || printf ' %s' "$package"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_packages() {
    missing=$(missing_packages)
    [ -n "$missing" ] || { say "all packages are there"; return 0; }
    if [ "$want_install" = 0 ] || ! probe command -v apt-get; then
        echo "setup: please install (names as in Debian):$missing" >&2
        die "then run this script again"
    fi
    if [ "$(id -u)" != 0 ] && ! probe sudo -n true; then
        die "not root: run  sudo apt-get install$missing  and then this script again"
    fi
    say "installing:$missing"
    as_root apt-get update -qq >"$work/apt.log" 2>&1 || say "apt-get update complained; going on"
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        $missing >"$work/apt.log" 2>&1 || { tail -n 20 "$work/apt.log" >&2; die "apt-get failed"; }
    missing=$(missing_packages)
    [ -z "$missing" ] || die "still missing after the installation:$missing"
}

# --- libfuse ----------------------------------------------------------------------------------------

wrap=$root/subprojects/fuse3.wrap
wrap_value() { sed -n "s/^$1 *= *//p" "$wrap"; }
hash_is_right() { [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$(wrap_value source_hash)" ]; }

# fetch_upstream FILE: the release page, within two minutes
fetch_upstream() {
    timeout 120 "$(system_python)" - "$(wrap_value source_url)" "$1" 2>/dev/null <<'EOF'
import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=15) as answer, open(sys.argv[2], "wb") as out:
    shutil.copyfileobj(answer, out)
EOF
}

# Prints the archives that this machine takes Debian from, without their suites.
debian_archives() {
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(ORIGIN)|$(CODENAME)|$(REPO_URI)' 'Created-By: Packages' |
        awk -F'|' '$1 == "Debian" && $2 !~ /security/ && !seen[$3]++ { print $3 }'
}

# apt_apart ARGUMENT... : apt-get with one source file, lists and caches of our own
apt_apart() {
    apt-get -qq -o "Dir::Etc::sourcelist=$work/debian13.sources" -o Dir::Etc::sourceparts=- \
        -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" \
        -o APT::Sandbox::User=root "$@"
}

# fetch_debian FILE: Debian 13's source package
fetch_debian() {
    probe command -v apt-get || return 1
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$keyring" ] || return 1
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/source"
    for archive in $(debian_archives); do
        cat >"$work/debian13.sources" <<EOF
Types: deb-src
URIs: $archive
Suites: trixie
Components: main
Signed-By: $keyring
EOF
        apt_apart update >"$work/apt.log" 2>&1 || continue
        (cd "$work/source" && apt_apart source --download-only fuse3) >>"$work/apt.log" 2>&1 || continue
        cp "$work"/source/fuse3_*.orig.tar.gz "$1" && return 0
    done
    return 1
}

# True when the build will take the system's own libfuse.
has_recent_libfuse() { probe pkg-config --atleast-version=3.17.1 fuse3; }

fetch_libfuse() {
    has_recent_libfuse && { say "libfuse: the system's"; return 0; }
    cache=$root/subprojects/packagecache
    tarball=$cache/$(wrap_value source_filename)
    if [ -e "$tarball" ]; then
        hash_is_right "$tarball" && { say "libfuse: $(basename "$tarball") is there"; return 0; }
        say "libfuse: $(basename "$tarball") has a wrong hash, fetching it again"
    fi
    mkdir -p "$cache"
    for from in upstream debian; do
        say "libfuse: fetching from $from"
        if "fetch_$from" "$work/libfuse" && hash_is_right "$work/libfuse"; then
            # A rename: two set-ups at once never see half a file.
            cp "$work/libfuse" "$tarball.$$"
            mv "$tarball.$$" "$tarball"
            say "libfuse: hash verified"
            return 0
        fi
        rm -f "$work/libfuse"
    done
    [ ! -e "$work/apt.log" ] || tail -n 5 "$work/apt.log" >&2
    die "libfuse is out of reach; put $(wrap_value source_url) into subprojects/packagecache"
}

# --- Build ------------------------------------------------------------------------------------------

configure() {
    # shellcheck disable=SC2086
    if [ -e "$build/meson-private/coredata.dat" ]; then
        meson setup --reconfigure $meson_args "$build" "$root" >"$work/meson.log" 2>&1 && return 0
        say "the old configuration does not fit any more, starting afresh"
        meson setup --wipe $meson_args "$build" "$root" >"$work/meson.log" 2>&1 && return 0
    else
        meson setup $meson_args "$build" "$root" >"$work/meson.log" 2>&1 && return 0
    fi
    tail -n 30 "$work/meson.log" >&2
    die "meson could not configure $build"
}

compile() {
    if ! ninja -k 0 -C "$build" -j "$jobs" >"$work/ninja.log" 2>&1; then
        grep -v '^\[' "$work/ninja.log" | head -n 60 >&2
        die "the build failed"
    fi
    if [ "$quiet" = 0 ]; then grep -A3 'warning:' "$work/ninja.log" || true; fi
}

install_packages
fetch_libfuse
[ "$want_build" = 1 ] || exit 0
say "configuring $build"
configure
say "building with $jobs jobs"
compile
[ -c /dev/fuse ] || say "note: this machine has no /dev/fuse, so nothing can be mounted on it"
say "done: $build"
