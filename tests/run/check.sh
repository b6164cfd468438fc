#!/usr/bin/env bash
# Unmodified programs of Debian under `haul run`, between two hosts that are network namespaces of
# this script's own: natively, with both ends under `haul run`, with one of them, and with the
# client's TCP through a gateway on the server's host. The results must be the same, and the reports
# must say that both ends or the gateway carried the bytes, and that one end alone carried none.
#
# Usage: check.sh HAUL [PROGRAM…]      PROGRAM: one of the functions of programs.sh, all by default
#
# HAUL must find its libhaul_preload.so. HAUL_MODES may name some of the modes: native both client
# server gateway.
set -euo pipefail

read -ra MODES <<<"${HAUL_MODES:-native both client server gateway}"
# The hosts' addresses.
readonly HERE=10.77.0.1 THERE=10.77.0.2
readonly GATEWAY=$THERE:7400
# Seconds that one program may take; it takes a few.
readonly PATIENCE=90

(($# >= 1)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# In namespaces of its own from here on.
if [[ -z ${HAUL_CHECK_INSIDE:-} ]]; then
  own=(unshare --net --mount)
  ((EUID == 0)) || own=(unshare --user --map-root-user --net --mount)
  if ! "${own[@]}" true 2>/dev/null; then
    echo "SKIPPED: no network namespaces here (${own[*]})"
    exit 0
  fi
  HAUL_CHECK_INSIDE=$EUID exec "${own[@]}" "$0" "$@"
fi

haul=$1
shift
work=$(mktemp -d "${TMPDIR:-/tmp}/haul-run.XXXXXX")
chmod 755 "$work"
passed=0 failed=0 skipped=0
mode='' server_pid='' there_pid='' gateway_pid=''
# shellcheck disable=SC1091  # checked beside this one
. "$folder/programs.sh"

finish() {
  [[ -z $gateway_pid ]] || kill -9 "$gateway_pid" 2>/dev/null || true
  [[ -z $there_pid ]] || kill "$there_pid" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

main() {
  local program
  (($# > 0)) || set -- "${PROGRAMS[@]}"
  make_hosts
  make_data
  start_gateway
  for program in "$@"; do check_program "$program"; done
  if ((failed == 0)); then echo -n 'test result: ok.'; else echo -n 'test result: FAILED.'; fi
  echo " $passed passed; $failed failed; $skipped ignored"
  ((failed == 0))
}

# A second namespace, and a cable.
make_hosts() {
  unshare --net sleep infinity &
  there_pid=$!
  local own
  own=$(readlink /proc/self/ns/net)
  there=(nsenter --net="/proc/$there_pid/ns/net")
  wait_for 'the second host' eval "[[ \$(readlink /proc/$there_pid/ns/net) != '$own' ]]"
  ip link set lo up
  ip link add cable type veth peer name cable netns "$there_pid"
  ip address add "$HERE/24" dev cable
  ip link set cable up
  at_there ip link set lo up
  at_there ip address add "$THERE/24" dev cable
  at_there ip link set cable up
}

at_there() {
  "${there[@]}" "$@"
}

start_gateway() {
  cat >"$work/gateway.toml" <<CONFIGURATION
name = "there"
listen = "$GATEWAY"
anonymous = true
exit = ["$THERE"]
[[channel]]
kind = "tcp"
listen = "$THERE:0"
CONFIGURATION
  "${there[@]}" "$haul" gateway run "$work/gateway.toml" >"$work/gateway.log" 2>&1 </dev/null &
  gateway_pid=$!
  wait_for 'the gateway to listen' listens t "${GATEWAY#*:}"
}

make_data() {
  mkdir "$work/data"
  head -c 8000000 /dev/urandom >"$work/data/file"
  head -c 60000 /dev/urandom >"$work/data/small"
}

# Waits until a command succeeds.
wait_for() {
  local what=$1 end=$((SECONDS + PATIENCE))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || { echo "waited in vain for $what" && return 1; }
    sleep 0.05
  done
}

listens() {
  at_there ss -H "-ln$1" "sport = :$2" | grep -q .
}

# Runs the server's command in the background on the other host: server PROTOCOL PORT COMMAND…
server() {
  local protocol=$1 port=$2
  shift 2
  local before=()
  case $mode in both | server) before=("$haul" run --json --report="$run/server.json" --) ;; esac
  # No function: what is to be ended is the command itself.
  "${there[@]}" "${as[@]}" "${before[@]}" "$@" >"$run/server.log" 2>&1 </dev/null &
  server_pid=$!
  wait_for "$1 to listen" listens "$protocol" "$port"
}

# Ends it, so that it writes its report.
stop_server() {
  [[ -n $server_pid ]] || return 0
  kill "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
  server_pid=''
}

# Waits until it ends by itself.
await_server() {
  local status=0
  wait "$server_pid" || status=$?
  server_pid=''
  return "$status"
}

# Runs the client's command here.
client() {
  local before=()
  local under=("$haul" run --json --report="$run/client.json")
  case $mode in
    both | client) before=("${under[@]}" --) ;;
    gateway) before=("${under[@]}" --gateway "$GATEWAY" --gateway-channel tcp --) ;;
  esac
  timeout "$PATIENCE" "${as[@]}" "${before[@]}" "$@"
}

# How many bytes a report says were carried: carried FILE tcp|udp
carried() {
  /usr/bin/python3 - "$1" "$2" <<'PYTHON'
import json, sys
by = {"tcp": ("RC", "gateway"), "udp": ("UD send/recv", "UD Write-Record")}[sys.argv[2]]
rows = [row for row in json.load(open(sys.argv[1]))["sockets"] if row["protocol"] == sys.argv[2]]
# What a program says to itself has both ends under `haul run`.
rows = [row for row in rows if not (row["peer"] or "").startswith("127.")]
# Of an application without the library nobody counts them.
print(sum((row["carried_out_bytes"] or 0) + (row["carried_in_bytes"] or 0) for row in rows if row["by"] in by))
PYTHON
}

# A report of the client names a connection to the other host that went through the gateway.
went_through_gateway() {
  [[ $mode == gateway ]] || return 0
  /usr/bin/python3 - "$run/client.json" "$THERE:" <<'PYTHON'
import json, sys
rows = json.load(open(sys.argv[1]))["sockets"]
sys.exit(not any(row["by"] == "gateway" and row["peer"].startswith(sys.argv[2]) for row in rows if row["peer"]))
PYTHON
}

# With both ends the bytes were carried, and those of TCP through the gateway; with one end, none
# were.
reports_are_right() {
  local protocol=$1 least=$2 end octets
  for end in client server; do
    [[ $mode == both || $mode == "$end" || $mode/$end == gateway/client ]] || continue
    octets=$(carried "$run/$end.json" "$protocol") || return 1
    if [[ $mode == both || $mode/$protocol == gateway/tcp ]]; then
      ((octets >= least)) || { echo "$end carried $octets octets of at least $least" && return 1; }
    else
      ((octets == 0)) || { echo "$end alone carried $octets octets" && return 1; }
    fi
  done
}

# Every program in every mode. A function NAME runs it and leaves what it got in $run/result;
# NAME_needs says what it needs, and NAME_carries what the reports must say: a protocol and the
# least number of bytes.
check_program() {
  local name=$1 missing
  missing=$("${name}_needs")
  if [[ -n $missing ]]; then
    echo "SKIPPED: $name needs $missing"
    skipped=$((skipped + 1))
    return
  fi
  for mode in "${MODES[@]}"; do
    run=$work/$name-$mode
    local attempt start=$SECONDS status
    # A program that is starved for seconds gives up by itself: three attempts.
    for attempt in 1 2 3; do
      rm -rf "$run"
      mkdir "$run"
      as=()
      # In a shell of its own, on the left of no && or ||, where -e has no effect.
      set +e
      (trap stop_server EXIT && set -e && "$name") >"$run/log" 2>&1
      status=$?
      set -e
      if ((status == 0)) && ! is_right "$name" >>"$run/log" 2>&1; then status=1; fi
      if ((status == 0)); then break; fi
      echo "$name $mode: attempt $attempt failed ($status): $(tail -n 1 "$run/log" | cut -c 1-200)"
    done
    if ((status == 0)); then
      echo "$name $mode ... ok ($((SECONDS - start)) s)"
      passed=$((passed + 1))
    else
      echo "$name $mode ... FAILED"
      tail -n 15 "$run"/*log "$run"/*.json 2>/dev/null | cut -c 1-1000 || true
      failed=$((failed + 1))
    fi
  done
}

is_right() {
  local protocol least
  read -r protocol least < <("${1}_carries")
  cmp "$work/$1-native/result" "$run/result" && reports_are_right "$protocol" "$least"
}

main "$@"
