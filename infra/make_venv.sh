#!/usr/bin/env bash
# make_venv.sh DIR: a virtual environment with the locked packages and this project, editable.
# PYTHON chooses the interpreter (3.10-3.12; 3.13 has no verl and so no trainer).
set -euo pipefail
dir=${1:?usage: make_venv.sh DIR}
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
  3.10 | 3.11 | 3.12) ;;
  *) echo "Python $version: 3.10, 3.11 or 3.12 is needed (verl's range); choose one by PYTHON=python3.11" >&2; exit 1 ;;
esac
[ -x "$dir/bin/python" ] || echo "installing into $dir (about 6 GB; one to five minutes)" >&2
if command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1; then
  uv=uv
  [ -x "$dir/bin/python" ] || uv venv -q --python "$(command -v "$python")" "$dir"
else
  [ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
  "$dir/bin/python" -m pip install -q uv # it installs the rest in a fifth of pip's time
  uv=$dir/bin/uv
fi
install() { # an index that only pip is configured for is pip's to read
  "$uv" pip install -q --python "$dir/bin/python" "$@" || "$dir/bin/python" -m pip install -q "$@"
}
install -r requirements.lock
install --no-deps -e .
touch "$dir/ready"
