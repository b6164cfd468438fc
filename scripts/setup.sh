#!/usr/bin/env bash
# Makes sure that Rust, a C compiler and what the named Debian packages bring are there: installs
# what is missing as root or through sudo, and otherwise says in one line what to install. Changes
# nothing else.
#
# Usage: scripts/setup.sh [PACKAGE…]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly RUST_MIN=1.90.0

main() {
  local package missing=()
  for package in build-essential "$@"; do
    is_there "$package" || missing+=("$package")
  done
  if ((${#missing[@]} > 0)); then
    install_packages "${missing[@]}"
  fi
  check_rust
}

fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# Whether what a package is wanted for is there, wherever it comes from.
is_there() {
  case $1 in
    build-essential) command -v cc ;;
    busybox-static) command -v busybox ;;
    gfal2-plugin-file) compgen -G '/usr/lib/*/gfal2-plugins/libgfal_plugin_file.so' ;;
    gfal2-plugin-gridftp) compgen -G '/usr/lib/*/gfal2-plugins/libgfal_plugin_gridftp.so' ;;
    gfal2-util-scripts) command -v gfal-copy ;;
    globus-gass-copy-progs) command -v globus-url-copy ;;
    globus-gridftp-server-progs) command -v globus-gridftp-server ;;
    globus-proxy-utils) command -v grid-proxy-init ;;
    ibverbs-providers) compgen -G '/usr/lib/*/libibverbs/librxe-*.so' ;;
    ibverbs-utils) command -v ibv_devices ;;
    iproute2) command -v ip ;;
    kmod) command -v depmod ;;
    libglobus-xio-dev) [[ -e /usr/include/globus/globus_xio_driver.h ]] ;;
    libglobus-xio-udt-driver) compgen -G '/usr/lib/*/libglobus_xio_udt_driver.so*' ;;
    libibverbs-dev) [[ -e /usr/include/infiniband/verbs.h ]] ;;
    librdmacm-dev) [[ -e /usr/include/rdma/rdma_cma.h ]] ;;
    libudt-dev) [[ -e /usr/include/udt/udt.h ]] ;;
    netcat-openbsd) command -v nc ;;
    nginx-light) command -v nginx ;;
    nftables) command -v nft ;;
    perftest) command -v ib_write_bw ;;
    python3-venv) python3 -c 'import ensurepip' ;;
    python3-prometheus-client) /usr/bin/python3 -c 'import prometheus_client' ;;
    qemu-system-x86) command -v qemu-system-x86_64 ;;
    redis-tools) command -v redis-benchmark ;;
    rdmacm-utils) command -v rping ;;
    sip-tester) command -v sipp ;;
    vlc-bin) command -v cvlc ;;
    vlc-plugin-base) compgen -G '/usr/lib/*/vlc/plugins/demux/libts_plugin.so' ;;
    xz-utils) command -v xz ;;
    *) command -v "$1" ;;
  esac >/dev/null 2>&1
}

check_rust() {
  local tool found
  for tool in cargo rustc; do
    command -v "$tool" >/dev/null ||
      fail "Rust $RUST_MIN or newer is missing: install rustup (https://rustup.rs, or the package rustup of Debian 13 and Ubuntu 24.04), then run this again"
  done
  found=$(rustc --version | cut -d ' ' -f 2)
  [[ $(printf '%s\n' "$RUST_MIN" "${found%%-*}" | sort -V | head -n 1) == "$RUST_MIN" ]] ||
    fail "Rust $found is too old, $RUST_MIN is needed: remove it and install rustup (https://rustup.rs), then run this again"
}

install_packages() {
  local line="apt-get install --yes --no-install-recommends $*"
  command -v apt-get >/dev/null ||
    fail "missing is what Debian calls: $*; install it by the means of this system, then run this again"
  local as_root=(env DEBIAN_FRONTEND=noninteractive)
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "missing: $*; as root, run: apt-get update && $line"
    as_root=(sudo "${as_root[@]}")
  fi
  printf 'setup: %s%s\n' "$( ((EUID == 0)) || echo 'sudo ')" "$line" >&2
  "${as_root[@]}" apt-get update -qq >&2 || fail 'apt-get update failed; run it by hand, then run this again'
  "${as_root[@]}" apt-get install --yes --no-install-recommends -qq "$@" >&2 </dev/null ||
    fail "could not install: $*; run by hand: $line"
}

main "$@"
