# For quickstart and test, which source it: stages whose output goes to a log, and how many
# compilers fit on this machine. Needs $build, the build folder.

# stage NAME LOG COMMAND...: what the command prints goes to the log, its end is shown on failure.
stage() {
  local name=$1 log=$build/$2.log
  shift 2
  echo "== $name (log: $log)"
  local code=0
  "$@" > "$log" 2>&1 || code=$?
  [[ $code -eq 0 ]] && return
  tail -n 40 "$log" >&2
  echo "$(basename "$0"): error: $name failed with code $code; the whole log is $log" >&2
  exit "$code"
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
