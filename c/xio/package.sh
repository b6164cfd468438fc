#!/usr/bin/env bash
# Builds the driver's Debian package, the same from the same sources, and prints its path.
#
# Usage: package.sh OUT [ARCHIVE]
#
# Files are made in OUT. ARCHIVE is libhaul_capi.a where cargo has built it already.
set -euo pipefail

(($# >= 1)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
archive=${2:+ARCHIVE=$(realpath "$2")}
name=haul-globus-xio-driver
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")
# Of the last change, so that times are not those of the build.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

main() {
  local root=$out/root package
  rm -rf "$root"
  make -s -C "$here/.." install-xio OUT="$out" ${archive:+"$archive"} CFLAGS="-O2 -ffile-prefix-map=$here=." \
    DESTDIR="$root" PREFIX=/usr LIBDIR="/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" >&2
  strip --strip-unneeded "$root"/usr/lib/*/*.so
  describe "$root"
  package=$out/${name}_${version}_$(dpkg-architecture -qDEB_HOST_ARCH).deb
  find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >&2
  echo "$package"
}

# The files that say what it is. What it depends on is what the driver is linked with.
describe() {
  local root=$1 documents=$1/usr/share/doc/$name depends
  mkdir -p "$root/DEBIAN" "$documents"
  cat "$here/../../LICENSE-MIT" "$here/../../LICENSE-APACHE" >"$documents/copyright"
  cp "$here/../../docs/gridftp.md" "$documents/"
  mkdir -p "$out/debian"
  printf 'Source: %s\n\nPackage: %s\nArchitecture: any\n' "$name" "$name" >"$out/debian/control"
  depends=$(cd "$out" && dpkg-shlibdeps -O "$root"/usr/lib/*/*.so | sed 's/^shlibs:Depends=//')
  cat >"$root/DEBIAN/control" <<CONTROL
Package: $name
Version: $version
Architecture: $(dpkg-architecture -qDEB_HOST_ARCH)
Maintainer: The Longhaul contributors <longhaul@localhost>
Section: net
Priority: optional
Depends: $depends
Suggests: globus-gridftp-server-progs, globus-gass-copy-progs
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Description: GridFTP over RDMA, iWARP and UDT
 The transport driver "haul" of Globus XIO: data connections of GridFTP as
 RDMA queue pairs, over an RNIC or over iWARP in TCP and UDT without one.
CONTROL
  chmod -R u=rwX,go=rX "$root"
}

main
