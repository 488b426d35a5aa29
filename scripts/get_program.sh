#!/usr/bin/env bash
# get_program.sh chromium|pgbouncer|promtool: print the path of a program that some tests run. If the PATH has none, this
# unpacks the program's Debian package, and the libraries and fonts that this system lacks, into the user's cache. It
# installs nothing, so it needs no root. You can run it repeatedly, and several times at once.
set -euo pipefail

fail() {
    printf 'get_program: %s\n' "$*" >&2
    exit 1
}

program=${1:-}
data=()
case $program in
# (Without a window, so without the libraries of a desktop. Its files are many: it gets them all, and fonts.)
chromium)
    package=chromium-headless-shell path=usr/lib/chromium/chromium-headless-shell
    data=(fonts-dejavu-core fonts-inter) ;;
pgbouncer) package=pgbouncer path=usr/sbin/pgbouncer ;;
promtool) package=prometheus path=usr/bin/promtool ;;
*) fail "expected chromium, pgbouncer or promtool; got '$program'" ;;
esac
cache=${XDG_CACHE_HOME:-$HOME/.cache}/joex/programs

# apt with its own folders: those of the system may be empty, locked, or another user's.
apt() {
    apt-get --quiet --quiet --yes --no-install-recommends \
        -o Dir::State="$work/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$work/cache" \
        -o Debug::NoLocking=true -o APT::Sandbox::User="$(id --user --name)" "$@" >&2
}

if command -v "$program"; then
    exit 0
fi
if [[ ! -x $cache/$program/run ]]; then
    for needed in apt-get dpkg-deb; do
        command -v "$needed" >/dev/null || fail "no $program on the PATH, and no $needed to download it"
    done
    mkdir -p "$cache"
    work=$(mktemp --directory "$cache/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
    apt update || fail "apt-get update failed"
    apt install --download-only "$package" "${data[@]}" || fail "apt-get install --download-only $package failed"
    for archive in "$work"/cache/archives/*.deb; do
        dpkg-deb --extract "$archive" "$work/unpacked" || fail "$archive can't be unpacked"
    done
    find "$work/unpacked" ! -type d ! -path "$work/unpacked/$path" ! -name '*.so*' \
        ! -path "$work/unpacked/usr/lib/chromium/*" ! -path "$work/unpacked/usr/share/fonts/*" -delete
    if [[ -d $work/unpacked/usr/share/fonts ]]; then
        # (Relative to this file. A system without a desktop has neither fonts nor the settings that name them.)
        cat >"$work/unpacked/fonts.conf" <<FONTS
<?xml version="1.0"?>
<fontconfig>
  <dir prefix="relative">usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
</fontconfig>
FONTS
    fi
    cat >"$work/unpacked/run" <<RUN
#!/bin/sh
here=\$(dirname "\$0")
libraries=\$(find "\$here/usr/lib" "\$here/lib" -name '*.so*' -printf '%h:' 2>/dev/null)
[ ! -e "\$here/fonts.conf" ] || export FONTCONFIG_FILE="\$here/fonts.conf"
LD_LIBRARY_PATH="\$libraries\${LD_LIBRARY_PATH:-}" exec "\$here/$path" "\$@"
RUN
    chmod 755 "$work/unpacked" "$work/unpacked/run"
    mv --no-target-directory "$work/unpacked" "$cache/$program" 2>/dev/null || [[ -x $cache/$program/run ]] ||
        fail "$cache/$program can't be written"
fi
"$cache/$program/run" --version >/dev/null || fail "$cache/$program/run does not work here; remove it, and install $program"
printf '%s\n' "$cache/$program/run"
