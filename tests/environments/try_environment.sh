#!/usr/bin/env bash
# Creates an environment of one kind, installs a wheel of this checkout, and tries the package:
#
#   tests/environments/try_environment.sh base      what `make demo` installs, locked
#   tests/environments/try_environment.sh locked    what `make test` installs, locked
#   tests/environments/try_environment.sh lowest    the lower bounds of setup.py (constraints/)
#   tests/environments/try_environment.sh newest    the newest versions that setup.py allows
#
# PYTHON is the interpreter (python3), TORCH the requirement of torch, which pip installs first
# (base, locked: that of requirements.txt; lowest: the lower bound; newest: any). EXTRAS, such as
# `tables,annotate`, are added to lowest and newest. Without uv on the path, it is installed there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
unset PYTHONPATH

kind=${1:-}
python=$("${PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $kind in
  base | locked) torch=$(grep '^torch==' requirements.txt) ;;
  lowest) torch=$(sed -n 's/.*"torch>=\([0-9.]*\).*/torch==\1/p' setup.py) ;;
  newest) torch=torch ;;
  *)
    echo "$(basename "$0"): found ${kind:-nothing}, expected base, locked, lowest or newest" >&2
    exit 2
    ;;
esac
torch=${TORCH:-$torch}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
programs=$folder/venv/bin
# pip, because it is pip that knows from where this machine gets its build of torch.
"$programs/python" -m pip install --quiet "$torch"
"$programs/python" -m pip freeze | grep '^torch==' >"$folder/torch.txt"
uv=$(command -v uv) || {
  "$programs/python" -m pip install --quiet "$(grep '^uv==' requirements-dev.txt)"
  uv=$programs/uv
}
install=("$uv" pip install --quiet --python "$programs/python")

# From a copy: a build leaves files in its folder.
mkdir "$folder/source"
git ls-files -z | tar --create --null --files-from=- | tar --extract --directory="$folder/source"
"$uv" build --quiet --wheel --python "$programs/python" --out-dir "$folder" "$folder/source"
wheel=$(echo "$folder"/bsmeta-*.whl)
extras=${EXTRAS:+[$EXTRAS]}
case $kind in
  base) "${install[@]}" --require-hashes --no-deps --requirement requirements-base.lock ;;
  locked) "${install[@]}" --require-hashes --no-deps --requirement requirements.lock ;;
  lowest) constraints=("$folder/torch.txt" "constraints/lowest-$python.txt") ;;
  newest) constraints=("$folder/torch.txt") ;;
esac
case $kind in
  base | locked) "${install[@]}" --no-deps "$wheel" ;;
  *) "${install[@]}" "${constraints[@]/#/--constraint=}" "bsmeta$extras @ file://$wheel" ;;
esac
"$uv" pip check --quiet --python "$programs/python"

echo "$kind, Python $python: $(du -sm "$folder/venv" | cut -f1) MB installed"
export TORCH_EXTENSIONS_DIR=$folder/torch_extensions
PYTHONPATH=$PWD "$programs/python" -m tests.environments.try_package
