#!/usr/bin/env bash
# The driver's Debian package: the same when it is built again, and what is in it carries a file.
#
# Usage: package.sh OUT ARCHIVE
set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$1 archive=$2

first=$("$folder/../../c/xio/package.sh" "$out/first" "$archive")
second=$("$folder/../../c/xio/package.sh" "$out/second" "$archive")
cmp "$first" "$second"
echo 'the package is built the same twice ... ok'
dpkg-deb --field "$first" Depends | grep -q libglobus-xio
rm -rf "$out/installed"
dpkg-deb --extract "$first" "$out/installed"
"$folder/check.sh" "$out"/installed/usr/lib/* third_party
