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
# Prints a line per stage of pip, which takes minutes; its errors go to stderr as they are.
stages() {
  local line found=0
  while IFS= read -r line; do
    case $line in
      "Collecting "*)
        [ $((found % 20)) -ne 0 ] || echo "  downloading packages of requirements.lock: $found of at most $1"
        found=$((found + 1))
        ;;
      "Installing collected packages"*) echo "  downloaded $found; unpacking them (the longest stage)" ;;
    esac
  done
}
pip=("$venv/bin/pip" --disable-pip-version-check --no-color)
if [ ! -x "$venv/bin/pip" ]; then
  echo "creating $venv with $("$python" --version)"
  "$python" -m venv "$venv"
fi
echo "installing into $venv (three to seven minutes on a first run)"
count=$(grep -c '^[A-Za-z0-9].*==' requirements.lock)
PYTHONUNBUFFERED=1 "${pip[@]}" install --progress-bar off --require-hashes -r requirements.lock | stages "$count"
echo "  installing Paceline itself"
"${pip[@]}" install --quiet --no-deps --no-build-isolation -e .
echo "installed"
