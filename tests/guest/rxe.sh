# shellcheck shell=bash
# Two devices of rdma_rxe, for inside.sh and agree-inside.sh, which source this.

readonly RXE_A=10.8.0.1 RXE_B=10.8.0.2

# Two devices on a veth pair, in one namespace: rdma_rxe knows no other. Routes by source keep
# traffic off lo.
rxe_devices() {
  local end
  ip link add rxe-a type veth peer name rxe-b
  ip address add $RXE_A/24 dev rxe-a
  ip address add $RXE_B/24 dev rxe-b
  for end in all rxe-a rxe-b; do
    echo 1 >/proc/sys/net/ipv4/conf/$end/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$end/rp_filter
  done
  ip link set rxe-a up
  ip link set rxe-b up
  ip route add $RXE_B dev rxe-a src $RXE_A table 101
  ip route add $RXE_A dev rxe-b src $RXE_B table 102
  ip rule add pref 100 iif lo from $RXE_A to $RXE_B lookup 101
  ip rule add pref 100 iif lo from $RXE_B to $RXE_A lookup 102
  ip rule add pref 200 lookup local
  ip rule del pref 0
  rdma link add rxe0 type rxe netdev rxe-a
  rdma link add rxe1 type rxe netdev rxe-b
  # Their addresses appear a moment later.
  sleep 1
}
