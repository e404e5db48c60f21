#!/usr/bin/env bash
# juicefs.sh COMMAND...: runs COMMAND with `--juicefs FOLDER` behind it, FOLDER on a fresh JuiceFS volume whose objects and metadata
# lie on the local disk. The volume goes when COMMAND ends, however it ends. Where JuiceFS cannot run it says why, and COMMAND runs alone.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
mkdir -p target/bench
work=$(readlink -f "$(mktemp -d target/bench/juicefs-XXXXXX)")
mount=$work/mount
client=

without() {
  echo "JuiceFS is left out: $*" >&2
  finish
  trap - EXIT
  exec "${command[@]}"
}

mounted() { grep -q " $mount fuse.juicefs " /proc/mounts; }

# The client is two processes, the second a child of the first; a mount dies with the second.
finish() {
  if mounted; then
    umount "$mount" 2> /dev/null || fusermount3 -u "$mount" 2> /dev/null || umount -l "$mount" || true
  fi
  if [ -n "$client" ]; then
    for _ in $(seq 50); do kill -0 "$client" 2> /dev/null || break; sleep 0.1; done
    # shellcheck disable=SC2046  # none, or numbers
    kill -9 "$client" $(pgrep -P "$client") 2> /dev/null || true
    wait "$client" 2> /dev/null || true
    rm -f "/tmp/fuse_fd_comm.$client"   # a socket of the client's
  fi
  mounted || rm -rf --one-file-system "$work"
}

command=("$@")
trap finish EXIT
trap 'exit 130' INT TERM HUP

[ -w /dev/fuse ] || without "/dev/fuse cannot be opened: it needs root"
program=$("$here/../e2e/tools/cache.sh" juicefs)/juicefs || without "it cannot be fetched (the reason is above)"

# Without a network: nothing here needs one.
alone() { unshare -n sh -c 'ip link set lo up 2> /dev/null; exec "$@"' sh "$@"; }

mkdir -p "$mount"
alone "$program" format --no-agent --storage file --bucket "$work/objects/" --trash-days 0 \
  "sqlite3://$work/metadata.db" bench > "$work/format.log" 2>&1 || { cat "$work/format.log" >&2; without "its volume cannot be made"; }
alone "$program" mount --no-usage-report --no-agent --cache-dir "$work/cache" --cache-size 1024 \
  "sqlite3://$work/metadata.db" "$mount" > "$work/mount.log" 2>&1 &
client=$!
for _ in $(seq 100); do
  mounted && break
  kill -0 "$client" 2> /dev/null || break
  sleep 0.1
done
mounted || { cat "$work/mount.log" >&2; without "it cannot be mounted"; }
"${command[@]}" --juicefs "$mount"
