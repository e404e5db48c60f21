# The volume that all nodes see: JuiceFS, or a plain folder. Sourced by cluster.sh.
#
# The client mounts at $juicefs_mount_point, and that is bound onto $volume, which is shared. Nothing is ever unmounted from $volume:
# a remount, and the plain folder that is seen while nothing is mounted, are bound on top. So each reaches the containers that mount the
# volume with HostToContainer, as it does with JuiceFS's CSI driver. (A container holds what it found when it started as a mount of its
# own; what is unmounted on the machine does not go there, and a mount laid elsewhere does not come.)
juicefs_folder=$state/juicefs
juicefs_mount_point=$juicefs_folder/mount

# Makes FOLDER a mount that passes later mounts on.
share() { # FOLDER
  mkdir -p "$1"
  mountpoint -q "$1" || { mount --bind "$1" "$1" && mount --make-rshared "$1"; }
}

volume_start() {
  share "$volume"
  chmod 1777 "$volume"
  [ "${JUICEFS:-1}" = 0 ] || juicefs_mount
}

juicefs_mounted() { grep -q " $juicefs_mount_point fuse.juicefs " /proc/mounts; }

# The client is two processes, the second a child of the first; a mount dies with the second.
juicefs_processes() {
  local pid
  pid=$(pid_of juicefs) || return 0
  echo "$pid" $(pgrep -P "$pid")
}

juicefs_mount() {
  local metadata="sqlite3://$juicefs_folder/metadata.db" client
  ! alive juicefs || { say "JuiceFS is mounted already"; return; }
  [ -e "$run/juicefs" ] || "$here/../tools/cache.sh" juicefs > "$run/juicefs"
  client=$(cat "$run/juicefs")/juicefs
  juicefs_detach
  mkdir -p "$juicefs_mount_point"
  if [ ! -e "$juicefs_folder/metadata.db" ]; then
    in_hub "$client" format --no-agent --storage file --bucket "$juicefs_folder/objects/" --trash-days 0 \
      "$metadata" thresh-e2e > "$logs/juicefs-format.log" 2>&1 \
      || die "JuiceFS cannot be formatted; see $logs/juicefs-format.log"
  fi
  start_in hub juicefs "$client" mount --no-usage-report --no-agent --cache-dir "$juicefs_folder/cache" "$metadata" "$juicefs_mount_point"
  wait_for "JuiceFS" 30 juicefs juicefs_mounted
  chmod 1777 "$juicefs_mount_point"
  mount --bind "$juicefs_mount_point" "$volume"
}

# Takes a dead mount away from where the client mounts.
juicefs_detach() {
  while grep -q " $juicefs_mount_point " /proc/mounts; do umount -l "$juicefs_mount_point"; done
}

juicefs_end() { # fails where no client runs
  local processes parent=
  read -ra processes <<< "$(juicefs_processes)"
  read -r parent _ 2> /dev/null < "$run/juicefs.pid" || true
  [ ${#processes[@]} = 0 ] || kill -9 "${processes[@]}" 2> /dev/null || true
  rm -f "$run/juicefs.pid" "/tmp/fuse_fd_comm.$parent"   # a socket of the client's, whatever TMPDIR says
  [ ${#processes[@]} -gt 0 ]
}

# The client dies: readers get "Transport endpoint is not connected".
juicefs_kill() { juicefs_end || die "no JuiceFS client runs"; }

# As kill, but what was written is stored first, and then the volume is an empty folder. It may be written, as a mount point on a real
# node may be by root: who must not write there has to look for itself.
juicefs_umount() {
  sync -f "$juicefs_mount_point" 2> /dev/null || true
  juicefs_kill
  juicefs_detach
  mkdir -p "$juicefs_folder/unmounted"
  chmod 1777 "$juicefs_folder/unmounted"
  find "$juicefs_folder/unmounted" -mindepth 1 -delete
  mount --bind "$juicefs_folder/unmounted" "$volume"
}

juicefs_remount() {
  juicefs_end || true
  juicefs_mount
}
