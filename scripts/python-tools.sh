# shellcheck shell=bash
# Tools of PyPI for the scripts that source this file, from the top folder of the repository.

readonly TOOLS=${CARGO_TARGET_DIR:-$PWD/target}/release-tools

# Installs what a file of pinned hashes names into TOOLS/NAME.
python_tools() {
  local venv=$TOOLS/$1 lock
  # Jobs of ./test do this at the same time.
  mkdir -p "$TOOLS"
  exec {lock}>"$TOOLS/$1.lock"
  flock "$lock"
  cmp -s "$2" "$venv/installed" && return
  python3 -m venv --clear "$venv" || skip 'the module venv of Python (python3-venv) is missing'
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$2" ||
    skip "PyPI does not give what $2 names"
  cp "$2" "$venv/installed"
}

skip() {
  echo "SKIPPED: $*"
  exit 77
}
