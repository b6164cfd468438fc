#!/usr/bin/env bash
# What happens in the guest for agree.sh. Prints what Rust tests print.
#
# Usage: agree-inside.sh [GROUP…]     groups: perftest netem
set -uo pipefail

# shellcheck source=tests/guest/groups.sh
source ./groups.sh
# shellcheck source=tests/guest/rxe.sh
source ./rxe.sh

# perftest and haul take turns so often; the figure is the median of the ratios.
readonly ROUNDS=${ROUNDS:-7}
# What both measure over: RDMA Writes, and a path that is slower than two emulated processors.
readonly SIZE=65536 MESSAGES=200 DEPTH=16 RATE=200mbit
# Longhaul's goodput by perftest's differs from 1 by no more.
readonly OFF=0.03
# How long each of the lab's measurements takes, seconds.
readonly SECONDS_OF_LAB=${SECONDS_OF_LAB:-10}

group_perftest() {
  rxe_devices
  for end in rxe-a rxe-b; do
    tc qdisc add dev $end root netem rate $RATE limit 100000
  done
  ./haul bench rdma serve --quiet --provider ibv:rxe0 --listen $RXE_A --allow-insecure &
  local server=$!
  sleep 1
  check goodput_is_what_perftest_measures agrees_with_perftest
  kill $server
  wait $server
}

group_netem() {
  printf '[path]\nrtt = "40ms"\nrate = "100Mbit"\nloss = 0.01\n' >/tmp/agree.toml
  check the_emulator_does_what_netem_does agrees_with_netem
}

agrees_with_perftest() {
  local round theirs ours
  echo 'ib_write_bw and haul bench rdma, Gbit/s; QEMU TCG guest, virtual time' >perftest.txt
  for ((round = 0; round < ROUNDS; round++)); do
    theirs=$(perftest) && ours=$(haul) || return
    awk -v theirs="$theirs" -v ours="$ours" 'BEGIN {
      if (theirs <= 0 || ours <= 0) exit 1
      printf "%s %s ratio %.4f\n", theirs, ours, ours / theirs
    }' | tee -a perftest.txt
    [[ ${PIPESTATUS[0]} == 0 ]] || return
  done
  awk '/ratio/ { print $NF }' perftest.txt | sort -n | awk -v off=$OFF '
    { ratios[NR] = $1 }
    END {
      middle = (ratios[int((NR + 1) / 2)] + ratios[int((NR + 2) / 2)]) / 2
      printf "median %.4f of %d, least %.4f, most %.4f\n", middle, NR, ratios[1], ratios[NR]
      exit NR == 0 || middle < 1 - off || middle > 1 + off
    }' | tee -a perftest.txt
  [[ ${PIPESTATUS[2]} == 0 ]]
}

# Prints what ib_write_bw measures, Gbit/s. Its own Gbit/s have two decimals: too few. Its megabytes
# are of 2^20.
perftest() {
  local options=(-F -x 1 -s "$SIZE" -n "$MESSAGES" -t "$DEPTH" -Q 4) server
  timeout 150 ib_write_bw -d rxe0 "${options[@]}" >/tmp/perftest.log 2>&1 &
  server=$!
  perftest_listens || return
  timeout 150 ib_write_bw -d rxe1 "${options[@]}" $RXE_A >/tmp/perftest.txt 2>&1 || {
    cat /tmp/perftest.txt >&2
    return 1
  }
  wait $server || return
  awk -v size=$SIZE '$1 == size { printf "%.6f\n", $4 * 8 * 1048576 / 1e9 }' /tmp/perftest.txt
}

# Prints what Longhaul measures, Gbit/s.
haul() {
  timeout 150 ./haul bench rdma $RXE_A --provider ibv:rxe1 --exchange --wait poll \
    --size $SIZE --iterations $MESSAGES --depth $DEPTH --cq-mod 4 --quiet --json >/tmp/haul.json || return
  sed -n 's/.*"bw_average_gbps": *\([0-9.e-]*\).*/\1/p' /tmp/haul.json
}

agrees_with_netem() {
  local status=0
  ./haul lab calibrate /tmp/agree.toml --netem --seconds "$SECONDS_OF_LAB" --json >netem.json || status=$?
  cat netem.json
  return "$status"
}

# shellcheck disable=SC2034  # of groups.sh
tells_all=yes
(($# > 0)) || set -- perftest netem
run_groups "$@"
