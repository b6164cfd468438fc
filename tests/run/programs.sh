# shellcheck shell=bash
# programs.sh - the programs that check.sh runs. Each is three functions: what it lacks here
# (nothing if it is empty), what is carried at least, and a run whose result is the same in all
# modes.
# shellcheck disable=SC2034,SC2154  # what check.sh uses and sets

readonly PROGRAMS=(
  python_curl nginx_curl nginx_wget netcat_tcp netcat_udp iperf3_tcp iperf3_udp sipp_udp sipp_tcp ffmpeg_tcp ffmpeg_udp
  vlc_http vlc_udp socat_fork inetd dev_tcp rsync_daemon redis openssh through
  static_busybox script_of_static static_go
)

lacks() {
  local program
  for program in "$@"; do command -v "$program" >/dev/null || echo -n "$program "; done
}

wait_size() {
  [[ $(stat -c %s "$1" 2>/dev/null || echo 0) -ge $2 ]]
}

python_curl_needs() { lacks curl; }
python_curl_carries() { echo tcp 8000000; }
python_curl() {
  server t 8080 /usr/bin/python3 -m http.server 8080 --bind 0.0.0.0 --directory "$work/data"
  client curl -sS -o "$run/result" "http://$THERE:8080/file"
  stop_server
  cmp "$work/data/file" "$run/result"
}

start_nginx() {
  cat >"$run/nginx.conf" <<CONFIGURATION
daemon off; worker_processes 2; user root; pid $run/nginx.pid; error_log $run/nginx.log;
events { worker_connections 64; }
http {
  access_log off; sendfile on; tcp_nopush on;
  client_body_temp_path $run; proxy_temp_path $run; fastcgi_temp_path $run; uwsgi_temp_path $run; scgi_temp_path $run;
  server { listen 8081; root $work/data; }
}
CONFIGURATION
  server t 8081 nginx -p "$run" -e "$run/nginx.log" -c "$run/nginx.conf"
}

nginx_curl_needs() { lacks nginx curl; }
nginx_curl_carries() { echo tcp 16000000; }
nginx_curl() {
  start_nginx
  client curl -sS -Z -o "$run/result" "http://$THERE:8081/file" -o "$run/again" "http://$THERE:8081/file"
  stop_server
  cmp "$work/data/file" "$run/result"
  cmp "$work/data/file" "$run/again"
}

nginx_wget_needs() { lacks nginx wget; }
nginx_wget_carries() { echo tcp 8000000; }
nginx_wget() {
  start_nginx
  client wget -q -O "$run/result" "http://$THERE:8081/file"
  stop_server
  cmp "$work/data/file" "$run/result"
}

netcat_tcp_needs() { lacks nc; }
netcat_tcp_carries() { echo tcp 8000000; }
netcat_tcp() {
  server t 9000 sh -c "exec nc -l 9000 >'$run/result'"
  client nc -N "$THERE" 9000 <"$work/data/file"
  await_server
  cmp "$work/data/file" "$run/result"
}

# Lines, one a datagram. The first ones go before the other host has answered.
netcat_udp_needs() { lacks nc; }
netcat_udp_carries() { echo udp 100; }
netcat_udp() {
  server u 9001 sh -c "exec nc -u -l 9001 >'$run/result'"
  for line in {1..40}; do
    printf 'line %03d\n' "$line"
    sleep 0.02
  done | client nc -u -w 1 "$THERE" 9001
  wait_for 'all lines' wait_size "$run/result" 360
  stop_server
  [[ $(sort -u "$run/result" | wc -l) == 40 ]]
}

# It ends where it is, and UDP loses on a busy machine, natively as well: most of what was asked for
# came.
iperf3_result() {
  /usr/bin/python3 -c '
import json, sys
end = json.load(open(sys.argv[1]))["end"]
got = end["sum_received"]["bytes"] if "sum_received" in end else end["sum"]["bytes"]
print("most" if got >= 0.5 * float(sys.argv[2]) else "little")' "$run/json" "$1" >"$run/result"
}

iperf3_tcp_needs() { lacks iperf3; }
iperf3_tcp_carries() { echo tcp 20000000; }
iperf3_tcp() {
  server t 5201 iperf3 -s -1
  client iperf3 -J -c "$THERE" -n 40M >"$run/json"
  await_server
  iperf3_result 40000000
}

iperf3_udp_needs() { lacks iperf3; }
iperf3_udp_carries() { echo udp 1000000; }
iperf3_udp() {
  server t 5201 iperf3 -s -1
  client iperf3 -J -u -c "$THERE" -b 40M -n 6M -l 1200 >"$run/json"
  await_server
  iperf3_result 6000000
}

# 1000 calls, and how many of them succeeded: on a machine that is too busy to read its sockets
# calls fail, natively as well.
start_calls() {
  local calls
  server "$2" 5060 sipp -sn uas -i "$THERE" -p 5060 -t "$1" -nostdin
  (cd "$run" && client sipp -sn uac "$THERE:5060" -i "$HERE" -t "$1" -m 1000 -r 250 -nostdin -timeout 60) >"$run/calls" || true
  stop_server
  calls=$(awk '/Successful call/ { calls = $NF } END { print calls + 0 }' "$run/calls")
  echo "$calls calls"
  ((calls >= $3))
  echo 'calls' >"$run/result"
}

sipp_udp_needs() { lacks sipp; }
sipp_udp_carries() { echo udp 500000; }
sipp_udp() { start_calls u1 u 500; }

sipp_tcp_needs() { lacks sipp; }
sipp_tcp_carries() { echo tcp 1000000; }
sipp_tcp() { start_calls t1 t 1000; }

# A film of so many seconds, and the checksums of its pictures.
make_film() {
  [[ ! -e $work/data/film.pictures || $(cat "$work/data/seconds") != "$1" ]] || return 0
  echo "$1" >"$work/data/seconds"
  ffmpeg -v error -y -f lavfi -i "testsrc2=size=320x180:rate=25:duration=$1" -f lavfi -i "sine=duration=$1" \
    -c:v mpeg2video -b:v 800k -g 12 -c:a mp2 -f mpegts "$work/data/film.ts"
  pictures "$work/data/film.ts" >"$work/data/film.pictures"
}

pictures() {
  ffmpeg -v error -i "$1" -map 0:v -c copy -f framemd5 - | awk -F ', *' '!/^#/ { print $NF }'
}

ffmpeg_tcp_needs() { lacks ffmpeg; }
ffmpeg_tcp_carries() { echo tcp 100000; }
ffmpeg_tcp() {
  make_film 2
  server t 7000 ffmpeg -v error -i 'tcp://0.0.0.0:7000?listen' -c copy -f mpegts "$run/film.ts"
  client ffmpeg -v error -i "$work/data/film.ts" -c copy -f mpegts "tcp://$THERE:7000" </dev/null
  await_server
  pictures "$run/film.ts" >"$run/result"
  cmp "$work/data/film.pictures" "$run/result"
}

ffmpeg_udp_needs() { lacks ffmpeg; }
ffmpeg_udp_carries() { echo udp 50000; }
ffmpeg_udp() {
  make_film 2
  server u 7001 ffmpeg -v error -i 'udp://0.0.0.0:7001?timeout=4000000' -c copy -f mpegts "$run/film.ts"
  client ffmpeg -v error -re -i "$work/data/film.ts" -c copy -f mpegts "udp://$THERE:7001?pkt_size=1316" </dev/null
  await_server
  # UDP loses on a busy machine: most pictures are the film's.
  (($(pictures "$run/film.ts" | grep -cFxf "$work/data/film.pictures") >= 25))
  echo 'pictures' >"$run/result"
}

# VLC does not run as root. It plays in real time and muxes anew: compared is that what arrives are
# the film's pictures.
vlc_needs() {
  lacks cvlc ffmpeg setpriv
  [[ $HAUL_CHECK_INSIDE == 0 ]] || echo -n 'root, to become somebody else'
}

become_nobody() {
  mkdir -p "$run/nobody"
  chown -R 65534:65534 "$run"
  as=(setpriv --reuid=65534 --regid=65534 --clear-groups env HOME="$run/nobody" XDG_RUNTIME_DIR="$run/nobody")
}

shows_the_film() {
  pictures "$run/film.ts" >"$run/pictures"
  head -n 40 "$run/pictures" | grep -cFxf "$work/data/film.pictures" >"$run/result"
  [[ $(cat "$run/result") == 40 ]]
}

vlc_http_needs() { vlc_needs; }
vlc_http_carries() { echo tcp 30000; }
vlc_http() {
  make_film 8
  become_nobody
  server t 8090 cvlc -q "$work/data/film.ts" --repeat --sout '#std{access=http,mux=ts,dst=:8090/film}'
  client timeout 5 cvlc -q "http://$THERE:8090/film" --demux dump --demuxdump-file "$run/film.ts" || true
  stop_server
  shows_the_film
}

vlc_udp_needs() { vlc_needs; }
vlc_udp_carries() { echo udp 30000; }
vlc_udp() {
  make_film 8
  become_nobody
  server u 7002 cvlc -q "udp://@:7002" --demux dump --demuxdump-file "$run/film.ts"
  client timeout 5 cvlc -q "$work/data/film.ts" --sout "#std{access=udp,mux=ts,dst=$THERE:7002}" || true
  stop_server
  shows_the_film
}

socat_fork_needs() { lacks socat; }
socat_fork_carries() { echo tcp 8000000; }
socat_fork() {
  server t 9100 socat -u "TCP-LISTEN:9100,reuseaddr,fork" "OPEN:$run/result,creat,append"
  client socat -u "FILE:$work/data/file" "TCP:$THERE:9100"
  wait_for 'the whole file' wait_size "$run/result" 8000000
  stop_server
  cmp "$work/data/file" "$run/result"
}

# Programs that inherit a connection as their standard input and output, and use stdio. The client's
# first line says which.
readonly INETD=(date seq awk sed printf sort stdio perl bash)
inetd_needs() { lacks socat nc cc perl bash; }
# The report is that of the last of its clients.
inetd_carries() { echo tcp 60; }
start_inetd() {
  cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -o "$run/stdio" "$folder/stdio.c"
  # A connection that is closed with something unread is reset, and loses what is still to be sent.
  cat >"$run/serve.sh" <<SCRIPT
read name
case \$name in date | seq | printf) cat >/dev/null ;; esac
case \$name in
  date) exec date -u -d @0 +%Y ;;
  seq) exec seq 20000 ;;
  awk) exec awk '{ print NR ": " \$0 }' ;;
  sed) exec sed 's/line/row/' ;;
  printf) exec /usr/bin/printf '%s\\n' printed ;;
  sort) exec sort -r ;;
  stdio) exec "$run/stdio" ;;
  perl) exec perl -ne 'BEGIN { \$| = 1 } print "perl \$_"; print STDERR "perl: \$_"' 2>&1 ;;
  bash) exec bash -c 'while read -r line; do echo "bash \$line"; done; date -u -d @0 +%m; printf "end\\n"' ;;
esac
SCRIPT
  server t 7704 socat TCP-LISTEN:7704,fork,reuseaddr "SYSTEM:. '$run/serve.sh',nofork"
}
inetd() {
  local name
  start_inetd
  for name in "${INETD[@]}"; do
    { echo "$name" && seq -f 'line %g' 3; } | client nc -N "$THERE" 7704 >"$run/$name.result"
    { echo "== $name" && cat "$run/$name.result"; } >>"$run/result"
  done
  stop_server
  (($(wc -l <"$run/result") > 20030))
  grep -qx 1970 "$run/date.result"
}

# The shell's own connection, which its builtins and the programs that it starts use by stdio.
dev_tcp_needs() { inetd_needs; }
dev_tcp_carries() { echo tcp 20; }
dev_tcp() {
  start_inetd
  # shellcheck disable=SC2016  # for the inner shell
  client bash -c '
    exec 3<>"/dev/tcp/$0/7704"
    printf "perl\n" >&3
    echo "builtin" >&3
    date -u -d @0 +external-%Y >&3
    for wanted in "perl builtin" "perl: builtin" "perl external-1970" "perl: external-1970"; do
      read -r got <&3
      echo "$got"
    done' "$THERE" >"$run/result"
  stop_server
  grep -qx 'perl external-1970' "$run/result"
}

rsync_daemon_needs() { lacks rsync; }
rsync_daemon_carries() { echo tcp 8000000; }
rsync_daemon() {
  printf 'use chroot = no\npid file = %s/pid\n[data]\npath = %s/data\n' "$run" "$work" >"$run/rsyncd.conf"
  server t 9300 rsync --daemon --no-detach --port=9300 --config="$run/rsyncd.conf" --log-file="$run/rsync.log"
  client rsync -r "rsync://$THERE:9300/data/" "$run/got/"
  stop_server
  cmp "$work/data/file" "$run/got/file"
  cmp "$work/data/small" "$run/got/small"
  sha256sum <"$run/got/file" >"$run/result"
}

redis_needs() { lacks redis-server redis-benchmark; }
redis_carries() { echo tcp 200000; }
redis() {
  server t 6400 redis-server --port 6400 --bind 0.0.0.0 --protected-mode no --save '' --dir "$run"
  client redis-benchmark -h "$THERE" -p 6400 -n 5000 -c 20 -t set,get,lpush -q
  stop_server
  echo 'benchmark ended' >"$run/result"
}

openssh_needs() {
  lacks ssh ssh-keygen
  [[ -x /usr/sbin/sshd ]] || echo -n 'sshd '
  [[ $HAUL_CHECK_INSIDE == 0 ]] || echo -n 'root, for sshd'
}
# sshd locks itself in, and the library leaves it alone.
openssh_carries() { echo tcp 0; }
openssh() {
  mkdir -p /run/sshd
  ssh-keygen -q -t ed25519 -N '' -f "$run/host"
  ssh-keygen -q -t ed25519 -N '' -f "$run/user"
  cat >"$run/sshd_config" <<CONFIGURATION
Port 2222
HostKey $run/host
AuthorizedKeysFile $run/user.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
CONFIGURATION
  server t 2222 /usr/sbin/sshd -D -e -f "$run/sshd_config"
  client ssh -F none -p 2222 -i "$run/user" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
    "root@$THERE" cat "$work/data/file" >"$run/result"
  stop_server
  cmp "$work/data/file" "$run/result"
}

through_needs() { lacks cc; }
through_carries() { echo tcp 16000000; }
through() {
  cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -o "$run/through" "$folder/through.c" -lpthread
  server t 9700 "$run/through" serve 9700
  client "$run/through" "$THERE" 9700 9701 >"$run/result"
  stop_server
  grep -qx end "$run/result"
}

# Applications that do not load the library. Nobody counts their bytes, so each looks for its
# connection in the report itself.
serve_file() {
  server t "$1" /usr/bin/python3 -m http.server "$1" --bind 0.0.0.0 --directory "$work/data"
}

lacks_static_busybox() {
  lacks busybox
  ! ldd "$(command -v busybox)" >/dev/null 2>&1 || echo -n 'static busybox '
}

static_busybox_needs() { lacks_static_busybox; }
static_busybox_carries() { echo tcp 0; }
static_busybox() {
  serve_file 8090
  client busybox wget -q -O "$run/result" "http://$THERE:8090/file"
  stop_server
  cmp "$work/data/file" "$run/result"
  went_through_gateway
  # Nothing is there.
  ! client busybox wget -q -O "$run/nothing" "http://$THERE:8099/file" 2>"$run/refused" || return 1
  grep -q 'Connection refused' "$run/refused"
}

script_of_static_needs() { lacks_static_busybox; }
script_of_static_carries() { echo tcp 0; }
script_of_static() {
  # shellcheck disable=SC2016 # the script expands them
  printf '#!/bin/sh\n(cd "$2" && busybox wget -q -O - "$1" | cat) >"$2/result"\n' >"$run/script"
  chmod +x "$run/script"
  serve_file 8091
  client "$run/script" "http://$THERE:8091/file" "$run"
  stop_server
  cmp "$work/data/file" "$run/result"
  went_through_gateway
}

static_go_needs() { lacks go; }
static_go_carries() { echo tcp 0; }
static_go() {
  cat >"$run/get.go" <<'PROGRAM'
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	response, err := http.Get(os.Args[1])
	if err == nil {
		_, err = io.Copy(os.Stdout, response.Body)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	conn, err := net.Dial("tcp", os.Args[2])
	if err != nil || conn.RemoteAddr().String() != os.Args[2] {
		fmt.Fprintln(os.Stderr, "the peer's address is not", os.Args[2], err)
		os.Exit(1)
	}
}
PROGRAM
  # One build for all modes.
  [[ -x $work/get ]] || (cd "$run" && CGO_ENABLED=0 GO111MODULE=off go build -o "$work/get" get.go)
  serve_file 8092
  client "$work/get" "http://$THERE:8092/file" "$THERE:8092" >"$run/result"
  stop_server
  cmp "$work/data/file" "$run/result"
  went_through_gateway
}
