# Makes bare Debian roots, for the scripts that source this file.
# shellcheck shell=bash

# Makes by debootstrap the root $1, with the essential packages and iproute2, where there is none.
# Where that is impossible it prints why, and ends the script that sourced this with success.
make_root() {
  local codename
  ((EUID == 0)) || skip 'only root can enter one'
  unshare --mount true 2>/dev/null || skip 'no right to make mount namespaces'
  command -v debootstrap >/dev/null || skip 'debootstrap is not installed (apt-get install debootstrap)'
  [[ ! -e $1/made ]] || return 0
  # The programs need the C library that they were linked with, or a newer one.
  # shellcheck disable=SC1091  # of this system
  codename=$(. /etc/os-release && [[ $ID == debian ]] && echo "$VERSION_CODENAME") || skip 'this system is not Debian'
  rm -rf --one-file-system "$1"
  debootstrap --variant=minbase --include=iproute2 "$codename" "$1" >"$1.log" 2>&1 ||
    skip "debootstrap failed: $(tail -n 1 "$1.log")"
  # Installers and container engines leave one, and the lab puts its hosts into it.
  touch "$1/etc/hosts" "$1/made"
}

skip() {
  echo "SKIPPED: no bare root: $*"
  exit 0
}
