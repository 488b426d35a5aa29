#!/bin/sh
# Install Joex as in its image: into a separate folder, with the wheel and the packages of requirements-runtime.lock,
# checked by their hashes, and without pip. The Dockerfile runs it, and so does the test that needs no Docker engine.
#
#     sh scripts/install_image.sh FOLDER        PYTHON: which Python to use (default: python3)
set -eu

folder=$1
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pip() {
    "$work/build/bin/python" -m pip --disable-pip-version-check --quiet "$@"
}

"$python" -m venv "$work/build"
# The build tools are checked by their hashes too: hatchling and its dependencies, from the lock file of development.
sed -n '/^\(hatchling\|packaging\|pathspec\|pluggy\|tomlkit\|trove-classifiers\)==/,/[^\\]$/p' requirements.lock >"$work/build.lock"
pip install --require-hashes --requirement "$work/build.lock"
"$work/build/bin/hatchling" build --target wheel --directory "$work/wheel"

"$python" -m venv --without-pip "$folder"
pip --python "$folder/bin/python" install --no-compile --require-hashes --requirement requirements-runtime.lock
pip --python "$folder/bin/python" install --no-compile --no-deps "$work"/wheel/joex-*.whl

# The operator sends requests to the API server by path, and never loads the Kubernetes client's classes for kinds and
# groups of objects. These are half of the installation; the client itself loads only the three that stay.
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
find "$packages/kubernetes" -type f \( -path '*/client/api/*_api.*' -o -path '*/client/models/*' ! -name '__init__.*' \
    ! -name 'v1_managed_fields_entry.*' ! -name 'v1_object_meta.*' ! -name 'v1_owner_reference.*' \) -delete
# Compiled only now, without what was deleted; later nobody may write bytecode.
"$folder/bin/python" -m compileall -q "$packages"

# The kernel delivers to the first process of a container only the signals that it handles. A SIGTERM that comes before
# Python can handle it must not get lost, so it stays blocked until joex unblocks it (joex/cli/sigterm.py).
sed -i '1s|^#!|#!/usr/bin/env -S --block-signal=TERM |' "$folder/bin/joex"
