# Functions of the scripts behind `make bench`: the results file, and timing two programs in turn.
# To be sourced in the repository's root; BUILD names the build directory.
#
# Two programs, left and right, run rounds alternately, so that both see the same state of the
# machine. Each reads a line from its standard input, runs one round, prints the milliseconds that a
# step took, and waits for the next line: `build/bench --rounds` and `dev/reference/gpt2.py bench
# --rounds`. Between rounds they keep what they have loaded and compiled.

build=${BUILD:-build}
mkdir -p "$build"
export LC_ALL=C                              # numbers have a point, not a comma
export BENCH_RESULTS=${BENCH_RESULTS:-$build/bench.jsonl}
unset OPENBLAS_CORETYPE        # it would select another processor's kernels

# put_result JSON: appends a result, an object with a name.
put_result() { printf '%s\n' "$1" >> "$BENCH_RESULTS"; }

# Writes bench.json: an array of all results; of several with the same name, the last.
write_bench_json() {
    [ -s "$BENCH_RESULTS" ] || return 0
    awk '{ match($0, /"name":"[^"]*"/); name = substr($0, RSTART, RLENGTH)
           if (!(name in place)) place[name] = ++n
           line[place[name]] = $0 }
         END { print "["; for (i = 1; i <= n; i++) print line[i] (i < n ? "," : ""); print "]" }' \
        "$BENCH_RESULTS" > bench.json.part && mv bench.json.part bench.json
}

# median NUMBER...
median() {
    printf '%s\n' "$@" | sort -g | awk '{ x[NR] = $1 }
        END { printf "%.6g\n", NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}
quotient() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.6g\n", a / b }'; }

pipes=$(mktemp -d "${TMPDIR:-/tmp}/batchwise.XXXXXX") || exit 1
trap 'stop_contestant left; stop_contestant right; rm -rf "$pipes"' EXIT
trap 'exit 130' INT TERM
trap '' PIPE                   # a contestant may have ended

# start_contestant left|right COMMAND...
start_contestant() {
    local side=$1; shift
    rm -f "$pipes/$side".*
    mkfifo "$pipes/$side.to" "$pipes/$side.from" || exit 1
    "$@" < "$pipes/$side.to" > "$pipes/$side.from" 2> "$pipes/$side.errors" 3>&- 4<&- 5>&- 6<&- &
    echo $! > "$pipes/$side.pid"
    if [ "$side" = left ]; then exec 3> "$pipes/left.to" 4< "$pipes/left.from"
    else exec 5> "$pipes/right.to" 6< "$pipes/right.from"; fi
}

stop_contestant() {
    [ -f "$pipes/$1.pid" ] || return 0
    kill "$(cat "$pipes/$1.pid")" && wait "$(cat "$pipes/$1.pid")"
    rm -f "$pipes/$1.pid"
    if [ "$1" = left ]; then exec 3>&- 4<&-; else exec 5>&- 6<&-; fi
} 2> /dev/null

# time_contestant left|right SECONDS: prints one round's milliseconds a step; fails after SECONDS.
time_contestant() {
    sleep "${BENCH_PAUSE:-0.2}"                  # the other side's threads stop
    if [ "$1" = left ]; then echo >&3; read -r -t "$2" answer <&4
    else echo >&5; read -r -t "$2" answer <&6; fi 2> /dev/null
    case $answer in [0-9]*) echo "$answer" ;; *) return 1 ;; esac
}

# in_turn ROUNDS SECONDS: a warm-up round, then ROUNDS rounds of each side. Sets $left and $right to
# their medians, and $ratio to the median of right / left: how many times as fast the left side is.
# Fails, with the reason in $why, if a side gives no answer within SECONDS.
in_turn() {
    local lefts='' rights='' ratios='' i=0 side ms
    while [ $i -le "$1" ]; do
        for side in left right; do
            if ! ms=$(time_contestant $side "$2"); then
                why=$(tail -n 1 "$pipes/$side.errors")
                why=${why:-no answer within $2 seconds}
                return 1
            fi
            if [ $side = left ]; then left=$ms; else right=$ms; fi
        done
        i=$((i + 1))
        [ $i -gt 1 ] || continue                 # the warm-up round
        lefts="$lefts $left" rights="$rights $right"
        ratios="$ratios $(quotient "$right" "$left")"
    done
    left=$(median $lefts) right=$(median $rights) ratio=$(median $ratios)
}
