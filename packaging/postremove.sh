#!/bin/sh
# After the package is removed.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
