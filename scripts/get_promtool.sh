#!/usr/bin/env bash
# Print where promtool is. The one on the PATH is taken; else the one of Debian's package prometheus, which is unpacked
# into the user's cache, without being installed: that needs no root. May be repeated, and run twice at once.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/joex/promtool

fail() {
    printf 'get_promtool: %s\n' "$*" >&2
    exit 1
}

# apt, with folders of our own, so that the system's may be empty, locked, or another user's.
apt() {
    apt-get --quiet --quiet \
        -o Dir::State="$work/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$work/cache" \
        -o APT::Sandbox::User="$(id --user --name)" "$@" >&2
}

if command -v promtool; then
    exit 0
fi
if [[ ! -x $cache/promtool ]]; then
    for program in apt-get dpkg-deb; do
        command -v "$program" >/dev/null || fail "no promtool on the PATH, and no $program to get it with"
    done
    mkdir -p "$cache"
    work=$(mktemp --directory "$cache/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial"
    apt update || fail "apt-get update failed"
    (cd "$work" && apt download prometheus) || fail "apt-get download prometheus failed"
    dpkg-deb --extract "$work"/prometheus_*.deb "$work/unpacked" || fail "the package can't be unpacked"
    mv "$work/unpacked/usr/bin/promtool" "$cache/promtool"
fi
"$cache/promtool" --version >/dev/null || fail "$cache/promtool does not run here; remove it, and install Prometheus"
printf '%s\n' "$cache/promtool"
