# Daemons: one log and one pid file each. The pid file also holds the process's start time, so that a pid that was given to another
# process since is never taken for ours. Sourced by cluster.sh and apiserver-only.sh; both set $run and $logs.

# Prints when the process started (clock ticks after boot); fails if it is gone or a zombie.
started_at() { # PID
  local stat fields
  stat=$(cat "/proc/$1/stat" 2> /dev/null) || return 1
  read -ra fields <<< "${stat##*) }"   # the name before it may hold spaces
  [ "${fields[0]}" != Z ] && echo "${fields[19]}"
}

# Starts COMMAND apart from this shell. Locks that this shell holds, or whoever called it, stay here: a daemon outlives them all.
start() { # NAME COMMAND...
  local name=$1 fd; shift
  (
    for fd in /proc/$BASHPID/fd/*; do
      fd=${fd##*/}
      [ "$fd" -le 2 ] || exec {fd}>&-
    done
    exec setsid nohup "$@" >> "$logs/$name.log" 2>&1 < /dev/null
  ) &
  echo "$! $(started_at $!)" > "$run/$name.pid"
  disown
}

start_in() { # NAMESPACE NAME COMMAND...
  local namespace=$1 name=$2; shift 2
  start "$name" nsenter --net="/run/netns/thresh-$namespace" -- "$@"
}

pid_of() { # NAME: prints the pid if that very process lives
  local pid since
  read -r pid since 2> /dev/null < "$run/$1.pid" || return 1
  [ "$(started_at "$pid")" = "$since" ] && echo "$pid"
}

alive() { pid_of "$1" > /dev/null; }

# KILL, not TERM: with etcd gone an API server would take minutes to leave, and nothing here has anything to save.
end() { # NAME
  local pid
  if pid=$(pid_of "$1"); then
    kill -9 "$pid" 2> /dev/null || true
    while alive "$1"; do sleep 0.02; done
  fi
  rm -f "$run/$1.pid"
}

# Waits until COMMAND succeeds, as long as the daemon that should make it true lives.
wait_for() { # WHAT SECONDS DAEMON COMMAND...
  local what=$1 until=$((SECONDS + $2)) daemon=$3; shift 3
  until "$@" > /dev/null 2>&1; do
    if ! alive "$daemon"; then
      tail -n 5 "$logs/$daemon.log" >&2
      die "$daemon ended while we waited for $what; its log is $logs/$daemon.log"
    fi
    [ $SECONDS -lt $until ] || die "$what did not come in time; look into $logs/$daemon.log"
    sleep 0.1
  done
}
