#!/usr/bin/env bash
# Runs the checks of inside.sh in the guest.
#
# Usage: check.sh CACHE_DIR VERBS_PEER [GROUP…]
#
# CACHE_DIR is what build.sh made, VERBS_PEER the program of this folder. Exits as the checks do.
set -euo pipefail

# Three minutes on two idle cores; this is for busy ones.
readonly LIMIT=900

(($# >= 2)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$1 program=$2
shift 2
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
cp "$here/inside.sh" "$here/groups.sh" "$here/rxe.sh" "$share/"
cp "$program" "$share/verbs-peer"
"$here/run.sh" "$cache" "$share" "$LIMIT" ./inside.sh "$@"
