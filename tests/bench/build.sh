#!/usr/bin/env bash
# Builds the reference programs into DIR: tcp_pingpong, and fabric_bench where libfabric's headers
# are installed.
#
# Usage: tests/bench/build.sh DIR
set -euo pipefail
cd "$(dirname "$0")"

readonly DIR=${1:?where to build}
mkdir -p "$DIR"
flags=(-std=gnu11 -O2 -Wall -Wextra -Werror)
cc "${flags[@]}" -o "$DIR/tcp_pingpong" tcp_pingpong.c
if [[ -e /usr/include/rdma/fi_rma.h ]]; then
  cc "${flags[@]}" -o "$DIR/fabric_bench" fabric_bench.c -lfabric
else
  echo 'no fabric_bench: install libfabric-dev'
fi
