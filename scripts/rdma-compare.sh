#!/usr/bin/env bash
# The software RNIC beside what else moves the same bytes over the same path: iperf3, plain TCP,
# libfabric's tcp and udp;ofi_rxd providers, UCX over tcp. Every contestant runs once in every
# round; a table shows medians, with processor seconds per 10^9 bytes of both ends. Run it on a
# quiet machine.
#
# Usage: scripts/rdma-compare.sh [OPTION…]
#   --rounds N      rounds (5)
#   --seconds S     length of each run (3)
#   --work LIST     of bw, lat, rate (bw,lat,rate)
#   --only PATTERN  contestants whose name matches this extended regular expression
#   --address A     where the servers listen (127.0.0.1)
#   --server CMD    put before every server, to run it elsewhere: 'haul lab exec b --', 'ip netns
#                   exec b'
#   --client CMD    put before every client
#   --haul PATH     the binary (target/release/haul, built if there is none)
#   --json FILE     write every run and the medians there
#
#   bw    RDMA Write, 1 MiB, one connection       Gbit/s, until the last byte is placed
#   lat   64 bytes there and back                 half of the median round trip, µs
#   rate  RDMA Write, 64 bytes, one connection    10^6 messages per second
#
# The others' packages: apt-get install iperf3 libfabric-dev ucx-utils
# What is not installed is left out and said so.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=5 seconds=3 work=bw,lat,rate only=. address=127.0.0.1 server='' client='' haul='' json=''
readonly PORT=4790
dir=$(mktemp -d)
readonly dir
server_pid=''
trap 'rm -rf "$dir"' EXIT

main() {
  parse "$@"
  prepare
  local kind name round
  : >"$dir/runs"
  for ((round = 1; round <= rounds; round++)); do
    while read -r kind name; do
      [[ ",$work," == *",$kind,"* && $name =~ $only ]] || continue
      printf 'round %d of %d: %s %s\n' "$round" "$rounds" "$kind" "$name" >&2
      # value, processor seconds per GB of client and server; "-" is unknown, "failed" did not work
      printf '%s %s %s\n' "$kind" "$name" "$(run "$kind" "$name")" >>"$dir/runs"
    done < <(contestants)
  done
  table
  [[ -z $json ]] || write_json >"$json"
}

usage() {
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
}

parse() {
  while (($# > 0)); do
    case $1 in
      --rounds) rounds=$2 ;;
      --seconds) seconds=$2 ;;
      --work) work=$2 ;;
      --only) only=$2 ;;
      --address) address=$2 ;;
      --server) server=$2 ;;
      --client) client=$2 ;;
      --haul) haul=$(realpath "$2") ;;
      --json) json=$2 ;;
      -h | --help) usage && exit ;;
      *) usage >&2 && exit 2 ;;
    esac
    shift 2 || { usage >&2 && exit 2; }
  done
}

prepare() {
  local target=${CARGO_TARGET_DIR:-target}
  if [[ -z $haul ]]; then
    cargo build --release --locked --package haul-cli >&2
    haul=$(realpath "$target/release/haul")
  fi
  tests/bench/build.sh "$dir" >&2
  command -v iperf3 >/dev/null || echo 'no iperf3: install iperf3' >&2
  command -v ucx_perftest >/dev/null || echo 'no ucx: install ucx-utils' >&2
}

contestants() {
  printf '%s\n' 'bw haul-crc' 'bw haul-no-crc'
  printf '%s\n' 'lat haul-send' 'lat haul-write' 'lat tcp-block' 'lat tcp-spin'
  printf '%s\n' 'rate haul-crc' 'rate haul-no-crc'
  if command -v iperf3 >/dev/null; then
    echo 'bw iperf3'
  fi
  local kind
  for kind in bw lat rate; do
    if [[ -x $dir/fabric_bench ]]; then
      printf "$kind %s\n" 'fabric-tcp' 'fabric-udp;ofi_rxd'
    fi
    if command -v ucx_perftest >/dev/null; then
      echo "$kind ucx-tcp"
    fi
  done
}

# Prints "VALUE CLIENT SERVER", or "failed - -".
run() {
  local status result
  # In a shell of its own: -e has no effect on the left of ||.
  set +e
  result=$(set -e && trap stop_server EXIT && "run_${2%%-*}" "$1" "${2#*-}" 2>"$dir/errors")
  status=$?
  set -e
  if ((status != 0)) || [[ -z $result ]]; then
    printf 'compare: %s %s failed: %s\n' "$1" "$2" "$(tail -n 1 "$dir/errors")" >&2
    result='failed - -'
  fi
  echo "$result"
}

# Starts a server, timed; it must end by itself when its client has.
serve() {
  local TIMEFORMAT='%U %S'
  # shellcheck disable=SC2086 # the prefix is several words
  { time timeout $((seconds + 70)) $server "$@" >"$dir/server.out" 2>"$dir/server.err"; } 2>"$dir/server.time" &
  server_pid=$!
  sleep 0.5
}

# Waits for the server's end; after a failure, ends it.
finish_server() {
  [[ -n $server_pid ]] || return 0
  wait "$server_pid" || true
  server_pid=''
}

stop_server() {
  [[ -n $server_pid ]] || return 0
  local child
  for child in $(pgrep -P "$server_pid" || true); do
    kill "$child" 2>/dev/null || true
  done
  finish_server
}

ask() {
  local TIMEFORMAT='%U %S'
  # shellcheck disable=SC2086 # the prefix is several words
  { time timeout $((seconds + 60)) $client "$@" 2>"$dir/client.err"; } 2>"$dir/client.time"
}

# Processor seconds of a timed process per 10^9 of so many bytes.
per_gb() {
  awk -v bytes="$2" '{ printf "%.4f", (bytes > 0 ? ($1 + $2) * 1e9 / bytes : 0) }' "$dir/$1.time"
}

# The number behind NAME= or "NAME": in a line.
field() {
  sed -En "s/.*[\" ]?$1\"?[=:] ?([0-9.eE+-]+).*/\1/p" "$dir/out" | head -n 1
}

run_haul() {
  local kind=$1 how=$2 flags=() value
  case $kind in
    bw) flags=(--size 1MiB) value=bw_average_gbps ;;
    lat) flags=(--test lat --size 64 --op "$how" --inline 64) value=typical_us ;;
    rate) flags=(--size 64 --inline 64 --post-list 32 --depth 1024) value=message_rate_mps ;;
  esac
  [[ $how != no-crc ]] || flags+=(--no-crc)
  serve "$haul" bench rdma serve --listen "$address:$PORT" --allow-insecure --one-off --quiet
  ask "$haul" bench rdma "$address:$PORT" --time "${seconds}s" --json --quiet "${flags[@]}" >"$dir/out"
  finish_server
  local per_gb='"cpu_s_per_gb":([0-9.eE+-]+)'
  echo "$(field "$value")" \
    "$(sed -En "s/.*\"client\":\{[^}]*$per_gb.*/\1/p" "$dir/out")" \
    "$(sed -En "s/.*\"server\":\{[^}]*$per_gb.*/\1/p" "$dir/out")"
}

run_tcp() {
  serve "$dir/tcp_pingpong" serve "$address" "$PORT" "$2"
  ask "$dir/tcp_pingpong" "$address" "$PORT" "$2" 64 "$seconds" >"$dir/out"
  finish_server
  reference typical_us 64
}

run_fabric() {
  local what=(write 1048576) value=gbps
  case $1 in
    lat) what=(send 64) value=typical_us ;;
    rate) what=(write 64) value=mmsg_s ;;
  esac
  local depth=64
  serve "$dir/fabric_bench" serve "$2" "$address" "$PORT"
  ask "$dir/fabric_bench" "$2" "$address" "$PORT" "${what[@]}" "$seconds" "$depth" >"$dir/out"
  finish_server
  reference "$value" "${what[1]}"
}

# The figure and the processor time that a program of tests/bench prints.
reference() {
  local bytes
  bytes=$(awk -v n="$(field iterations)" -v size="$2" 'BEGIN { printf "%.0f", n * size }')
  echo "$(field "$1")" "$(share client_cpu_s "$bytes")" "$(share server_cpu_s "$bytes")"
}

share() {
  awk -v cpu="$(field "$1")" -v bytes="$2" 'BEGIN { printf "%.4f", (bytes > 0 ? cpu * 1e9 / bytes : 0) }'
}

run_iperf3() {
  local bytes
  serve iperf3 --server --one-off --bind "$address" --port "$PORT"
  ask iperf3 --client "$address" --port "$PORT" --time "$seconds" --length 1M --json >"$dir/json"
  finish_server
  tr -d ' \t\n' <"$dir/json" | grep -o '"sum_received":{[^}]*}' >"$dir/out"
  bytes=$(field bytes)
  echo "$(awk -v bps="$(field bits_per_second)" 'BEGIN { printf "%.4f", bps / 1e9 }')" \
    "$(per_gb client "$bytes")" "$(per_gb server "$bytes")"
}

# ucx_perftest counts iterations, not time: so many are asked for as take about that long.
run_ucx() {
  local kind=$1 test=ucp_put_bw size=64 warm_up=1000 iterations value_column bytes
  case $kind in
    bw) size=1048576 warm_up=50 iterations=$((seconds * 2000)) value_column=overall ;;
    lat) test=tag_lat iterations=$((seconds * 20000)) value_column=typical ;;
    rate) iterations=$((seconds * 1000000)) value_column=rate ;;
  esac
  local what=(env UCX_TLS=tcp ucx_perftest -p "$PORT")
  serve "${what[@]}"
  ask "${what[@]}" "$address" -t "$test" -s "$size" -n "$iterations" -w "$warm_up" -f -v >"$dir/out"
  finish_server
  # Final line: iterations, latency 50th percentile, average, overall; MB/s average, overall;
  # messages/s average, overall.
  awk -v column="$value_column" '/^ *[0-9]+,/ { line = $0 }
    END {
      if (line == "") exit 1
      split(line, cell, ",")
      if (column == "overall") printf "%.4f ", cell[6] * 1048576 * 8 / 1e9
      if (column == "rate") printf "%.6f ", cell[8] / 1e6
      if (column == "typical") printf "%.3f ", cell[2]
    }' "$dir/out"
  bytes=$((iterations * size))
  echo "$(per_gb client "$bytes")" "$(per_gb server "$bytes")"
}

# Medians of each contestant: "KIND NAME VALUE CLIENT SERVER RUNS FAILED", best first.
medians() {
  awk '
    function median(list, cells, n, i, j, t) {
      n = split(list, cells, " ")
      for (i = 2; i <= n; i++) for (j = i; j > 1 && cells[j - 1] + 0 > cells[j] + 0; j--) {
        t = cells[j]; cells[j] = cells[j - 1]; cells[j - 1] = t
      }
      return n == 0 ? "-" : n % 2 ? cells[(n + 1) / 2] : (cells[n / 2] + cells[n / 2 + 1]) / 2
    }
    { key = $1 " " $2; seen[key] = 1 }
    $3 == "failed" { failed[key]++; next }
    { runs[key]++; value[key] = value[key] " " $3; client[key] = client[key] " " $4; server[key] = server[key] " " $5 }
    END {
      for (key in seen)
        print key, median(value[key]), median(client[key]), median(server[key]), runs[key] + 0, failed[key] + 0
    }' "$dir/runs"
}

table() {
  local kind unit order
  for kind in ${work//,/ }; do
    case $kind in
      bw) unit=Gbit/s order=r ;;
      lat) unit=µs order='' ;;
      rate) unit=Mmsg/s order=r ;;
      *) continue ;;
    esac
    printf '\n%-5s %-22s %12s %14s %14s %6s\n' "$kind" contestant "$unit" 'client s/GB' 'server s/GB' runs
    medians | awk -v kind="$kind" '$1 == kind' | sort "-k3,3${order}g" |
      awk '
        function short(cell) { return cell == "-" ? cell : sprintf("%.3f", cell) }
        { printf "%-5s %-22s %12s %14s %14s %6s%s\n", "", $2, short($3), short($4), short($5), $6, ($7 > 0 ? "  (" $7 " failed)" : "") }'
  done
}

write_json() {
  local head='"rounds": %d, "seconds": %d, "address": "%s", "kernel": "%s", "cores": %d,\n'
  printf '{ "schema": "haul.rdma-compare/1",\n'
  # shellcheck disable=SC2059 # the format is a constant
  printf "  $head" "$rounds" "$seconds" "$address" "$(uname -r)" "$(nproc)"
  printf '  "versions": { "haul": "%s", "iperf3": "%s", "libfabric": "%s", "ucx": "%s" },\n' \
    "$("$haul" --version)" "$(version iperf3)" "$(version libfabric1)" "$(version libucx0)"
  printf '  "medians": [\n%s\n  ],\n' "$(medians | sort | awk '
    function number(cell) { return cell == "-" ? "null" : cell + 0 }
    {
      printf "%s    { \"work\": \"%s\", \"name\": \"%s\", \"value\": %s, \"client_cpu_s_per_gb\": %s, \"server_cpu_s_per_gb\": %s, \"runs\": %d, \"failed\": %d }",
        (NR > 1 ? ",\n" : ""), $1, $2, number($3), number($4), number($5), $6, $7
    }')"
  printf '  "runs": [\n%s\n  ]\n}\n' "$(awk '
    function number(cell) { return cell == "-" || cell == "failed" ? "null" : cell + 0 }
    {
      printf "%s    { \"work\": \"%s\", \"name\": \"%s\", \"value\": %s, \"client_cpu_s_per_gb\": %s, \"server_cpu_s_per_gb\": %s }",
        (NR > 1 ? ",\n" : ""), $1, $2, number($3), number($4), number($5)
    }' "$dir/runs")"
}

version() {
  dpkg-query --show --showformat='${Version}' "$1" 2>/dev/null || echo none
}

main "$@"
