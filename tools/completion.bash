# Completion of sluicefs for bash. Install as /usr/share/bash-completion/completions/sluicefs.

# Mount points, one a line; blanks and the like are escaped in mountinfo.
_sluicefs_mounts() {
    local -a field
    while read -ra field; do
        [[ ${field[*]} == *" - fuse.sluicefs "* ]] && printf '%b\n' "${field[4]}"
    done 2>/dev/null </proc/self/mountinfo
}

_sluicefs_lines() { # those lines of $1 that begin with the word under the cursor
    local line
    while IFS= read -r line; do
        [[ -n $line && $line == "$cur"* ]] && COMPREPLY+=("$line")
    done <<<"$1"
}

_sluicefs() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
    local commands="mount umount upgrade reload status seal upload evict warm restore fsck gc device config version help"
    local options="--state --device --store --pool --profile --policy --config --set -o --log --debug --aws-profile --help"
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$cur")
        return
    fi
    case $command in
    mount | config | restore | fsck | gc)
        case $prev in
        --state | --device)
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -d -- "$cur")
            return
            ;;
        --config | --log | --policy)
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return
            ;;
        --profile)
            mapfile -t COMPREPLY < <(compgen -W "topics broker" -- "$cur")
            return
            ;;
        --set)
            compopt -o nospace
            mapfile -t COMPREPLY < <(compgen -S = -W "$(sluicefs config 2>/dev/null |
                awk 'NR > 1 && /^[a-z]/ { print $1 }')" -- "$cur")
            return
            ;;
        --store | --pool | --debug | --aws-profile | -o) return ;;
        esac
        if [[ $cur == -* ]]; then
            case $command in
            mount) options+=" -f --foreground" ;;
            restore) options+=" --json --deep --partial" ;;
            fsck) options+=" --json --deep --repair" ;;
            gc) options+=" --json --dry-run" ;;
            *) options+=" --json" ;;
            esac
            mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        else
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -d -- "$cur")
        fi
        ;;
    umount | reload | upgrade)
        if [[ $cur == -* ]]; then
            [[ $command == umount ]] && options="-l --lazy --help" || options="--help"
            mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        else
            compopt -o filenames
            _sluicefs_lines "$(_sluicefs_mounts)"
        fi
        ;;
    status | seal | upload | evict | warm)
        if [[ $cur == -* ]]; then
            [[ $command == status ]] && options="--json --help" || options="--help"
            mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        else
            compopt -o filenames
            if [[ -z $cur ]]; then
                _sluicefs_lines "$(_sluicefs_mounts)"
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            fi
        fi
        ;;
    device)
        if ((COMP_CWORD == 2)); then
            mapfile -t COMPREPLY < <(compgen -W "list add drain remove --help" -- "$cur")
        elif [[ $cur == -* ]]; then
            case ${COMP_WORDS[2]} in
            list) options="--json" ;;
            drain) options="--no-wait --cancel" ;;
            remove) options="--lost" ;;
            *) options="" ;;
            esac
            mapfile -t COMPREPLY < <(compgen -W "$options --help" -- "$cur")
        elif ((COMP_CWORD == 3)) || [[ $prev == -* ]]; then
            compopt -o filenames
            _sluicefs_lines "$(_sluicefs_mounts)"
        elif [[ ${COMP_WORDS[2]} == add ]]; then
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -d -- "$cur")
        else
            compopt -o filenames
            _sluicefs_lines "$(sluicefs device list --json "$prev" 2>/dev/null |
                grep -o '"path":"[^"\\]*"' | cut -d'"' -f4)"
        fi
        ;;
    help) mapfile -t COMPREPLY < <(compgen -W "${commands% help}" -- "$cur") ;;
    esac
}
complete -F _sluicefs sluicefs
