#!/usr/bin/env bash
# The scripts that a user starts: the recipes run from end to end, in a copy of the tree with few
# updates, so what lies in data/ and out/ stays as it is. TRAIN and PREPARE name other binaries.
. "$(dirname "$0")/tools.sh"
data=${BATCHWISE_DATA:-}
for place in ../shared/data data; do
    [ -n "$data" ] || { [ -f "$place/gpt2.tiktoken" ] && data=$place; }
done
vocabulary=${data:-data}/gpt2.tiktoken
export OMP_NUM_THREADS=1
unset MODEL_DIR TEXT

# The copy: scripts, programs that are built already, and so a make that has nothing to do; and
# nothing that could reach a network.
mkdir -p "$dir/tree/dev" "$dir/bin"
cp -R scripts "$dir/tree/" && cp -R dev/data "$dir/tree/dev/"
cp "$train" "$dir/tree/train_gpt2" && cp "$prepare" "$dir/tree/prepare" || exit 1
printf '#!/bin/sh\necho make "$@" >> "%s"\n' "$dir/made" > "$dir/bin/make"
printf '#!/bin/sh\necho no network >&2\nexit 6\n' | tee "$dir/bin/curl" > "$dir/bin/wget"
chmod +x "$dir/bin/"*

copy() {                                    # copy [NAME=VALUE...] scripts/NAME ARGS...: runs there
    rm -f "$dir/made"
    (cd "$dir/tree" && env PATH="$dir/bin:$PATH" "$@")
}
# logged EVENT KEY RUN: of each such line of the run's log, on one line.
logged() { values "$1" "$2" "$dir/tree/$3" | xargs; }

# ---- every script ----

for script in $(find scripts dev/data dev/build_up -name '*.sh' -o -name '*.py'); do
    case $(head -c 2 "$script") in
        '#!') [ -x "$script" ] || note "$script: not executable" ;;
        *) [ ! -x "$script" ] || note "$script: executable, but names no interpreter" ;;
    esac
    if [[ $script = *.sh ]] && grep -qE "awk|printf '[^']*%[.0-9]*[fg]" "$script"; then
        grep -qE '^export LC_ALL=C' "$script" ||
            note "$script: computes with the user's decimal comma"
    fi
done
end scripts_are_executable_and_have_a_point

# ---- the recipes ----

good copy scripts/tales.sh --tokens 4096 --warmup-tokens 0 --eval-tokens 1024 --max-new 8
same "tokens of the last update" "$(logged end tokens out/tales)" 4096
same "layers" "$(logged start layers out/tales)" 2
[ -f "$dir/tree/data/tales/tales_val_000000.floor" ] || note "no tales in data/tales"
end scripts_tales

# The script's own flags give way to those that the user gives.
for length in "--steps 3" "--steps=3 --batch-tokens 1024" "--tokens 2000" \
        "--init out/tales --steps 3"; do
    good copy scripts/tales.sh $length --eval-tokens 1024 --max-new 8 --overwrite
    warmup=$(logged start warmup_tokens out/tales)
    [ "$warmup" -ge 200 ] && [ "$warmup" -le 307 ] || note "$length warms up for $warmup tokens"
done
good copy scripts/tales.sh --resume --steps 5 --eval-tokens 1024 --max-new 8
same "step after --resume" "$(logged end step out/tales | awk '{ print $NF }')" 5
good copy scripts/tales.sh --tokens 200000 --lr-schedule constant --target-loss 10 --eval-every 1 \
    --eval-tokens 1024 --overwrite
same "warm-up of a longer run" "$(logged start warmup_tokens out/tales)" 20000
one_line "give one or the other" copy scripts/tales.sh --tokens 200000 --steps 3
end scripts_tales_gives_way

one_line "holds a run already; --resume continues it" copy scripts/tales.sh --tokens 2000
mv "$dir/tree/train_gpt2" "$dir/away"
printf '#!/bin/sh\necho "$@"\n' > "$dir/tree/train_gpt2"
chmod +x "$dir/tree/train_gpt2"
for tokens in 6000000:1 5000000:0; do       # the model of a run without flags alone is replaced
    printf '{"event":"start","tokens":%d,"x":1}\n' ${tokens%:*} > "$dir/tree/out/tales/log.jsonl"
    good copy scripts/tales.sh
    same "--overwrite of $tokens" "$(grep -c -e --overwrite "$dir/stdout")" ${tokens#*:}
done
mv "$dir/away" "$dir/tree/train_gpt2"
rm -r "$dir/tree/out/tales"
good copy scripts/tales.sh --tokens 2000 --eval-tokens 1024 --max-new 8
end scripts_tales_keeps_a_model

# A class: a laptop measures, and its line, pasted whole and cut, is drawn.
python=${PYTHON:-python3}
if "$python" -c 'import matplotlib' 2> /dev/null; then
    works copy "$python" scripts/class.py --size 35k --target-loss 2.5 --batches 64,512 --seed 3
    tokens=$(grep -o '"tokens": [0-9]*' "$dir/stdout" | head -n 1)
    near "tokens of a batch of 64" "${tokens#*: }" 82427 0.3          # by seed: 72,000 to 95,000
    printf '%s\n%.200s\n' "$(cat "$dir/stdout")" "$(cat "$dir/stdout")" > "$dir/tree/pasted"
    works copy MPLCONFIGDIR="$dir" "$python" scripts/class.py pasted --out class.png
    same "the cut line" "$(cat "$dir/stderr")" \
        "class.py: pasted:2: is cut, or of another loss; left out"
    same "class.png" "$(head -c 4 "$dir/tree/class.png" | tail -c 3)" PNG
    end scripts_class
else
    skip scripts_class "needs matplotlib"
fi

if git rev-parse --is-inside-work-tree > /dev/null 2>&1; then    # as Git for Windows clones
    git -c core.autocrlf=true clone -q . "$dir/clone"
    same "files with Windows' line ends" \
        "$(git -C "$dir/clone" ls-files --eol | grep -c 'w/crlf\|w/mixed')" 0
    end scripts_in_a_clone_on_windows
else
    skip scripts_in_a_clone_on_windows "needs a clone"
fi

sed 's/^/    /' scripts/plot.py tests/*.sh > "$dir/text"
good copy scripts/shakespeare.sh "$dir/text" --steps 3 --warmup-tokens 0 --sample-every 3 \
    --max-new 8
has "$dir/stdout" '--- the model writes ---'
same "updates" "$(logged step step out/shakespeare)" "1 2 3"
same "channels" "$(logged start channels out/shakespeare)" 128
same "make" "$(cat "$dir/made")" "make -s"
one_line "put it at data/tinyshakespeare.txt" copy scripts/shakespeare.sh --steps 3
end scripts_shakespeare

one_line "put it at data/gpt2/config.json" copy scripts/shakespeare.sh --finetune --steps 3
[ ! -e "$dir/tree/out/finetune_shakespeare" ] || note "an output without a model"
end scripts_finetune_says_what_it_lacks

if [ ! -f "$vocabulary" ]; then
    skip scripts_finetune "needs $vocabulary (dev/data/fetch.sh vocabulary)"
    exit $failed
fi

# A GPT-2 of one layer and GPT-2's vocabulary; as a run's directory, and as one from elsewhere.
"$prepare" text "$dir/text" --out "$dir/shards" --tokenizer "$vocabulary" > /dev/null &&
    "$train" --data "$dir/shards" --layers 1 --heads 1 --channels 8 --seq-len 16 --micro-batch 1 \
        --steps 1 --eval-tokens 16 --out "$dir/run" > /dev/null || note "no model to start from"
mkdir "$dir/model"
cp "$dir/run/latest/"{config.json,model.safetensors,tokenizer.json} "$dir/model" || note "no model"
tiny="--seq-len 16 --batch-tokens 256 --eval-tokens 64"

good copy MODEL_DIR="$dir/model" TEXT="$dir/text" scripts/shakespeare.sh --finetune $tiny --steps 3
same "what happens in which order" \
    "$(grep -oE '^--- .* writes|^eval +[0-9]+/[0-9]+' "$dir/stdout" | tr -s ' ' | xargs)" \
    "--- $dir/model writes eval 0/0 eval 3/3 --- out/finetune_shakespeare writes"
same "vocabulary" "$(od -An -t d4 -j 12 -N 4 "$dir/tree/data/shakespeare_gpt2/"*train*.bin |
    tr -d ' ')" 50257
same "init" "$(logged start init out/finetune_shakespeare)" "$dir/model"
same "learning rates" "$(logged step lr out/finetune_shakespeare)" "3e-05 3e-05 3e-05"
same "make" "$(cat "$dir/made")" "make -s"
tuned=$dir/tree/out/finetune_shakespeare/latest/model.safetensors
! cmp -s "$dir/model/model.safetensors" "$tuned" || note "the weights are as before"
end scripts_finetune

rm -rf "$dir/tree/out"                      # its own flags give way, as those of tales.sh do
good copy MODEL_DIR="$dir/run" TEXT="$dir/text" scripts/shakespeare.sh --finetune $tiny --steps 9 \
    --lr 1e-4 --steps=2 --out=out/mine
same "learning rates" "$(logged step lr out/mine)" "0.0001 0.0001"
end scripts_finetune_takes_flags

exit $failed
