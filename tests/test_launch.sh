#!/usr/bin/env bash
# What starts runs of many ranks: scripts/launch.sh, train.sh, slurm.sbatch, and the commands of
# dev/ranks/README.md, with a program that only writes down what it was given, sleeps and dies, and
# with an srun, torchrun and scontrol that play along. LAUNCH_SH and TRAIN name others to test.
. "$(dirname "$0")/tools.sh"
launch=${LAUNCH_SH:-scripts/launch.sh} page=dev/ranks/README.md
absolute launch train prepare page
top=$dir                                    # each test has a $dir of its own in it
trap 'rm -rf "$top"' EXIT
export LAUNCH_GRACE=1 OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LAUNCH SLURM_JOB_ID
export STOPPED=$((128 + $(kill -l USR1)))

# ---- tools ----

skip() { echo "skip $name: $1"; exit; }      # in a test's subshell
lacks() { ! grep -qF -e "$2" "$1" || note "$(basename "$1") has '$2'"; }

# A program that notes down in $SAY/RANK what it was given and which signals it gets. Rank $1 does,
# after a moment, what $2 says; the others do nothing for a minute, or until they are stopped.
rank=$top/rank
cat > "$rank" << 'END'
#!/usr/bin/env bash
RANK=${RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-}}}
WORLD_SIZE=${WORLD_SIZE:-${OMPI_COMM_WORLD_SIZE:-${SLURM_STEP_NUM_TASKS:-}}}
file=$SAY/$RANK terminal=''
[ ! -t 1 ] || terminal=' terminal'
sleep 60 & sleeper=$!
trap 'echo "got USR1" >> "$file"; sleep ${SAVING:-0}; echo saved >> "$file"; exit '$STOPPED USR1
trap 'kill $sleeper 2> /dev/null' EXIT
{
    echo "pid $$$terminal"
    echo "child $sleeper"
    echo "rank $RANK/$WORLD_SIZE local ${LOCAL_RANK:-}/${LOCAL_WORLD_SIZE:-}"
    echo "at $MASTER_ADDR:${MASTER_PORT:-}"
    printf '<%s>\n' "$@"
} >> "$file"
echo ready >> "$SAY/ready"
case ,$1, in *,$RANK,*) sleep 0.3; eval "$2" ;; esac
wait $sleeper
echo "ended late" >> "$file"
END
chmod +x "$rank"
export SAY SAVING=0
stand_in() { printf '#!/usr/bin/env bash\n%s\n' "$2" > "$dir/bin/$1" && chmod +x "$dir/bin/$1"; }
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
none_alive() {                              # of the ranks and their children
    local pid
    for pid in $(sed -nE "s/^(pid|child) ([0-9]+).*/\2/p" "$SAY"/[0-9]*); do
        ! kill -0 "$pid" || return 1
    done
} 2> /dev/null
stopped() {                                 # stopped N STATUS: N ranks were asked, once each
    wait $launcher 2> /dev/null
    same "status" $? "$2"
    same "requests to stop" "$(cat "$SAY"/[0-9]* | grep -c "^got USR1")" "$1"
    wait_for none_alive
}

# ---- launch.sh ----

test_launch_refuses() {
    while IFS='|' read -r words arguments; do
        fresh
        one_line "launch.sh: $words" "$launch" $arguments
        [ -z "$(ls "$SAY")" ] || note "'$arguments' starts something"
    done << END
expected -n N and a program|$rank
expected -n N and a program|-n 2
expected -n N and a program|-n x $rank
-n: needs a value|-n
--nodes: no such flag|-n 2 --nodes 3 $rank
nowhere: no such program|-n 2 nowhere
END
    good "$launch" -h
    has "$dir/stdout" "The exit status is that of the rank that failed."
    same "its first letter" "$(head -c 1 "$dir/stdout")" S
}

test_launch_environment() {
    fresh
    good "$launch" -n 3 "$rank" 0,1,2 'echo "out $RANK"; exit 0' "b  c" "d'e" '$x"' '*' ''
    same output "$(sort "$dir/stdout" | xargs)" "out 0 out 1 out 2"
    for i in 0 1 2; do
        has "$SAY/$i" "rank $i/3 local $i/3"
        same "arguments" "$(grep '^<' "$SAY/$i" | tail -n 5)" \
            "$(printf '<%s>\n' "b  c" "d'e" '$x"' '*' '')"
        same "place" "$(grep '^at' "$SAY/$i")" "$(grep '^at 127.0.0.1:' "$SAY/0")"
    done
    fresh
    good "$launch" --port 29510 -n 1 "$rank" 0 'exit 0'
    has "$SAY/0" "at 127.0.0.1:29510"
}

# The status is that of the first that fails. It ends the others, even those deaf to SIGTERM.
test_launch_ends_all() {
    fresh
    run "$launch" -n 3 "$rank" 0,1 '[ $RANK = 0 ] || exit 9; trap "" TERM; wait; sleep 60'
    same "status" $status 9
    silent "$dir/stderr"
    wait_for none_alive
    lacks "$SAY/2" "ended late"
    fresh
    LAUNCH_GRACE=4 run "$launch" -n 2 "$rank" 0,1 \
        '[ $RANK = 0 ] || kill -9 $$; sleep 0.8; echo bye; exit 3'
    same "status of a killed rank" $status 137
    same "what it says" "$(cat "$dir/stderr")" "launch.sh: rank 1: status 137, SIGKILL"
    has "$dir/stdout" bye
    wait_for none_alive
    good "$launch" -n 2 "$rank" 0,1 '[ $RANK = 1 ] || sleep 1.5; exit 0'
}

test_launch_stops() {
    local signals="USR1 TERM HUP"
    [ -z "$(trap -p HUP)" ] || signals="USR1 TERM"     # under nohup it is ignored, for good
    for signal in $signals; do
        SAVING=2.5 in_background 3 -n 3 "$rank"     # it saves for longer than the grace
        leader=$(ps -o sid= -p "$(sed -n 's/^pid //p' "$SAY/0")")    # Ctrl-C reaches one session
        [ "$leader" != "$(ps -o sid= -p $launcher)" ] || note "ranks are in launch.sh's session"
        kill -$signal $launcher
        if [ $signal = HUP ]; then sleep 1.5; kill -HUP $launcher; fi     # a terminal may repeat it
        stopped 3 $((128 + $(kill -l $signal)))
        same "ranks that saved" "$(cat "$SAY"/[0-9] | grep -c saved)" 3
        silent "$dir/stderr"
    done
    SAVING=20 in_background 2 -n 2 "$rank"
    kill -TERM $launcher; sleep 2; kill -TERM $launcher
    stopped 2 143
    lacks "$SAY/0" saved
    setpriv --pdeathsig TERM true 2> /dev/null || return
    in_background 3 -n 3 "$rank"
    kill -9 $launcher
    stopped 0 137                            # and nobody is left
}

# With an ldd that takes the program for one of MPI.
test_launch_runs_mpirun() {
    command -v mpirun > /dev/null || skip "needs mpirun"
    stand_in ldd 'echo "	libmpi.so.40 => /usr/lib/libmpi.so.40"'
    SAVING=1 in_background 3 -n 3 "$rank"
    kill -TERM $launcher
    stopped 3 143
    silent "$dir/stderr"
    lacks "$SAY/0" terminal
    fresh
    run "$launch" -n 3 "$rank" 1 'kill $sleeper; kill -9 $$'
    # The event library of mpirun may warn of a pipe that it closed in another order than usual.
    same "what it says" "$(grep -v '^\[warn\] Epoll' "$dir/stderr")" \
        "launch.sh: mpirun: status 137, SIGKILL"
    wait_for none_alive
}

# ---- the commands of dev/ranks/README.md ----

test_page_starts_ranks_on_machines() {
    local skip_flags='while [ "${1#-}" != "$1" ]; do shift; done; for i in $(seq 0 15); do'
    stand_in srun "$skip_flags SLURM_PROCID=\$i SLURM_STEP_NUM_TASKS=16 \"\$@\" & done; wait"
    stand_in torchrun "$skip_flags MASTER_ADDR=gpu1 RANK=\$i WORLD_SIZE=16 \"\$@\" & done; wait"
    for launcher in mpirun MASTER_ADDR=gpu1 torchrun; do
        [ $launcher != mpirun ] || command -v mpirun > /dev/null || continue
        fresh
        good bash -c "$(grep "^$launcher" "$page" | sed "s/gpu[12]:8/localhost:8/g
            s|\./train_gpt2cu .*|$rank \$(seq -s , 0 15) 'exit 0'|")"
        for i in {0..15}; do has "$SAY/$i" "rank $i/16"; has "$SAY/$i" "at gpu1:"; done
    done
}

# A run that was killed, and the loop, whose first attempt is killed too.
test_page_restarts_a_run() {
    [ -x "$train" ] && [ -x "$prepare" ] || skip "needs $train and $prepare"
    "$prepare" tales --out "$dir/tales" --tokens 30000 > /dev/null || note "no corpus"
    "$train" --data "$dir/tales" --layers 1 --heads 2 --channels 16 --seq-len 16 \
        --micro-batch 4 --eval-every 0 --eval-tokens 64 --threads 1 --steps 4000 --save-every 20 \
        --out "$dir/run" > "$dir/stdout" 2>&1 & first=$!
    wait_for test -e "$dir/run/latest"
    kill -9 $first
    wait $first 2> /dev/null
    sed -n "/^until /s|out/four|$dir/run|; s|-n 4 ./train_gpt2|-n 1 $train|; s|scripts/|$PWD/&|
        s|sleep 60|echo again|p" "$page" > "$dir/loop"
    timeout -k 5 120 bash "$dir/loop" > "$dir/stdout" 2> "$dir/stderr" & loop=$!
    wait_for grep -q '"event":"resume"' "$dir/run/log.jsonl"
    kill -9 "$(pgrep -f "^$train --resume --out $dir/run")"
    wait $loop || note "the loop: status $?, $(tail -n 1 "$dir/stderr")"
    same "attempts" "$(grep -c '"event":"resume"' "$dir/run/log.jsonl")" 2
    same "times that it slept" "$(grep -c '^again$' "$dir/stdout")" 1
    same "latest" "$(readlink "$dir/run/latest")" step_00004000
}

# ---- Slurm and the recipe, in a copy of the tree where make, the network and Slurm play along ----

plant_tree() {                              # a copy of the tree in $tree
    tree=$dir/tree
    mkdir -p "$tree/dev" "$tree/data" "$tree/out"
    cp -R scripts "$tree/" && cp -R dev/data "$tree/dev/"
    stand_in make 'echo make "$@" >> "$SAY/calls"'
    stand_in fetch 'echo fetch "$@" >> "$SAY/calls"'
    cp "$dir/bin/fetch" "$tree/dev/data/fetch.sh"
    stand_in plot 'echo plot "$@" >> "$SAY/calls"'
    cp "$dir/bin/plot" "$tree/scripts/plot.py"
    stand_in nvidia-smi 'printf "GPU 0: x\nGPU 1: y\n"'
    stand_in srun 'echo "srun at $MASTER_ADDR:$MASTER_PORT $*" >> "$SAY/calls"
        if [ "$SAVED" ]; then echo "$SAVED" > out/job/latest; fi
        exit $STATUS'
    stand_in scontrol '[ "$1" != show ] || { echo gpu07; exit; }
        echo "scontrol $*" >> "$SAY/calls"'
}
calls() { sed 's/ [^ ]*train_gpt2cu .*//' "$SAY/calls" 2> /dev/null | xargs; }
dry() { fresh; good "$tree/scripts/train.sh" "$1" --dry-run "${@:2}"; }
value() { sed -n "s/.*train_gpt2cu.* $1 \([^ ]*\).*/\1/p" "$dir/stdout"; }

test_recipes() {
    plant_tree
    [ ! -x "$train" ] || cp "$train" "$tree/train_gpt2"
    # From llm.c's scripts/run_gpt2_124M.sh and the other three; betas and clip are in its
    # train_gpt2.cu.
    while read -r model updates batch lr last folder fetched; do
        dry $model --gpus 8
        for pair in init=$model seq-len=1024 batch-tokens=$batch steps=$updates lr=$lr \
                lr-schedule=cosine warmup-tokens=$((700 * batch)) final-lr-frac=$last \
                weight-decay=0.1 beta1=0.9 beta2=0.95 clip=1 data=$folder; do
            same "--${pair%=*} of $model" "$(value "--${pair%=*}")" "${pair#*=}"
        done
        has "$dir/stdout" "fetch.sh fineweb $fetched"
        has "$dir/stdout" "scripts/launch.sh -n 8 ./train_gpt2cu --out out/$model --overwrite "
        same "remainder of $model" $((batch / 1024 % ($(value --micro-batch) * 8))) 0
        dry $model --machines 2 --gpus 8
        has "$dir/stdout" "srun --nodes=2 --ntasks-per-node=8 ./train_gpt2cu "
    done << 'END'
d12 18865 524288 6e-4 0 data/fineweb 100 10B
d24 60000 524288 3e-4 0 data/fineweb100B 316 100B
d36 286102 524288 2.5e-4 0 data/fineweb100B 1030 100B
d48 32000 1048576 6e-4 0.1 data/fineweb_edu 337 edu
END
    same "calls of a dry run" "$(calls)" ''
    LAUNCH="mpirun -n 16" dry d12 --machines 2 --gpus=8 --out=out/x --micro-batch 4
    has "$dir/stdout" 'mpirun -n 16 ./train_gpt2cu --out out/x'
    same "--micro-batch" "$(value --micro-batch)" 4
    has "$dir/stdout" 'plot.py out/x --out out/x/loss.png'
    [ ! -x "$train" ] || has "$dir/stdout" "16 x h100: 80 GB"
    dry d12 --machines 8 --gpus 8
    same "--micro-batch on 64 GPUs" "$(value --micro-batch)" 8
    dry d12 --tokens 100000000
    has "$dir/stdout" "launch.sh -n 2 "
    same "steps of 100 million tokens" "$(value --steps)" 190
    has "$dir/stdout" "fetch.sh fineweb 2 10B"
    same "their warm-up" "$(value --warmup-tokens)" $((700 * 190 / 18865 * 524288))
    while IFS='|' read -r words arguments; do
        one_line "train.sh: $words" "$tree/scripts/train.sh" $arguments
    done << 'END'
expected a model, d12, d24, d36 or d48|--gpus 8
--gpus: 6 in all do not divide an update of 512 sequences|d12 --gpus 6
--gpus: 'x' is not a number|d12 --gpus x
--tokens: 1000 are less than an update|d12 --gpus 1 --tokens 1000
--machines: several need LAUNCH|d12 --machines 2 --gpus 8
END
    same "calls" "$(calls)" ''
}

job() {                                     # job STATUS SAVED ARGS...: on 2 x 8 GPUs
    fresh
    STATUS=$1 SAVED=$2 run env SLURM_JOB_ID=120007 SLURM_SUBMIT_DIR="$tree" SLURM_NTASKS=16 \
        SLURM_JOB_NODELIST='gpu[07-08]' SLURM_NNODES=2 bash scripts/slurm.sbatch "${@:3}"
    same "status of the job" $status "$1"
}
test_slurm_job() {
    plant_tree
    mkdir "$tree/out/job"
    job 0 step_1 d12 --tokens 100000000 --out out/job
    has "$SAY/calls" "--gpu-bind=none ./train_gpt2cu --out out/job --overwrite --data data/fineweb"
    same "calls" "$(calls)" "make -s train_gpt2cu fetch vocabulary fetch fineweb 2 10B srun at gpu07:10014 \
--kill-on-bad-exit=1 --gpu-bind=none plot out/job --out out/job/loss.png"
    mkdir -p "$tree/data/fineweb" && touch "$tree/data/fineweb/fineweb_train_000001.bin"
    job $STOPPED step_2 d12 --tokens 100000000 --out=out/job
    has "$SAY/calls" "./train_gpt2cu --resume --out out/job --steps 190"
    lacks "$SAY/calls" fetch                 # the data is what it began on
    has "$SAY/calls" "scontrol requeue 120007"
    while read -r status saved; do           # ended, failed, or saved nothing
        job "$status" "$saved" d12 --tokens 100000000 --out out/job
        lacks "$SAY/calls" requeue
    done << END
0 step_3
1 step_4
$STOPPED
END
    for flag in signal=USR1@180 requeue ntasks-per-node=8 gpus-per-node=8; do
        grep -q "^#SBATCH --$flag\$" scripts/slurm.sbatch || note "no --$flag"
    done
    one_line "sbatch scripts/slurm.sbatch" bash scripts/slurm.sbatch
}

# ---- all at once, since they mostly sleep; what they say, in order ----

tests="launch_refuses launch_environment launch_ends_all launch_stops launch_runs_mpirun
       page_starts_ranks_on_machines page_restarts_a_run
       recipes slurm_job"
for name in $tests; do
    dir=$top/$name
    mkdir -p "$dir/bin"
    (
        PATH=$dir/bin:$PATH
        test_$name
        end $name
    ) > "$dir/verdict" 2>&1 &
done
wait
for name in $tests; do cat "$top/$name/verdict"; done | tee "$top/verdicts"
! grep -qv '^ok \|^skip ' "$top/verdicts"
