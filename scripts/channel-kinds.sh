#!/usr/bin/env bash
# Measures every kind of data channel between two gateways, beside a direct connection: goodput of
# iperf3 and processor seconds per 10^9 bytes of both gateways, over loopback and over emulated
# paths. In each round every kind runs once; the table shows medians. Run it on a quiet machine, as
# root or where user namespaces are allowed.
#
# Usage: scripts/channel-kinds.sh [OPTION…]
#   --rounds N     rounds (3)
#   --seconds S    length of each run (10)
#   --rtt TIME     round-trip time of the emulated paths (100ms)
#   --rate RATE    their rate (1Gbit)
#   --losses LIST  their loss rates (0,1e-4,1e-3)
#   --streams N    parallel connections (1)
#   --haul PATH    the binary (target/release/haul)
#   --csv FILE     also write every run to this file
set -euo pipefail
cd "$(dirname "$0")/.."

readonly KINDS=(tcp iwarp/udt)
readonly CONTROL=7400 CHANNEL=7500 LISTENER=7600 SERVER=5201
# The processes inside the lab inherit these.
export rounds=${rounds:-3} seconds=${seconds:-10} streams=${streams:-1} haul=${haul:-target/release/haul} dir=${dir:-}
rtt=100ms rate=1Gbit losses=0,1e-4,1e-3 csv=''

main() {
  [[ ${1:-} != --inside ]] || { shift && inside "$@" && return; }
  while (($# > 0)); do
    case $1 in
      --rounds) rounds=$2 ;;
      --seconds) seconds=$2 ;;
      --rtt) rtt=$2 ;;
      --rate) rate=$2 ;;
      --losses) losses=$2 ;;
      --streams) streams=$2 ;;
      --haul) haul=$2 ;;
      --csv) csv=$2 ;;
      -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && return ;;
      *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    esac
    shift 2
  done
  haul=$(realpath "$haul")
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  : >"$dir/runs"
  local loss
  unshare --user --map-root-user --net bash -c 'ip link set lo up && exec "$@"' - \
    "$0" --inside loopback 127.0.0.1 both
  for loss in ${losses//,/ }; do
    printf 'topology = "pair"\n[path]\nrate = "%s"\nrtt = "%s"\nloss = %s\n' "$rate" "$rtt" "$loss" >"$dir/path.toml"
    # shellcheck disable=SC2016  # the lab's hosts expand LAB_B
    printf '[[run]]\nhost = "b"\nbackground = true\ncommand = "exec %s --inside x $LAB_B far"\n' "$PWD/$0" >>"$dir/path.toml"
    # shellcheck disable=SC2016
    printf '[[run]]\nhost = "a"\nafter = "1s"\ncommand = "exec %s --inside %s $LAB_B near"\n' "$PWD/$0" "$loss" >>"$dir/path.toml"
    "$haul" lab run --quiet "$dir/path.toml"
  done
  table
  [[ -z $csv ]] || { echo 'path,kind,mbit_s,cpu_s_per_gb' && tr ' ' , <"$dir/runs"; } >"$csv"
}

# Runs on one host: starts gateways of every kind, and on the near host measures.
inside() {
  local path=$1 server=$2 side=$3 at round started
  if [[ $side != near ]]; then
    iperf3 --server >/dev/null &
    for at in "${!KINDS[@]}"; do
      printf '%s\n' "name = 'far$at'" "listen = '0.0.0.0:$((CONTROL + at))'" 'anonymous = true' \
        "exit = ['0.0.0.0/0', '127.0.0.0/8']" '[[channel]]' "kind = '${KINDS[at]}'" \
        "listen = '0.0.0.0:$((CHANNEL + 10 * at))'" >"$dir/far$at.toml"
      "$haul" gateway run "$dir/far$at.toml" 2>"$dir/far$at.log" &
      echo $! >"$dir/far$at.pid"
    done
  fi
  [[ $side != far ]] || { wait && return; }
  for at in "${!KINDS[@]}"; do
    printf '%s\n' "name = 'near$at'" 'anonymous = true' '[[listener]]' "kind = 'forward'" \
      "listen = '127.0.0.1:$((LISTENER + at))'" "to = '$server:$SERVER'" '[[route]]' "to = ['*']" \
      "via = ['$server:$((CONTROL + at))']" "channels = ['${KINDS[at]}']" >"$dir/near$at.toml"
    "$haul" gateway run "$dir/near$at.toml" 2>"$dir/near$at.log" &
    echo $! >"$dir/near$at.pid"
  done
  sleep 1
  for ((round = 1; round <= rounds; round++)); do
    measure "$path" direct "$server" "$SERVER" ''
    for at in "${!KINDS[@]}"; do
      measure "$path" "${KINDS[at]}" 127.0.0.1 $((LISTENER + at)) "$at"
    done
  done
  # The far gateways end with the lab, or with the network namespace's last process.
  mapfile -t started < <(jobs -p)
  kill "${started[@]}"
}

measure() {
  local path=$1 kind=$2 host=$3 port=$4 at=$5 before after bytes mbit cpu=-
  local congestion=(--congestion bbr)
  [[ -z $at ]] || congestion=()
  before=$(cpu_of "$at")
  iperf3 --client "$host" --port "$port" --time "$seconds" --parallel "$streams" "${congestion[@]}" --json \
    >"$dir/iperf.json" || { printf '%s %s failed -\n' "$path" "$kind" | tee -a "$dir/runs" >&2 && return; }
  after=$(cpu_of "$at")
  read -r bytes mbit < <(python3 -c '
import json, sys
end = json.load(open(sys.argv[1]))["end"]["sum_received"]
print(end["bytes"], round(end["bits_per_second"] / 1e6, 1))' "$dir/iperf.json")
  [[ -z $at ]] || cpu=$(awk -v ticks=$((after - before)) -v bytes="$bytes" -v hz="$(getconf CLK_TCK)" \
    'BEGIN { printf "%.2f", ticks / hz / bytes * 1e9 }')
  printf '%s %s %s %s\n' "$path" "$kind" "$mbit" "$cpu" | tee -a "$dir/runs" >&2
}

# Clock ticks that the two gateways of this number have used.
cpu_of() {
  [[ -n $1 ]] || { echo 0 && return; }
  cat "/proc/$(<"$dir/near$1.pid")/stat" "/proc/$(<"$dir/far$1.pid")/stat" | awk '{ t += $14 + $15 } END { print t }'
}

table() {
  python3 - "$dir/runs" <<'PYTHON'
import statistics, sys
runs = {}
for line in open(sys.argv[1]):
    path, kind, mbit, cpu = line.split()
    runs.setdefault((path, kind), []).append((mbit, cpu))
paths = list(dict.fromkeys(path for path, _ in runs))
kinds = list(dict.fromkeys(kind for _, kind in runs))
def median(values):
    values = [float(v) for v in values if v not in ("-", "failed")]
    return statistics.median(values) if values else float("nan")
for title, at in ("Goodput (Mbit/s)", 0), ("Processor time of both gateways for 10^9 bytes (s)", 1):
    print(title)
    print(f"  {'path':10}" + "".join(f"{kind:>12}" for kind in kinds))
    for path in paths:
        row = [median([run[at] for run in runs.get((path, kind), [])]) for kind in kinds]
        print(f"  {path:10}" + "".join(f"{value:12.2f}" for value in row))
PYTHON
}

main "$@"
