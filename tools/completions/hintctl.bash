# SPDX-License-Identifier: Apache-2.0
# bash completion for hintctl: verbs, options, and the mountpoints of hintfs (from mountinfo: no mount is touched).
_hintctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb='' word
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $word in -*) ;; *) verb=$word; break ;; esac
    done
    if [[ -z $verb ]]; then
        mapfile -t COMPREPLY < <(compgen -W 'list status order record warm verify umount --help --version' -- "$cur")
        return
    fi
    if [[ $cur == -* ]]; then
        case $verb in
        status) mapfile -t COMPREPLY < <(compgen -W '--json --help' -- "$cur") ;;
        order) mapfile -t COMPREPLY < <(compgen -W '--check --append --stream --epochs --help' -- "$cur") ;;
        record) mapfile -t COMPREPLY < <(compgen -W '-o --epoch --help' -- "$cur") ;;
        warm) mapfile -t COMPREPLY < <(compgen -W '--order --help' -- "$cur") ;;
        verify) mapfile -t COMPREPLY < <(compgen -W '--help' -- "$cur") ;;
        umount) mapfile -t COMPREPLY < <(compgen -W '--lazy --help' -- "$cur") ;;
        esac
        return
    fi
    [[ $prev == --stream || $prev == --epochs ]] && return
    if [[ $prev == -o || $prev == --order ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
    fi
    local mounts
    mounts=$(awk '$0 ~ / - fuse\.hintfs / { print $5 }' /proc/self/mountinfo 2> /dev/null)
    case $verb in
    status | umount | record) mapfile -t COMPREPLY < <(compgen -W "$mounts" -- "$cur") ;;
    order | warm | verify) mapfile -t COMPREPLY < <(compgen -W "$mounts" -- "$cur"; compgen -f -- "$cur") ;;
    esac
}
complete -o filenames -F _hintctl hintctl
