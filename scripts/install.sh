#!/usr/bin/env bash
# scripts/install.sh [VENV]: creates the virtual environment VENV (default .venv), and installs the packages of
# requirements.lock, with hash checks, and Paceline.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
python=""
for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "Paceline needs Python 3.11 or newer. On Debian and Ubuntu: apt-get install python3 python3-venv" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv" >&2
  exit 1
fi
[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
echo "installing into $venv (a few minutes on a first run)"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
