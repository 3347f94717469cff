#!/usr/bin/env bash
# What starts runs of many ranks: scripts/launch.sh, slurm.sbatch and train.sh, with programs
# that only write down what they were given, sleep and die, and with an ssh, mpirun, srun and
# scontrol that play along. LAUNCH_SH, SBATCH, RECIPE and TRAIN name others to test.
. "$(dirname "$0")/tools.sh"
launch=${LAUNCH_SH:-scripts/launch.sh} sbatch=${SBATCH:-scripts/slurm.sbatch}
recipe=${RECIPE:-scripts/train.sh}
absolute launch sbatch recipe train prepare
top=$dir                                    # each test has a $dir of its own in it
trap 'rm -rf "$top"' EXIT
export LAUNCH_GRACE=1 OMP_NUM_THREADS=1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LAUNCH SLURM_JOB_ID
export STOPPED=$((128 + $(kill -l USR1)))

# ---- tools ----

skip() { echo "skip $name: $1"; exit; }      # in a test's subshell
lacks() { ! grep -qF -e "$2" "$1" || note "$(basename "$1") has '$2'"; }

# A program that notes down in $SAY/RANK what it was given and which signals it gets. Rank $1 does,
# after a moment, what $2 says; the others do nothing for a minute, or until they are stopped.
rank=$top/rank trainer=$top/trainer hosts=$top/hosts
mkdir "$top/bin"
cat > "$rank" << 'END'
#!/usr/bin/env bash
file=$SAY/$RANK terminal=''
[ ! -t 1 ] || terminal=' terminal'
[ -z "$DEAF" ] || trap '' TERM
sleep 60 & sleeper=$!
trap 'echo "got USR1" >> "$file"; sleep ${SAVING:-0}; echo saved >> "$file"; exit '$STOPPED USR1
trap 'echo "got INT" >> "$file"' INT
trap 'kill $sleeper 2> /dev/null' EXIT
{
    echo "pid $$$terminal"
    echo "child $sleeper"
    echo "rank $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"
    echo "others' ${PMI_RANK:-}"
    echo "in $PWD with $#"
    printf '<%s>\n' "$@"
    [ -z "${NCCL_TEST:-}" ] || echo "NCCL_TEST=$NCCL_TEST"
} >> "$file"
echo ready >> "$SAY/ready"
case ,$1, in *,$RANK,*) sleep 0.3; eval "$2" ;; esac
wait $sleeper
echo "ended late" >> "$file"
END
# ssh joins the words of a command, and a shell on the other side takes them apart, in a session of
# its own. Its stdin ends with ssh.
cat > "$top/bin/ssh" << 'END'
#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do echo "$1 $2" >> "$SAY/ssh"; shift 2; done
echo "host $1" >> "$SAY/ssh"
case $1 in
    nowhere) echo "ssh: nowhere: no such host" >&2; exit 255 ;;
    stuck) echo $$ > "$SAY/stuck"; exec sleep 60 < /dev/null ;;
esac
shift
cd / && env -i "SAY=$SAY" "SAVING=$SAVING" "STOPPED=$STOPPED" setsid -w sh -c "$*" < <(exec cat)
END
chmod +x "$rank" "$top/bin/ssh"
PATH=$top/bin:$PATH
export SAY SAVING=0
fresh() { SAY=$(mktemp -d "$dir/say.XXXXXX"); }
ready() { [ "$(cat "$SAY/ready" 2> /dev/null | wc -l)" -ge "$1" ]; }
in_background() {                           # in_background N ARGS...: until N ranks are ready
    fresh
    local n=$1
    shift
    "$launch" "$@" > "$dir/stdout" 2> "$dir/stderr" < /dev/null &
    launcher=$!
    wait_for ready "$n"
}
none_alive() {                              # none_alive [pid]: with ranks' children, unless "pid"
    local pid
    for pid in $(sed -nE "s/^(${1:-pid|child}) ([0-9]+).*/\2/p" "$SAY"/[0-9]*); do
        ! kill -0 "$pid" || return 1
    done
} 2> /dev/null
each_once() {                               # each_once N: N ranks were asked to stop, once each
    same "requests to stop" "$(cat "$SAY"/[0-9]* | grep -c "^got USR1")" "$1"
    ! grep -q "^got INT" "$SAY"/[0-9]* || note "a rank got INT"
}
refused() {                                 # refused WORDS ARGS...: one line, which holds the words
    local words=$1
    shift
    fresh
    run "$launch" "$@"
    same "status of '$*'" $status 1
    same "lines on stderr of '$*'" "$(wc -l < "$dir/stderr" | tr -d ' ')" 1
    has "$dir/stderr" "launch.sh: "
    has "$dir/stderr" "$words"
    silent "$dir/stdout"
    [ -z "$(ls "$SAY")" ] || note "'$*' starts something"
}

# ---- wrong use ----

test_launch_refuses() {
    touch "$dir/empty" && printf '# none\n\n' > "$dir/comments"
    printf 'a slots=2\nb\n' > "$dir/three"
    printf 'a slots=two\n' > "$dir/two" && printf 'a cores=2\n' > "$dir/cores"
    refused "-n: needed without --hosts" "$rank"
    refused "no program to start" -n 2
    refused "-n: needs a value" -n
    for n in 0 -1 x 2.5 '' 5000 99999999999; do
        refused "-n: '$n' is not a number from 1 to" -n "$n" "$rank"
    done
    refused "--nodes: no such flag" -n 2 --nodes 3 "$rank"
    refused "nowhere: no such program" -n 2 "$dir/nowhere"
    refused "empty: no such program" -n 2 "$dir/empty"
    refused "bin: no such program" -n 2 "$dir/bin"
    refused "--restart: 'x'" -n 2 --restart x "$rank"
    refused "--port: '80'" -n 2 --port 80 "$rank"
    LAUNCH_GRACE=soon refused "LAUNCH_GRACE: 'soon'" -n 2 "$rank"
    refused "nowhere: no such file" --hosts "$dir/nowhere" "$rank"
    refused "names no host" --hosts "$dir/empty" "$rank"
    refused "names no host" --hosts "$dir/comments" "$rank"
    refused "4 ranks, but $dir/three has 3 slots" -n 4 --hosts "$dir/three" "$rank"
    refused "slots of a: 'two'" --hosts "$dir/two" "$rank"
    refused "'cores=2' after a" --hosts "$dir/cores" "$rank"
    run "$launch" -h
    same "status of -h" $status 0
    has "$dir/stdout" "--restart N"
    [ "$(head -c 1 "$dir/stdout")" != '#' ] || note "-h prints a comment as it is"
}

# ---- what ranks are given, and what they give back ----

test_launch_environment() {
    fresh
    OMPI_COMM_WORLD_RANK=7 PMI_RANK=7 run "$launch" -n 3 "$rank" 0,1,2 'echo "out $RANK"; exit 0' \
        "b  c" "d'e" '$x"' '*' ''
    same status $status 0
    silent "$dir/stderr"
    same output "$(sort "$dir/stdout" | xargs)" "out 0 out 1 out 2"
    for i in 0 1 2; do
        has "$SAY/$i" "rank $i/3 local $i/3 at 127.0.0.1:"
        has "$SAY/$i" "in $PWD with 7"
        same "arguments" "$(grep '^<' "$SAY/$i" | tail -n 5)" \
            "$(printf '<%s>\n' "b  c" "d'e" '$x"' '*' '')"
        lacks "$SAY/$i" terminal
        lacks "$SAY/$i" "others' 7"
    done
    same "meeting places" "$(sed -n 's/.* at //p' "$SAY"/[0-9] | sort -u | wc -l | tr -d ' ')" 1
    same "what is left in TMPDIR" "$(ls "$TMPDIR")" ''
}

# Somebody listens beside the port that nobody asked for, and beside one that was asked for.
test_launch_finds_a_port() {
    command -v python3 > /dev/null || skip "needs python3"
    cat > "$dir/listen.py" << 'END'
import socket, time
sockets = []
for port in 29501, 29511:
    sockets.append(socket.socket())
    try:
        sockets[-1].bind(("127.0.0.1", port))
        sockets[-1].listen()
    except OSError:
        pass                                 # somebody else listens there: as good
print("listens", flush=True)
time.sleep(20)
END
    python3 "$dir/listen.py" > "$dir/listens" &
    listener=$!
    wait_for test -s "$dir/listens"
    fresh
    run "$launch" -n 2 "$rank" 0,1 'exit 0'
    other=$(sed -n 's/.*at 127.0.0.1://p' "$SAY/0")
    [ "$other" != 29500 ] && [ "$other" -gt 1024 ] || note "a port in use: $other"
    same "port of rank 1" "$(sed -n 's/.*at 127.0.0.1://p' "$SAY/1")" "$other"
    fresh
    run "$launch" --port 29510 -n 1 "$rank" 0 'exit 0'
    has "$SAY/0" "at 127.0.0.1:29510"
    kill $listener
    wait $listener 2> /dev/null
}

# ---- how it ends ----

test_launch_exit_status() {
    fresh
    run "$launch" -n 3 "$rank" 1 'exit 9'
    same "status" $status 9
    silent "$dir/stderr"
    wait_for none_alive
    fresh
    run "$launch" -n 3 "$rank" 0,1 'if [ $RANK = 1 ]; then kill -9 $$; else exit 1; fi'
    same "status when one was killed and another failed" $status 137
    has "$dir/stderr" "rank 1 was killed by SIGKILL"
    same "lines on stderr" "$(wc -l < "$dir/stderr" | tr -d ' ')" 1
    fresh
    LAUNCH_GRACE=4 run "$launch" -n 2 "$rank" 0,1 \
        '[ $RANK = 1 ] && exit 3; sleep 0.5; echo "rank 1 is gone" >&2; exit 4'
    same "status when another follows" $status 3
    has "$dir/stderr" "rank 1 is gone"
    fresh
    run "$launch" -n 2 "$rank" 0,1 '[ $RANK = 1 ] || sleep 1.5; echo "ends $RANK"; exit 0'
    same "status when all is well, one later" $status 0
    same "output" "$(xargs < "$dir/stdout")" "ends 1 ends 0"
}

test_launch_ends_the_others() {
    fresh
    begin=$SECONDS
    DEAF=yes run "$launch" -n 2 "$rank" 0 'exit 9'
    same "status" $status 9
    [ $((SECONDS - begin)) -lt 60 ] || note "$((SECONDS - begin)) s until a deaf rank was killed"
    wait_for none_alive
    lacks "$SAY/1" "ended late"
}

test_launch_stops() {
    local signals="USR1 TERM HUP"
    [ -z "$(trap -p HUP)" ] || signals="USR1 TERM"     # under nohup it is ignored, for good
    for signal in $signals; do
        SAVING=2.5 in_background 3 -n 3 "$rank"     # it saves for longer than the grace
        kill -$signal $launcher
        if [ $signal = HUP ]; then sleep 1.5; kill -HUP $launcher; fi     # a terminal may repeat it
        wait $launcher
        same "status after $signal" $? $((128 + $(kill -l $signal)))
        each_once 3
        same "ranks that saved" "$(cat "$SAY"/[0-9] | grep -c saved)" 3
        wait_for none_alive
        silent "$dir/stderr"
    done
    fresh
    run "$launch" -n 2 "$rank" 0,1 "[ \$RANK = 0 ] || { sleep 2.3; echo saved; }; exit $STOPPED"
    same "status when the ranks stop by themselves" $status $STOPPED
    has "$dir/stdout" saved
}

test_launch_stops_at_once() {
    SAVING=20 in_background 2 -n 2 "$rank"
    kill -TERM $launcher; sleep 2; kill -TERM $launcher
    begin=$SECONDS
    wait $launcher
    same "status" $? 143
    [ $((SECONDS - begin)) -lt 20 ] || note "it took $((SECONDS - begin)) s"
    wait_for none_alive
    each_once 2
}

test_launch_leaves_no_orphans() {
    setpriv --pdeathsig KILL true 2> /dev/null || skip "needs setpriv --pdeathsig"
    in_background 3 -n 3 "$rank"
    kill -9 $launcher
    wait $launcher 2> /dev/null
    wait_for none_alive pid                  # a rank's children are the rank's affair here
    kill $(sed -n 's/^child //p' "$SAY"/[0-9])
}

# Ctrl-C typed at a terminal, once, and once more while the ranks still save.
test_launch_terminal() {
    command -v python3 > /dev/null || skip "needs python3"
    cat > "$dir/type.py" << 'END'
import os, pty, signal, sys, time
ready, presses, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
pid, terminal = pty.fork()
if pid == 0:                                 # a shell starts what it puts aside deaf to Ctrl-C
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(command[0], command)
while not os.path.exists(ready) or open(ready).read().count("ready") < 2:
    time.sleep(0.05)
for i in range(presses):
    time.sleep(2 if i else 0)
    os.write(terminal, b"\x03")
text = b""
try:
    while chunk := os.read(terminal, 4096):
        text += chunk
except OSError:                              # the terminal is closed
    pass
print(text.decode(), "status", os.waitpid(pid, 0)[1] >> 8)
END
    fresh
    SAVING=1 run python3 "$dir/type.py" "$SAY/ready" 1 "$launch" -n 2 "$rank"
    same "status" "$(sed -n 's/.*status //p' "$dir/stdout")" 130
    has "$dir/stdout" "stopping; Ctrl-C again"
    has "$SAY/0" " terminal"
    each_once 2
    wait_for none_alive
    fresh
    SAVING=20 run python3 "$dir/type.py" "$SAY/ready" 2 "$launch" -n 2 "$rank"
    same "status of two Ctrl-C" "$(sed -n 's/.*status //p' "$dir/stdout")" 130
    each_once 2
    wait_for none_alive
}

# ---- restarts ----

# A trainer that notes its arguments, saves a new checkpoint at its first SAVES starts, and fails at
# its first FAILS.
cat > "$trainer" << 'END'
#!/usr/bin/env bash
[ "$RANK" = 0 ] || exit 0
echo "$*" >> "$SAY/starts"
n=$(($(wc -l < "$SAY/starts")))
mkdir -p "$SAY/a run"
[ $n -gt $SAVES ] || { rm -f "$SAY/a run/latest"
    [ $n = 1 ] && ln -s step_$n "$SAY/a run/latest" || echo step_$n > "$SAY/a run/latest"; }
[ $n -gt $FAILS ] || exit ${STATUS:-1}
END
chmod +x "$trainer"
export SAVES FAILS STATUS
# restarts SAVES FAILS STATUS STARTS ARGS...: and the STARTS that this leads to
restarts() {
    SAVES=$1 FAILS=$2 STATUS=$3
    local starts=$4
    shift 4
    run "$launch" -n 2 "$@"
    same "starts with $SAVES checkpoints, $FAILS failures" "$(($(wc -l < "$SAY/starts")))" "$starts"
}

test_launch_restarts() {
    fresh
    restarts 9 2 7 3 --restart 3 "$trainer" --lr 1 --out other --overwrite --out "$SAY/a run"
    same "status after all" $status 0
    same "flags" "$(xargs < "$SAY/starts")" "--lr 1 --out other --overwrite --out $SAY/a run \
--resume --out $SAY/a run --resume --out $SAY/a run"
    same "lines on stderr" "$(wc -l < "$dir/stderr" | tr -d ' ')" 2
    has "$dir/stderr" "launch.sh: status 7: resuming from $SAY/a run/step_2; restarts left: 1"
    restarts 9 9 137 6 --restart 2 "$trainer" "--out=$SAY/a run" --lr 1   # 3 starts came before
    same "status after too many" $status 137
    same "flags" "$(tail -n 2 "$SAY/starts" | xargs)" \
        "--resume --out $SAY/a run --resume --out $SAY/a run"
}

test_launch_restarts_only_what_goes_on() {
    fresh
    restarts 0 9 1 1 --restart 3 "$trainer" --out "$SAY/a run"
    same "status without a checkpoint" $status 1
    has "$dir/stderr" "not restarted: this attempt saved no new checkpoint in $SAY/a run"
    mkdir -p "$SAY/a run" && ln -s step_9 "$SAY/a run/latest"
    restarts 0 9 1 2 --restart 3 "$trainer" --out "$SAY/a run" --overwrite
    same "latest" "$(readlink "$SAY/a run/latest")" step_9
    fresh
    restarts 2 9 1 3 --restart 9 "$trainer" --out "$SAY/a run"
    has "$dir/stderr" "not restarted"
    fresh
    restarts 9 9 1 1 --restart 3 "$trainer" --lr 1
    has "$dir/stderr" "not restarted: this attempt saved no new checkpoint"
    fresh
    restarts 9 9 $STOPPED 1 --restart 3 "$trainer" --out "$SAY/a run"
    same "status when it was asked to stop" $status $STOPPED
    silent "$dir/stderr"
    fresh
    restarts 9 9 1 1 "$trainer" --out "$SAY/a run"
    silent "$dir/stderr"
    # A rank that saves and then fails because it was asked to stop
    in_background 2 -n 2 --restart 3 "$rank" 0 'mkdir "$SAY/run"; ln -s 1 "$SAY/run/latest"
    trap "exit 5" USR1; echo ready >> "$SAY/ready"' --out "$SAY/run"
    wait_for ready 3
    kill -INT $launcher 2> /dev/null; kill -TERM $launcher
    wait $launcher
    same "status of a failure after Ctrl-C" $? 5
    silent "$dir/stderr"
}

test_launch_restarts_the_trainer() {
    [ -x "$train" ] && [ -x "$prepare" ] || skip "needs $train and $prepare"
    fresh
    "$prepare" tales --out "$SAY/tales" --tokens 30000 > /dev/null || note "no corpus"
    steps=4000
    "$launch" -n 1 --restart 2 "$train" --data "$SAY/tales" --layers 1 --heads 2 --channels 16 \
        --seq-len 16 --micro-batch 4 --eval-every 0 --eval-tokens 64 --threads 1 \
        --steps $steps --save-every 20 --out "$SAY/run" > "$dir/stdout" 2> "$dir/stderr" &
    launcher=$!
    wait_for test -e "$SAY/run/latest"
    kill -9 "$(ps -o pid= --ppid $launcher 2> /dev/null | tr -d ' ' || pgrep -P $launcher)"
    wait $launcher
    same "status" $? 0
    has "$dir/stderr" "rank 0 was killed by SIGKILL"
    has "$dir/stderr" "status 137: resuming from $SAY/run/step_"
    same "latest" "$(readlink "$SAY/run/latest")" "step_0000$steps"
    same "resumes" "$(grep -c '"event":"resume"' "$SAY/run/log.jsonl")" 1
}

# ---- several machines ----

printf '# two\nme@a slots=2  # the first\n\n  b\tslots=3\nc' > "$hosts"

test_launch_hosts() {
    command -v setsid > /dev/null || skip "needs setsid"
    mkdir "$dir/here 'n there"
    fresh
    begin='echo "out $RANK"; exit 0'
    cd "$dir/here 'n there" || exit 1
    NCCL_TEST="it's \"1\" \$x" run "$launch" --hosts "$hosts" -n 4 "$rank" 0,1,2,3 "$begin" \
        "b  c" "d'e\"" '$x' '*' ''
    cd "$OLDPWD" || exit 1
    same status $status 0
    silent "$dir/stderr"
    same output "$(sort "$dir/stdout" | xargs)" "out 0 out 1 out 2 out 3"
    same "where ranks are" "$(sed -n 's/^rank \(.*\) at .*/\1/p' "$SAY"/[0-3] | xargs)" \
        "0/4 local 0/2 1/4 local 1/2 2/4 local 0/2 3/4 local 1/2"
    same "where they meet" "$(sed -n 's/.* at \(.*\):.*/\1/p' "$SAY"/[0-3] | sort -u)" a
    for i in 0 3; do
        has "$SAY/$i" "in $dir/here 'n there with 7"
        has "$SAY/$i" "NCCL_TEST=it's \"1\" \$x"
        same "arguments" "$(grep '^<' "$SAY/$i" | tail -n 5)" \
            "$(printf '<%s>\n' "b  c" "d'e\"" '$x' '*' '')"
    done
    same "hosts" "$(grep ^host "$SAY/ssh" | sort | xargs)" "host b host me@a"
    has "$SAY/ssh" "-o BatchMode=yes"
    has "$SAY/ssh" "-o ConnectTimeout="
    fresh
    run "$launch" --port 4000 --hosts "$hosts" "$rank" 0,1,2,3,4,5 'exit 0'
    same "ranks without -n" "$(cat "$SAY/ready" | wc -l | tr -d ' ')" 6
    has "$SAY/5" "rank 5/6 local 0/1 at a:4000"
    same "what is left in TMPDIR" "$(ls "$TMPDIR")" ''
}

test_launch_hosts_stop() {
    command -v setsid > /dev/null || skip "needs setsid"
    in_background 6 --hosts "$hosts" "$rank"
    kill -TERM $launcher
    wait $launcher
    same "status after TERM" $? 143
    each_once 6
    wait_for none_alive
    silent "$dir/stderr"
}

test_launch_hosts_fail() {
    command -v setsid > /dev/null || skip "needs setsid"
    fresh
    run "$launch" --hosts "$hosts" "$rank" 3 'kill -9 $$'
    same "status of a killed rank" $status 137
    same "what it says" "$(cat "$dir/stderr")" "launch.sh: rank 3 was killed by SIGKILL"
    wait_for none_alive
    printf 'a slots=2\nnowhere\n' > "$dir/unreachable"
    fresh
    run "$launch" --hosts "$dir/unreachable" "$rank"
    same "status of a host that ssh cannot reach" $status 255
    same "what it says" "$(cat "$dir/stderr")" "ssh: nowhere: no such host"
    wait_for none_alive
}

test_launch_hosts_restart() {
    command -v setsid > /dev/null || skip "needs setsid"
    fresh
    cat > "$dir/trainer" << 'END'
#!/bin/sh
echo "$RANK $*" >> "$SAY/starts"
[ "$1" != --resume ] || exit 0
[ "$RANK" = 5 ] || exec sleep 60
mkdir "$SAY/run" && ln -s step_1 "$SAY/run/latest"
exit 5
END
    chmod +x "$dir/trainer"
    run "$launch" --hosts "$hosts" --restart 1 "$dir/trainer" --lr 1 --out "$SAY/run"
    same "status" $status 0
    same "second starts" "$(grep -c -e "--resume --out $SAY/run" "$SAY/starts")" 6
    same "what it says" "$(cat "$dir/stderr")" \
        "launch.sh: status 5: resuming from $SAY/run/step_1; restarts left: 0"
}

# A host that takes no signals any more, and a signal that comes in two parts.
test_launch_hosts_listen() {
    command -v setsid > /dev/null || skip "needs setsid"
    printf 'stuck\na slots=2\n' > "$dir/hosts"
    SAVING=60 in_background 2 --hosts "$dir/hosts" "$rank"
    kill -TERM $launcher; sleep 2
    each_once 2
    begin=$SECONDS
    kill -TERM $launcher
    wait $launcher
    same "status" $? 143
    [ $((SECONDS - begin)) -lt 60 ] || note "it took $((SECONDS - begin)) s"
    wait_for none_alive
    fresh
    { wait_for ready 1; printf U; sleep 0.5; echo SR1; sleep 1; } |
        "$launch" --as-host 0:1 -n 1 "$rank" > "$dir/stdout" 2>&1
    same "status of a host that is asked to stop" $? $STOPPED
    each_once 1
}

test_launch_hosts_leave_no_orphans() {
    command -v setsid > /dev/null || skip "needs setsid"
    in_background 6 --hosts "$hosts" "$rank"
    kill -9 $launcher
    wait $launcher 2> /dev/null
    wait_for none_alive
    rm -rf "$TMPDIR"/*
    SAVING=20 in_background 6 --hosts "$hosts" "$rank"
    kill -TERM $launcher; sleep 2; kill -TERM $launcher
    wait $launcher
    same "status of two TERM" $? 143
    wait_for none_alive
    # Where nothing kills ssh with the launcher, one that hangs must not hold the others' pipes.
    mkdir "$dir/bare"
    printf '#!/bin/sh\nexit 1\n' > "$dir/bare/setpriv"
    chmod +x "$dir/bare/setpriv"
    printf 'a slots=2\nb\nstuck\n' > "$dir/hosts"
    PATH=$dir/bare:$PATH in_background 3 --hosts "$dir/hosts" "$rank"
    wait_for test -s "$SAY/stuck"
    kill -9 $launcher
    wait $launcher 2> /dev/null
    wait_for none_alive
    kill "$(cat "$SAY/stuck")"
}

# ---- MPI ----

test_launch_starts_mpirun() {
    mkdir "$dir/mpi"
    printf '#!/bin/sh\necho "	libmpi.so.40 => /usr/lib/libmpi.so.40"\n' > "$dir/mpi/ldd"
    cat > "$dir/mpi/mpirun" << 'END'
#!/bin/sh
[ "$1" != --version ] || { echo "mpirun (Open MPI) 4.1.4"; exit; }
echo "$*" > "$SAY/mpirun"
env | grep '^[A-Z_]*RANK=\|^WORLD_SIZE=' >> "$SAY/mpirun" || true
END
    chmod +x "$dir/mpi/"*
    mpi() { fresh; run env PATH="$dir/mpi:$PATH" RANK=3 WORLD_SIZE=7 "$launch" "$@"; }
    mpi -n 3 "$rank" a "b c"
    same status $status 0
    has "$SAY/mpirun" "--quiet -n 3 --bind-to none"
    has "$SAY/mpirun" "launch.sh --as-rank plain $rank a b c"
    lacks "$SAY/mpirun" "RANK="
    lacks "$SAY/mpirun" "WORLD_SIZE="
    [ "$(id -u)" != 0 ] || has "$SAY/mpirun" "--allow-run-as-root"
    mpi -n 4000 "$rank"
    has "$SAY/mpirun" "--oversubscribe"
    mpi -n 1 "$rank"
    lacks "$SAY/mpirun" "oversubscribe"
    mpi --hosts "$hosts" -n 6 "$rank"
    has "$SAY/mpirun" "--host me@a:2,b:3,c:1"
    has "$SAY/mpirun" "-x MASTER_ADDR -x MASTER_PORT"
    lacks "$SAY/mpirun" "oversubscribe"
    lacks "$SAY/mpirun" "quiet"              # here its reasons may be about other machines
    cat > "$dir/mpi/mpirun" << 'END'
#!/bin/sh
[ "$1" != --version ] || { echo "mpirun (Open MPI) 4.1.4"; exit; }
[ "$1" = --quiet ] || echo "there are not enough slots" >&2
exit 1
END
    mpi -n 3 "$rank"
    same "status of an mpirun that cannot start" $status 1
    same "what it says" "$(cat "$dir/stderr")" "there are not enough slots"
}

test_launch_runs_mpi() {
    command -v mpicc > /dev/null && command -v mpirun > /dev/null || skip "needs mpicc and mpirun"
    cat > "$dir/program.c" << 'END'
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile sig_atomic_t stop;
static void on_signal(int n) { stop += n; }
static FILE *note(const char *file) {
    char name[1000];
    snprintf(name, sizeof name, "%s/%s", getenv("SAY"), file);
    return fopen(name, "a");
}
int main(int argc, char **argv) {
    int rank;
    char file[20];
    signal(SIGUSR1, on_signal);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc > 1 && rank == atoi(argv[1])) raise(SIGKILL);
    snprintf(file, sizeof file, "%d", rank);
    FILE *own = note(file), *ready = note("ready");
    fprintf(own, "pid %d%s\n", getpid(), isatty(STDOUT_FILENO) ? " terminal" : "");
    fflush(own);
    fprintf(ready, "ready\n");
    fclose(ready);
    for (int i = 0; i < 100 && !stop; i++) usleep(100000);
    usleep(300000);
    if (stop) fprintf(own, "got %s\n", stop == SIGUSR1 ? "USR1" : "several");
    fclose(own);
    MPI_Finalize();
    return stop ? 128 + SIGUSR1 : 0;
}
END
    mpicc "$dir/program.c" -o "$dir/program" || note "the program does not compile"
    in_background 3 -n 3 "$dir/program"
    kill -TERM $launcher
    wait $launcher
    same "status after TERM" $? 143
    each_once 3
    lacks "$dir/stderr" "non-zero"
    lacks "$SAY/0" terminal
    wait_for none_alive
    fresh
    run "$launch" -n 3 "$dir/program" 1
    same "status of a killed rank" $status 137
    # The event library of mpirun may warn of a pipe that it closed in another order than usual.
    same "what it says" "$(grep -v '^\[warn\] Epoll' "$dir/stderr")" \
        "launch.sh: rank 1 was killed by SIGKILL"
    wait_for none_alive
    in_background 3 -n 3 "$dir/program"
    kill -9 $launcher
    wait $launcher 2> /dev/null
    ! setpriv --pdeathsig KILL true || wait_for none_alive
}

# ---- Slurm and the recipe, in a copy of the tree where make, the network and Slurm play along ----

plant_tree() {                              # a copy of the tree in $tree
    tree=$dir/tree
    mkdir -p "$tree/dev" "$tree/data" "$dir/slurm"
    cp -R scripts "$tree/" && cp -R dev/data "$tree/dev/"
    cp "$launch" "$tree/scripts/launch.sh" && cp "$recipe" "$tree/scripts/train.sh"
    printf '#!/bin/sh\necho make "$@" >> "$SAY/calls"\n' > "$dir/slurm/make"
    printf '#!/bin/sh\necho fetch "$@" >> "$SAY/calls"\n' > "$tree/dev/data/fetch_fineweb.sh"
    cp "$tree/dev/data/fetch_fineweb.sh" "$tree/dev/data/fetch_gpt2_vocab.sh"
    printf '#!/bin/sh\necho plot "$@" >> "$SAY/calls"\n' > "$tree/scripts/plot.py"
    printf '#!/bin/sh\nprintf "GPU 0: x\\nGPU 1: y\\n"\n' > "$dir/slurm/nvidia-smi"
    cat > "$dir/slurm/srun" << 'END'
#!/bin/sh
echo "srun at $MASTER_ADDR:$MASTER_PORT $*" >> "$SAY/calls"
[ -z "$SAVED" ] || { mkdir "$RUN/$SAVED" && rm -f "$RUN/latest"; }
case $SAVED in '') ;; step_2) echo "$SAVED" > "$RUN/latest" ;; *) ln -s "$SAVED" "$RUN/latest" ;; esac
exit $STATUS
END
    cat > "$dir/slurm/scontrol" << 'END'
#!/bin/sh
[ "$1" = show ] || { echo "scontrol $*" >> "$SAY/calls"; exit; }
[ "$*" = "show hostnames gpu[07-08]" ] && printf 'gpu07\ngpu08\n'
END
    chmod +x "$dir/slurm/"* "$tree/scripts/"* "$tree/dev/data/"*.sh
}
export SAVED RUN
in_tree() { (cd "$tree" && run env PATH="$dir/slurm:$PATH" "$@"; exit $status); status=$?; }
calls() { sed 's/ [^ ]*train_gpt2cu .*//' "$SAY/calls" 2> /dev/null | xargs; }

dry() { fresh; in_tree scripts/train.sh "$1" --dry-run "${@:2}"; silent "$dir/stderr"; }
value() { sed -n "s/.*train_gpt2cu.* $1 \([^ ]*\).*/\1/p" "$dir/stdout"; }
refuses() {                                 # refuses WORDS ARGS...
    local words=$1
    shift
    fresh
    in_tree "$@"
    same "status of '$*'" $status 1
    same "lines on stderr of '$*'" "$(wc -l < "$dir/stderr" | tr -d ' ')" 1
    has "$dir/stderr" "$words"
    same "calls of '$*'" "$(calls)" ''
}
job() {                                     # job STATUS SAVED ARGS...: a job on 2 x 8 GPUs
    fresh
    STATUS=$1 SAVED=$2 RUN=$tree/out/job
    mkdir -p "$RUN"
    shift 2
    cp "$sbatch" "$dir/spooled"
    (cd / && run env PATH="$dir/slurm:$PATH" SLURM_JOB_ID=120007 SLURM_SUBMIT_DIR="$tree" \
        SLURM_JOB_NODELIST='gpu[07-08]' SLURM_NTASKS=16 SLURM_NNODES=2 \
        bash "$dir/spooled" "$@"; exit $status)
    status=$?
}

test_recipes() {
    plant_tree
    dry d12 --gpus 8
    same "status" $status 0
    same "calls of a dry run" "$(calls)" ''
    same "first words" "$(sed 's/ .*//' "$dir/stdout" | xargs)" "note make \
dev/data/fetch_gpt2_vocab.sh dev/data/fetch_fineweb.sh scripts/launch.sh scripts/plot.py"
    has "$dir/stdout" "scripts/launch.sh -n 8 ./train_gpt2cu --out out/d12 --overwrite "
    # From llm.c's scripts/run_gpt2_124M.sh and the other three; betas and clip are in its
    # train_gpt2.cu.
    local model updates batch lr last folder fetched rest
    while read -r model updates batch lr last folder fetched; do
        dry $model --gpus 8
        for pair in init=$model seq-len=1024 batch-tokens=$batch steps=$updates lr=$lr \
                lr-schedule=cosine warmup-tokens=$((700 * batch)) final-lr-frac=$last \
                weight-decay=0.1 beta1=0.9 beta2=0.95 clip=1 data=$folder; do
            same "--${pair%=*} of $model" "$(value "--${pair%=*}")" "${pair#*=}"
        done
        has "$dir/stdout" "fetch_fineweb.sh $fetched"
        rest=$((batch / 1024 % ($(value --micro-batch) * 8)))
        same "remainder of $model" $rest 0
    done << 'END'
d12 18865 524288 6e-4 0 data/fineweb 100 10B
d24 60000 524288 3e-4 0 data/fineweb100B 316 100B
d36 286102 524288 2.5e-4 0 data/fineweb100B 1030 100B
d48 32000 1048576 6e-4 0.1 data/fineweb_edu 337 edu
END
    for gpus in 1 2 4 8 16 32 64; do
        dry d12 --gpus $gpus
        same "remainder of $gpus GPUs" $((512 % ($(value --micro-batch) * gpus))) 0
        [ "$(value --micro-batch)" -le 32 ] || note "a large micro-batch for $gpus GPUs"
    done
    dry d12
    has "$dir/stdout" "launch.sh -n 2 "
    dry d48 --machines 4 --gpus=8 --hosts "a b" --restart=3 --out=out/x --micro-batch 64
    has "$dir/stdout" 'scripts/launch.sh -n 32 --hosts a\ b --restart 3 ./train_gpt2cu --out out/x'
    same "--micro-batch" "$(value --micro-batch)" 64
    has "$dir/stdout" 'plot.py out/x --out out/x/loss.png'
    dry d12 --gpus 1 --tokens 100000000
    same "steps of 100 million tokens" "$(value --steps)" 190
    has "$dir/stdout" "fetch_fineweb.sh 2 10B"
    [ "$(value --warmup-tokens)" -lt $((190 * 524288 / 20)) ] || note "a long warm-up"
    dry d12 --gpus 1 --tokens 20000000000
    same "steps of more tokens" "$(value --steps)" 38146
    same "their warm-up" "$(value --warmup-tokens)" $((700 * 524288))
    has "$dir/stdout" "fetch_fineweb.sh 103 10B"
    dry d12 --gpus 1 --layers 1 --heads 1 --channels 16
    lacks "$dir/stdout" --init
    dry d12 --gpus 1 --data elsewhere
    lacks "$dir/stdout" fetch
    lacks "$dir/stdout" data/fineweb
    refuses "expected a model, d12, d24, d36 or d48" scripts/train.sh
    refuses "expected a model" scripts/train.sh --gpus 8
    refuses "expected a model" scripts/train.sh d13
    refuses "--gpus: 6 in all do not divide an update of 512 sequences" \
        scripts/train.sh d12 --gpus 6
    refuses "'0' is not a number" scripts/train.sh d12 --gpus 0
    refuses "'x' is not a number" scripts/train.sh d12 --gpus x
    refuses "'1e9' is not a number" scripts/train.sh d12 --gpus 1 --tokens 1e9
    refuses "'99999999999999999999' is not" scripts/train.sh d12 --tokens 99999999999999999999
    refuses "--tokens: 1000 are less than an update" scripts/train.sh d12 --gpus 1 --tokens 1000
    refuses "--gpus: needs a value" scripts/train.sh d12 --gpus
    refuses "several need --hosts FILE" scripts/train.sh d12 --machines 2 --gpus 8
    refuses "LAUNCH is another" env LAUNCH=srun scripts/train.sh d12 --gpus 2 --restart 2
    printf '#!/bin/sh\necho nothing here >&2\nexit 9\n' > "$dir/slurm/nvidia-smi"
    refuses "nvidia-smi finds no GPU" scripts/train.sh d12
}

test_recipe_plans() {
    [ -x "$train" ] || skip "needs $train"
    plant_tree
    cp "$train" "$tree/train_gpt2"
    dry d12 --gpus 8
    has "$dir/stdout" "8 x h100: 80 GB"
    dry d24 --machines 2 --gpus 8 --hosts h --plan-gpu a100,16,300GB/s:8+25GB/s
    has "$dir/stdout" "16 x a100"
    same "calls" "$(calls)" ''
}

test_recipe_trains_and_goes_on() {
    [ -x "$train" ] && [ -x "$prepare" ] || skip "needs $train and $prepare"
    plant_tree
    fresh
    cp "$train" "$tree/train_gpt2cu"
    "$prepare" tales --out "$tree/data/tales" --tokens 30000 > /dev/null || note "no corpus"
    small="--data data/tales --init d4 --seq-len 16 --micro-batch 1 --batch-tokens 16 --out out/s
        --warmup-tokens 0 --eval-tokens 16 --threads 1"
    in_tree scripts/train.sh d12 --gpus 1 $small --steps 2
    same "status" $status 0
    has "$dir/stderr" "32768 times less than the recipe's"       # and --lr as it was: a warning
    same "lines on stderr" "$(wc -l < "$dir/stderr" | tr -d ' ')" 1
    same "calls" "$(calls)" "make -s train_gpt2cu plot out/s --out out/s/loss.png"
    has "$dir/stdout" "about 3.29"
    has "$dir/stdout" "HellaSwag is not measured"
    same "latest" "$(readlink "$tree/out/s/latest")" step_00000002
    in_tree scripts/train.sh d12 --gpus 1 --steps 3 --out out/s
    same "status of going on" $status 0
    same "resumes" "$(grep -c '"event":"resume"' "$tree/out/s/log.jsonl")" 1
    touch "$tree/data/hellaswag_val.jsonl" "$tree/data/gpt2.tiktoken"
    mkdir "$tree/data/fineweb"
    touch "$tree/data/fineweb/fineweb_"{val_000000,train_000001,train_000002}.bin
    dry d12 --gpus 2 --tokens 100000000 --out out/s
    lacks "$dir/stdout" fetch
    has "$dir/stdout" "-n 2 ./train_gpt2cu --resume --out out/s --hellaswag \
data/hellaswag_val.jsonl --hellaswag-every 250"
    dry d12 --gpus 2 --tokens 200000000
    has "$dir/stdout" "fetch_fineweb.sh 3 10B"
    dry d12 --gpus 2 --hellaswag other.jsonl
    lacks "$dir/stdout" hellaswag_val
    rm "$tree/data/hellaswag_val.jsonl"
    printf '#!/bin/sh\nexit 138\n' > "$tree/train_gpt2cu"
    fresh
    in_tree scripts/train.sh d12 --gpus 1 --tokens 100000000
    same "status of a run that was stopped" $status 138
    same "calls" "$(calls)" "make -s train_gpt2cu"
}

test_slurm_job() {
    plant_tree
    job 0 step_1 d12 --tokens 100000000 --out out/job
    same "status" $status 0
    has "$SAY/calls" "--gpu-bind=none ./train_gpt2cu --out out/job --overwrite --data data/fineweb"
    same "calls" "$(calls)" "make -s train_gpt2cu fetch fetch 2 10B srun at gpu07:10014 \
--kill-on-bad-exit=1 --gpu-bind=none plot out/job --out out/job/loss.png"
    has "$SAY/calls" "--micro-batch 32"
    job 138 step_2 d12 --tokens 100000000 --out=out/job
    same "status when its time is up" $status 138
    has "$SAY/calls" "./train_gpt2cu --resume --out out/job"
    has "$SAY/calls" "scontrol requeue 120007"
    job 138 '' d12 --tokens 100000000 --out out/job
    lacks "$SAY/calls" requeue
    job 1 step_3 d12 --tokens 100000000 --out out/job
    lacks "$SAY/calls" requeue
    job 0 step_4 d12 --tokens 100000000 --out out/job
    lacks "$SAY/calls" requeue
    for flag in signal=USR1@180 requeue ntasks-per-node=8 gpus-per-node=8; do
        grep -q "^#SBATCH --$flag\$" "$sbatch" || note "no --$flag"
    done
    ! grep -q "^#SBATCH.*gpus-per-task" "$sbatch" || note "GPUs are hidden from tasks"
    run bash "$sbatch"
    has "$dir/stderr" "sbatch scripts/slurm.sbatch"
    refuses "no scripts/train.sh" env SLURM_JOB_ID=1 SLURM_SUBMIT_DIR=/ bash "$sbatch"
}

# ---- all at once, since they mostly sleep; what they say, in order ----

tests="launch_refuses launch_environment launch_finds_a_port
       launch_exit_status launch_ends_the_others launch_stops
       launch_stops_at_once launch_leaves_no_orphans launch_terminal
       launch_restarts launch_restarts_only_what_goes_on launch_restarts_the_trainer
       launch_hosts launch_hosts_stop launch_hosts_fail
       launch_hosts_restart launch_hosts_listen launch_hosts_leave_no_orphans
       launch_starts_mpirun launch_runs_mpi recipes recipe_plans
       recipe_trains_and_goes_on slurm_job"
for name in $tests; do
    dir=$top/$name
    mkdir -p "$dir/tmp"
    (
        export TMPDIR=$dir/tmp
        test_$name
        end $name
    ) > "$dir/verdict" 2>&1 &
done
wait
for name in $tests; do cat "$top/$name/verdict"; done | tee "$top/verdicts"
! grep -qv '^ok \|^skip ' "$top/verdicts"
