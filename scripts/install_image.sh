#!/bin/sh
# Install Joex the way its image has it: a folder of its own with the wheel and the packages of requirements-runtime.lock,
# by their hashes, and without pip. Used by the Dockerfile, and by the test that stands in for a Docker engine.
#
#     sh scripts/install_image.sh FOLDER        PYTHON says with which Python (default: python3)
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
# What the wheel is built with comes by its hashes too: hatchling, and what it needs, out of the lock of development.
sed -n '/^\(hatchling\|packaging\|pathspec\|pluggy\|tomlkit\|trove-classifiers\)==/,/[^\\]$/p' requirements.lock >"$work/build.lock"
pip install --require-hashes --requirement "$work/build.lock"
"$work/build/bin/hatchling" build --target wheel --directory "$work/wheel"

"$python" -m venv --without-pip "$folder"
pip --python "$folder/bin/python" install --require-hashes --requirement requirements-runtime.lock
pip --python "$folder/bin/python" install --no-deps "$work"/wheel/joex-*.whl

# The operator asks the API server by path. Of the Kubernetes client it never loads the classes for each kind and group of
# objects, which are half of all that is installed; these three are what the client itself loads.
kubernetes=$("$folder/bin/python" -B -c 'import kubernetes; print(kubernetes.__path__[0])')
find "$kubernetes" -type f \( -path '*/client/api/*_api.*' -o -path '*/client/models/*' ! -name '__init__.*' \
    ! -name 'v1_managed_fields_entry.*' ! -name 'v1_object_meta.*' ! -name 'v1_owner_reference.*' \) -delete

# The kernel delivers to the first process of a container only the signals that it handles. A SIGTERM that comes before
# Python can handle it must not get lost: it waits, blocked, until joex unblocks it (joex/cli/sigterm.py).
sed -i '1s|^#!|#!/usr/bin/env -S --block-signal=TERM |' "$folder/bin/joex"
