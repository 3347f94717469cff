#!/usr/bin/env bash
# Starts a program as N processes, called ranks, on one or several machines, and supervises them.
#
#     scripts/launch.sh -n 8 ./train_gpt2cu --data data/fineweb ...
#     scripts/launch.sh --hosts hosts.txt --restart 3 ./train_gpt2cu --out out/run ...
#
#     -n N           number of ranks (default with --hosts: all slots)
#     --hosts FILE   hosts, one a line: `HOST slots=N` (default 1). Ranks are numbered host by host.
#                    Every host must allow ssh without a password and have this directory at the
#                    same path
#     --restart N    after a failure, resume the run in --out, if the failed attempt saved a newer
#                    checkpoint; at most N times
#     --port P       MASTER_PORT: ports P and P+1 of the first host must be free (default 29500, or
#                    a free pair)
#
# Each rank gets the environment variables RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
# MASTER_ADDR and MASTER_PORT. A program linked with MPI is started by mpirun instead.
#
# Ctrl-C, SIGTERM or SIGUSR1 sends SIGUSR1 to every rank: the trainer saves and ends. A second
# Ctrl-C ends all ranks at once. If a rank fails, the others get LAUNCH_GRACE seconds (5) to end,
# then SIGTERM, then SIGKILL. The exit status is that of the rank that failed.
set -u
exec 4>&2                                    # for messages: 2 is silent while ranks run
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
mode=front ranks='' first=0 world='' hosts_file='' restarts=0 port=''
grace=${LAUNCH_GRACE:-5}
stopped=$((128 + $(kill -l USR1)))           # the trainer's status after SIGUSR1
tick=0.2 && [ "${BASH_VERSINFO[0]}" -ge 4 ] || tick=1

say() { echo "launch.sh: $*" >&4; }
die() { say "$*"; exit 1; }
[ -z "${MSYSTEM:-}" ] || die "on Windows, several ranks need WSL 2"      # MSYS2 sets it

# ---- starting: for each process its id, name, and for a host the pipe that carries signals ----

pids=() names=() lines=() line='' quiet=''
own_session=(setsid) death=KILL              # Ctrl-C in a terminal reaches no other session
command -v setsid > /dev/null ||
    own_session=(perl -MPOSIX -e 'POSIX::setsid(); exec @ARGV or die "$ARGV[0]: $!\n"')

# start NAME STDIN COMMAND...: where setpriv exists, COMMAND is killed when this script dies.
start() {
    local name=$1 stdin=$2 fd
    shift 2
    [ -z "$asked" ] || return 1
    ! setpriv --pdeathsig "$death" true || set -- setpriv --pdeathsig "$death" "$@"
    (   # Only this script holds the pipes' ends for writing: if it is killed, every host reads EOF.
        for fd in $line ${lines[@]+${lines[@]}}; do exec {fd}>&-; done
        exec "${own_session[@]}" "$@"
    ) < "$stdin" 2>&4 3>&- 4>&- &
    pids+=($!) names+=("$name") lines+=("$line")
}

start_ranks() {                              # on this machine
    local i
    unset OMPI_COMM_WORLD_RANK PMI_RANK      # set by an outer launcher
    for ((i = 0; i < ranks; i++)); do
        start "rank $((first + i))" /dev/null env RANK=$((first + i)) WORLD_SIZE="$world" \
            LOCAL_RANK=$i LOCAL_WORLD_SIZE="$ranks" "${command[@]}"
    done
}

variables() {                                # environment variables to pass to another machine
    local name
    for name in PATH LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES LAUNCH_GRACE MASTER_ADDR MASTER_PORT \
                ${!NCCL_@} ${!OMP_@}; do
        [ -z "${!name+x}" ] || echo "$name"
    done
}
quote() {                                    # for any shell
    local word mark="'\\''"
    for word in "$@"; do printf " '%s'" "${word//\'/$mark}"; done
}

# On each host this script runs again, with --as-host. It reads signals as lines from its stdin.
start_host() {                               # HOST FIRST COUNT
    local name line fifo=$scratch/$2 there=()
    for name in $(variables); do there+=("$name=${!name}"); done
    there+=(bash "$self" --as-host "$2:$world" -n "$3" "${command[@]}")
    rm -f "$fifo"                            # of an earlier attempt
    mkfifo "$fifo" || die "$fifo: cannot be made"
    exec {line}<> "$fifo"                    # read-write: open() does not block, no SIGPIPE
    start "host $1" "$fifo" ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=10 \
        "$1" "cd$(quote "$PWD") && exec env$(quote "${there[@]}")"
}

start_hosts() {
    local i count placed=0
    for ((i = 0; placed < ranks; i++)); do
        count=$((slots[i] < ranks - placed ? slots[i] : ranks - placed))
        start_host "${hosts[i]}" $placed $count
        placed=$((placed + count))
    done
}

start_mpi() {                                # mpirun starts this script for each rank
    local name stdout=plain
    flags=(-n "$ranks") quiet=''
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
    [ ! -t 1 ] || stdout=terminal            # ranks always see a terminal under mpirun
    case $(mpirun --version) in *"Open MPI"* | *OpenRTE*)
        flags+=(--bind-to none)
        [ "$(id -u)" != 0 ] || flags+=(--allow-run-as-root)
        if [ -n "$hosts_file" ]; then
            flags+=(--host "$slots_list")
            for name in $(variables); do flags+=(-x "$name"); done
        else
            quiet=--quiet                    # a rank that fails says why; mpirun adds ten lines
            [ "$ranks" -le "$(getconf _NPROCESSORS_ONLN)" ] || flags+=(--oversubscribe)
        fi ;;
    esac
    death=TERM start mpirun /dev/null mpirun $quiet "${flags[@]}" bash "$self" --as-rank $stdout \
        "${command[@]}"
}

# ---- supervising ----

asked='' asked_at=0           # the first signal that asked to stop, and when
worst=0 ours=''               # the exit status; ours: this script ends the ranks, ignore theirs
term_at='' kill_at=''

send() {                                     # SIGNAL, to all that still run
    local i
    [ ${#pids[@]} -gt 0 ] || return 0
    for i in "${!pids[@]}"; do
        if [ -n "${lines[i]}" ] && [ "$1" != KILL ]; then echo "$1" >&"${lines[i]}"
        elif [ "$1" = USR1 ]; then kill -USR1 "${pids[i]}"
        else kill -s "$1" -- "-${pids[i]}"; fi
    done
}

end_now() {                                  # SECONDS from SIGTERM to SIGKILL
    ours=yes term_at=$SECONDS kill_at=$((SECONDS + $1))
}

stop() {                                     # SIGNAL
    if [ -z "$asked" ]; then
        asked=$1 asked_at=$SECONDS
        send USR1
        [ "$1" != INT ] || say "stopping; Ctrl-C again ends it at once"
    elif { [ "$1" = INT ] || [ "$1" = TERM ]; } && [ $SECONDS -gt "$asked_at" ]; then
        end_now $((${#needs_mpi} > 0 ? grace : 0))       # mpirun must end its ranks itself
    fi
}

ended() {                                    # NAME STATUS
    [ "$2" != 0 ] && [ -z "$ours" ] || return 0
    if [ "$2" = $stopped ]; then
        [ -n "$asked" ] || [ "$worst" != 0 ] || worst=$2
        return 0
    fi
    [ -n "$kill_at" ] || term_at=$((SECONDS + grace)) kill_at=$((SECONDS + 2 * grace))
    # A killed rank takes precedence: the others may have failed because of it.
    if [ "$worst" = 0 ] || [ "$worst" = $stopped ] || [ $((worst < 128 && $2 > 128)) = 1 ]; then
        worst=$2
        case $1$quiet in
            rank*) [ "$2" -le 128 ] || say "$1 was killed by SIG$(kill -l "$2")" ;;
            mpirun--quiet) mpirun "${flags[@]}" true 2>&4 3>&- ;;    # says why, if it cannot start
        esac
    fi
}

due() { [ -n "$1" ] && [ $SECONDS -ge "$1" ]; }

supervise() {                               # until all processes have ended
    local i line word='' status
    while [ ${#pids[@]} -gt 0 ]; do
        read -r -t $tick line <&3
        status=$? word+=$line                # a timeout may split a word
        case $mode:$status:$word in
            host:0:USR1) stop USR1 ;;
            host:0:TERM) end_now "$grace" ;;
            host:1:*) end_now 0 ;;           # ssh has ended
        esac
        [ $status != 0 ] || word=''
        for i in "${!pids[@]}"; do
            kill -0 "${pids[i]}" && continue
            wait "${pids[i]}"
            status=$?
            kill -KILL -- "-${pids[i]}"      # its remaining children
            unset "pids[i]"
            ended "${names[i]}" $status
        done
        if due "$term_at"; then ours=yes term_at=''; send TERM; fi
        if due "$kill_at"; then kill_at=''; send KILL; fi
    done
}

# ---- attempts and restarts ----

taken() { (exec 5<> "/dev/tcp/127.0.0.1/$1"); }
choose_meeting() {
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=${port:-29500}
    [ -z "$hosts_file" ] || MASTER_ADDR=${hosts[0]#*@}
    while [ -z "$port" ] && { taken "$MASTER_PORT" || taken $((MASTER_PORT + 1)); }; do
        MASTER_PORT=$((20000 + 2 * (RANDOM % 4000)))
    done
}

attempt() {
    pids=() names=() lines=() worst=0 ours='' term_at='' kill_at=''
    [ $mode != front ] || choose_meeting
    if [ $mode = rank ]; then start "rank $first" /dev/null "${command[@]}"
    elif [ -n "$needs_mpi" ]; then start_mpi
    elif [ -n "$hosts_file" ]; then start_hosts
    else start_ranks; fi
    supervise
} 2> /dev/null

checkpoint() {                               # latest is a link or, on some disks, a file
    [ -z "$out" ] || readlink "$out/latest" || head -n 1 "$out/latest" 2> /dev/null
}

restarted() {                                # BEFORE, the checkpoint before the attempt
    local now
    now=$(checkpoint)
    [ "$restarts" -gt 0 ] && [ -z "$asked" ] && [ "$worst" != $stopped ] && [ "$worst" != 0 ] ||
        return 1
    if [ -z "$now" ] || [ "$now" = "$1" ]; then
        say "not restarted: this attempt saved no new checkpoint${out:+ in $out}"
        return 1
    fi
    restarts=$((restarts - 1))
    say "status $worst: resuming from $out/$now; restarts left: $restarts"
    command=("$program" --resume --out "$out")
}

# ---- arguments ----

number() {                                   # FLAG TEXT MIN MAX
    case $2 in
        '' | *[!0-9]* | ???????*) ;;
        *) [ "$2" -lt "$3" ] || [ "$2" -gt "$4" ] || return 0 ;;
    esac
    die "$1: '$2' is not a number from $3 to $4"
}

read_hosts() {                               # sets hosts, slots, slots_list
    local host rest total=0
    hosts=() slots=() slots_list=''
    [ "${BASH_VERSINFO[0]}" -ge 4 ] || die "--hosts: needs bash 4.1 or later; this is $BASH_VERSION"
    [ -f "$hosts_file" ] || die "--hosts: $hosts_file: no such file"
    while read -r host rest || [ -n "$host" ]; do
        rest=${rest%%#*} rest=${rest//[[:space:]]/}
        case $host in '' | '#'*) continue ;; esac
        case $rest in
            '') rest=1 ;;
            slots=*) rest=${rest#slots=}; number "$hosts_file: slots of $host" "$rest" 1 4096 ;;
            *) die "$hosts_file: '$rest' after $host: expected slots=N" ;;
        esac
        hosts+=("$host") slots+=("$rest") slots_list=${slots_list:+$slots_list,}$host:$rest
        total=$((total + rest))
    done < "$hosts_file"
    [ $total -gt 0 ] || die "--hosts: $hosts_file names no host"
    ranks=${ranks:-$total}
    [ "$ranks" -le $total ] || die "-n: $ranks ranks, but $hosts_file has $total slots"
}

while [ $# -gt 0 ]; do
    case $1 in
        -n | --hosts | --restart | --port) [ $# -gt 1 ] || die "$1: needs a value; see -h" ;;
    esac
    case $1 in
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$self"; exit ;;
        -n) number -n "$2" 1 4096; ranks=$2 ;;
        --hosts) hosts_file=$2 ;;
        --restart) number --restart "$2" 0 1000; restarts=$2 ;;
        --port) number --port "$2" 1024 65534; port=$2 ;;
        --as-host) mode=host first=${2%:*} world=${2#*:} ;;      # by start_host
        --as-rank) mode=rank ranks=1 first=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-?}}  # by start_mpi
                   [ "$2" != plain ] || exec > >(trap '' USR1 TERM; exec cat) ;;
        -*) die "$1: no such flag; see -h" ;;
        *) break ;;
    esac
    shift 2
done
number LAUNCH_GRACE "$grace" 0 3600
[ $# -gt 0 ] || die "no program to start; see -h"
program=$1 command=("$@") needs_mpi='' out=''
path=$(command -v -- "$program") && [ -f "$path" ] || die "$program: no such program"
[ -z "$hosts_file" ] || read_hosts
[ -n "$ranks" ] || die "-n: needed without --hosts; see -h"
world=${world:-$ranks}
if [ $mode = front ] && { ldd "$path" || otool -L "$path"; } 2> /dev/null | grep -q libmpi; then
    needs_mpi=yes
    command -v mpirun > /dev/null || die "$program is linked with MPI, but there is no mpirun"
fi
for ((i = 1; i < $#; i++)); do
    case ${command[i]} in --out) out=${command[i + 1]:-} ;; --out=*) out=${command[i]#*=} ;; esac
done

if [ $mode = host ]; then exec 3<&0
else                                         # read -t waits on it: nothing is ever written
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/launch.XXXXXX") && mkfifo "$scratch/3" || exit 1
    exec 3<> "$scratch/3"
    rm "$scratch/3"
    [ -n "$hosts_file" ] || rmdir "$scratch"
fi
trap 'send KILL; [ -z "$hosts_file" ] || rm -rf "$scratch"' EXIT
for signal in INT TERM HUP USR1; do trap "stop $signal" $signal; done

while :; do
    before=$(checkpoint)
    attempt
    restarted "$before" || break
done
if [ -n "$asked" ] && [ "$worst" = 0 ] && [ $mode != rank ]; then
    worst=$((128 + $(kill -l "$asked")))
fi
exit "$worst"
