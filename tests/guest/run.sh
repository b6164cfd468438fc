#!/usr/bin/env bash
# Runs a command in the guest that build.sh made, and exits as it does.
#
# Usage: run.sh CACHE_DIR SHARE_DIR SECONDS COMMAND [ARGUMENT…]
#
# The guest sees the file system of the host, read-only, with a /tmp and a /run of its own, and
# SHARE_DIR, writable, as /mnt, where COMMAND starts as root. It has no network. With
# GUEST_TIME=virtual it has one processor and a clock that counts instructions (1 ns each) and skips
# idle time: what happens in it does not depend on how busy the host is. Exits 124 when SECONDS are
# over (boot included, some 10) and 125 when the guest does not come up.
set -euo pipefail

(($# >= 4)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
cache=$1 share=$2 seconds=$3
shift 3
processors=(-accel "tcg,thread=multi" -smp 2)
if [[ ${GUEST_TIME:-} == virtual ]]; then
  processors=(-accel "tcg,thread=single" -smp 1 -icount "shift=0,sleep=off")
fi

rm -f "$share/.guest-status"
{
  echo 'cd /mnt || exit'
  printf '%q ' "$@"
  echo '2>&1 </dev/null'
} >"$share/.guest-command"

# Software emulation: KVM is not to be had wherever this has to run.
set +e
timeout --kill-after=10 "$seconds" qemu-system-x86_64 "${processors[@]}" -cpu max -m 2048 \
  -nodefaults -no-user-config -display none -serial stdio -no-reboot \
  -kernel "$cache/vmlinuz" -initrd "$cache/initrd.gz" -append 'console=ttyS0 panic=-1 quiet' \
  -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
  -virtfs local,path="$share",mount_tag=share,security_model=none </dev/null 2>&1 |
  sed -u 's/\r$//' | tee "$share/.guest-console" | sed -u '0,/^guest-is-up$/d'
status=${PIPESTATUS[0]}
set -e

if [[ -e $share/.guest-status ]]; then
  exit "$(cat "$share/.guest-status")"
fi
if ((status == 124 || status == 137)); then
  echo "guest: stopped after $seconds s" >&2
  exit 124
fi
echo 'guest: ended before the command did; the last of its console:' >&2
tail -n 20 "$share/.guest-console" >&2
exit 125
