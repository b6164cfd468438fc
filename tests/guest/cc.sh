#!/usr/bin/env bash
# Records traces of the kernel's congestion controls: what each makes of the same path and the same
# losses.
#
# Usage: cc.sh CACHE_DIR CC_TRACE OUT_DIR SECONDS [CONTROL…]
#
# CACHE_DIR is what build.sh made, CC_TRACE the program of this folder (its first lines say what a
# trace is). Writes OUT_DIR/CONTROL.txt, so many seconds of each. In the guest time is virtual: a
# trace hardly depends on the machine and not at all on how busy it is. crates/haul-cc/tests/data
# has such traces, of 12 s; crates/haul-cc/tests/kernel.rs compares Longhaul's controls with them.
set -euo pipefail

# Twelve seconds of all take a minute on two idle cores; this is for busy ones.
readonly LIMIT=600
readonly CONTROLS=(reno cubic bic htcp highspeed scalable vegas)

(($# >= 4)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$1 program=$2 out=$3 seconds=$4
shift 4
(($# > 0)) || set -- "${CONTROLS[@]}"
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
cp "$here/cc-inside.sh" "$share/"
cp "$program" "$share/cc-trace"
GUEST_TIME=virtual "$here/run.sh" "$cache" "$share" "$LIMIT" ./cc-inside.sh "$seconds" "$@"
mkdir -p "$out"
mv "$share"/*.txt "$out/"
