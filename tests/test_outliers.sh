#!/usr/bin/env bash
# --skip-outliers: that it skips the updates whose loss or gradient norm lies too far above those
# before, and no others; that such an update changes no weight; that a resumed run, several ranks
# and the CUDA trainer, emulated, decide alike.
. "$(dirname "$0")/tools.sh"

# A text that a model learns at once, and one page of noise in it. At a constant rate a run of few
# updates is the beginning of a run of many.
for i in $(seq 2000); do echo "the cat sat on the mat, and the rat sat on the hat"; done \
    > "$dir/good"
for i in $(seq 200); do echo $((i * i * 7919 % 100003)); done > "$dir/noise"
"$prepare" text "$dir/noise" "$dir/good" --out "$dir/text" > "$dir/stdout" || exit 1
small="--data $dir/text --layers 1 --heads 2 --channels 16 --seq-len 16 --micro-batch 2 --threads 1
       --batch-tokens 64 --eval-every 0 --eval-tokens 16 --lr 3e-3 --lr-schedule constant --seed 1"
skips="$small --skip-outliers 2"

# decided LOG Z: checks each update's z-score, computed from the log alone; prints the skipped ones.
decided() {
    awk -v z="$2" -v n=0 '
        function value(key) {
            if (!match($0, "\"" key "\":[^,}]*")) return "none"
            return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0
        }
        function score(x, key,    i, m, sum, mean, squares) {
            if (n < 32) return 0
            m = n > 128 ? 128 : n
            for (i = n - m; i < n; i++) sum += x[i]
            mean = sum / m
            for (i = n - m; i < n; i++) squares += (x[i] - mean) ^ 2
            return (value(key) - mean) / sqrt(squares / m)
        }
        /"event":"step"/ || /"event":"skip"/ {
            loss_z = score(losses, "loss"); norm_z = score(norms, "grad_norm")
            far = loss_z > z || norm_z > z
            if (far != ($0 ~ /"event":"skip"/)) print "update " value("step") " is decided wrongly"
            reason = loss_z > z ? "loss" : "norm"
            if (far && !index($0, "\"reason\":\"" reason "\"")) print "wrong reason: " $0
            if (far && (value("loss_z") - loss_z) ^ 2 > 1e-6) print "wrong z-score: " $0
            if (far) print value("step")
            losses[n] = value("loss"); norms[n++] = value("grad_norm")
        }' "$1"
}
# unchanged PROGRAM STEP: whether that update leaves weights and moments as they were; $dir/cut
# then holds a run of so many updates.
unchanged() {
    rm -rf "$dir/cut"
    works "$1" $skips --steps $(($2 - 1)) --out "$dir/cut"
    cp -rL "$dir/cut/latest" "$dir/before"
    works "$1" --resume --steps "$2" --out "$dir/cut"
    for file in model optimizer; do
        cmp -s "$dir/before/$file.safetensors" "$dir/cut/latest/$file.safetensors" || echo $file
    done
    rm -rf "$dir/before"
}
good "$train" $skips --steps 140 --out "$dir/run"
skipped=$(decided "$dir/run/log.jsonl" 2 | xargs) first=${skipped%% *}
case $skipped in '' | *[!0-9\ ]*) note "skipped: '$skipped'"; first=40 ;; esac
[ "$(wc -w <<< "$skipped")" -lt 30 ] || note "skips $(wc -w <<< "$skipped") of 140"
same "what is shown" "$(sed -n 's/^skip *\([0-9]*\)  the .* by [0-9.]* standard deviations$/\1/p' \
    "$dir/stdout" | xargs)" "$skipped"
same "the count" "$(sed -n 's/^{"event":"end".*"skipped":\([0-9]*\).*/\1/p' "$dir/run/log.jsonl")" \
    "$(wc -w <<< "$skipped")"
same "what an outlier changes" "$(unchanged "$train" "$first")" ""
same "what another update changes" "$(unchanged "$train" 32 | xargs)" "model optimizer"
end outliers_are_skipped_and_no_others

good "$train" $small --steps 140 --out "$dir/plain"
good "$train" $small --steps 140 --skip-outliers 100 --out "$dir/far"
grep -q recent_ "$dir/plain/latest/state.json" && note "state.json keeps losses without the flag"
grep -q '"event":"skip"' "$dir/plain/log.jsonl" && note "an update is skipped without the flag"
model=latest/model.safetensors
cmp -s "$dir/plain/$model" "$dir/far/$model" || note "a limit that nothing exceeds changes weights"
cmp -s "$dir/plain/$model" "$dir/run/$model" && note "skipping changes nothing: nothing is shown"
end outliers_are_ordinary_without_the_flag

# ---- resumed; several ranks; the other twin ----

same_end() {                                # same_end WHAT RUN
    for file in model optimizer; do
        cmp -s "$dir/run/latest/$file.safetensors" "$2/latest/$file.safetensors" ||
            note "$1: other bits in $file"
    done
    same "skipped, $1" "$(decided "$2/log.jsonl" 2 | xargs)" "$skipped"
}
for step in 20 "$first"; do                  # few values, and right behind an outlier
    rm -rf "$dir/cut"
    good "$train" $skips --steps "$step" --out "$dir/cut"
    good "$train" --resume --steps 140 --out "$dir/cut"
    same_end "resumed after update $step" "$dir/cut"
done
good "$train" --resume --steps 145 --out "$dir/cut" --skip-outliers 0
grep -q recent_ "$dir/cut/latest/state.json" && note "values are kept after --skip-outliers 0"
end outliers_after_resuming

if [ -x "$mpi_train" ] && command -v mpirun > /dev/null; then
    . tests/ranks.sh
    run timeout -k 5 100 mpirun -n 2 "$mpi_train" $skips --steps 140 --zero 2 --out "$dir/two"
    same "status of two ranks" $status 0
    same "skipped by two ranks" "$(decided "$dir/two/log.jsonl" 2 | xargs)" "$skipped"
    end outliers_of_two_ranks
else
    skip outliers_of_two_ranks "needs mpirun and a trainer built with MPI"
fi

if [ -x "$emulated" ]; then
    works "$emulated" $skips --steps 60 --out "$dir/gpu"
    skipped=$(decided "$dir/gpu/log.jsonl" 2 | xargs) first=${skipped%% *}
    case $skipped in '' | *[!0-9\ ]*) note "skipped: '$skipped'"; first=40 ;; esac
    same "what an outlier changes" "$(unchanged "$emulated" "$first")" ""
    works "$emulated" --resume --steps 60 --out "$dir/cut"
    rm -rf "$dir/run" && mv "$dir/gpu" "$dir/run"
    same_end "resumed after update $first" "$dir/cut"
    end outliers_of_the_other_twin
else
    skip outliers_of_the_other_twin "needs train_gpt2cu-emulated (make emulate)"
fi
exit $failed
