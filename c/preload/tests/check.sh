#!/usr/bin/env bash
# The conformance list of the socket calls: run natively, and run with the shim in between; both
# must print the same.
#
# Usage: check.sh OUT [HAUL]
#
# In OUT the programs are built. Without HAUL the shim stands on tests/double.c, plain and with
# sanitizers, and is tested by itself. With HAUL, a `haul` that finds its libhaul_preload.so,
# programs run under `haul run`.
set -euo pipefail

readonly FLAGS=(-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -g)
readonly SHIM=(-U_FORTIFY_SOURCE -fPIC -fvisibility=hidden -fexceptions -shared)
readonly SANITIZERS=(-O1 -fno-omit-frame-pointer '-fsanitize=address,undefined' -fno-sanitize-recover=all)
readonly CC=${CC:-cc}
# Two seconds on an idle machine.
readonly PATIENCE=120

(($# >= 1)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$1 haul=${2:-}
passed=0 failed=0 skipped=0
calls=("$out/calls")
# The stand-in keeps nothing for a program that is started with its connections.
[[ -z $haul ]] || calls+=(inherited)
mkdir -p "$out"

main() {
  program "$out/calls" -O2 -D_FORTIFY_SOURCE=2
  if ! timeout "$PATIENCE" "${calls[@]}" >"$out/native.txt"; then tail -n 3 "$out/native.txt"; fi
  is_whole || { echo 'natively ... FAILED' && failed=$((failed + 1)); }
  if [[ -n $haul ]]; then
    with_haul
  else
    with_double
  fi
  if ((failed == 0)); then echo -n 'test result: ok.'; else echo -n 'test result: FAILED.'; fi
  echo " $passed passed; $failed failed; $skipped ignored"
  ((failed == 0))
}

program() {
  local to=$1
  shift
  "$CC" "${FLAGS[@]}" "$@" -o "$to" "$here"/tests/calls.c "$here"/tests/cases_*.c -lpthread
}

# The list came to its end, and every octet was the right one.
is_whole() {
  local cases
  cases=$(sed -n 's/^\([0-9]*\) cases$/\1/p' "$out/native.txt")
  echo "natively: ${cases:-0} cases"
  ((${cases:-0} >= 200)) && ! grep -E 'different|broken|, [1-9][0-9]* wrong' "$out/native.txt"
}

# Runs a command and compares what it prints with the native run.
compare() {
  local name=$1 result=$out/${1// /-}.txt status=0
  shift
  timeout "$PATIENCE" "$@" >"$result" || status=$?
  if ((status == 0)) && diff "$out/native.txt" "$result"; then
    echo "$name ... ok"
    passed=$((passed + 1))
  else
    echo "$name ... FAILED ($status)"
    failed=$((failed + 1))
  fi
}

with_double() {
  "$CC" "${FLAGS[@]}" -O2 "${SHIM[@]}" -o "$out/double.so" "$here"/*.c "$here/tests/double.c" \
    -Wl,--version-script="$here/preload.map" -Wl,--no-undefined,-z,now
  exports_libc_only
  compare 'again natively' "$out/calls"
  compare 'not under haul run' env LD_PRELOAD="$out/double.so" "$out/calls"
  compare 'nothing taken' env LD_PRELOAD="$out/double.so" HAUL_RUN_ID=none "$out/calls"
  compare 'everything taken' env LD_PRELOAD="$out/double.so" HAUL_RUN_ID=both "$out/calls"
  with_sanitizers
  changes_of_user
}

# The sanitizers' library comes first, and libc's functions after the shim's.
with_sanitizers() {
  local runtime
  program "$out/calls-sanitized" "${SANITIZERS[@]}"
  "$CC" "${FLAGS[@]}" "${SANITIZERS[@]}" "${SHIM[@]}" -o "$out/double-sanitized.so" "$here"/*.c "$here/tests/double.c" \
    -Wl,--version-script="$here/preload.map"
  runtime=$("$CC" -print-file-name=libasan.so)
  local environment=(
    LD_PRELOAD="$runtime $out/double-sanitized.so"
    ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1
  )
  compare 'nothing taken with sanitizers' env "${environment[@]}" HAUL_RUN_ID=none "$out/calls-sanitized"
  compare 'everything taken with sanitizers' env "${environment[@]}" HAUL_RUN_ID=both "$out/calls-sanitized"
}

# Functions of libc, without a version of our own, and all that the version script names.
exports_libc_only() {
  local name wrong=0
  for name in $(nm -D --defined-only "$out/double.so" | awk '{print $3}'); do
    grep -qw -- "$name" "$here/preload.map" || { echo "exported: $name" && wrong=1; }
    [[ $name != haul_* && $name != *@* ]] || { echo "exported: $name" && wrong=1; }
  done
  if ((wrong == 0)); then
    echo 'only functions of libc are exported ... ok'
    passed=$((passed + 1))
  else
    echo 'only functions of libc are exported ... FAILED'
    failed=$((failed + 1))
  fi
}

# A program that changes its user does not have the shim in its memory.
changes_of_user() {
  local folder
  if ((EUID != 0)) || ! command -v setpriv >/dev/null; then
    echo 'SKIPPED: a setuid program needs root to make one'
    return
  fi
  folder=$(mktemp -d)
  chmod 755 "$folder"
  cp "$(command -v cat)" "$folder/cat"
  cp "$out/double.so" "$folder/"
  chmod 4755 "$folder/cat"
  local run=(setpriv --reuid=65534 --clear-groups env LD_PRELOAD="$folder/double.so" HAUL_RUN_ID=both)
  local plain changing
  plain=$("${run[@]}" cat /proc/self/maps | grep -c double.so || true)
  changing=$("${run[@]}" "$folder/cat" /proc/self/maps | grep -c double.so || true)
  rm -rf "$folder"
  if ((plain > 0 && changing == 0)); then
    echo 'a setuid program does not load it ... ok'
    passed=$((passed + 1))
  else
    echo "a setuid program does not load it ... FAILED (plain $plain, setuid $changing)"
    failed=$((failed + 1))
  fi
}

# Both ends are the program's own; the report says that they were carried.
with_haul() {
  local run
  # Not the port that programs of this machine may be using.
  run=("$haul" run --port $((20000 + RANDOM % 10000)))
  compare 'under haul run' "${run[@]}" --report="$out/report.txt" -- "${calls[@]}"
  if grep -q 'UD' "$out/report.txt" && grep -q 'RC' "$out/report.txt"; then
    echo 'the report says UD and RC ... ok'
    passed=$((passed + 1))
  else
    echo 'the report says UD and RC ... FAILED'
    failed=$((failed + 1))
  fi
  compare 'datagrams only' "${run[@]}" --datagram -- "${calls[@]}"
  compare 'streams only' "${run[@]}" --stream -- "${calls[@]}"
}

main
