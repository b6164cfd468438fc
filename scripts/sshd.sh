#!/usr/bin/env bash
# Unpacks Debian's OpenSSH server into a folder, for tests that run it on addresses of their own. It
# is not installed: that would start a server of this host.
#
#   scripts/sshd.sh DIR
set -euo pipefail

readonly DIR=${1:?usage: scripts/sshd.sh DIR}
readonly PACKAGES=(openssh-server libwrap0)

if [[ -x /usr/sbin/sshd || -x $DIR/usr/sbin/sshd ]]; then
  exit 0
fi
command -v apt-get dpkg-deb >/dev/null || { echo 'no OpenSSH server: install one'; exit 77; }
mkdir -p "$DIR/packages"
cd "$DIR/packages"
apt-get download -qq "${PACKAGES[@]}" 2>/dev/null || { echo 'no OpenSSH server: apt-get download failed'; exit 77; }
for package in ./*.deb; do
  dpkg-deb --extract "$package" "$DIR"
done
