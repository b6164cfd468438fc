#!/bin/sh
# Tries the peers against each other on loopback, so that a failure with another peer is that
# peer's: check.sh DIR_OF_BUILD
set -eu

[ $# -eq 1 ] || { echo "usage: check.sh DIR_OF_BUILD" >&2; exit 2; }
dir=$1
work=$(mktemp -d)
receiver=
cleanup() {
    [ -z "$receiver" ] || kill "$receiver" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# start RECEIVER_ARGUMENTS...: runs it, and sets `port` to the one it says it has.
start() {
    : >"$work/received"
    "$dir/udt_recv" "$@" --timeout 20 >"$work/received" &
    receiver=$!
    tries=0
    until port=$(sed -n 's/^\(listening\|meeting\) //p' "$work/received") && [ -n "$port" ]; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { echo "the receiver does not start" >&2; exit 1; }
        sleep 0.05
    done
}

# try_once NAME RECEIVER_ARGUMENTS: what the rest of the arguments send must arrive.
try_once() {
    name=$1 receives=$2
    shift 2
    # shellcheck disable=SC2086 # several arguments
    start $receives
    "$dir/udt_send" 127.0.0.1 "$port" "$@" --timeout 20 >"$work/sent"
    wait "$receiver"
    receiver=
    sent=$(sed -n 's/^sent //p' "$work/sent")
    came=$(sed -n 's/^received //p' "$work/received")
    if [ -z "$sent" ] || [ "$sent" != "$came" ]; then
        echo "$name: sent '$sent', received '$came'" >&2
        return 1
    fi
    echo "$name: $came"
}

# Beside other programs libudt loses messages to itself now and then, which is its own concern.
exchange() {
    for try in 1 2 3 4 5; do
        try_once "$@" && return
        echo "$1: again ($try)" >&2
    done
    exit 1
}

for mode in stream dgram; do
    exchange "$mode, client and server" "0 $mode" "$mode" 5000001 --seed 7
    exchange "$mode, rendezvous" "0 $mode --rendezvous 127.0.0.2 --peer-port 47123" \
        "$mode" 5000001 --rendezvous --bind 127.0.0.2 --local-port 47123
done
exchange "dgram, large messages in order" "0 dgram" dgram 3000000 --message 100000 --in-order
