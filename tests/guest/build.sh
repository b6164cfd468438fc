#!/usr/bin/env bash
# Makes a guest: Debian's kernel, and an initrd with modules that few hosts have: for RDMA, and
# TCP's congestion controls.
#
# Usage: build.sh CACHE_DIR
#
# rdma_rxe comes with the kernel. siw is built from the kernel's source: Debian leaves it out. Where
# siw has constants for what a peer may meet (CRC, MPA revision), the copy has module parameters:
# crc, mpa_version, peer_to_peer. Nothing is installed. Packages are downloaded into CACHE_DIR,
# which is left alone when it is up to date. Exits 77 when something cannot be had, after a line
# that says what.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE
readonly TOOLS=(apt-cache apt-get busybox cc cpio depmod dpkg dpkg-deb gzip make modprobe qemu-system-x86_64 xz)
readonly MODULES=(
  virtio_pci 9pnet_virtio 9p af_packet ipv6 veth
  crc32_generic crc32c_generic crc32c_intel libcrc32c
  ib_uverbs rdma_ucm iw_cm rdma_rxe
  tun tcp_bic tcp_highspeed tcp_htcp tcp_scalable tcp_vegas
  sch_netem
)
readonly SIW_OBJECTS='siw_cm.o siw_cq.o siw_main.o siw_mem.o siw_qp.o siw_qp_tx.o siw_qp_rx.o siw_verbs.o'

main() {
  (($# == 1)) || { echo 'usage: build.sh CACHE_DIR' >&2 && exit 2; }
  local image kernel version stamp
  check_tools
  image=$(dependencies linux-image-amd64 | sed -n '/^linux-image-/{p;q}')
  [[ -n $image ]] || unavailable "apt knows no linux-image-amd64 (apt-get update as root may help)"
  kernel=${image#linux-image-}
  version=$(apt-cache show --no-all-versions "$image" | sed -n 's/^Version: //p')
  stamp="$image $version $(cat "$HERE/build.sh" "$HERE/init" | cksum)"
  mkdir -p "$1"
  cd "$1"
  if [[ $(cat stamp 2>/dev/null) == "$stamp" ]]; then
    return
  fi
  rm -rf stamp packages root headers source siw initrd
  unpack "$image=$version" root
  depmod -b root "$kernel"
  build_siw "$kernel" "$version"
  pack_initrd "$kernel"
  cp "root/boot/vmlinuz-$kernel" vmlinuz
  rm -rf packages root headers source siw initrd
  echo "$stamp" >stamp
  echo "guest: Linux $kernel, in $PWD" >&2
}

unavailable() {
  printf 'SKIPPED: guest: %s\n' "$*"
  exit 77
}

check_tools() {
  local tool missing=()
  [[ $(uname -m) == x86_64 ]] || unavailable 'it is an x86-64 machine, and its programs are the host'"'"'s'
  for tool in "${TOOLS[@]}"; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  ((${#missing[@]} == 0)) ||
    unavailable "missing: ${missing[*]} (apt-get install qemu-system-x86 busybox-static build-essential cpio kmod xz-utils)"
}

dependencies() {
  apt-cache depends --no-recommends --no-suggests "$1" 2>/dev/null | sed -n 's/^ *Depends: //p'
}

# unpack PACKAGE[=VERSION] DIR
unpack() {
  mkdir -p packages
  (cd packages && rm -f ./*.deb && apt-get download -qq -o APT::Sandbox::User="$(id -un)" "$1" >&2) || unavailable "cannot download $1"
  dpkg -x packages/*.deb "$2"
}

build_siw() {
  local kernel=$1 version=$2 series package build log
  series=$(cut -d . -f 1,2 <<<"$kernel")
  for package in "linux-headers-$kernel" $(dependencies "linux-headers-$kernel" | grep -E '^linux-(headers|kbuild)-'); do
    unpack "$package=$version" headers
  done
  unpack "linux-source-$series=$version" source
  build=$PWD/headers/usr/src/linux-headers-$kernel
  sed -i "s#/usr/src/#$PWD/headers/usr/src/#" "$build/Makefile"
  tar --extract --file "source/usr/src/linux-source-$series.tar.xz" --strip-components=5 --one-top-level=siw \
    --wildcards "linux-source-$series/drivers/infiniband/sw/siw/*"
  parameter crc mpa_crc_required bool
  parameter peer_to_peer peer_to_peer bool
  parameter mpa_version mpa_version byte
  printf 'obj-m := siw.o\nsiw-y := %s\n' "$SIW_OBJECTS" >siw/Kbuild
  log=$(make -C "$build" M="$PWD/siw" modules 2>&1) || { echo "$log" >&2 && exit 1; }
}

# parameter NAME VARIABLE TYPE: a constant of siw becomes a module parameter.
parameter() {
  sed -i -E "s/^(extern )?(const )?(bool|u_char) $2\b/\1\3 $2/" siw/siw_main.c siw/siw.h
  grep -qE "^(bool|u_char) $2\b" siw/siw_main.c || { echo "guest: siw has no $2" >&2 && exit 1; }
  echo "module_param_named($1, $2, $3, 0644);" >>siw/siw_main.c
}

pack_initrd() {
  local kernel=$1 module file
  mkdir -p initrd/{bin,dev,mnt,modules,proc,sys}
  cp "$(command -v busybox)" initrd/bin/
  install -m 755 "$HERE/init" initrd/init
  for module in "${MODULES[@]}"; do
    modprobe -d root -S "$kernel" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
  done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" initrd/modules/
    basename "$file"
  done >initrd/modules/order
  cp siw/siw.ko initrd/
  (cd initrd && find . | cpio --quiet -o -H newc | gzip -1) >initrd.gz
}

main "$@"
