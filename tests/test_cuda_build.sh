#!/usr/bin/env bash
# The CUDA side of the Makefile, and tests/gpu.sh, where there need be no GPU: what make finds out
# from a false nvidia-smi and a false nvcc; that the true nvcc, if it is here, compiles for every
# architecture in silence; and what tests/gpu.sh makes of steps that pass, fail and take too long.
. "$(dirname "$0")/tools.sh"
unset CFLAGS SANITIZE OPENMP PRECISION BUILD NVCC GPU_ARCHS OUT MINUTES

tree=$dir/tree
mkdir "$tree" "$dir/bin"
cp -r Makefile train_gpt2.c train_gpt2.cu dataloader.h dev scripts tests "$tree"
rm -rf "$tree/dev/results"

# ---- a machine made up: $dir/gpus has a line for each GPU, or nvidia-smi fails when there is none;
# $dir/archs is what nvcc knows, and it finds NCCL if there is a $dir/nccl.h. Both programs write
# down that they were called. ----

cat > "$dir/bin/nvidia-smi" << STUB
#!/bin/sh
echo "nvidia-smi \$*" >> "$dir/calls"
[ -f "$dir/gpus" ] || { echo "NVIDIA-SMI has failed: no driver"; exit 9; }
case "\$*" in
    *compute_cap*) cat "$dir/gpus" ;;
    *driver_version*) sed 's/.*/999.1/' "$dir/gpus" ;;
    *memory.total*) sed 's/.*/99999 MiB/' "$dir/gpus" ;;
    *=name*) sed 's/.*/NVIDIA Made Up 1/' "$dir/gpus" ;;
    *) echo "| NVIDIA-SMI 999.1   Driver Version: 999.1   CUDA Version: \${MADE_UP_CUDA:-13.9} |" ;;
esac
STUB

# What it "compiles" are scripts: the trainer is its CPU twin, which has the same losses; of several
# ranks, rank 0 does the work of all.
cat > "$dir/bin/nvcc" << STUB
#!/usr/bin/env bash
dir="$dir"
STUB
cat >> "$dir/bin/nvcc" << 'STUB'
case $0 in */cuda-12.8/*) release=12.8 ;; *) release=13.9 ;; esac
echo "nvcc $*" >> "$dir/calls"
case " $* " in
    *" --list-gpu-code "*) cat "$dir/archs"; exit ;;
    *" --version "*) echo "Cuda compilation tools, release $release, V$release.1"; exit ;;
    *" -E "*) read -r _ header; header=${header//[<>]/}; [ -f "$dir/$header" ]; exit ;;
esac
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
case $out in
    *train_gpt2cu) body='# _Z11xent_kernelPf
        [ "${RANK:-0}" = 0 ] || exit 0
        given=()                            # a CPU takes neither --tune nor --graph
        while [ $# -gt 0 ]; do
            case $1 in
                --tune) [[ $2 != */* ]] || echo made up > "$2"; shift ;;
                --tune=*) ;;
                --graph) shift ;;
                *) given+=("$1") ;;
            esac
            shift
        done
        exec env -u RANK -u WORLD_SIZE ./train_gpt2 "${given[@]}" ${MADE_UP_FLAGS:-}' ;;
    *test_gpt2-*) body='echo "${MADE_UP_TESTS:-ok made_up}"   # _Z11xent_kernelPf _Z12adamw_kernelPf
        [[ ${MADE_UP_TESTS:-ok} != FAIL* ]]' ;;
    *bench_cuda) body='echo "made up $*"; exit ${MADE_UP_BENCH:-0}' ;;
    */planted) body='echo _Z17no_barrier_kernelPi' ;;
    *) body='exit 0' ;;
esac
printf '#!/usr/bin/env bash\n%s\n' "$body" > "$out" && chmod +x "$out"
STUB

# A C compiler that has done it all before: make has built the trainer in this very directory.
cat > "$dir/bin/cc" << STUB
#!/bin/sh
root="$PWD"
STUB
cat >> "$dir/bin/cc" << 'STUB'
out=
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
case $out in
    "" | /dev/null) ;;
    *) cp "$root/$out" "$out" 2> /dev/null || : > "$out" ;;
esac
STUB

# A tool that reports what is planted, unless it is the one that $MADE_UP_BLIND names.
cat > "$dir/bin/compute-sanitizer" << 'STUB'
#!/usr/bin/env bash
case " $* " in
    *" --help "*) echo "--kernel-name --launch-timeout"; exit ;;
    *"/planted ${MADE_UP_BLIND:-none} "*) exit 0 ;;
    *" racecheck "*"/planted "*)
        [[ " $* " == *" --kernel-name kns=_Z17no_barrier_kernel "* ]] && exit 3 ;;
    *"/planted "*) exit 3 ;;
    *" racecheck "*) [[ " $* " == *" --kernel-name kns=_Z11xent_kernel "* ]] &&
        [[ " $* " != *" kns=_kernel "* ]] || exit 1 ;;
esac
STUB
chmod +x "$dir/bin"/*
PATH=$dir/bin:$PATH

touch "$dir/cublasLt.h"
nvcc_knows() { printf 'sm_%s\n' "$@" > "$dir/archs"; }
nvcc_knows 75 80 86 90 100 120
gpus() { if [ $# -gt 0 ]; then printf '%s\n' "$@" > "$dir/gpus"; else rm -f "$dir/gpus"; fi; }
called() { grep -c "^$1" "$dir/calls"; }

# ---- nothing is asked unless it must be ----

gpus 9.0
: > "$dir/calls"
for target in all test test-c bench emulate clean help; do
    make -C "$tree" -n $target > /dev/null 2>&1
done
same "what make all, test, bench and so on call" "$(cat "$dir/calls")" ""
end cuda_is_not_looked_for_unless_needed

# ---- architectures ----

# flags ARGS...: what nvcc would be called with.
flags() { make -C "$tree" -n "$@" train_gpt2cu 2>&1 | grep -e '-o train_gpt2cu'; }
archs() { flags "$@" | grep -oE 'arch=[^ ]*' | sed 's/arch=compute_//; s/,code=/:/' | xargs; }
fallback="80:sm_80 90:sm_90 100:sm_100 100:compute_100"

gpus 9.0
same "one GPU" "$(archs)" "90:sm_90 90:compute_90"
gpus 9.0 8.0 9.0 9.0
same "four GPUs of two kinds" "$(archs)" "80:sm_80 90:sm_90 90:compute_90"
gpus 10.0 8.6
same "10.0 is later than 8.6" "$(archs)" "86:sm_86 100:sm_100 100:compute_100"
gpus
same "nvidia-smi fails" "$(archs)" "$fallback"
gpus "No devices were found"
same "nvidia-smi finds none" "$(archs)" "$fallback"
gpus "[N/A]"
same "nvidia-smi does not know" "$(archs)" "$fallback"
gpus 12.1
same "a GPU that nvcc does not know" "$(archs)" "$fallback"
gpus 12.1 9.0
same "and one that it does" "$(archs)" "90:sm_90 90:compute_90"
gpus 7.5
same "a GPU without bf16" "$(archs)" "$fallback"
same "the same in fp32" "$(archs PRECISION=fp32)" "75:sm_75 75:compute_75"
gpus 9.0
: > "$dir/calls"
same "GPU_ARCHS by hand" "$(archs GPU_ARCHS="86 120")" "86:sm_86 120:sm_120 120:compute_120"
same "GPU_ARCHS in the environment" "$(GPU_ARCHS=86 archs)" "86:sm_86 86:compute_86"
same "calls of nvidia-smi for GPU_ARCHS given" "$(called nvidia-smi)" 0
archs > /dev/null
same "calls of nvidia-smi for one make" "$(called nvidia-smi)" 1
gpus
nvcc_knows 75 80 90
same "an older nvcc" "$(archs)" "80:sm_80 90:sm_90 90:compute_90"
nvcc_knows 75 80 86 90 100 120
mv "$dir/bin/nvidia-smi" "$dir/hidden"
command -v nvidia-smi > /dev/null || same "no nvidia-smi" "$(archs)" "$fallback"
mv "$dir/hidden" "$dir/bin/nvidia-smi"
end cuda_architectures_are_detected

# ---- precision, and what is built anew when ----

gpus 9.0
[[ $(flags) == *PRECISION* ]] && note "bf16 is not the default"
[[ $(flags PRECISION=bf16) == *-DPRECISION_FP32* ]] && note "PRECISION=bf16 gives fp32"
[[ $(flags PRECISION=fp32) == *-DPRECISION_FP32* ]] || note "PRECISION=fp32 gives bf16"
make -C "$tree" PRECISION=fp8 train_gpt2cu > "$dir/said" 2>&1 && note "PRECISION=fp8 is taken"
grep -q 'fp8: it is fp32 or bf16' "$dir/said" || note "PRECISION=fp8: $(tail -n 1 "$dir/said")"
[[ $(flags) == *-fopenmp* ]] || note "no OpenMP"
[[ $(flags OPENMP=0) == *-fopenmp* ]] && note "OpenMP with OPENMP=0"
end cuda_precision_is_a_flag

[[ $(flags) == *-DWITH_NCCL* ]] && note "NCCL, where there is none"
touch "$dir/nccl.h"
[[ $(flags) == *-DWITH_NCCL* ]] || note "no NCCL, where its header is"
rm "$dir/nccl.h"
end cuda_takes_nccl_where_it_is

# pip's packages, which lack the library's name without a number; $dir/python is the Python that
# has them.
site=$dir/site/nvidia
printf '#!/bin/sh\necho %s\n' "$site" > "$dir/python" && chmod +x "$dir/python"
mkdir -p "$site/cu13/include" "$site/cu13/lib" "$site/nccl/include" "$site/nccl/lib"
touch "$site/cu13/include/cublasLt.h" "$site/cu13/lib/libcublasLt.so.13"
touch "$site/nccl/include/nccl.h" "$site/nccl/lib/libnccl.so.2"
found=$(flags PYTHON="$dir/python")
[[ $found == *" -lcublasLt"* && $found != *"idirafter,$site/cu13"* ]] ||
    note "not the toolkit's: $found"
rm "$dir/cublasLt.h"
found=$(flags PYTHON="$dir/python")
for flag in "-idirafter,$site/cu13/include" "-L$site/cu13/lib/ -l:libcublasLt.so.13" -DWITH_NCCL \
            "-idirafter,$site/nccl/include" "-rpath,$site/cu13/lib" "-rpath,$site/nccl/lib"; do
    [[ $found == *"$flag"* ]] || note "no $flag: $found"
done
make -C "$tree" PYTHON=false train_gpt2cu > "$dir/out" 2> "$dir/said" &&
    note "no cuBLASLt, and no error"
same "lines about a missing cuBLASLt" "$(grep -c 'cublasLt.h is neither in' "$dir/said")" 1
touch "$dir/cublasLt.h"
end cuda_takes_what_pip_brought

# builds WHAT ARGS...: make compiles WHAT, 0 or 1 programs.
builds() {
    local wanted=$1; shift
    : > "$dir/calls"
    make -C "$tree" "$@" train_gpt2cu > "$dir/said" 2>&1 || note "make $*: $(tail -n 1 "$dir/said")"
    same "programs built by make $*" "$(grep -c -e ' -o ' "$dir/calls")" "$wanted"
}
builds 1
builds 0
builds 1 PRECISION=fp32
builds 0 PRECISION=fp32
builds 1
gpus 8.0
builds 1                                    # another GPU
builds 0
touch "$tree/train_gpt2.cu"
builds 1
make -C "$tree" NVCC="$dir/none/nvcc" train_gpt2cu > "$dir/out" 2> "$dir/said" &&
    note "no nvcc, and no error"
same "lines about a missing nvcc" "$(grep -c 'there is no .*none/nvcc' "$dir/said")" 1
end cuda_build_follows_flags

# ---- tests/gpu.sh ----

cat > "$tree/tests/test_cuda.sh" << 'STUB'
echo "ok made_up"
STUB
chmod +x "$tree/tests/test_cuda.sh"
small="--layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --lr 2e-2"

# gpu_sh STATUS ENVIRONMENT... -- CALLS...: runs it and expects that exit status. The rows of its
# reports that are not ok go to $rows, how many rows there are to $count.
gpu_sh() {
    local wanted=$1 environment=(); shift
    while [ "$1" != -- ]; do environment+=("$1"); shift; done
    shift
    rm -rf "$tree"/dev/results/made-up-1-* "$dir/kept"
    (cd "$tree" && env MODEL="$small" BIG="$small" MINUTE=1 STEPS=40 EVAL=4000 BENCH=some \
        PYTHON=false NOISE="--micro-batch 2 --batch-tokens 128" CC="$dir/bin/cc" OMP_NUM_THREADS=2 \
        "${environment[@]}" tests/gpu.sh "$@") > "$dir/out" 2> "$dir/said"
    same "exit status of ${environment[*]} gpu.sh $*" $? "$wanted"
    reports=$(find "$tree"/dev/results/made-up-1-* "$dir/kept" -name '[A-D].md' 2> /dev/null | sort)
    [ -n "$reports" ] || return
    rows=$(sed -n 's/^| \(.*\) | \(FAILED.*\|skipped.*\) | [0-9]* |$/\1: \2/p' $reports)
    count=$(cat $reports | grep -cE '^\| ([A-D]|build|prepare)[: ]')
}
has() { grep -q -e "$2" "$1" || note "${1##*/} lacks '$2'"; }

gpus
gpu_sh 1 --
same "without a GPU" "$(cat "$dir/said" "$dir/out")" \
    "tests/gpu.sh: nvidia-smi finds no GPU here; make test and make emulate need none"
[ -e "$tree/build/gpu" ] && note "something is written without a GPU"
gpus 9.0
gpu_sh 1 -- everything
grep -q "'everything': expected A, B, C, D or build" "$dir/said" || note "$(cat "$dir/said")"
end gpu_command_says_what_is_missing

[ -x train_gpt2 ] && [ -x prepare ] && [ -x build/compare ] || note "make all build/compare first"
gpus
gpu_sh 0 -- build
has "$dir/calls" '-o train_gpt2cu'
[ -s "$tree/build/gpu/build.md" ] || note "no report of what is built beforehand"
gpus 9.0
: > "$dir/calls"
gpu_sh 0 --
for call in A B C D; do
    report=dev/results/made-up-1-$(date +%F)/$call
    [ -s "$tree/$report.md" ] || note "no $report.md"
    tar -tzf "$tree/$report.tar.gz" | grep -q "^$call-001.log" || note "no logs of $call"
done
same "programs built a second time" "$(grep -c -e '-o train_gpt2cu' "$dir/calls")" 0
same "steps of all of it" "$count" 42
same "steps that are not ok" "$(echo $rows)" "B: counters: skipped: needs ncu \
C: PyTorch beside it: skipped: needs PyTorch 2 C: PyTorch's attention: skipped: needs PyTorch 2 \
D: the counters of make profile beside ncu's: skipped: needs ncu"
same "the order of A" "$(grep -E '^\| (A|build):' ${reports%%$'\n'*} | cut -d'|' -f2 | xargs)" \
    "A: tools and paths build: made beforehand A: the program loads A: tests, bf16 \
A: the real shapes A: benchmark, micro-batch 16"
report=$tree/dev/results/made-up-1-$(date +%F)
for words in "# NVIDIA Made Up 1" "driver 999.1, CUDA 13.9, nvcc 13.9.1" "made up some 16" \
             "Tests: 2 passed, 0 failed"; do
    has "$report/A.md" "$words"
done
for words in "made up some 64" "| step | 1 | 10 |" "^| loss | [0-9.]* | [0-9.]* |" \
             "Validation loss after step 40: " "same bits: 40 losses and all weights" \
             "tokens/s, MFU [0-9.]*% of the measured peak, "; do
    has "$report/B.md" "$words"
done
has "$report/C.md" "50 steps, to a loss of .*; at most 0 apart"
has "$report/D.md" "minute 1: [0-9]* tokens/s"
has "$report/D.md" "takes [0-9.-]*% of a step: [0-9]* tokens/s without"
end gpu_command_reports

mkdir "$dir/kept"
wrong="FAIL made_up: relative error 0.6, at most 0.5"
gpu_sh 1 MADE_UP_TESTS="$wrong, far off" --
same "calls after A failed" "$(grep -c . <<< "$reports")" 1
same "steps after the one that failed" "$(tail -n 1 <<< "$rows")" "A: tests, bf16: FAILED"
grep -q '^STOPPED: call A failed' "$dir/out" || note "A stops without a word"
has "$reports" '^- FAIL made_up: relative error'
gpu_sh 1 KEEP_GOING=0 MADE_UP_TESTS="$wrong" -- A
same "steps of A with KEEP_GOING=0" "$count" 4
gpu_sh 1 KEEP_GOING=1 MADE_UP_TESTS="$wrong, far off" -- A
same "steps of A with KEEP_GOING=1" "$count" 6
gpu_sh 1 OUT="$dir/kept" MADE_UP_TESTS="$wrong" -- A
same "where the report is with OUT" "$reports" "$dir/kept/A.md"
same "steps of A after an error just above its bound" "$count" 6
grep -q '^STOPPED' "$dir/out" && note "A stops for an error just above its bound"
gpu_sh 1 MADE_UP_BENCH=1 MADE_UP_BLIND=racecheck -- C
same "steps that failed" "$(grep FAILED <<< "$rows" | cut -d: -f1,2 | xargs)" \
    "C: racecheck finds what is planted C: PyTorch beside it"
grep -q '^## Failed: C: racecheck finds' $reports || note "what failed is not shown"
same "steps without a tool" "$(grep -c 'skipped: racecheck finds nothing here' <<< "$rows")" 3
gpu_sh 1 STEPS=2 -- B
same "a run that learns nothing" "$(grep FAILED <<< "$rows" | head -n 1)" \
    "B: 2 steps in bf16: FAILED"
gpu_sh 1 MADE_UP_FLAGS="--beta2 0.951" -- C
same "other losses than the CPU's" "$(grep FAILED <<< "$rows")" \
    "C: 50 steps in fp32, the CPU's losses: FAILED"
grep -qE '^50 steps, to a loss of [0-9.]*; at most [0-9.e-]* apart' $reports ||
    grep -qE 'at most [0-9.e-]* apart' $reports ||
    note "the report does not say by how much losses differ"
gpu_sh 1 MINUTES=0 -- A
same "with no time" "$(grep -c 'not done in 0 s' <<< "$rows")" "$count"
end gpu_command_fails_when_a_step_does

# A driver that is older than nvcc: an older toolkit builds, or one line says what is missing. What
# was built beforehand needs no nvcc at all; what must be compiled there is left out.
toolkit=$dir/toolkits/cuda-12.8/bin
mkdir -p "$toolkit" && cp "$dir/bin/nvcc" "$toolkit"
: > "$dir/calls"
gpu_sh 0 MADE_UP_CUDA=12.8 TOOLKITS="$dir/toolkits" -- A
has "$reports" "CUDA 12.8, nvcc 12.8.1"
same "programs built for the older driver" "$(grep -c -e '-o train_gpt2cu' "$dir/calls")" 2
mv "$dir/bin/nvcc" "$dir/nvcc"
bare=$(IFS=:; for folder in $PATH; do [ -x "$folder/nvcc" ] || printf '%s:' "$folder"; done)
gpu_sh 0 PATH="$bare" MADE_UP_CUDA=12.8 TOOLKITS="$dir/none" -- A
has "$reports" "build: made beforehand"
rm -rf "$tree/build/gpu/older"
(cd "$tree" && PATH=$bare MADE_UP_CUDA=12.8 TOOLKITS="$dir/none" tests/gpu.sh A) \
    > "$dir/out" 2> "$dir/said"
same "lines about an old driver" "$(grep -c 'the driver knows CUDA 12, nvcc is not here' \
    "$dir/said"), $(lines "$dir/said")" "1, 1"
gpu_sh 0 PATH="$bare" TOOLKITS="$dir/none" -- C
same "steps of C that are skipped without nvcc" \
    "$(grep -c 'skipped: .*nvcc' <<< "$rows"), $(grep -c FAILED <<< "$rows")" "3, 0"
mv "$dir/nvcc" "$dir/bin/nvcc"
end gpu_command_suits_driver_and_toolkit

# ---- the emulator: the rewriter takes in the .cu files that a .cu file includes ----

PATH=${PATH#*:}
rewritten() {
    make -s -C "$tree" "build/$1.cpp" > "$dir/said" 2>&1 || note "$1: $(tail -n 1 "$dir/said")"
}
for program in train_gpt2.cu tests/test_gpt2.cu; do
    rewritten $program
    for kernels in dev/ranks/kernels.cu dev/ranks/tensor_model.cu dev/cuda/machine.cu \
                   dev/cuda/variants.cu dev/cuda/attention_plain.cu; do
        sleep 0.1                           # files written at once have the same time
        echo "// a kernel more in $kernels" >> "$tree/$kernels"
        rewritten $program
        same "rewritten $kernels in $program" \
            "$(grep -c "^// a kernel more in $kernels" "$tree/build/$program.cpp")" \
            "$(grep -c "^// a kernel more in $kernels" "$tree/$kernels")"
    done
done
end emulated_build_follows_kernels

# ---- the true nvcc ----

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
if [ -z "$nvcc" ]; then
    skip cuda_compiles_without_warnings "nvcc"
    exit $failed
fi
make -s -C "$tree" clean
cp tests/test_cuda.sh "$tree/tests/"

# compiles ARCHS ARGS...: no word from nvcc, ptxas and the compiler behind them; so no kernel has a
# register in memory, spilled or (in the trainer) indexed. That compiler does what HOST says last:
# -O1 for the programs that include the trainer, whose own host code has -O3.
printf '#!/bin/sh\nexec g++ "$@" $HOST\n' > "$dir/bin/host" && chmod +x "$dir/bin/host"
compiles() {
    local strict="-Werror all-warnings -Xptxas -warn-spills $indexed"
    strict+=" -Xcompiler -Werror -ccbin $dir/bin/host"
    make -s -C "$tree" NVCC="$nvcc $strict $kept" GPU_ARCHS="$1" CFLAGS=-O1 "${@:2}" \
        > "$dir/said" 2>&1 ||
        note "make ${*:2}: $(grep -m 1 -E 'error|warning' "$dir/said")"
    grep -v '^note: ' "$dir/said" | grep -q . && note "make ${*:2}: $(head -n 1 "$dir/said")"
}
kept= indexed="-Xptxas -warn-lmem-usage"
compiles "80 100" PRECISION=bf16 train_gpt2cu                    # sm_90: in the tests
export HOST=-O1
compiles 90 PRECISION=bf16 build/bench_cuda
ladders=$(cd dev/cuda && grep -l 'include "ladder.cu"' -- *.cu | sed 's/\.cu$//')
n=0 some=
for ladder in $ladders; do                  # one in three a day
    n=$((n + 1))
    has_its_turn $n 3 && some+=" build/cuda/$ladder"
done
indexed= compiles 90 $some                  # a rung of a ladder may index its registers
for precision in fp32 bf16; do                                   # they include all of the trainer
    mkdir "$dir/$precision"
    kept="-keep -keep-dir $dir/$precision"
    compiles 90 PRECISION=$precision build/cuda/test_gpt2-$precision
done
end cuda_compiles_without_warnings

# Rows are read 16 bytes at a time. What these kernels load otherwise are single numbers of a row:
# lse; mean and rstd; the target, its logit and the loss's scale.
narrow_loads() {                            # narrow_loads KERNEL: instructions, in $precision
    awk -v kernel="$1" '
        /\.entry / { inside = index($0, kernel); found += inside }
        inside && /ld\.global/ && !/\.v4\.[a-z]*32|\.v2\.[a-z]*64/ { n++ }
        END { print found ? n + 0 : "no kernel" }' "$dir/$precision/test_gpt2.ptx"
}
for precision in fp32 bf16; do
    same "narrow loads of attention_rows, $precision" "$(narrow_loads attention_rows_kernel)" 1
    same "narrow loads of LayerNorm, $precision" "$(narrow_loads layernorm_forward_kernel)" 0
    same "narrow loads of LayerNorm back, $precision" "$(narrow_loads layernorm_backward_kernel)" 4   # two lengths of row
    same "narrow loads of cross-entropy, $precision" "$(narrow_loads xent_kernel)" 3
done
end cuda_rows_are_read_by_packs

# A thread reads and writes 16 bytes of shared memory at once only where the array begins at a
# multiple of 16. The registers of an address are followed back to the array it was made from.
misaligned() {                              # misaligned PTX: such accesses, and how many there are
    awk '/\.shared/ && /\.align/ {
            for (i = 1; i < NF; i++) if ($i == ".align") at = $(i + 1)
            name = $NF; sub(/\[.*/, "", name); sub(/;/, "", name); align[name] = at
        }
        /\.entry/ { kernel = $0; split("", of) }
        /^\t/ {
            wide = /^\t(ld|st)\.(volatile\.)?shared.*(\.v4\.[a-z]*32|\.v2\.[a-z]*64)/
            address = wide ? $0 : ""
            gsub(/.*\[|\].*/, "", address)
            if (wide) {
                split(address, part, "+")
                array = part[1] in of ? of[part[1]] : part[1]
                found++
                if (align[array] % 16 || !(array in align)) print kernel, $0, array
                next
            }
            gsub(/[,;]/, " ")
            for (i = 3; i <= NF; i++)
                if ($i in of) of[$2] = of[$i]
                else if ($i in align) of[$2] = $i
        }
        END { print found + 0 }' "$1"
}
for precision in fp32 bf16; do
    ptx=$dir/$precision/test_gpt2.ptx
    [[ $(misaligned "$ptx") =~ ^[1-9][0-9]+$ ]] ||
        note "16 bytes of shared memory, $precision: $(misaligned "$ptx" | head -n 1)"
    sed 's/\(\.shared .*\.align\) 16 \(.*sums\)/\1 4 \2/' "$ptx" > "$dir/less.ptx"
    cmp -s "$ptx" "$dir/less.ptx" && note "no array to align less"
    [ "$(misaligned "$dir/less.ptx" | wc -l)" -gt 1 ] || note "an array aligned to 4 goes unnoticed"
done
end cuda_shared_arrays_are_aligned

# The dependencies that nvcc has written: a changed header is noticed.
cp "$tree/train_gpt2cu" "$dir/train_gpt2cu"
PATH=$dir/bin:$PATH builds 1
for header in dataloader.h dev/base/gpt2.h dev/train/options.h dev/ranks/zero.h \
              dev/ranks/kernels.cu dev/ranks/tensor_model.cu dev/cuda/product.h; do
    touch "$tree/$header"
    PATH=$dir/bin:$PATH builds 1
    PATH=$dir/bin:$PATH builds 0
done
end cuda_build_follows_headers

if nvidia-smi > /dev/null 2>&1; then
    skip cuda_without_a_driver "a machine without a GPU"
elif ! "$dir/train_gpt2cu" --help > "$dir/said" 2>&1; then
    note "--help: $(head -n 1 "$dir/said")"
    end cuda_without_a_driver
else
    make -s -C "$tree" CFLAGS=-O1 prepare
    "$tree/prepare" tales --out "$dir/tales" --tokens 5000 > /dev/null
    "$dir/train_gpt2cu" --data "$dir/tales" --layers 1 --heads 1 --channels 8 --seq-len 16 \
        --out "$dir/run" > "$dir/out" 2> "$dir/said"
    same "exit status without a driver" $? 1
    same "lines on stderr" "$(wc -l < "$dir/said")" 1
    grep -q 'no NVIDIA driver' "$dir/said" || note "$(cat "$dir/said")"
    [ -e "$dir/run" ] && note "--out is made although nothing can run"
    end cuda_without_a_driver
fi
exit $failed
