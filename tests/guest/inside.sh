#!/usr/bin/env bash
# What happens in the guest: the kernel's RDMA devices on veth pairs, first with the tools that come with them, then
# with Longhaul. check.sh starts it in the share, beside verbs-peer.
#
# Usage: inside.sh [GROUP…]     groups: rxe siw
set -uo pipefail

readonly RXE=(10.8.0.1 10.8.0.2)
readonly SIW=(10.9.0.1 10.9.0.2)
# Every command is stopped after so many seconds.
readonly LIMIT=90

passed=0 failed=0

main() {
  local group
  (($# > 0)) || set -- rxe siw
  ip link set lo up
  for group in "$@"; do
    "group_$group"
  done
  printf 'test result: %s. %d passed; %d failed; 0 ignored\n' "$( ((failed == 0)) && echo ok || echo FAILED)" "$passed" "$failed"
  ((failed == 0))
}

# check NAME COMMAND…: both ends of something, as one check.
check() {
  local name=$1
  shift
  if "$@" >log 2>&1; then
    echo "test $name ... ok"
    passed=$((passed + 1))
  else
    echo "test $name ... FAILED"
    sed 's/^/  /' log
    failed=$((failed + 1))
  fi
}

# pair SERVER -- CLIENT: both succeed.
pair() {
  local server=() process status=0
  while [[ $1 != -- ]]; do
    server+=("$1")
    shift
  done
  shift
  timeout "$LIMIT" "${server[@]}" &
  process=$!
  sleep 1
  timeout "$LIMIT" "$@" || status=$?
  wait "$process" && ((status == 0))
}

# verbs NAME SERVER -- CLIENT: verbs-peer at both ends; its checks are shown and counted one by one.
verbs() {
  local name=$1
  shift
  echo "-- $name"
  if pair "$@" >log 2>&1; then
    sed '/^test result/d' log
  else
    cat log
    failed=$((failed + 1))
  fi
  passed=$((passed + $(grep -c '^test .* \.\.\. ok' log)))
}

# Two devices on a veth pair, in one namespace: rdma_rxe knows no other. Routes by source keep traffic off lo.
group_rxe() {
  local here there
  ip link add rxe-a type veth peer name rxe-b
  ip address add "${RXE[0]}/24" dev rxe-a
  ip address add "${RXE[1]}/24" dev rxe-b
  for here in all rxe-a rxe-b; do
    echo 1 >/proc/sys/net/ipv4/conf/$here/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$here/rp_filter
  done
  ip link set rxe-a up
  ip link set rxe-b up
  for here in 0 1; do
    there=$((1 - here))
    ip route add "${RXE[there]}" dev "rxe-$( ((here == 0)) && echo a || echo b)" src "${RXE[here]}" table $((100 + here))
    ip rule add pref 100 iif lo from "${RXE[here]}" to "${RXE[there]}" lookup $((100 + here))
  done
  ip rule add pref 200 lookup local
  ip rule del pref 0
  rdma link add rxe0 type rxe netdev rxe-a
  rdma link add rxe1 type rxe netdev rxe-b
  # Its addresses appear a moment later.
  sleep 1

  check rxe_devices_are_listed eval '[[ $(ibv_devices | grep -c rxe) == 2 ]]'
  check rxe_carries_perftest pair ib_write_bw -d rxe0 -x 1 -n 200 -- ib_write_bw -d rxe1 -x 1 -n 200 "${RXE[0]}"
  check rxe_carries_rping pair rping -s -a "${RXE[0]}" -C 10 -- rping -c -a "${RXE[0]}" -I "${RXE[1]}" -C 10
  verbs 'haul on rxe, both ends' ./verbs-peer serve --device rxe0 --at "${RXE[0]}:7471" -- \
    ./verbs-peer check --device rxe1 --at "${RXE[0]}:7471"
  check rxe_carried_it_over_the_wire eval '(( $(cat /sys/class/net/rxe-a/statistics/rx_bytes) > 10000000 ))'
}

# One device in each of two namespaces.
group_siw() {
  ip netns add peer
  ip link add siw-a type veth peer name siw-b netns peer
  ip address add "${SIW[0]}/24" dev siw-a
  ip link set siw-a up
  peer ip address add "${SIW[1]}/24" dev siw-b
  peer ip link set lo up
  peer ip link set siw-b up
  siw crc=0 mpa_version=2
  check siw_devices_are_listed eval '[[ $(ibv_devices | grep -c siw) == 2 ]]'
  check siw_carries_rping pair rping -s -a "${SIW[0]}" -C 10 -- ip netns exec peer rping -c -a "${SIW[0]}" -C 10
  verbs 'haul on siw, both ends' ./verbs-peer serve --device siw0 --at "${SIW[0]}:7471" -- \
    ip netns exec peer ./verbs-peer check --device siw1 --at "${SIW[0]}:7471"
}

# siw PARAMETER…: loads it anew, with a device at either end.
siw() {
  rmmod siw 2>/dev/null
  insmod /run/siw.ko "$@"
  rdma link add siw0 type siw netdev siw-a
  peer rdma link add siw1 type siw netdev siw-b
  sleep 1
}

peer() {
  ip netns exec peer "$@"
}

main "$@"
