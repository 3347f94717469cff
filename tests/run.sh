#!/usr/bin/env bash
# Runs test programs, two side by side, and adds up their lines: `ok NAME`, `FAIL NAME: why`,
# `skip NAME: what it lacks`. A program's lines appear together, when it ends. The last lines name
# the tests that failed, if any did, and count.
#
#     tests/run.sh PROGRAM...
#
# JOBS       programs that run side by side; default 2
# NO_SKIP    if set, no test may be skipped, but those that MAY_SKIP names; CI sets both
# LIMIT      seconds after which a program that still runs is ended, and has failed; CI sets it
set -um                             # a process group for each program: Ctrl-C ends all of it
export OMP_WAIT_POLICY=passive      # tests share a machine with other work

# These take longest, so they come first: nothing then waits for one that began last.
longest=" test_exercises.py test_cuda_ranks.sh test_build.sh test_profile.sh test_lab_tiny.py "
longest+="test_ranks.sh test_ladders.py test_lessons.py test_web.py test_build_up.py test_tools.sh "

dir=$(mktemp -d) && mkfifo "$dir/ended" && exec 3<> "$dir/ended" || exit 1
leave() {
    for group in $(jobs -p); do kill -- "-$group"; done 2> /dev/null
    wait 2> /dev/null
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0 running=0 failures=

output_of() { echo "$dir/${1//\//_}.output"; }

run_program() {                     # run_program PROGRAM: then its name, status and seconds to fd 3
    local start=$SECONDS
    local run=(${LIMIT:+timeout -k 9 "$LIMIT"})
    case $1 in
        *.py) run+=("${PYTHON:-python3}" -u) ;;
        *.sh) run+=(bash) ;;
    esac
    ${run[@]+"${run[@]}"} "$1" > "$(output_of "$1")" 2>&1 < /dev/null 3>&-
    echo "$1 $? $((SECONDS - start))" >&3
}

fail() {                            # fail NAME WHY: beside what the programs print themselves
    echo "FAIL $1: $2"
    failed=$((failed + 1)) failures+=" $1"
}

count() {                           # count PROGRAM STATUS: shows its lines and adds them up
    local output fails oks name why
    output=$(output_of "$1")
    fails=$(grep -c '^FAIL ' "$output") oks=$(grep -c '^ok ' "$output")
    while read -r _ name why; do
        if [ -n "${NO_SKIP:-}" ] && [[ " ${MAY_SKIP:-} " != *" ${name%:} "* ]]; then
            fail "${name%:}" "must not be skipped, and lacks: $why"
        else
            skipped=$((skipped + 1))
        fi
    done < <(grep '^skip ' "$output")
    grep -v '^$' "$output"
    passed=$((passed + oks)) failed=$((failed + fails))
    for name in $(sed -n 's/^FAIL \([^ :]*\).*/\1/p' "$output"); do failures+=" $name"; done
    # A program that ends badly has failed, whatever it printed; so has one that printed nothing.
    if [ "$2" -ne 0 ] && [ "$fails" -eq 0 ]; then
        why="exit status $2"
        [ "${LIMIT:+$2}" != 124 ] || why="still ran after $LIMIT s"
        fail "$1" "$why"
    elif ! grep -qE '^(ok|FAIL|skip) ' "$output"; then
        fail "$1" "no test ran"
    fi
}

finish_one() {                      # waits until a program ends
    local program status seconds
    read -r program status seconds <&3
    count "$program" "$status"
    echo "$seconds $program" >> "$dir/seconds"
    running=$((running - 1))
}

for program in "$@"; do
    case $longest in
        *" ${program##*/} "*) first+=("$program") ;;
        *) others+=("$program") ;;
    esac
done
for program in ${first[@]+"${first[@]}"} ${others[@]+"${others[@]}"}; do
    [ $running -lt "${JOBS:-2}" ] || finish_one
    run_program "$program" &
    running=$((running + 1))
done
while [ $running -gt 0 ]; do finish_one; done
slowest=$(sort -rn "$dir/seconds" | head -n 12 | sed 's/\([0-9]*\) \(.*\)/\2 \1 s,/' | xargs)
[ $# -lt 5 ] || echo "slowest: ${slowest%,}"
[ -z "$failures" ] || echo "failed:$failures"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
