#!/bin/sh
# Builds the libudt peers: build.sh OUT_DIR
# Exits 77 when something has to be installed first (and says what), 1 when the build fails.
set -eu

if [ $# -ne 1 ]; then
    echo "usage: build.sh OUT_DIR" >&2
    exit 2
fi
out=$1
here=$(cd "$(dirname "$0")" && pwd)

missing=
command -v g++ >/dev/null 2>&1 || missing="g++"
if [ -z "$missing" ]; then
    printf '#include <udt/udt.h>\nint main() { return UDT::startup(); }\n' |
        g++ -x c++ -o /dev/null - -ludt -lpthread >/dev/null 2>&1 || missing="libudt-dev"
else
    missing="$missing libudt-dev"
fi
if [ -n "$missing" ]; then
    echo "tests/interop: the libudt peers need Debian packages; install them with: apt-get install $missing" >&2
    exit 77
fi

mkdir -p "$out"
for program in udt_recv udt_send udt_bench; do
    g++ -std=c++17 -O2 -Wall -Wextra -Wconversion -Werror -o "$out/$program" "$here/$program.cpp" -ludt -lpthread
done
echo "built udt_recv, udt_send and udt_bench in $out" >&2
