#!/bin/sh
# After the deb or rpm is installed or upgraded. Running servers and gateways go on as they are:
# what restarts them ends their transfers, so the operator does.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
