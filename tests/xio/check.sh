#!/usr/bin/env bash
# Debian's GridFTP programs, unmodified, over the XIO driver: servers and clients on loopback. What
# arrives must be what was sent, and the driver's own statistics must say that it went through it.
#
# Usage: check.sh LIBRARIES [CASE…]      CASE: one of the functions of cases.sh, all by default
#
# LIBRARIES is where libglobus_xio_haul_driver.so is, and one of another version in its folder
# other. HAUL_XIO_VARIANTS may name some of the variants of VARIANTS.
set -euo pipefail

# What each case runs with, by a short name.
declare -rA VARIANTS=(
  [udt-write]='haul:channel=iwarp-udt' [udt-send]='haul:channel=iwarp-udt;mode=send'
  [tcp-write]='haul:channel=iwarp-tcp' [tcp-send]='haul:channel=iwarp-tcp;mode=send'
  [stream]='haul:channel=udt'
)
# Seconds that one command may take; most take less than one, on a machine that has nothing else to
# do.
readonly PATIENCE=180

(($# >= 1)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
libraries=$(cd "$1" && pwd)
shift
work=$(mktemp -d "${TMPDIR:-/tmp}/haul-xio.XXXXXX")
chmod 755 "$work"
export LD_LIBRARY_PATH=$libraries HAUL_XIO_STATS=$work/stats
passed=0 failed=0 skipped=0
variant='' stack='' run=''
server_pids=() client_pid=''
# Whom servers act for: files and statistics are everybody's.
user=$(id -un)
((EUID != 0)) || user=nobody
# shellcheck disable=SC1091  # checked beside this one
. "$folder/cases.sh"

finish() {
  stop_servers
  # Files of nobody's.
  rm -rf "$work"
}
trap finish EXIT

main() {
  local case missing
  missing=$(needs)
  if [[ -n $missing ]]; then
    echo "SKIPPED: GridFTP is not here ($missing)"
    exit 0
  fi
  (($# > 0)) || set -- "${CASES[@]}"
  make_programs
  make_data
  make_credentials
  for case in "$@"; do check_case "$case"; done
  if ((failed == 0)); then echo -n 'test result: ok.'; else echo -n 'test result: FAILED.'; fi
  echo " $passed passed; $failed failed; $skipped ignored"
  ((failed == 0))
}

needs() {
  local program
  for program in globus-gridftp-server globus-url-copy globus-xioperf grid-proxy-init openssl cc pkg-config; do
    command -v "$program" >/dev/null || echo "no $program"
  done
}

# What is run beside Debian's programs, or before them.
make_programs() {
  local globus
  read -ra globus <<<"$(pkg-config --cflags --libs globus-xio globus-common)"
  cc -O2 -std=gnu11 -Wall -Wextra -Werror -pthread -o "$work/leave" "$folder/leave.c" "${globus[@]}"
  cc -O2 -std=gnu11 -Wall -Wextra -Werror -shared -fPIC -o "$work/keep_openssl.so" "$folder/keep_openssl.c" -l:libcrypto.so.3
}

make_data() {
  umask 000
  : >"$HAUL_XIO_STATS"
  mkdir -p "$work/data/tree/below"
  head -c 20000000 /dev/urandom >"$work/data/file"
  local number
  for number in 1 2 3 4 5 6 7 8 9; do
    head -c $((number * 77777)) /dev/urandom >"$work/data/tree/$number"
    head -c $((number * 1111)) /dev/urandom >"$work/data/tree/below/$number"
  done
  : >"$work/data/tree/empty"
  umask 022
  chmod -R a+rX "$work/data"
}

# An authority, a host and a user, and who the user is here.
make_credentials() {
  local name=$work/credentials hash
  mkdir -p "$name/authorities"
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj '/O=Haul/CN=Authority' -keyout "$name/authority.key" \
    -out "$name/authority.pem" -addext basicConstraints=critical,CA:TRUE \
    -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
  hash=$(openssl x509 -noout -hash -in "$name/authority.pem")
  cp "$name/authority.pem" "$name/authorities/$hash.0"
  cat >"$name/authorities/$hash.signing_policy" <<'POLICY'
access_id_CA  X509  '/O=Haul/CN=Authority'
pos_rights    globus  CA:sign
cond_subjects globus  '"/O=Haul/*"'
POLICY
  make_certificate host '/O=Haul/CN=host\/localhost' 'subjectAltName=DNS:localhost,IP:127.0.0.1'
  make_certificate user '/O=Haul/CN=User' 'extendedKeyUsage=clientAuth'
  echo "\"/O=Haul/CN=User\" $user" >"$name/gridmap"
  export X509_CERT_DIR=$name/authorities X509_USER_PROXY=$name/proxy
  grid-proxy-init -q -cert "$name/user.pem" -key "$name/user.key" -out "$X509_USER_PROXY" -valid 12:00
}

make_certificate() {
  local name=$work/credentials/$1
  openssl req -newkey rsa:2048 -nodes -subj "$2" -keyout "$name.key" -out "$name.request" 2>/dev/null
  openssl x509 -req -in "$name.request" -CA "$work/credentials/authority.pem" -CAkey "$work/credentials/authority.key" \
    -CAcreateserial -days 2 -out "$name.pem" -extfile <(printf '%s\nkeyUsage=critical,digitalSignature,keyEncipherment\n' "$3") \
    2>/dev/null
  chmod 600 "$name.key"
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

# Starts a server in the background: server NAME ARGUMENT…; its port is then in $port.
server() {
  local name=$1
  shift
  globus-gridftp-server -p 0 -control-interface 127.0.0.1 -data-interface 127.0.0.1 -home-dir / -threads 2 -d ALL \
    -L "$run/$name." -dc-whitelist tcp,gsi,haul "$@" >"$run/$name.out" 2>&1 </dev/null &
  server_pids+=($!)
  wait_for "$name to listen" grep -q 'listening at' "$run/$name.out"
  # shellcheck disable=SC2034  # for the cases
  port=$(sed -n 's/.*listening at .*:\([0-9]*\)$/\1/p' "$run/$name.out")
}

# A server for anybody.
open_server() {
  local name=$1 anybody=(-aa)
  shift
  ((EUID != 0)) || anybody+=(-anonymous-user nobody)
  server "$name" "${anybody[@]}" "$@"
}

# A server that wants to know who it is.
gsi_server() {
  local name=$1 credentials=$work/credentials
  shift
  X509_USER_CERT=$credentials/host.pem X509_USER_KEY=$credentials/host.key X509_USER_PROXY='' GRIDMAP=$credentials/gridmap \
    server "$name" -allow-disabled-login "$@"
}

# Ends servers, and a client that a failed case has left.
stop_servers() {
  local pid
  for pid in "${server_pids[@]}" $client_pid; do kill "$pid" 2>/dev/null || true; done
  wait
  server_pids=() client_pid=''
}

# A client of GridFTP, by its own thread model.
copy() {
  timeout "$PATIENCE" globus-url-copy "$@"
}

# One with threads. keep_openssl.c says why it needs it.
copy_with_threads() {
  GLOBUS_THREAD_MODEL=pthread LD_PRELOAD=$work/keep_openssl.so copy "$@"
}

# What the statistics say: carried BYTES [KEY=VALUE…]. At least so many bytes went out and came in,
# every connection was closed in order, and each has these values. Waits, for sessions close when
# their clients have gone.
carried() {
  local end=$((SECONDS + 60))
  until /usr/bin/python3 "$folder/carried.py" "$HAUL_XIO_STATS" "$@" >"$run/carried"; do
    ((SECONDS < end)) || { cat "$run/carried" && return 1; }
    sleep 0.1
  done
}

# Every case with every variant it is for. A function NAME runs it; NAME_variants, where there is
# one, says which.
check_case() {
  local name=$1 wanted
  wanted="${HAUL_XIO_VARIANTS:-udt-write udt-send tcp-write tcp-send stream}"
  for variant in $wanted; do
    if declare -F "${name}_variants" >/dev/null && [[ " $("${name}_variants") " != *" $variant "* ]]; then continue; fi
    run=$work/$name-$variant
    # shellcheck disable=SC2034  # for the cases
    stack=${VARIANTS[$variant]}
    local start=$SECONDS status
    mkdir -m 777 "$run"
    : >"$HAUL_XIO_STATS"
    # In a shell of its own, on the left of no && or ||, where -e has no effect.
    set +e
    (trap stop_servers EXIT && set -e && "$name") >"$run/log" 2>&1
    status=$?
    set -e
    if ((status == 77)); then
      skipped=$((skipped + 1))
      sed 's/^/SKIPPED: /' "$run/log"
    elif ((status == 0)); then
      echo "$name $variant ... ok ($((SECONDS - start)) s)"
      passed=$((passed + 1))
    elif [[ -z ${again:-} ]]; then
      # Once more, alone: programs of Globus fail on a busy machine now and then. FLAKY names it.
      echo "FLAKY: $name $variant ($status)"
      tail -n 5 "$run"/log | cut -c 1-300
      rm -rf "$run"
      again=yes HAUL_XIO_VARIANTS=$variant check_case "$name"
      continue
    else
      echo "$name $variant ... FAILED ($status)"
      tail -n 20 "$run"/log "$run"/*.out 2>/dev/null | cut -c 1-500 || true
      tail -qn 3 "$run"/*gridftp.*.log 2>/dev/null | cut -c 1-300 || true
      cat "$HAUL_XIO_STATS"
      failed=$((failed + 1))
    fi
    rm -rf "$run"
  done
}

main "$@"
