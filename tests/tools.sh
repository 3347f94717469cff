# What the shell tests share. A test begins with
#
#     . "$(dirname "$0")/tools.sh"
#
# which changes to the repository's root and makes $dir, a folder that is removed at the end. A test
# then notes what is wrong, `end NAME` prints the verdict, and the last line is `exit $failed`. A
# test that needs one of these functions otherwise defines it again.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/batchwise.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
export OMP_WAIT_POLICY=passive OMPI_MCA_orte_tmpdir_base=$dir    # tests share a machine
unset MAKEFLAGS MFLAGS MAKELEVEL            # set by a `make test` that runs the test
grep() { command grep -a "$@"; }            # a sample of an untrained model may be no UTF-8

# The programs; the environment may name others.
build=${BUILD:-build} cc=${CC:-cc} cxx=${CXX:-c++}
train=${TRAIN:-./train_gpt2} prepare=${PREPARE:-./prepare} compare=${COMPARE:-$build/compare}
mpi_train=${TRAIN_MPI:-$build/train_gpt2-mpi} emulated=${EMULATED:-./train_gpt2cu-emulated}
absolute() {                                # absolute VARIABLE...: their paths, for a test that cds
    local name
    for name in "$@"; do
        case ${!name} in /*) ;; *) printf -v "$name" %s "$PWD/${!name}" ;; esac
    done
}

# library OUT.a COMPILER FLAGS...: what a trainer links, compiled so.
library() {
    local files=$(ls "$PWD"/dev/{base,cpu,data,files,model,plan,ranks,train}/*.c)
    mkdir -p "$1.d" && (cd "$1.d" && "${@:2}" -c $files && ar rcs "$1" *.o)
}

# ---- verdicts ----

failed=0 why=
note() { why=${why:-"$*"}; }                # keeps the first thing that is wrong
end() {                                     # end NAME: prints the verdict on the test
    if [ -z "$why" ]; then echo "ok $1"; else echo "FAIL $1: $why"; failed=1; fi
    why=
}
skip() {                                    # skip NAME WHAT: what is missing here. It does not
    if [ -z "$why" ]; then echo "skip $1: $2"; else end "$1"; fi     # excuse what is noted already.
}
skip_all() {                                # skip_all WHAT: every test in $tests
    local name
    for name in $tests; do skip "$name" "$1"; done
    exit $failed
}

# ---- checks: each notes what is wrong ----

same() { [ "$2" = "$3" ] || note "$1: '$2', not '$3'"; }
near() {                                    # near WHAT A B TOLERANCE: relative to B
    awk -v a="$2" -v b="$3" -v t="$4" '
        function number(x) { return x ~ /^[-+]?[0-9]*[.]?[0-9]+([eE][-+]?[0-9]+)?$/ }
        BEGIN { d = a - b; if (d < 0) d = -d
                exit !(number(a) && number(b) && d <= t * (b < 0 ? -b : b)) }' ||
        note "$1: '$2', not '$3'"
}
within() {                                  # within WHAT DIFFERENCE LIMIT
    awk -v d="$2" -v t="$3" 'BEGIN { exit !(d ~ /^[0-9.]+(e[-+][0-9]+)?$/ && d <= t) }' ||
        note "$1: apart by $2, not at most $3"
}
has() { grep -qF -e "$2" "$1" || note "$(basename "$1") lacks '$2': $(head -c 300 "$1")"; }
silent() {                                  # silent FILE: it is there, and empty
    [ -f "$1" ] && [ ! -s "$1" ] || note "$(basename "$1") is not empty: $(head -n 3 "$1" 2>&1)"
}
wait_for() {                                # wait_for COMMAND...: up to 40 s, for a busy machine
    local end=$((SECONDS + 40))
    until "$@"; do
        [ $SECONDS -lt $end ] || { note "waited in vain for: $*"; return; }
        sleep 0.05
    done
}

# ---- samples of long lists ----

# Where a test tries one in N of many cases: always the same ones. .ci/nightly tries all.
has_its_turn() { [ $(($1 % $2)) = 0 ]; }               # has_its_turn NUMBER N

# ---- runs ----

lines() { wc -l < "$1" | tr -d ' '; }
int32() {                                   # int32 NUMBER...: as a file holds them, little-endian
    local n
    for n in "$@"; do
        printf "$(printf '\\%03o' $((n & 255)) $((n >> 8 & 255)) $((n >> 16 & 255)) $((n >> 24)))"
    done
}
run() {                                     # run COMMAND...: stdout, stderr, status
    "$@" > "$dir/stdout" 2> "$dir/stderr" < "${input:-/dev/null}"
    status=$?
}
works() {                                   # works COMMAND...: ends well
    run "$@"
    [ $status = 0 ] || note "status $status of '$*': $(head -n 2 "$dir/stderr")"
}
good() {                                    # good COMMAND...: ends well, with nothing on stderr
    works "$@"
    [ ! -s "$dir/stderr" ] || note "'$*' writes to stderr: $(head -n 1 "$dir/stderr")"
}
one_line() {                                # one_line WORDS COMMAND...: status 1, and one line on
    local words=$1                          # stderr, which holds the words
    shift
    run "$@"
    same "status of '$*'" $status 1
    same "lines on stderr of '$*'" "$(lines "$dir/stderr")" 1
    grep -qF -e "$words" "$dir/stderr" || note "'$*' says '$(cat "$dir/stderr")', without '$words'"
}
values() {                                  # values EVENT KEY [LOG]: of each such line of the log;
    local log=${3:-$dir/out}                # a folder stands for the log of the run in it
    [ ! -d "$log" ] || log=$log/log.jsonl
    sed -n "s/^{\"event\":\"$1\"[^}]*\"$2\":\([^,}]*\).*/\1/p" "$log"
}

# ---- comparing runs, by their names in $dir ----

# apart KEY RUN RUN [FIRST]: the largest relative difference of what the steps log, from step FIRST.
apart() {
    paste <(values step "$1" "$dir/$2" | tail -n +"${4:-1}") <(values step "$1" "$dir/$3") | awk '
        NF != 2 { bad = 1 }
        { d = $1 == $2 ? 0 : $2 == 0 ? 1 : $1/$2 - 1; if (d < 0) d = -d; if (d > worst) worst = d }
        END { if (bad || !NR) print "nothing"; else printf "%.1e\n", worst }'
}
# The weights of one tensor that are furthest apart, by its norm; K's bias excluded.
worst() { "$compare" "$dir/$1" "$dir/$2" | sed 's/.*the most, \([^,]*\),.*/\1/'; }
last() { values "$1" "$2" "$dir/$3" | tail -n 1; }     # last EVENT KEY RUN
# agree RUN RUN LIMIT [FIRST]: losses of steps and evaluations by LIMIT; norms, the gradient's noise
# and each tensor's weights by ten times that; the sizes of batches exactly.
agree() {
    local key ten=$(awk "BEGIN { print 10 * $3 }") losses=$(apart loss "$1" "$2" "${4:-1}")
    within "losses of $2 and $1" "$losses" "$3"
    for key in grad_norm noise_g2 noise_s noise_scale_adam; do
        [ -z "$(last step $key "$1")" ] ||
            within "$key of $2 and $1" "$(apart $key "$1" "$2" "${4:-1}")" "$ten"
    done
    within "batches of $2 and $1" "$(apart batch_tokens "$1" "$2" "${4:-1}")" 0
    for key in val_loss val_loss_average train_eval_loss; do
        [ -z "$(last eval $key "$1")" ] ||
            near "$key of $2 and $1" "$(last eval $key "$2")" "$(last eval $key "$1")" "$3"
    done
    within "weights of $2 and $1" "$(worst "$1" "$2")" "$ten"
    echo "    $2 and $1: losses apart by $losses, norms by" \
        "$(apart grad_norm "$1" "$2" "${4:-1}"), weights by $(worst "$1" "$2")"
}
same_files() {                              # same_files RUN RUN: tensors of the last checkpoints
    local file
    for file in $(cd "$dir/$1/latest" && echo *.safetensors); do
        cmp -s "$dir/$1/latest/$file" "$dir/$2/latest/$file" ||
            note "$file of $2 has other bits than $1's"
    done
}
other_weights() {                           # other_weights RUN RUN
    ! cmp -s "$dir/$1/latest/model.safetensors" "$dir/$2/latest/model.safetensors" ||
        note "$2 has the bits of $1: nothing is shown"
}
cut_at() {                                  # cut_at STEP RUN NAME: RUN as it was at STEP, as NAME
    rm -rf "${dir:?}/$3"
    mkdir "$dir/$3"
    cp -r "$dir/$2/step_$(printf %08d "$1")" "$dir/$3"
    ln -s "step_$(printf %08d "$1")" "$dir/$3/latest"
}
