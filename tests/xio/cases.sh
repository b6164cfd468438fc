# shellcheck shell=bash disable=SC2034,SC2154  # check.sh defines what is not defined here
# The cases of check.sh. Each runs programs in $run with the driver's options in $stack, and fails
# by its status.

readonly CASES=(
  perf leaving get put unthreaded third_party parallel caching pipelining tree partial checksum private private_default restart severed abort striped gfal engine_cpus
  bad_option no_driver_there no_driver_here fallback_there fallback_here versions
  protected protected_get other_key unprotected_peer protect_excludes protect_required
)

# ---- what cases share

# Two servers that take anybody, with the driver below every data connection.
open_pair() {
  open_server here -dc-default "$stack"
  here=ftp://127.0.0.1:$port
  open_server there -dc-default "$stack"
  there=ftp://127.0.0.1:$port
}

same() {
  cmp "$work/data/file" "$run/copy"
}

# ---- the driver alone

# A second of memory to memory, with threads and without.
perf() {
  local model port
  for model in pthread none; do
    export GLOBUS_THREAD_MODEL=$model
    timeout "$PATIENCE" stdbuf -o0 globus-xioperf -s -R -D "$stack" >"$run/receiver.$model" 2>&1 &
    wait_for 'the receiver to listen' grep -q 'listening on' "$run/receiver.$model"
    port=$(sed -n 's/.*listening on: .*:\([0-9]*\)$/\1/p' "$run/receiver.$model")
    timeout "$PATIENCE" globus-xioperf -c "127.0.0.1:$port" -S -D "$stack" -t 1 -l 256K
    wait
    # It cancels what it is writing when its time is over.
    carried 262144 "channel=$(channel)" "mode=${variant#*-}" "end=closed aborted"
    : >"$HAUL_XIO_STATS"
  done
}

# Processes that end without closing: what was sent has arrived, both ends know it, and nothing is
# called that is gone.
leaving() {
  local way
  # Without threads a callback runs where the process ends.
  for way in pthread-open pthread-callback pthread-deactivate none-open; do
    : >"$HAUL_XIO_STATS"
    GLOBUS_THREAD_MODEL=${way%-*} timeout "$PATIENCE" "$work/leave" "$stack" "${way#*-}"
    carried 17 "channel=$(channel)" connections=1 end=closed
  done
}

channel() {
  if [[ $variant == stream ]]; then echo udt; else echo "iwarp-${variant%-*}"; fi
}

# ---- clients with the driver

get() {
  gsi_server here
  copy_with_threads -dcstack "$stack" "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
  same
  carried 20000000 "channel=$(channel)" "mode=${variant#*-}" connections=1
}
get_variants() { echo udt-write tcp-send stream; }

put() {
  gsi_server here
  copy_with_threads -dcstack "$stack" "file://$work/data/file" "gsiftp://localhost:$port$run/copy"
  same
  carried 20000000 "channel=$(channel)" connections=1
}
put_variants() { echo udt-send tcp-write stream; }

# Neither server nor client has threads, which is their default.
unthreaded() {
  unset GLOBUS_THREAD_MODEL
  gsi_server here -threads 0
  copy -dcstack "$stack" "gsiftp://localhost:$port$work/data/file" "file://$run/got"
  cmp "$work/data/file" "$run/got"
  copy -dcstack "$stack" "file://$work/data/file" "gsiftp://localhost:$port$run/copy"
  same
  carried 40000000 "channel=$(channel)" connections=2
}
unthreaded_variants() { echo udt-write tcp-send stream; }

# ---- between servers

third_party() {
  open_pair
  copy "$here$work/data/file" "$there$run/copy"
  same
  carried 20000000 "channel=$(channel)" "mode=${variant#*-}" connections=1
}

parallel() {
  open_pair
  copy -p 4 "$here$work/data/file" "$there$run/copy"
  same
  carried 20000000 "channel=$(channel)" connections=4
}
parallel_variants() { echo udt-send tcp-write stream; }

# Nineteen files of two folders, on connections that are kept within each. The client has no driver,
# and gets its listings by TCP.
caching() {
  stack+=';fallback=tcp'
  open_pair
  copy -cd -r -fast "$here$work/data/tree/" "$there$run/copy/"
  diff -r "$work/data/tree" "$run/copy"
  carried 3500000 "channel=$(channel)" connections=2
}
caching_variants() { echo udt-write tcp-send stream; }

# Two servers that want to know who it is; the client has the driver, and chooses.
gsi_pair() {
  gsi_server here
  here=gsiftp://localhost:$port
  gsi_server there
  there=gsiftp://localhost:$port
}

pipelining() {
  gsi_pair
  copy -dcstack "$stack" -cd -r -p 2 -pp "$here$work/data/tree/" "$there$run/copy/"
  diff -r "$work/data/tree" "$run/copy"
  carried 3500000 "channel=$(channel)"
}
pipelining_variants() { echo udt-write tcp-send; }

# Two sessions at once.
tree() {
  gsi_pair
  copy -dcstack "$stack" -cd -r -cc 2 "$here$work/data/tree/" "$there$run/copy/"
  diff -r "$work/data/tree" "$run/copy"
  carried 3500000 "channel=$(channel)"
}
tree_variants() { echo udt-send tcp-write; }

partial() {
  open_pair
  copy -off 1000000 -len 5000000 "$here$work/data/file" "$there$run/copy"
  cmp -n 5000000 "$work/data/file" "$run/copy" 1000000 1000000
  [[ $(stat -c %s "$run/copy") == 6000000 ]]
  carried 5000000 "channel=$(channel)"
}
partial_variants() { echo udt-write tcp-write; }

# GridFTP's own: both servers read their file again.
checksum() {
  open_pair
  copy -verify-checksum -checksum-alg SHA256 "$here$work/data/file" "$there$run/copy"
  same
  carried 20000000 "channel=$(channel)"
}
checksum_variants() { echo udt-write; }

# GSI's encryption over the driver.
private() {
  gsi_pair
  copy -dcpriv -p 2 -dcstack "$stack" "$here$work/data/file" "$there$run/copy"
  same
  carried 20000000 "channel=$(channel)"
}
private_variants() { echo udt-write tcp-send stream; }

# A client without -dcstack gets GSI only from the servers' default.
private_default() {
  gsi_server here -dc-default "$stack,gsi"
  local from=gsiftp://localhost:$port
  gsi_server there -dc-default "$stack,gsi"
  copy -dcpriv "$from$work/data/file" "gsiftp://localhost:$port$run/copy"
  same
  carried 20000000 "channel=$(channel)"
  # Without the handshake of GSI the receiver would send nothing.
  grep -q '"role":"active".*"rx_bytes":[1-9]' "$HAUL_XIO_STATS"
}
private_default_variants() { echo udt-write stream; }

# ---- what goes wrong

# Whether a server's log has this line: logged NAME WORDS
logged() {
  grep -rq --include="$1.gridftp.*.log" -e "$2" "$run"
}

# The process of a server's only session.
session_of() {
  pgrep -P "${server_pids[$1]}"
}

# A transfer in progress that does not end by itself.
endless() {
  open_pair
  # No function: what is to be ended is the command itself.
  timeout "$PATIENCE" globus-url-copy -t 50 "$here/dev/zero" "$there/dev/null" &
  client_pid=$!
  wait_for 'the sender' logged here 'Starting to transfer'
  wait_for 'the receiver' logged there 'Starting to transfer'
  sleep 0.5
}

# The sender's session is killed on the way; the client begins where it was.
restart() {
  stack="$stack;rate=8M"
  open_pair
  timeout "$PATIENCE" globus-url-copy -p 2 -rst -rst-interval 1 -rst-retries 5 "$here$work/data/file" "$there$run/copy" &
  client_pid=$!
  local session
  wait_for 'a marker of what has arrived' logged there 'Range Marker'
  session=$(session_of 0)
  kill -9 "$session"
  wait "$client_pid"
  same
  logged here 'REST 0-[1-9]'
  receiver_had_it
}
restart_variants() { echo udt-write stream; }

# The sender dies and nobody tries again: the client says so and ends.
severed() {
  local session
  endless
  session=$(session_of 0)
  kill -9 "$session"
  if wait "$client_pid"; then return 1; fi
  receiver_says 'lost'
}
severed_variants() { echo udt-write tcp-write stream; }

# The receiver's session had the driver, and said so at its end.
receiver_had_it() {
  wait_for "the receiver's statistics" grep -q "\"role\":\"passive\",\"channel\":\"$(channel)\"" "$HAUL_XIO_STATS"
}

receiver_says() {
  wait_for "the receiver's statistics to say: $1" grep -q "\"role\":\"passive\".*\"reason\":\".*$1" "$HAUL_XIO_STATS"
}

# The sender stands still and the client goes away: the receiver's session does not stay.
abort() {
  local sender receiver end
  endless
  sender=$(session_of 0) receiver=$(session_of 1)
  kill -STOP "$sender"
  sleep 0.5
  kill "$client_pid"
  wait "$client_pid" || true
  end=$((SECONDS + 60))
  while kill -0 "$receiver" 2>/dev/null && ((SECONDS < end)); do sleep 0.1; done
  kill -CONT "$sender"
  if kill -0 "$receiver" 2>/dev/null; then return 1; fi
  receiver_had_it
}
abort_variants() { echo udt-write tcp-write tcp-send stream; }

# ---- more programs

# Two clusters of a front end and two data nodes.
striped() {
  local cluster node url=() nodes
  for cluster in a b; do
    nodes=''
    for node in 1 2; do
      open_server "$cluster$node" -dc-default "$stack" -dn -no-si -ipc-allow-from 127. -ipc-interface 127.0.0.1
      nodes+=,127.0.0.1:$port
    done
    open_server "$cluster" -dc-default "$stack" -no-si -r "${nodes#,}"
    url+=("ftp://127.0.0.1:$port")
  done
  copy -stripe -p 2 "${url[0]}$work/data/file" "${url[1]}$run/copy"
  same
  carried 20000000 "channel=$(channel)"
  # Each of the four nodes had connections.
  [[ $(grep -o '"pid":[0-9]*' "$HAUL_XIO_STATS" | sort -u | wc -l) == 4 ]]
}
striped_variants() { echo udt-write tcp-send; }

gfal() {
  if ! command -v gfal-copy >/dev/null; then
    echo 'gfal-copy is not here'
    exit 77
  fi
  gsi_server here -dc-default "$stack"
  local from=gsiftp://localhost:$port
  gsi_server there -dc-default "$stack"
  GFAL_PYTHONBIN=/usr/bin/python3 timeout "$PATIENCE" gfal-copy -f -p -n 2 -K ADLER32 "$from$work/data/file" \
    "gsiftp://localhost:$port$run/copy"
  same
  carried 20000000 "channel=$(channel)"
}
gfal_variants() { echo udt-write; }

# ---- engines

# The same bytes, with the library's threads on one processor.
engine_cpus() {
  local cpu
  cpu=$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')
  stack="$stack;engine-cpus=$cpu"
  get
}
engine_cpus_variants() { get_variants; }

# ---- words for what cannot be

# The client fails and says this.
fails_with() {
  local what=$1
  shift
  if copy "$@" >"$run/words" 2>&1; then
    echo 'it did not fail'
    return 1
  fi
  cat "$run/words"
  grep -qF -- "$what" "$run/words"
}

bad_option() {
  gsi_server here
  GLOBUS_THREAD_MODEL=pthread fails_with 'option slab=3 cannot be: it must be 4K to 64M' \
    -dcstack 'haul:slab=3' "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
  GLOBUS_THREAD_MODEL=pthread fails_with 'option engine-cpus=all cannot be: it must be processors' \
    -dcstack 'haul:engine-cpus=all' "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
  GLOBUS_THREAD_MODEL=pthread fails_with 'may not use all of the processors 1023' \
    -dcstack 'haul:engine-cpus=1023' "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
  GLOBUS_THREAD_MODEL=pthread fails_with 'engine-cpus needs channel=iwarp-udt, iwarp-tcp or udt' \
    -dcstack 'haul:channel=verbs;engine-cpus=0' "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
}
bad_option_variants() { echo udt-write; }

# The sender has the driver, the receiver has not.
no_driver_there() {
  open_server here -dc-default "$stack"
  local from=ftp://127.0.0.1:$port
  open_server there
  fails_with 'no haul driver answers there' "$from$work/data/file" "ftp://127.0.0.1:$port$run/copy"
}
no_driver_there_variants() { echo udt-write tcp-write stream; }

no_driver_here() {
  open_server here
  local from=ftp://127.0.0.1:$port
  open_server there -dc-default "$stack"
  fails_with 'came by plain TCP' "$from$work/data/file" "ftp://127.0.0.1:$port$run/copy"
}
no_driver_here_variants() { echo tcp-write stream; }

fallback_there() {
  open_server here -dc-default "$stack;fallback=tcp"
  local from=ftp://127.0.0.1:$port
  open_server there
  copy -p 2 "$from$work/data/file" "ftp://127.0.0.1:$port$run/copy"
  same
  grep -q '"channel":"tcp"' "$HAUL_XIO_STATS"
}
fallback_there_variants() { echo udt-write tcp-write stream; }

fallback_here() {
  open_server here
  local from=ftp://127.0.0.1:$port
  open_server there -dc-default "$stack;fallback=tcp"
  copy -p 2 "$from$work/data/file" "ftp://127.0.0.1:$port$run/copy"
  same
  grep -q '"channel":"tcp"' "$HAUL_XIO_STATS"
}
fallback_here_variants() { echo udt-write tcp-write; }

# A driver of another version at one end.
versions() {
  if [[ ! -e $libraries/other/libglobus_xio_haul_driver.so ]]; then
    echo 'there is no driver of another version in LIBRARIES/other'
    exit 77
  fi
  open_server here -dc-default "$stack"
  local from=ftp://127.0.0.1:$port
  LD_LIBRARY_PATH=$libraries/other:$libraries open_server there -dc-default "$stack"
  fails_with 'install the same on both hosts' "$from$work/data/file" "ftp://127.0.0.1:$port$run/copy"
}
versions_variants() { echo udt-write tcp-write stream; }

# ---- protection

# A key of the user whom servers act for: only its owner may read it.
make_key() {
  openssl genpkey -algorithm ed25519 -out "$run/$1"
  chmod 600 "$run/$1"
  ((EUID != 0)) || chown "$user" "$run/$1"
}

protected() {
  make_key key
  open_server here -dc-default "$stack;protect=key:$run/key"
  local from=ftp://127.0.0.1:$port
  open_server there -dc-default "$stack;protect=key:$run/key"
  copy -p 2 "$from$work/data/file" "ftp://127.0.0.1:$port$run/copy"
  same
  carried 20000000 "channel=$(channel)" "mode=${variant#*-}" connections=2
}
protected_variants() { echo udt-write udt-send tcp-write tcp-send stream; }

# The client has the driver, and GSI encrypts once more.
protected_get() {
  make_key key
  gsi_server here
  copy_with_threads -dcpriv -dcstack "$stack;protect=key:$run/key" "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
  same
  carried 20000000 "channel=$(channel)" connections=1
}
protected_get_variants() { echo udt-write tcp-write stream; }

other_key() {
  make_key key
  make_key other
  open_server here -dc-default "$stack;protect=key:$run/key"
  local from=ftp://127.0.0.1:$port
  open_server there -dc-default "$stack;protect=key:$run/other"
  fails_with 'a key that is not trusted' "$from$work/data/file" "ftp://127.0.0.1:$port$run/copy"
  [[ ! -s $run/copy ]]
}
other_key_variants() { echo udt-write tcp-write stream; }

unprotected_peer() {
  make_key key
  open_server here -dc-default "$stack"
  local from=ftp://127.0.0.1:$port
  open_server there -dc-default "$stack;protect=key:$run/key"
  fails_with 'protected connections only' "$from$work/data/file" "ftp://127.0.0.1:$port$run/copy"
  [[ ! -s $run/copy ]]
}
unprotected_peer_variants() { echo udt-write tcp-write; }

protect_excludes() {
  gsi_server here
  GLOBUS_THREAD_MODEL=pthread fails_with 'protect and fallback=tcp exclude each other' \
    -dcstack 'haul:protect=key:/nowhere;fallback=tcp' "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
  GLOBUS_THREAD_MODEL=pthread fails_with 'protect needs channel=iwarp-udt' \
    -dcstack 'haul:protect=key:/nowhere;channel=verbs' "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
}
protect_excludes_variants() { echo udt-write; }

# A client's stack replaces that of the server, but not what the server's environment requires.
protect_required() {
  make_key key
  HAUL_XIO_PROTECT=required gsi_server here
  fails_with 'takes no connection without protect' \
    -dcstack "$stack" "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
  [[ ! -s $run/copy ]]
  copy_with_threads -dcstack "$stack;protect=key:$run/key" "gsiftp://localhost:$port$work/data/file" "file://$run/copy"
  same
}
protect_required_variants() { echo udt-write stream; }
