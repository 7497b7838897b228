# Completion of the command `sluice` for bash: its programs, their options as --help prints them, the
# values of an option that has a choice, and files.
_sluice() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local programs values
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    programs=$(sluice --help 2> /dev/null | sed -n 's/^  \([a-z][a-z0-9_]*\).*/\1/p')
    mapfile -t COMPREPLY < <(compgen -W "$programs --help --version" -- "$current")
    return
  fi
  local help
  help=$(sluice "${COMP_WORDS[1]}" --help 2> /dev/null)
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(grep -oE -e '--[a-z0-9][a-z0-9-]*' <<< "$help" | sort -u)" -- "$current")
    return
  fi
  if [[ $previous == --* ]]; then
    values=$(grep -E -e "^ *(-h,)?$previous[ =,]" <<< "$help" | sed -n 's/.*(\([^()]*|[^()]*\))$/\1/p' | tr '|' ' ')
    if [[ -n $values ]]; then
      mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
      return
    fi
  fi
  compopt -o filenames 2> /dev/null
  mapfile -t COMPREPLY < <(compgen -f -- "$current")
}
complete -F _sluice sluice
