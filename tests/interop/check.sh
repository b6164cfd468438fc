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

# finish NAME: waits for the receiver and compares.
finish() {
    wait "$receiver"
    receiver=
    sent=$(sed -n 's/^sent //p' "$work/sent")
    came=$(sed -n 's/^received //p' "$work/received")
    [ -n "$sent" ] && [ "$sent" = "$came" ] || { echo "$1: sent '$sent', received '$came'" >&2; exit 1; }
    echo "$1: $came"
}

for mode in stream dgram; do
    start 0 $mode
    "$dir/udt_send" 127.0.0.1 "$port" $mode 5000001 --seed 7 --timeout 20 >"$work/sent"
    finish "$mode, client and server"

    start 0 $mode --rendezvous 127.0.0.2 --peer-port 47123
    "$dir/udt_send" 127.0.0.1 "$port" $mode 5000001 --rendezvous --bind 127.0.0.2 --local-port 47123 --timeout 20 \
        >"$work/sent"
    finish "$mode, rendezvous"
done

start 0 dgram
"$dir/udt_send" 127.0.0.1 "$port" dgram 3000000 --message 100000 --in-order --timeout 20 >"$work/sent"
finish "dgram, large messages in order"
