#!/usr/bin/env bash
# Plays the two gateways of `haul lab gateways` with haproxy, which does not share a session: what
# two TCP proxies take on the same machine.
#
#   haul lab gateways --haul tests/bench/haproxy-gateways.sh --only '2000 x 1 kB'
#
# HAUL: the program for everything else (haul, in PATH). Needs haproxy and 17,000 descriptors.
set -euo pipefail

if [ "$*" = "" ] || [ "$1 ${2-}" != "gateway run" ]; then
    exec "${HAUL:-haul}" "$@"
fi
config=$3
if grep -q '^name = "ga"' "$config"; then
    to=10.77.0.2
else
    to=10.77.2.2
fi

listener() { printf 'listen p%s\n bind 0.0.0.0:%s\n server s %s:%s\n' "$1" "$1" "$to" "$2"; }

{
    printf 'global\n maxconn 8000\n nbthread 1\n'
    printf 'defaults\n mode tcp\n timeout connect 10s\n timeout client 1h\n timeout server 1h\n'
    for port in 5300 2222 5440 6400; do
        listener "$port" "$port"
    done
    # The lab waits for this port of the far gateway.
    if [ "$to" = 10.77.2.2 ]; then
        listener 7400 5300
    fi
} >"$config.haproxy"
exec haproxy -db -f "$config.haproxy"
