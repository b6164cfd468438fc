#!/usr/bin/env bash
# Figure 10 of datagram-iWARP with a socket for each call: SIPp as the server, sip_calls.py as the
# client, between two hosts that are network namespaces of this script's own; natively and with both
# ends under `haul run`, by UDP and by TCP, in turns.
#
# Usage: sip-calls.sh HAUL [ROUNDS [CALLS]]      5 rounds of 90 calls by default, 5 ms apart
#
# HAUL must find its libhaul_preload.so. Prints each round, and the medians of the rounds.
set -euo pipefail

readonly HERE=10.77.0.1 THERE=10.77.0.2 PORT=5060 GAP_MS=5
declare -rA NAME=([u]=UDP [t]=TCP)
# Seconds that one measurement may take; it takes a second or two.
readonly PATIENCE=60

(($# >= 1)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -z ${HAUL_CALLS_INSIDE:-} ]]; then
  own=(unshare --net --mount)
  ((EUID == 0)) || own=(unshare --user --map-root-user --net --mount)
  if ! command -v sipp >/dev/null || ! "${own[@]}" true 2>/dev/null; then
    echo "SKIPPED: no sipp, or no network namespaces here (${own[*]})"
    exit 0
  fi
  HAUL_CALLS_INSIDE=1 exec "${own[@]}" "$0" "$@"
fi

haul=$1 rounds=${2:-5} calls=${3:-90}
work=$(mktemp -d "${TMPDIR:-/tmp}/haul-calls.XXXXXX")
there_pid='' server_pid=''

finish() {
  [[ -z $server_pid ]] || kill -9 "$server_pid" 2>/dev/null || true
  [[ -z $there_pid ]] || kill "$there_pid" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# A second namespace, and a cable.
make_hosts() {
  unshare --net sleep infinity &
  there_pid=$!
  local own
  own=$(readlink /proc/self/ns/net)
  until [[ $(readlink "/proc/$there_pid/ns/net") != "$own" ]]; do sleep 0.05; done
  there=(nsenter --net="/proc/$there_pid/ns/net")
  ip link set lo up
  ip link add cable type veth peer name cable netns "$there_pid"
  ip address add "$HERE/24" dev cable
  ip link set cable up
  "${there[@]}" ip link set lo up
  "${there[@]}" ip address add "$THERE/24" dev cable
  "${there[@]}" ip link set cable up
}

# One measurement: measure native|haul u|t
measure() {
  local before=() transport=u1 end=$((SECONDS + PATIENCE))
  [[ $1 == native ]] || before=("$haul" run --)
  [[ $2 == u ]] || transport=tn
  (cd "$work" && exec "${there[@]}" "${before[@]}" sipp -sn uas -i "$THERE" -p "$PORT" -t "$transport" -max_socket 500 -nostdin) \
    >"$work/server" 2>&1 </dev/null &
  server_pid=$!
  until "${there[@]}" ss -H "-ln$2" "sport = :$PORT" | grep -q .; do
    if ((SECONDS >= end)) || ! kill -0 "$server_pid" 2>/dev/null; then
      cat "$work/server" >&2
      echo 'the server does not listen' >&2
      return 1
    fi
    sleep 0.05
  done
  if ! timeout "$PATIENCE" "${before[@]}" /usr/bin/python3 "$folder/sip_calls.py" "$2" "$HERE" "$THERE" "$PORT" "$calls" "$GAP_MS" \
    >"$work/found" 2>"$work/client"; then
    cat "$work/client" >&2
    return 1
  fi
  cat "$work/found"
  sed -n 's/.*median \([0-9]*\) us.*/\1/p' "$work/found" >>"$work/$1.$2"
  kill "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
  server_pid=''
}

median() {
  sort -n "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

make_hosts
for ((round = 1; round <= rounds; round++)); do
  for mode in native haul; do
    for kind in u t; do
      echo -n "round $round, $mode, ${NAME[$kind]}: "
      measure "$mode" "$kind"
    done
  done
done
for mode in native haul; do
  udp=$(median "$work/$mode.u") tcp=$(median "$work/$mode.t")
  echo "$mode: UDP $udp us, TCP $tcp us: $(awk -v u="$udp" -v t="$tcp" 'BEGIN { printf "%.1f", 100 * (1 - u / t) }') % less"
done
