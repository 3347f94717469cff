#!/usr/bin/env bash
# tests/run.sh, on programs made up here: what fails, dies or is silent is not counted as passed.
. "$(dirname "$0")/tools.sh"
run=$PWD/tests/run.sh
unset NO_SKIP MAY_SKIP JOBS
cd "$dir" || exit 1
program() { cat > "$1.sh"; }                # program NAME: its text from standard input
runs() { bash "$run" "$@" > said 2>&1; status=$?; last=$(tail -n 1 said); }

program good <<< 'echo "ok a"; echo "ok b"; echo "skip c: the weather"'
program bad <<< 'echo "ok d"; echo "FAIL e: it is so"; exit 1'
program dies <<< 'echo "ok f"; exit 3'
program silent <<< 'exit 0'
runs good.sh
same "good" "$status $last" "0 2 passed, 0 failed, 1 skipped"
grep '^failed:' said && note "something failed in good.sh"
JOBS=1 runs good.sh bad.sh dies.sh silent.sh
same "all" "$status $last" "1 4 passed, 3 failed, 1 skipped"
grep -q '^FAIL dies.sh: exit status 3$' said || note "no word of the exit status"
grep -q '^FAIL silent.sh: no test ran$' said || note "no word of the silent one"
same "the line before the last" "$(tail -n 2 said | head -n 1)" "failed: e dies.sh silent.sh"
NO_SKIP=all runs good.sh
same "NO_SKIP=all" "$status $last" "1 2 passed, 1 failed, 0 skipped"
same "what must not be skipped" "$(tail -n 2 said | head -n 1)" "failed: c"
NO_SKIP=all MAY_SKIP=c runs good.sh
same "MAY_SKIP=c" "$status $last" "0 2 passed, 0 failed, 1 skipped"
end run_counts

exit $failed
