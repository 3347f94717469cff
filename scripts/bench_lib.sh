# What scripts/bench_plan.sh needs to keep its results: `. scripts/bench_lib.sh` in the repository's
# root. BUILD names the build directory.

build=${BUILD:-build}
mkdir -p "$build"
export LC_ALL=C                              # numbers have a point, not a comma
results=${BENCH_RESULTS:-$build/bench.jsonl}
pipes=''

# put_result JSON: appends a result, an object with a name.
put_result() { printf '%s\n' "$1" >> "$results"; }

# Adds them to bench.json, an array: of several with the same name, the last.
write_bench_json() {
    [ -s "$results" ] || return 0
    { [ ! -s bench.json ] || sed '1d; $d; s/,$//' bench.json; cat "$results"; } | awk '
        { match($0, /"name": ?"[^"]*"/); name = substr($0, RSTART, RLENGTH); sub(/: /, ":", name)
          if (!(name in place)) place[name] = ++n
          line[place[name]] = $0 }
        END { print "["; for (i = 1; i <= n; i++) print line[i] (i < n ? "," : ""); print "]" }' \
        > bench.json.part && mv bench.json.part bench.json
}

# median NUMBER...
median() {
    printf '%s\n' "$@" | sort -g | awk '{ x[NR] = $1 }
        END { printf "%.6g\n", NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}
