# For quickstart and test, which source it: stages whose output goes to a log, and how many
# compilers fit on this machine. Needs $build, the build folder.

# stage NAME LOG COMMAND...: what the command prints goes to the log, its end is shown on failure.
# On a terminal the progress of ninja is shown meanwhile; how long it took, everywhere.
stage() {
  local name=$1 log=$build/$2.log
  shift 2
  echo "== $name (log: $log)"
  local code=0 watcher= started=$SECONDS
  : > "$log"
  if [[ -t 1 && ${TERM:-dumb} != dumb ]]; then
    show_progress "$log" &
    watcher=$!
  fi
  # In the foreground, where it gets Ctrl-C and may ask for a password.
  NINJA_STATUS='[%f/%t] ' "$@" > "$log" 2>&1 || code=$?
  if [[ -n $watcher ]]; then
    kill "$watcher" 2> /dev/null || true
    wait "$watcher" 2> /dev/null || true
    printf '\r\033[K'
  fi
  if [[ $code -eq 0 ]]; then
    echo "   done in $(duration $((SECONDS - started)))"
    return
  fi
  tail -n 40 "$log" >&2
  echo "$(basename "$0"): error: $name failed with code $code; the whole log is $log" >&2
  exit "$code"
}

# show_progress LOG: draws the last "[123/456]" of a log over and over, until it is killed or this
# script, whose Ctrl-C it does not get, is no more.
show_progress() {
  local pair parts
  while kill -0 $$ 2> /dev/null; do
    pair=$(tail -c 4096 "$1" | sed -n 's|^\[\([0-9]*\)/\([0-9]*\)\].*|\1 \2|p' | tail -n 1)
    if [[ -n $pair ]]; then
      read -ra parts <<< "$pair"
      printf '\r\033[K   [%s/%s] %s %%' "${parts[0]}" "${parts[1]}" \
        $((100 * parts[0] / (parts[1] > 0 ? parts[1] : 1)))
    fi
    sleep 0.3
  done
}

# duration SECONDS: 1h02m, 3m05s, 12s
duration() {
  if [[ $1 -ge 3600 ]]; then
    printf '%dh%02dm\n' $(($1 / 3600)) $(($1 / 60 % 60))
  elif [[ $1 -ge 60 ]]; then
    printf '%dm%02ds\n' $(($1 / 60)) $(($1 % 60))
  else
    echo "$1s"
  fi
}

# Takes the compiler that this system has beside one that is too old, as Ubuntu 22.04 does.
choose_compiler() {
  local compiler
  compiler=$(scripts/install_deps --compiler)
  if [[ -n $compiler ]]; then export CXX=$compiler; fi
}

# As many compilers at a time as there are cores, and 1.5 GiB of memory for each.
compile_jobs() {
  local kib limit cores
  kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2> /dev/null || true)
  if [[ $limit =~ ^[0-9]+$ && $((limit / 1024)) -lt $kib ]]; then kib=$((limit / 1024)); fi
  cores=$(nproc)
  local jobs=$((kib / (1536 * 1024)))
  if [[ $jobs -gt $cores ]]; then jobs=$cores; fi
  echo $((jobs > 0 ? jobs : 1))
}

# ccache keeps its files in the home folder; an account without one compiles without it.
if [[ ! -w ${HOME:-/nonexistent} ]]; then export CCACHE_DISABLE=1; fi
