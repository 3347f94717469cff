#!/usr/bin/env bash
# Starts a program as N processes, called ranks, on this machine, and ends them together.
#
#     scripts/launch.sh -n 8 ./train_gpt2cu --data data/fineweb ...
#     scripts/launch.sh -n 8 --port 29600 ./train_gpt2cu ...   # default: a free port
#
# Each rank gets the environment variables RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
# MASTER_ADDR and MASTER_PORT. A program linked with MPI is started by mpirun instead.
# dev/ranks/README.md says how to start ranks on several machines, and a run that failed again.
#
# Ctrl-C, SIGTERM or SIGUSR1 sends SIGUSR1 to every rank: the trainer saves and ends. A second
# Ctrl-C ends all ranks at once. If a rank fails, the others get LAUNCH_GRACE seconds (5) to end,
# then SIGTERM, then SIGKILL. The exit status is that of the rank that failed.
set -u
exec 4>&2                                    # for messages: 2 is silent while ranks run
say() { echo "launch.sh: $*" >&4; }
die() { say "$*"; exit 1; }
[ -z "${MSYSTEM:-}" ] || die "on Windows, several ranks need WSL 2"      # MSYS2 sets it
ranks='' port='' name='' grace=${LAUNCH_GRACE:-5}
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
        -n) ranks=${2:-} ;;
        --port) port=${2:-} ;;
        -*) die "$1: no such flag; see -h" ;;
        *) break ;;
    esac
    shift 2 || die "$1: needs a value; see -h"
done
[[ $ranks =~ ^[1-9][0-9]{0,3}$ && $port =~ ^[0-9]{0,5}$ && $# -gt 0 ]] ||
    die "expected -n N and a program; see -h"
path=$(command -v -- "$1") && [ -f "$path" ] || die "$1: no such program"
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$port                  # and the port after it
taken() { (exec 5<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
while [ -z "$port" ]; do
    MASTER_PORT=$((20000 + 2 * (RANDOM % 4000)))                # two runs may begin together
    taken "$MASTER_PORT" || taken $((MASTER_PORT + 1)) || break
done

usr1=$((128 + $(kill -l USR1))) pids=() status=0 asked='' over='' patience=0 never=1000000000
asked_at=0 term_at=$never kill_at=$never     # in seconds of this script's life
own_session=(setsid)                         # Ctrl-C in a terminal reaches no other session
command -v setsid > /dev/null || own_session=(perl -MPOSIX -e 'POSIX::setsid(); exec @ARGV')
! setpriv --pdeathsig TERM true 2> /dev/null || own_session+=(setpriv --pdeathsig TERM)
start() { "${own_session[@]}" "$@" < /dev/null 4>&- & pids+=($!); }
send() { local i; for i in "${!pids[@]}"; do kill -s "$1" -- "$2${pids[i]}"; done 2> /dev/null; }
stop() {                                     # SIGNAL, to this script
    if [ -z "$asked" ]; then
        asked=$1 asked_at=$SECONDS
        send USR1 ''
    elif [[ $1 = INT || $1 = TERM ]] && [ $SECONDS -gt "$asked_at" ]; then
        over=yes term_at=$SECONDS kill_at=$((SECONDS + patience))
    fi
}
ended() {                                    # NAME STATUS
    [ "$2" != 0 ] && [ -z "$over" ] || return
    [ "$2" != $usr1 ] || { [ -n "$asked" ] || status=$2; return; }
    over=yes status=$2 term_at=$((SECONDS + grace)) kill_at=$((SECONDS + 2 * grace))
    [ "$2" -le 128 ] || say "$1: status $2, SIG$(kill -l "$2")"
}

trap 'send KILL -' EXIT
for signal in INT TERM HUP USR1; do trap "stop $signal" $signal; done
if { ldd "$path" || otool -L "$path"; } 2> /dev/null | grep -q libmpi; then
    # Open MPI as root, with more ranks than cores, bound to none, and without ten lines of its own
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_execute_quiet=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    # mpirun makes a rank's stdout a terminal, also where this script's is none
    [ -t 1 ] || set -- bash -c 'exec "$@" > >(trap "" USR1 TERM; exec cat)' rank "$@"
    name=mpirun patience=$grace              # it must end its ranks itself
    start mpirun -n "$ranks" "$@"
else
    export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks
    for ((i = 0; i < ranks; i++)); do [ -n "$asked" ] || RANK=$i LOCAL_RANK=$i start "$@"; done
fi
while [ ${#pids[@]} -gt 0 ]; do
    sleep 0.2
    for i in "${!pids[@]}"; do
        kill -0 "${pids[i]}" && continue
        wait "${pids[i]}"
        ended "${name:-rank $i}" $?
        kill -KILL -- "-${pids[i]}"          # its remaining children
        unset "pids[i]"
    done
    [ $SECONDS -lt $term_at ] || { term_at=$never; send TERM -; }
    [ $SECONDS -lt $kill_at ] || send KILL -
done 2> /dev/null
[ -z "$asked" ] || [ $status != 0 ] || status=$((128 + $(kill -l "$asked")))
exit $status
