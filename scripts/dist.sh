#!/usr/bin/env bash
# scripts/dist.sh [FOLDER] [ENVIRONMENT]: writes the release into FOLDER (default dist): wheel, sdist, the components of
# `pip install paceline[services,pipeline]` as CycloneDX (SBOM), and the list of their licences.
#
# The components are those of ENVIRONMENT (default build/dist-environment), a virtual environment that is created for this
# with the new wheel and the versions of requirements.lock. The tools run in another one, from requirements-dist.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
environment=${2:-build/dist-environment}
python=.venv/bin/python
tools=build/dist-tools-$(sha256sum requirements-dist.lock | cut -c1-12)

rm -rf "$out" "$environment"
mkdir -p build "$out"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) .venv/bin/hatchling build -d "$out" >/dev/null
wheel=$(ls "$out"/*.whl)

if [ ! -f "$tools/complete" ]; then
  "$python" -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements-dist.lock
  touch "$tools/complete"
fi
"$python" -m venv "$environment"
sed -n 's/^\([a-z0-9].*==.*\) \\$/\1/p' requirements.lock >build/dist-versions.txt
"$environment/bin/pip" install --quiet --disable-pip-version-check --constraint build/dist-versions.txt "$wheel[services,pipeline]"

name=$(basename "$wheel" -py3-none-any.whl)
"$tools/bin/cyclonedx-py" environment --output-reproducible --of JSON -o "$out/$name.cdx.json" "$environment/bin/python"
"$tools/bin/pip-licenses" --python "$environment/bin/python" --format markdown --order license --output-file "$out/$name-licences.md" >/dev/null
ls -l "$out" | awk 'NR > 1 {print $NF, $5}'
