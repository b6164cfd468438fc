#!/usr/bin/env bash
# What happens in the guest: the kernel's RDMA devices on veth pairs, first with the tools that come
# with them, then with Longhaul. check.sh starts it in the share, beside verbs-peer. Prints what
# Rust tests print.
#
# Usage: inside.sh [GROUP…]     groups: rxe siw mixed udt
set -uo pipefail

# shellcheck source=tests/guest/groups.sh
source ./groups.sh
# shellcheck source=tests/guest/rxe.sh
source ./rxe.sh

readonly SIW_A=10.9.0.1 SIW_B=10.9.0.2
# In the namespace at the other end of siw's veth pair.
readonly THERE=(ip netns exec there)
# Where gateways take applications' RDMA connections, and where those lead.
readonly LISTENER=18600 REACHED=18601
# Every command is stopped after so many seconds.
readonly LIMIT=150

group_rxe() {
  rxe_devices
  check rxe_devices_are_listed devices rxe 2
  check rxe_carries_perftest pair ib_write_bw -d rxe0 -x 1 -n 200 -- ib_write_bw -d rxe1 -x 1 -n 200 $RXE_A
  check rxe_carries_rping pair rping -s -a $RXE_A -C 10 -- rping -c -a $RXE_A -I $RXE_B -C 10
  verbs rxe ./verbs-peer serve --provider ibv --device rxe0 --at $RXE_A:7471 -- \
    ./verbs-peer check --provider ibv --device rxe1 --at $RXE_A:7471
  check rxe_carries_sessions_of_gateways timeout $LIMIT ./verbs-peer gateways --device rxe0 --at $RXE_A \
    --peer rxe1 --from $RXE_B
  check rxe_bridges_connections_at_the_edges timeout $LIMIT ./verbs-peer edges --device rxe0 --at $RXE_A --peer rxe1
  check rxe_bridges_rdma_cm_applications extended pair ucmatose -b $RXE_A -p $REACHED -C 20 -S 60000 -- \
    ucmatose -s $RXE_A -b $RXE_B -p $LISTENER -C 20 -S 60000
  check rxe_carried_it_over_the_wire received rxe-a 10000000
}

group_siw() {
  siw_wire
  siw_devices crc=0
  check siw_devices_are_listed devices siw 2
  check siw_carries_rping pair rping -s -a $SIW_A -C 10 -- "${THERE[@]}" rping -c -a $SIW_A -C 10
  verbs siw ./verbs-peer serve --provider ibv --device siw0 --at $SIW_A:7471 -- \
    "${THERE[@]}" ./verbs-peer check --provider ibv --device siw1 --at $SIW_A:7471
}

# The kernel's iWARP and Longhaul's own, each as server and as client.
group_mixed() {
  siw_wire
  siw_devices crc=0
  mixed no_crc --no-crc
  mixed haul_wants_crc
  siw_devices crc=1
  mixed siw_wants_crc --no-crc
  siw_devices crc=0 mpa_version=1
  mixed mpa_revision_1
}

# Longhaul's iWARP over UDT, on the guest's kernel.
group_udt() {
  siw_wire
  verbs udt "${THERE[@]}" ./verbs-peer serve --provider soft --device soft-udt --at $SIW_B:7471 -- \
    ./verbs-peer check --provider soft --device soft-udt --at $SIW_B:7471
}

# mixed NAME [OPTION…]
mixed() {
  local name=$1
  shift
  verbs "${name}_to_haul" "${THERE[@]}" ./verbs-peer serve --provider soft --device soft-tcp --at $SIW_B:7471 "$@" -- \
    ./verbs-peer check --provider ibv --device siw0 --at $SIW_B:7471
  verbs "${name}_to_siw" ./verbs-peer serve --provider ibv --device siw0 --at $SIW_A:7471 -- \
    "${THERE[@]}" ./verbs-peer check --provider soft --device soft-tcp --at $SIW_A:7471 "$@"
}

siw_wire() {
  [[ ! -e /sys/class/net/siw-a ]] || return 0
  ip netns add there
  ip link add siw-a type veth peer name siw-b netns there
  ip address add $SIW_A/24 dev siw-a
  ip link set siw-a up
  "${THERE[@]}" ip address add $SIW_B/24 dev siw-b
  "${THERE[@]}" ip link set lo up
  "${THERE[@]}" ip link set siw-b up
}

# siw_devices PARAMETER…: loads siw anew, with a device at either end.
siw_devices() {
  rmmod siw 2>/dev/null
  insmod /run/siw.ko "$@"
  rdma link add siw0 type siw netdev siw-a
  "${THERE[@]}" rdma link add siw1 type siw netdev siw-b
  sleep 1
}

# devices NAME COUNT
devices() {
  [[ $(ibv_devices | grep -c "$1") == "$2" ]]
}

# received INTERFACE BYTES: it has received more.
received() {
  (($(cat "/sys/class/net/$1/statistics/rx_bytes") > $2))
}

# pair SERVER… -- CLIENT…: both succeed.
pair() {
  local server=() process status=0
  while [[ $1 != -- ]]; do
    server+=("$1")
    shift
  done
  shift
  timeout $LIMIT "${server[@]}" &
  process=$!
  sleep 1
  [[ ${server[0]} != ib_* ]] || perftest_listens
  timeout $LIMIT "$@" || status=$?
  # A server that nobody has come to waits no longer.
  ((status == 0)) || kill "$process" 2>/dev/null
  wait "$process" && ((status == 0))
}

# extended COMMAND…: it succeeds while two gateways lead from one port to the other.
extended() {
  local process tries status=0
  ./verbs-peer edges --device rxe0 --at $RXE_A --peer rxe1 --listener $LISTENER --to $REACHED >edges.log &
  process=$!
  for ((tries = 0; tries < 150; tries++)); do
    ! grep -qsx 'gateways are there' edges.log || break
    sleep 0.2
  done
  "$@" || status=$?
  kill "$process"
  wait "$process" 2>/dev/null
  return "$status"
}

# verbs NAME SERVER… -- CLIENT…: verbs-peer at both ends, whose checks count one by one.
verbs() {
  local name=$1 status=0 bad
  shift
  pair "$@" >log 2>&1 || status=$?
  sed -n "/^test result/d; s/^test /test ${name}__/p; t; s/^/  /p" log
  bad=$(grep -c '^test [a-z_]* \.\.\. FAILED' log)
  # An end that did not come so far fails as one.
  if ((status != 0 && bad == 0)); then
    echo "test ${name} ... FAILED"
    bad=1
  fi
  ((passed += $(grep -c '^test [a-z_]* \.\.\. ok' log)))
  ((failed += bad))
}

(($# > 0)) || set -- rxe siw mixed udt
run_groups "$@"
