#!/bin/sh
# Before the package is removed: dpkg calls it with "remove", rpm with 0.
case ${1:-} in
  remove | 0) [ ! -d /run/systemd/system ] || systemctl disable --now haul-serve haul-gateway haul-engine.socket haul-engine || true ;;
esac
