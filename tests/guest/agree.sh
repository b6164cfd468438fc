#!/usr/bin/env bash
# Compares Longhaul's figures with other tools' on the same path in the guest: perftest's over
# rdma_rxe, sch_netem's.
#
# Usage: agree.sh CACHE_DIR HAUL OUT_DIR [GROUP…]     groups: perftest netem
#
# CACHE_DIR is what build.sh made, HAUL the program. Writes what was measured into OUT_DIR; exits as
# agree-inside.sh does. In the guest time is virtual: how busy this machine is makes it slower and
# nothing else. GUEST_LIMIT ends it after so many seconds.
set -euo pipefail

# Ten minutes on an idle core; this is for busy ones.
readonly LIMIT=${GUEST_LIMIT:-3600}

(($# >= 3)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$1 program=$2 out=$3
shift 3
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
cp "$here/agree-inside.sh" "$here/groups.sh" "$here/rxe.sh" "$share/"
cp "$program" "$share/haul"
status=0
GUEST_TIME=virtual "$here/run.sh" "$cache" "$share" "$LIMIT" ./agree-inside.sh "$@" || status=$?
mkdir -p "$out"
for file in "$share"/perftest.txt "$share"/netem.json; do
  [[ ! -e $file ]] || cp "$file" "$out/"
done
exit "$status"
