# shellcheck shell=bash
# Groups of checks in the guest, told as Rust tests are: for inside.sh and agree-inside.sh, which
# source this.

passed=0 failed=0

# run_groups GROUP…: what the functions group_GROUP check, and how it went.
run_groups() {
  local group word=ok
  ip link set lo up
  for group in "$@"; do
    "group_$group"
  done
  ((failed == 0)) || word=FAILED
  printf 'test result: %s. %d passed; %d failed; 0 ignored\n' "$word" "$passed" "$failed"
  ((failed == 0))
}

# check NAME COMMAND…: says what COMMAND printed if it failed, or if `tells_all` is set.
check() {
  local name=$1 word=ok
  shift
  if "$@" >log 2>&1; then
    ((passed += 1))
  else
    word=FAILED
    ((failed += 1))
  fi
  echo "test $name ... $word"
  [[ $word == ok && -z ${tells_all:-} ]] || sed 's/^/  /' log
}

# Waits until a server of perftest listens at its TCP port, 18515, 30 s at most: its start takes
# long on a busy machine.
perftest_listens() {
  local tries
  for ((tries = 0; tries < 150; tries++)); do
    ! grep -qs ':4853 [0-9A-F]*:0000 0A' /proc/net/tcp /proc/net/tcp6 || return 0
    sleep 0.2
  done
  echo 'no server of perftest listens' >&2
  return 1
}
