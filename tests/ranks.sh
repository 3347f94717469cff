# What the tests that start many ranks share; sourced after tests/tools.sh.

# As root, with more ranks than cores, and ranks that wait politely: for Open MPI.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
export OMPI_MCA_pml=ob1                     # without a search for other networks: 0.2 s a start
export OMPI_CC=$cc MPICH_CC=$cc
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE PMI_RANK PMI_SIZE OMPI_COMM_WORLD_RANK

needs() {                                   # needs TOOL...: or every test in $tests is skipped
    local tool
    for tool in "$@"; do command -v "$tool" > /dev/null || skip_all "there is no $tool here"; done
}

# ---- ranks that run: the processes of a $program in $dir ----

ranks_here() {                              # the processes of $program: PID RANK
    ps -A -o pid= -o command= | awk -v at="$dir/" 'index($2, at) == 1 { print $1 }' |
        while read -r pid; do
            echo "$pid $(tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null |
                sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p' | head -n 1)"
        done
}
pid_of() { ranks_here | awk -v rank="$1" '$2 == rank { print $1 }'; }
nobody_is_left() {
    for _ in $(seq 200); do [ -z "$(ranks_here)" ] && return; sleep 0.1; done
    note "processes are left: $(ranks_here | xargs)"
    leave_nobody
}
leave_nobody() { ranks_here | while read -r pid _; do kill -9 "$pid" 2> /dev/null; done; }

# ---- starting ranks ----

# Whether mpirun itself did not come up, as happens on a machine that runs several: it alone speaks.
never_began() {
    [ $status = 1 ] && [ ! -s "$dir/stdout" ] && grep -q '^-----' "$dir/stderr" &&
        ! grep -q '^train_gpt2' "$dir/stderr" &&
        echo "    mpirun did not start: $(grep '[a-z]' "$dir/stderr" | head -n 12 | tr '\n' ' ')"
}
free_port() {          # below what the kernel gives to others; the ranks take the one after it
    local port
    while :; do
        port=$((RANDOM % 12000 + 20000))
        (exec 3<> "/dev/tcp/127.0.0.1/$((port + 1))") 2> /dev/null || break
    done
    echo $port
}
mpi() {                                     # mpi N ARGS...: that many ranks of $program
    local launch="mpirun -n $1" start
    [ "$program" != "$train" ] || launch=               # it was built for one rank
    start=(timeout -k 5 300 $launch "$program" --threads 1 "${@:2}")
    [ -z "${MASTER_ADDR:-}" ] || export MASTER_PORT=$(free_port)        # where GPUs' ranks meet
    run "${start[@]}"
    ! never_began || run "${start[@]}"
}
good() {                                    # good N ARGS...: ends well, with nothing on stderr
    mpi "$@"
    [ $status = 0 ] || note "status $status of '$*': $(grep -m 1 '[a-z]' "$dir/stderr")"
    ! grep -q . "$dir/stderr" || note "'$*' writes to stderr: $(head -n 1 "$dir/stderr")"
}
# One line of ours, whatever mpirun says after it; status 1; nothing made.
refused() {                                 # refused WORDS COMMAND...
    local ours='^train_gpt2[a-z-]*: '
    run timeout -k 5 60 "${@:2}" --out "$dir/no"
    same "status of '${*:2}'" $status 1
    same "lines of '${*:2}'" "$(grep -c "$ours" "$dir/stderr")" 1
    grep "$ours" "$dir/stderr" | grep -qF -e "$1" ||
        note "'${*:2}' says '$(grep -m 1 '[a-z]' "$dir/stderr")', without '$1'"
    [ ! -e "$dir/no" ] || note "'${*:2}' leaves $(find "$dir/no" | xargs) behind"
    rm -rf "$dir/no"
}
refuses() {                                 # refuses WORDS N ARGS...: as N ranks of $program
    [ -z "${MASTER_ADDR:-}" ] || export MASTER_PORT=$(free_port)
    refused "$1" mpirun -n "$2" "$program" --threads 1 "${@:3}"
}
shown() {                                   # stdout, which some mpiruns make a terminal
    tr '\r' '\n' < "$dir/stdout" | sed "s/$(printf '\033')\[K//g" | grep .
}
told() { grep -q -e "$1" "$dir/stdout" || note "$2: $(grep -m 1 '^ranks' "$dir/stdout")"; }

# ---- a table of runs, with what each must equal, for the CPU's trainer and the CUDA twin alike ----

# row RUN RANKS LIKE HOW WORD...: so many ranks of $program, with $base and the words, make RUN.
#     LIKE   the run that it is compared with; `-`: none; RUN@STEP: it goes on from that checkpoint
#     HOW    `bits`: the same; a number: `agree` to that; `other`: not the same bits; or A,B: both
#     WORD   a flag; on=PROGRAM, for another than $program; or a VARIABLE=value
row() {
    local name=$1 ranks=$2 like=${3%@*} how=$4 from=$3 program=$program flags=$base first=1 word
    shift 4
    rm -rf "${dir:?}/$name"
    if [ "$from" != "$like" ]; then
        flags=--resume first=$((${from#*@} + 1))
        cut_at "${from#*@}" "$like" "$name"
    fi
    for word in "$@"; do
        case $word in
            on=*) program=${word#on=} program=${!program} ;;
            [A-Z]*=*) local -x "${word?}" ;;
            *) flags+=" $word" ;;
        esac
    done
    good "$ranks" $flags --out "$dir/$name"
    for word in ${how//,/ }; do
        case $word in
            -) ;;
            bits) same_files "$like" "$name" ;;
            other) other_weights "$like" "$name" ;;
            *) agree "$like" "$name" "$word" "$first" ;;
        esac
    done
}
rows() {                                    # a table on stdin, a row a line; `+`: for FAULTS=1
    local line
    while read -r line; do
        [[ $line = +* && -z ${FAULTS:-} ]] || row ${line#+}
    done
}
some() { sed -E "/^($1) / ! s/^\+?/+/"; }   # some NAME|NAME...: of a table; FAULTS=1: the others

# A tiny model, whose slices are not alike, and 4 micro-batches for 1, 2 and 4 ranks. At a higher
# learning rate what two runs differ by would grow from update to update, whatever it was.
common="--data $dir/tales --micro-batch 2 --lr 1e-3 --lr-schedule constant --warmup-tokens 400
        --eval-every 0 --eval-tokens 100 --save-every 2 --keep 0 --steps 4"
tiny="$common --seq-len 8 --batch-tokens 64 --layers 3 --heads 1 --channels 24"
# Measured: losses apart by 7e-9, norms by 5e-8, weights by 2e-7.
sums() { cat << 'ROWS'
one       1  -         -
wide      1  one       2e-7         --micro-batch 4
zero0     2  one       2e-7,other   --zero 0
zero1     2  one       2e-7
zero2     2  one       2e-7         --zero 2
zero3     2  one       2e-7         --zero 3
four0     4  one       2e-7         --zero 0 --no-overlap
four3     4  one       2e-7         --zero 3
in_turn   4  four3     bits         --zero 3 --no-overlap
three     1  -         -            --batch-tokens 48
+three1   3  three     2e-7         --batch-tokens 48
three2    3  three     2e-7         --batch-tokens 48 --zero 2
exact1    1  one       2e-7         --exact-sum --micro-batch 1
exact2    2  exact1    bits         --exact-sum --micro-batch 1
exact4    4  exact1    bits         --exact-sum --micro-batch 1
again1    2  zero1@2   bits
again3    4  four3@2   bits
onto3     4  one@2     2e-7         --zero 3
onto1     1  four3@2   2e-7
onto2     3  zero2@2   -            --batch-tokens 48
rounds    2  -         -            --outer-every 2
rounds2   2  rounds@2  bits
rounds4   4  rounds@2  -
ROWS
}

# Ranks that share each layer. An odd vocabulary of 257, T = 7, two micro-batches.
layers="$common --seq-len 7 --batch-tokens 28 --layers 2 --heads 4 --channels 32"
# With --lr 100 and no decay one update of SGD leaves 100 times the gradient, beside which the
# initial weights are small.
gradient="--optimizer sgd --lr 100 --weight-decay 0 --warmup-tokens 0 --clip 0 --steps 1"
shares() { cat << ROWS
whole     1  -         -
share2    2  whole     2e-6         --tensor-parallel 2
share4    4  whole     2e-6         --tensor-parallel 4
group1    4  whole     2e-6         --tensor-parallel 2
group3    4  whole     2e-6         --tensor-parallel 2 --zero 3
slope     1  -         -            $gradient
slope4    4  slope     1e-6         $gradient --tensor-parallel 4
again4    4  share4@2  bits
onto_one  1  share4@2  2e-6         --tensor-parallel 1
onto_two  4  whole@2   2e-6         --tensor-parallel 2
workers   2  -         -            --outer-every 2
workers4  4  workers   2e-6         --outer-every 2 --tensor-parallel 2
workers_  4  workers4@2 bits
noise     2  -         -            --zero 0 --noise-scale --average-tokens 50
noise4    4  noise     2e-6         --zero 0 --noise-scale --average-tokens 50 --tensor-parallel 2
few       1  -         -            --data $dir/words
few4      4  few       2e-6         --data $dir/words --tensor-parallel 4
ROWS
}
# A vocabulary smaller than 16 words a rank; of 5 words on 4 ranks the last rank has none.
few_words() {                               # few_words: makes that data
    mkdir "$dir/words"
    { int32 20240520 1 600 5
      head -c 1008 /dev/zero
      printf "$(awk 'BEGIN { for (; t < 600; t++) { x = (x*x + t) % 5; printf "\\%03o\\0", x } }')"
    } | tee "$dir/words/train.bin" > "$dir/words/val.bin"
}

# ---- what a rank keeps and sends ----

middle="$common --micro-batch 1 --seq-len 8 --warmup-tokens 0 --steps 2 --layers 4 --heads 2
        --channels 64"                                  # slices alike, nearly
# What of $middle a rank keeps, in bytes a parameter, and sends for an update, in bytes: n ranks, A
# micro-batches, gradients of g bytes, parameters of p bytes, beside which a GPU keeps fp32 masters.
#     stages 0, 1   2 Psi (n-1)/n         gradients there, sums (0) or parameters (1) back
#     stage 2       (A+1) Psi (n-1)/n     gradients in every micro-batch
#     stage 3       gradients as in 2, and parameters gathered: embeddings and final norm once an
#                   update, two blocks as well, the others before each use, forward and backward
formula() {                                 # formula STAGE RANKS A G P VOCABULARY
    awk -v stage="$1" -v n="$2" -v A="$3" -v g="$4" -v p="$5" -v V="$6" 'BEGIN {
        L = 4; C = 64; ends = (V + 8)*C + 2*C; block = 12*C*C + 13*C; psi = ends + L*block
        split(p == 4 ? "16 " 8 + 8/n " " 4 + 12/n " " 16/n \
                     : "18 " 6 + 12/n " " 2 + 16/n " " 18/n, kept, " ")
        gathered = stage == 0 ? g*psi : stage < 3 ? p*psi : p*(ends + (2 + 2*A*(L - 2))*block)
        print kept[stage + 1], psi, (n - 1)/n * (g*psi*(stage < 2 ? 1 : A) + gathered) }'
}
# keeps_and_sends STAGE RANKS A TYPE: TYPE is that of gradients on their way. Sets $bytes_p, $words.
keeps_and_sends() {
    local kept psi sent what="at stage $1, $2 ranks x $3 micro-batches, $4"
    read -r kept psi sent <<< "$(formula "$1" "$2" "$3" $([ "$4" = fp32 ] && echo 4 || echo 2) \
        "$bytes_p" "$words")"
    rm -rf "$dir/kept"
    good "$2" $middle --batch-tokens $((8 * $2 * $3)) --zero "$1" --comm-dtype "$4" --no-overlap \
        --out "$dir/kept"
    near "bytes a parameter $what" "$(for key in params grads moments; do
        last start bytes_$key kept; done | awk -v psi="$psi" '{ n += $1 } END { print n / psi }')" \
        "$kept" 0.05
    near "bytes sent $what" "$(last step bytes_sent kept)" "$sent" 0.02
}
