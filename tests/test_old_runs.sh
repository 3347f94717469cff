#!/usr/bin/env bash
# Runs that an earlier program (8860b8f) began are continued as it would have continued them. Each in
# tests/fixtures/old_runs.tar.gz was saved at update 4 of 8; `expected` has the weights of the run
# that was not stopped, by gcc 12 for x86-64-v3. BITS=1: equal to the bit (for a build with that
# compiler and NATIVE=-march=x86-64-v3); else to rounding, which other vectors and compilers change.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh

tar -xzf tests/fixtures/old_runs.tar.gz -C "$dir"
runs=$dir/runs
$prepare tales --out "$dir/data" --tokens 20000 --seed 3 > /dev/null

for run in plain averages sgd batch zero3 diloco; do
    mkdir "$dir/$run" && cp -r $runs/$run/step_00000004 "$dir/$run"
    ln -s step_00000004 "$dir/$run/latest"
    case $run in
        zero3 | diloco)
            [ -x "$mpi_train" ] || { skip old_run_$run "$mpi_train"; continue; }
            program=$mpi_train
            mpi 2 --resume --out "$dir/$run" --data "$dir/data"
            same "status: $(head -n 2 "$dir/stderr")" $status 0 ;;
        *)
            run "$train" --resume --out "$dir/$run" --data "$dir/data"
            same "status: $(head -n 2 "$dir/stderr")" $status 0 ;;
    esac
    same "last checkpoint" "$(readlink "$dir/$run/latest")" step_00000008
    if [ "${BITS:-}" = 1 ]; then
        cmp -s $runs/$run/expected/model.safetensors "$dir/$run/latest/model.safetensors" ||
            note "other bits than the run that was not stopped"
    else
        $compare $runs/$run/expected "$dir/$run" 1e-5 > "$dir/apart" 2>&1 || note "$(cat "$dir/apart")"
    fi
    end old_run_$run
done
exit $failed
