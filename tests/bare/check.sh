#!/usr/bin/env bash
# Runs test programs in a bare Debian root, which has the essential packages and iproute2: what a
# test needs beyond that it finds, or it skips itself. The root is entered by chroot(2), so there
# are no user namespaces in it, and / is no mount.
#
# Usage: check.sh ROOT_DIR 'FOLDER PROGRAM [FILTER…]'…
#
# The root is made by debootstrap where there is none, and kept. FOLDER, below the checkout, is
# where PROGRAM is run. Nothing stays mounted: the mounts are in a namespace of their own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Seconds that a program may take; the longest takes 15.
readonly LIMIT=300

# shellcheck source=tests/bare/root.sh
source tests/bare/root.sh

main() {
  local root=$1 target line folder program filters status=0
  shift
  (($# > 0)) || { echo 'FAILED: there are no test programs' && return 1; }
  if [[ -z ${HAUL_BARE_INSIDE:-} ]]; then
    make_root "$root"
    HAUL_BARE_INSIDE=1 exec unshare --mount --propagation private "${BASH_SOURCE[0]}" "$root" "$@"
  fi
  mkdir -p "$root$PWD"
  mount --bind "$PWD" "$root$PWD"
  target=$(dirname "$root")
  if [[ $target != "$PWD"/* ]]; then
    mkdir -p "$root$target"
    mount --bind "$target" "$root$target"
  fi
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/run"
  for line in "$@"; do
    read -r folder program filters <<<"$line"
    printf '\n     Running %s %s, in a bare root\n' "$program" "$filters"
    # shellcheck disable=SC2016,SC2086  # the inner shell expands; filters are words
    env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp \
      timeout --kill-after=10 "$LIMIT" \
      chroot "$root" sh -c 'cd "$1" && shift && exec "$@"' sh "$PWD/$folder" "$program" --show-output $filters || {
      (($? != 124)) || echo "FAILED: $program was ended after $LIMIT s"
      status=1
    }
  done
  return "$status"
}

main "$@"
