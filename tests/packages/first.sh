#!/usr/bin/env bash
# Measures a user's first minute: the seconds from a bare Debian root with the deb at hand to the
# first verified file, by two commands: apt-get install, and haul send to a receiver with a code.
#
# Usage: first.sh DEB ROOT_DIR WORK
#
# ROOT_DIR is the bare root of check.sh; work is done in WORK, in namespaces of mounts and of the
# network, so what haul recommends (a client of ssh) is not downloaded. It needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/bare/root.sh
source tests/bare/root.sh

readonly DEB=$1 BASE=$2 WORK=$3
readonly ROOT=$WORK/root THERE=$WORK/there
readonly BYTES=100000000

if [[ -z ${HAUL_FIRST_INSIDE:-} ]]; then
  make_root "$BASE"
  HAUL_FIRST_INSIDE=1 exec unshare --mount --net --propagation private "${BASH_SOURCE[0]}" "$@"
fi
ip link set lo up
rm -rf --one-file-system "$WORK"
mkdir -p "$THERE/incoming"
cp -a "$BASE" "$ROOT"
mkdir "$ROOT/client"
cp "$DEB" "$ROOT/client/haul.deb"
head -c "$BYTES" /dev/urandom >"$ROOT/client/first"
mount --rbind /dev "$ROOT/dev"
mount -t proc proc "$ROOT/proc"
dpkg-deb --extract "$DEB" "$THERE"
"$THERE/usr/bin/haul" receive "$THERE/incoming" --listen 127.0.0.1 >"$THERE/log" 2>&1 &
receiver=$!
trap 'kill "$receiver" 2>/dev/null || true' EXIT
# shellcheck disable=SC2016  # the inner shell expands
timeout 20 sh -c 'until grep -q "enter this code: " "$1"; do sleep 0.1; done' sh "$THERE/log"
to=$(sed -n 's/.*haul send FILE //p' "$THERE/log")
code=$(sed -n 's/.*enter this code: //p' "$THERE/log")

inside=(env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/client chroot "$ROOT")
begin=${EPOCHREALTIME/./}
"${inside[@]}" apt-get install -qq --yes --no-install-recommends /client/haul.deb >"$WORK/log" 2>&1 || { cat "$WORK/log" && exit 1; }
installed=${EPOCHREALTIME/./}
"${inside[@]}" haul send --quiet /client/first "$to" <<<"$code"
end=${EPOCHREALTIME/./}
cmp "$ROOT/client/first" "$THERE/incoming/first"
echo "apt-get install $(((installed - begin) / 1000)) ms, haul send of $BYTES bytes $(((end - installed) / 1000)) ms"
wait "$receiver" || true
umount --recursive --lazy "$ROOT/dev" "$ROOT/proc"
rm -rf --one-file-system "$WORK"
