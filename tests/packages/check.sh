#!/usr/bin/env bash
# Installs each package in a bare Debian root of its own, moves a tree with trust, directly and
# through a gateway, by the lines of the systemd units, and removes the package: keys and data are
# left, nothing else. If PACKAGES has an image for arm64, it runs by qemu-user 10 or newer: 7 does
# not know openat2.
#
# Usage: check.sh PACKAGES ROOT_DIR WORK
#
# ROOT_DIR is the bare root, made where there is none; the packages go into copies below WORK. All
# of it runs in namespaces of mounts and of the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/bare/root.sh
source tests/bare/root.sh

readonly PACKAGES=$1 BASE=$2 WORK=$3
VERSION=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
root='' inside=() servers=()

main() {
  local kind
  if [[ -z ${HAUL_PACKAGES_INSIDE:-} ]]; then
    make_root "$BASE"
    HAUL_PACKAGES_INSIDE=1 exec unshare --mount --net --propagation private "${BASH_SOURCE[0]}" "$@"
  fi
  ip link set lo up
  trap end_servers EXIT
  for kind in deb rpm tarball image arm64; do
    if [[ $kind == arm64 ]] && ! has_arm64; then continue; fi
    rm -rf --one-file-system "$WORK"
    mkdir -p "$WORK"
    check "$kind"
  done
  rm -rf --one-file-system "$WORK"
}

# What ./test packs has no image for arm64.
has_arm64() {
  compgen -G "$PACKAGES/haul-*-oci-arm64.tar" >/dev/null || return
  local version
  version=$(qemu-aarch64-static --version 2>/dev/null | sed -n 's/^qemu-aarch64 version \([0-9]*\).*/\1/p')
  ((${version:-0} >= 10)) || { echo 'SKIPPED: arm64: no qemu-aarch64-static of version 10' && return 1; }
}

check() {
  local kind=$1 units=packaging emulator=()
  "root_$kind"
  inside=(env --ignore-environment PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/client chroot "$root" "${emulator[@]}")
  mkdir -p "$root"/{dev,proc,etc,tmp}
  mount --rbind /dev "$root/dev"
  mount -t proc proc "$root/proc"
  files >"$WORK/before"
  if [[ $kind != image && $kind != arm64 ]]; then
    "install_$kind"
    units=$(find "$root"/usr/lib "$root/opt" -name haul-serve.service -printf '%h')
    complete
    "${inside[@]}" haul run -- bash -c 'grep -q libhaul_preload.so /proc/self/maps' ||
      { echo 'FAILED: haul run does not load its library' && return 1; }
  fi
  [[ $("${inside[@]}" haul --version) == "haul $VERSION" ]]
  move_trees "$units"
  end_servers
  echo "a tree by the $kind, directly and through a gateway ... ok"
  if [[ $kind != image && $kind != arm64 ]]; then
    "remove_$kind"
    nothing_left
    echo "keys and data are left of the $kind, nothing else ... ok"
  fi
  umount --recursive --lazy "$root/dev"
  umount "$root/proc"
}

root_deb() {
  root=$WORK/root
  cp -a "$BASE" "$root"
}

root_rpm() {
  root_deb
  rpm --root "$(realpath "$root")" --initdb
}

root_tarball() {
  root_deb
}

root_image() {
  unpack_image amd64
}

unpack_image() {
  mkdir "$WORK/layout"
  tar -xf "$PACKAGES"/haul-*-oci-"$1".tar -C "$WORK/layout"
  umoci --log=error unpack --image "$WORK/layout:$VERSION" "$WORK/bundle"
  root=$WORK/bundle/rootfs
}

# The emulator finds no program by PATH, but in the current directory.
root_arm64() {
  unpack_image arm64
  install -D "$(command -v qemu-aarch64-static)" "$root/emulator"
  ln -s usr/bin/haul "$root/haul"
  emulator=(/emulator)
  [[ $(dpkg-deb --field "$PACKAGES"/haul_*_arm64.deb Architecture) == arm64 ]] ||
    { echo 'FAILED: the deb is not for arm64' && return 1; }
  [[ $(rpm --query --package --queryformat '%{ARCH}' "$PACKAGES"/haul-*.aarch64.rpm) == aarch64 ]] ||
    { echo 'FAILED: the rpm is not for aarch64' && return 1; }
}

install_deb() {
  cp "$PACKAGES"/haul_*_amd64.deb "$root/tmp/haul.deb"
  "${inside[@]}" apt-get install -qq --yes --no-install-recommends /tmp/haul.deb >"$WORK/log" 2>&1 ||
    { cat "$WORK/log" && return 1; }
  rm "$root/tmp/haul.deb"
}

# The database of a root that rpm did not make knows no C library.
install_rpm() {
  rpm --force-debian --root "$(realpath "$root")" --install --nodeps "$PACKAGES"/haul-*.x86_64.rpm
}

install_tarball() {
  tar -xzf "$PACKAGES"/haul-*-x86_64.tar.gz -C "$root/opt"
  ln -s "/opt/haul-$VERSION/bin/haul" "$root/usr/local/bin/haul"
}

remove_deb() {
  "${inside[@]}" dpkg --purge haul >/dev/null 2>"$WORK/log"
  # Of a directory that holds keys dpkg says that it stays.
  if grep -v "while removing haul, directory '.*' not empty so not removed" "$WORK/log"; then return 1; fi
}

remove_rpm() {
  rpm --force-debian --root "$(realpath "$root")" --erase haul
}

remove_tarball() {
  rm -r "$root/opt/haul-$VERSION" "$root/usr/local/bin/haul"
}

# Completions and manual pages are where they belong, and bash takes its own.
complete() {
  local prefix file
  prefix=$(dirname "$(dirname "$(find "$root/usr/bin" "$root/opt" -path '*/bin/haul')")")
  for file in man/man1/haul-send.1.gz bash-completion/completions/haul fish/vendor_completions.d/haul.fish doc/haul/docs/install.md doc/haul/book/docs/install.html; do
    [[ -s $prefix/share/$file ]] || { echo "FAILED: no $prefix/share/$file" && return 1; }
  done
  find "$prefix/share/zsh" -name _haul -size +1k | grep -q .
  bash -n "$prefix/share/bash-completion/completions/haul"
  gzip -dc "$prefix/share/man/man1/haul-send.1.gz" | grep -q '^\.SH NAME'
  grep -q '^aws-lc-sys ' "$prefix/share/doc/haul/copyright"
}

# Moves trees from the client's home to the server's data, by the units in the folder $1.
move_trees() {
  local way key through=()
  mkdir -p "$root/client/tree/empty" "$root/etc/haul" "$root/var/lib/haul/data"
  seq 1000 >"$root/client/tree/numbers"
  head -c 5000000 /dev/urandom >"$root/client/tree/random"
  ln -s numbers "$root/client/tree/link"
  (umask 022 && "${inside[@]}" haul key new 2>/dev/null >"$root/etc/haul/authorized_keys")
  head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$root/etc/haul/near.key"
  chmod 600 "$root/etc/haul/near.key"
  cat >"$root/etc/haul/gateway.toml" <<TOML
name = "gateway"
listen = "127.0.0.1:7400"
exit = ["127.0.0.1/32:4725"]

[[key]]
name = "near"
file = "near.key"

[[channel]]
kind = "tcp"
listen = "127.0.0.1:7402"
TOML
  start "$1/haul-serve.service" 'serving '
  start "$1/haul-gateway.service" 'sessions at 127.0.0.1:7400'
  key=$("${inside[@]}" haul key show --key /var/lib/haul/key.pem 2>/dev/null)
  "${inside[@]}" haul key trust haul://127.0.0.1 "$key" 2>/dev/null
  for way in direct gateway; do
    [[ $way == direct ]] || through=(--gateway 127.0.0.1 --gateway-key /etc/haul/near.key)
    mkdir "$root/var/lib/haul/data/$way"
    "${inside[@]}" haul send --quiet "${through[@]}" /client/tree "haul://127.0.0.1/$way/"
    diff -r --no-dereference "$root/client/tree" "$root/var/lib/haul/data/$way/tree"
  done
}

# Runs the line that starts the unit $1, until end_servers, and waits for the line $2 of its log.
start() {
  local line log
  log=$WORK/$(basename "$1").log
  line=$(sed -n 's/^ExecStart=//p' "$1")
  : >"$log"
  # shellcheck disable=SC2086  # it has no quotes
  "${inside[@]}" $line >"$log" 2>&1 &
  servers+=($!)
  # shellcheck disable=SC2016  # the inner shell expands
  timeout 20 sh -c 'until grep -q "$1" "$2"; do sleep 0.1; done' sh "$2" "$log" ||
    { cat "$log" && return 1; }
}

end_servers() {
  ((${#servers[@]} == 0)) || kill "${servers[@]}" || true
  wait "${servers[@]}" || true
  servers=()
}

# The files of the root, but those of package managers.
files() {
  (cd "$root" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./var/lib/apt -o \
    -path ./var/cache -o -path ./var/log -o -path ./tmp \) -prune -o -print) | sort
}

nothing_left() {
  local left
  left=$(files | comm -13 "$WORK/before" - | grep -Ev '^\./(etc/haul|var/lib/haul|client)(/|$)') || return 0
  printf 'FAILED: left behind:\n%s\n' "$left"
  return 1
}

main "$@"
