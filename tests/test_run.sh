#!/usr/bin/env bash
# tests/run.sh, on programs made up here: what it counts, what runs side by side, and its end.
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

# Two programs wait for each other; a third tells that nobody is beside it.
for i in 1 2; do
    program "pair$i" << END
echo "    pair$i begins"; touch here$i
sees() { for _ in \$(seq 600); do [ -e \$1$((3 - i)) ] && return; sleep 0.1; done; false; }
sees here && touch met$i && sees met && sleep 0.$((4 - i)) && echo "ok pair$i"; rm here$i
END
done
program test_bench <<< 'sleep 0.5; [ ! -e here1 ] && [ ! -e here2 ] && echo "ok it"'
runs test_bench.sh pair1.sh pair2.sh good.sh good.sh
same "two jobs" "$status $last" "0 7 passed, 0 failed, 2 skipped"
for i in 1 2; do
    same "after 'pair$i begins'" "$(grep -A 1 "pair$i begins" said | tail -n 1)" "ok pair$i"
done
grep -q '^slowest: .*pair1.sh [0-9]* s' said || note "the slowest are not named"
end run_side_by_side

program waits <<< 'echo $$ > pid; sleep 60 & wait'
bash "$run" waits.sh > said 2>&1 &
wait_for test -s pid
kill -TERM $! && begin=$SECONDS
wait $!
same "status" $? 130
[ $((SECONDS - begin)) -lt 50 ] || note "it waits for its program"
gone() { ! kill -0 "$(cat pid)" 2> /dev/null; }
wait_for gone
end run_stops
exit $failed
