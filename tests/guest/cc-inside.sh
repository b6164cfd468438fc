#!/usr/bin/env bash
# What happens in the guest for cc.sh.
#
# Usage: cc-inside.sh SECONDS CONTROL…
set -euo pipefail

# The first loss ends slow start, with a queue; the second comes some ten round trips later, the
# others after some thirty each.
readonly DROPS=700,4000,13000,22000,31000

ip link set lo up
# Room for any window, and no memory of the control before.
sysctl -qw net.ipv4.tcp_wmem='4096 16777216 16777216' net.ipv4.tcp_no_metrics_save=1
# HyStart is no part of RFC 9438, and would end slow start before the first loss.
echo 0 >/sys/module/tcp_cubic/parameters/hystart
seconds=$1
shift
for control in "$@"; do
  ./cc-trace "$control" --seconds "$seconds" --drop "$DROPS" >"/tmp/$control.txt"
  mv "/tmp/$control.txt" .
done
