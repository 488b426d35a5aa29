#!/usr/bin/env bash
# Print where PgBouncer is. The one on the PATH is taken; else the one of Debian's package pgbouncer, which is unpacked
# into the user's cache with the libraries that this system lacks, without being installed: that needs no root. May be
# repeated, and run twice at once.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/joex/pgbouncer

fail() {
    printf 'get_pgbouncer: %s\n' "$*" >&2
    exit 1
}

# apt, with folders of our own, so that the system's may be empty, locked, or another user's.
apt() {
    apt-get --quiet --quiet --yes --no-install-recommends \
        -o Dir::State="$work/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$work/cache" \
        -o Debug::NoLocking=true -o APT::Sandbox::User="$(id --user --name)" "$@" >&2
}

if command -v pgbouncer; then
    exit 0
fi
if [[ ! -x $cache/ready/pgbouncer ]]; then
    for program in apt-get dpkg-deb; do
        command -v "$program" >/dev/null || fail "no pgbouncer on the PATH, and no $program to get it with"
    done
    mkdir -p "$cache"
    work=$(mktemp --directory "$cache/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
    apt update || fail "apt-get update failed"
    apt install --download-only pgbouncer || fail "apt-get install --download-only pgbouncer failed"
    for package in "$work"/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$work/unpacked" || fail "$package can't be unpacked"
    done
    cat >"$work/unpacked/pgbouncer" <<'RUN'
#!/bin/sh
here=$(dirname "$0")
libraries=$(find "$here/usr/lib" "$here/lib" -name '*.so.*' -printf '%h:' 2>/dev/null)
LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:-}" exec "$here/usr/sbin/pgbouncer" "$@"
RUN
    chmod 755 "$work/unpacked" "$work/unpacked/pgbouncer"
    mv --no-target-directory "$work/unpacked" "$cache/ready" 2>/dev/null || [[ -x $cache/ready/pgbouncer ]] ||
        fail "$cache/ready can't be written"
fi
"$cache/ready/pgbouncer" --version >/dev/null || fail "$cache/ready/pgbouncer does not run here; remove it, and install PgBouncer"
printf '%s\n' "$cache/ready/pgbouncer"
