#!/usr/bin/env bash
# Runs test programs and adds up their lines: `ok NAME`, `FAIL NAME: why`, `skip NAME: what it lacks`.
#
#     tests/run.sh PROGRAM...
#
# NO_SKIP names tests, separated by spaces, that must not be skipped ("all": none may be, but those
# that MAY_SKIP names); CI sets it.
set -u
export OMP_WAIT_POLICY=passive      # tests share a machine with other work
passed=0 failed=0 skipped=0
output=$(mktemp) && trap 'rm -f "$output"' EXIT

must_run() {
    case " ${MAY_SKIP:-} " in *" $1 "*) return 1 ;; esac
    case " ${NO_SKIP:-} " in *" all "* | *" $1 "*) return 0 ;; *) return 1 ;; esac
}

for program in "$@"; do
    start=$SECONDS
    case $program in
        *.py) "${PYTHON:-python3}" "$program" ;;
        *.sh) bash "$program" ;;
        *) "$program" ;;
    esac >"$output" 2>&1
    status=$?
    fails=$(grep -c '^FAIL ' "$output") oks=$(grep -c '^ok ' "$output")
    while read -r _ name why; do
        if must_run "${name%:}"; then
            echo "FAIL ${name%:}: must not be skipped, and lacks: $why"
            failed=$((failed + 1))
        else
            skipped=$((skipped + 1))
        fi
    done < <(grep '^skip ' "$output")
    [ -t 1 ] && color='--color=auto' || color='--color=never'
    grep $color -v '^$' "$output"
    # A program that ends badly has failed, whatever it printed; so has one that printed nothing.
    if [ "$status" -ne 0 ] && [ "$fails" -eq 0 ]; then
        echo "FAIL $program: exit status $status"
        fails=1
    elif ! grep -qE '^(ok|FAIL|skip) ' "$output"; then
        echo "FAIL $program: no test ran"
        fails=1
    fi
    passed=$((passed + oks)) failed=$((failed + fails))
    [ $((SECONDS - start)) -ge 10 ] && echo "    ($program took $((SECONDS - start)) s)"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
