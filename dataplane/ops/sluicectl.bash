# Completion of sluicectl for bash: commands, levels, and the jobs and ranks that the box has now.
_sluicectl() {
  local word=${COMP_WORDS[COMP_CWORD]} command='' job='' at
  local commands='status jobs members ports kick drain reload log-level'
  for ((at = 1; at < COMP_CWORD; at++)); do
    case ${COMP_WORDS[at]} in
      --socket) at=$((at + 1)) ;;
      -*) ;;
      *)
        if [[ -z $command ]]; then
          command=${COMP_WORDS[at]}
        elif [[ -z $job ]]; then
          job=${COMP_WORDS[at]}
        fi
        ;;
    esac
  done
  local choices=''
  case $command in
    '') choices="$commands --socket --json --help" ;;
    log-level) choices='trace debug info warning error' ;;
    members | kick)
      if [[ -z $job ]]; then
        choices=$(sluicectl jobs 2>/dev/null | awk 'NR > 1 { print $1 }')
      elif [[ $command == kick ]]; then
        choices=$(sluicectl members "$job" 2>/dev/null | awk 'NR > 1 { print $1 }')
      fi
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
}
complete -F _sluicectl sluicectl
