#!/usr/bin/env bash
# One program, and ranks around it: that an update of one rank stays in few functions and files,
# that layers know of no ranks, and that a hook or a sum that is left out is found.
#
# HOOKS=1 leaves out each in turn, not one in nine.
. "$(dirname "$0")/tools.sh"
. tests/ranks.sh

"$prepare" tales --out "$dir/tales" --tokens 60000 --seed 5 > "$dir/stdout" || exit 1
tiny="--data $dir/tales --layers 3 --heads 2 --channels 32 --seq-len 16 --micro-batch 2
      --batch-tokens 128 --steps 6 --lr 3e-3 --eval-every 0 --eval-tokens 64 --threads 1"

# ---- one steady update, traced ----

cat > "$dir/trace.c" << 'C'
#include <stdio.h>
#define QUIET __attribute__((no_instrument_function))
int trace_on;
static void *seen[1 << 16];
QUIET void __cyg_profile_func_enter(void *f, void *site) {
    size_t i = ((size_t)f >> 4) * 2654435761u & 65535;
    (void)site;
    if (!trace_on) return;
    while (seen[i] && seen[i] != f) i = (i + 1) & 65535;
    seen[i] = f;
}
QUIET void __cyg_profile_func_exit(void *f, void *site) { (void)f, (void)site; }
QUIET void trace_show(void) {
    for (int i = 0; i < 1 << 16; i++) if (seen[i]) fprintf(stderr, "traced %p\n", seen[i]);
}
C
# traced PLAIN MOST FILES: an update's functions, at most so many in so many files.
tracing="gcc -std=gnu11 -g -O0 -no-pie -finstrument-functions -march=native -w -iquote ."
traced() {
    sed 's/^\( *\)train_step(r, m, &s);/\1trace_on = r->step == 4;\n&\n\1if (trace_on) trace_show(), trace_on = 0;/
         1s/^/extern int trace_on; void trace_show(void);\n/' train_gpt2.c > "$dir/traced.c"
    $tracing -DPLAIN="$1" "$dir/traced.c" "$dir/trace.c" "$dir/traced.a" -o "$dir/traced" -lm \
        2> "$dir/said" ||
        { note "it does not compile: $(head -n 1 "$dir/said")"; return; }
    "$dir/traced" $tiny > "$dir/stdout" 2> "$dir/stderr" || note "the traced run fails"
    sed -n 's/^traced //p' "$dir/stderr" | addr2line -f -e "$dir/traced" | paste - - |
        sed 's/:[0-9?]*\( (disc.*\)\{0,1\}$//; s#\t.*/#\t#' | sort -u > "$dir/functions"
    local functions files
    functions=$(cut -f 1 "$dir/functions" | sort -u | wc -l) files=$(cut -f 2 "$dir/functions" | sort -u | wc -l)
    echo "    PLAIN=$1: $functions functions in $files files"
    [ "$functions" -gt 30 ] && [ "$functions" -le "$2" ] && [ "$files" -le "$3" ] ||
        note "PLAIN=$1: $functions functions in $files files, at most $2 in $3 are wanted"
}
if command -v gcc > /dev/null && command -v addr2line > /dev/null; then
    library "$dir/traced.a" $tracing
    traced 1 55 7
    traced 0 68 9
    end an_update_is_followed_in_few_files
else
    skip an_update_is_followed_in_few_files "needs gcc and addr2line"
fi

# ---- layers, blocks and AdamW name no rank ----

# parts FILE: the section Layers, block_forward, block_backward and AdamW.
parts() {
    sed -n '/^\/\/ Layers$/,/^\/\/ Model$/p; /^static void block_forward/,/^}/p
            /^static void block_backward/,/^}/p; /adamw_update(/,/^}/p; /adamw_kernel(/,/^}/p' "$1"
}
for file in train_gpt2.c train_gpt2.cu; do
    [ "$(parts $file | wc -l)" -gt 300 ] || note "$file: its sections are not found"
    named=$(parts $file | grep -inE '\branks?\b|\btp_|tpgroup|\bcomm_|diloco|zero_|outer' | head -n 1)
    [ -z "$named" ] || note "$file: $named"
done
end layers_name_no_rank

# ---- a hook or a sum that is left out, and other mistakes: the run then logs other numbers ----

if ! command -v mpicc > /dev/null || ! command -v mpirun > /dev/null; then
    skip a_hook_left_out_is_found "there is no mpicc or no mpirun here"
    exit $failed
fi
mkdir "$dir/tree"
cp -r train_gpt2.c dataloader.h dev "$dir/tree"
# logged RUN PROGRAM: what the updates of one of three ways to share the work log.
logged() {
    local flags
    case $1 in
        zero) flags="2 --zero 3" ;;
        noise) flags="2 --zero 0 --noise-scale --steps 24" ;;
        group) flags="4 --tensor-parallel 2 --zero 2 --micro-batch 1" ;;
    esac
    timeout -k 5 60 mpirun -n ${flags%% *} "$2" $tiny ${flags#* } --out "$dir/ranks" --overwrite \
        > "$dir/stdout" 2> "$dir/stderr" < /dev/null || { echo "status $?"; return; }
    sed -n 's/^{"event":"step".*\("loss":[^,]*\),.*\("grad_norm":[^,}]*\).*/\1 \2/p' \
        "$dir/ranks/log.jsonl"
    grep -o '"noise_scale_adam":[^,}]*' "$dir/ranks/log.jsonl"
}
absolute build
build() {                                   # build PROGRAM [FILE]: with the tree's FILE
    (cd "$dir/tree" && mpicc -DWITH_MPI -pthread -std=gnu11 -O0 -w -fopenmp train_gpt2.c ${2:-} \
        "$build/mpi/library.a" -o "$1" -lm)
}
build "$dir/sound" 2> "$dir/said" || note "it does not compile: $(head -n 1 "$dir/said")"
for run in zero noise group; do
    logged $run "$dir/sound" > "$dir/sound.$run"
    grep -q loss "$dir/sound.$run" || note "a sound run fails: $(cat "$dir/stderr")"
done
grep -q noise_scale_adam "$dir/sound.noise" || note "no noise in Adam's metric"
hooks() { cat << 'HOOKS'
zero|train_gpt2.c|/^void model_forward/,/^}/ s/forward_needs(p, 0);//
zero|train_gpt2.c|/^void model_forward/,/^}/ s/forward_needs(p, 1 + l);//
zero|train_gpt2.c|/^void model_forward/,/^}/ s/forward_needs(p, 1 + L);//
zero|train_gpt2.c|s/backward_needs(&m->params, 0);//
zero|train_gpt2.c|/^void model_backward/,/^}/ s/backward_needs(p, 1 + L);//
zero|train_gpt2.c|/^void model_backward/,/^}/ s/backward_needs(p, 1 + l);//
zero|train_gpt2.c|s/gradients_ready(p, 1 + L);//
zero|train_gpt2.c|s/gradients_ready(p, 1 + l);//
zero|train_gpt2.c|s/gradients_ready(p, 0);//
noise|train_gpt2.c|s/gradients_arrive(r, s);//
zero|train_gpt2.c|s/totals_share(&m->params, &all);//
zero|dev/train/loop.c|s/if (made && r->params->stage > 0) zero_send_params(r->params);//
noise|dev/train/loop.c|s/if (!r->params->alone) model_micro_batch(.*//
noise|dev/ranks/params.c|s/ && !p->measure && p->n_levels == 0;/ || p->measure;/
zero|train_gpt2.c|/^static void block_backward/,/^}/ s/residual_backward(dx, dbranch, N\*C);//
zero|train_gpt2.c|/^static void block_forward/,/^}/ s/gelu_forward(a.gelu, a.fc, N\*4\*Cn);//
group|dev/ranks/tensor.c|/void tp_sum_rows/,/^}/ s/tp_sum(g, out, .*;//
group|train_gpt2.c|s/    branch_input_sum(m, dln[12], N);//
group|train_gpt2.c|s/    if (g->shares .*) tp_sum(g, m->dbranch, N\*C);.*//
group|train_gpt2.c|s/shared ? NULL : b,/b,/
group|dev/ranks/tensor.c|s/part\[N\] \* expf(part\[0\] - hi)/part[N]/
group|dev/ranks/tensor.c|s/return g->index == 0 ||/return true ||/
HOOKS
}
n=0
while IFS='|' read -r run file edit; do
    n=$((n + 1))
    cp "$dir/tree/$file" "$dir/before"
    sed "$edit" "$dir/before" > "$dir/tree/$file"
    cmp -s "$dir/before" "$dir/tree/$file" && note "nothing to leave out in $file: $edit"
    if has_its_turn $n "${HOOKS:-9}"; then
        case $file in dev/*.c) changed=$file ;; *) changed= ;; esac
        build "$dir/faulty" $changed 2> "$dir/said" || note "$edit: $(head -n 1 "$dir/said")"
        logged $run "$dir/faulty" > "$dir/faulty.$run"
        cmp -s "$dir/sound.$run" "$dir/faulty.$run" && note "unnoticed in $file: $edit"
    fi
    cp "$dir/before" "$dir/tree/$file"
done < <(hooks)
echo "    one in ${HOOKS:-9} of $n"
end a_hook_left_out_is_found

exit $failed
