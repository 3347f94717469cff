#!/usr/bin/env bash
# The CUDA side of the Makefile, without a GPU: which flags nvcc gets on which machine, and that the
# true nvcc, if it is here, compiles in silence.
#
#     LONG=1 tests/test_cuda_build.sh     every program, fp32, and two architectures more
. "$(dirname "$0")/tools.sh"
unset CFLAGS SANITIZE OPENMP PRECISION BUILD NVCC GPU_ARCHS
tree=$dir/tree
mkdir "$tree" "$dir/bin"
cp -r Makefile train_gpt2.c train_gpt2.cu dataloader.h dev scripts tests "$tree"

# $dir/gpus is what nvidia-smi says of the GPUs' architectures; it writes down that it was called.
printf '#!/bin/sh\necho called >> "%s/calls"\ncat "%s/gpus"\n' "$dir" "$dir" > "$dir/bin/nvidia-smi"
chmod +x "$dir/bin/nvidia-smi"
PATH=$dir/bin:$PATH
gpus() { if [ $# -gt 0 ]; then printf '%s\n' "$@" > "$dir/gpus"; else rm -f "$dir/gpus"; fi; }

# ---- nothing is asked unless it must be ----

gpus 9.0
for target in all test bench emulate clean help; do
    make -C "$tree" -n CC=true $target > "$dir/said" 2>&1
done
[ ! -e "$dir/calls" ] || note "make all, test, bench and so on ask nvidia-smi"
end cuda_is_not_looked_for_unless_needed

# ---- architectures ----

# flags ARGS...: what nvcc would be called with; `true` finds every header, and can compile anything.
knows="75 80 86 90 100 120"
flags() {
    make -C "$tree" -n CC=true NVCC=true NVCC_KNOWS="$knows" "$@" train_gpt2cu 2>&1 |
        grep -e '-o train_gpt2cu'
}
archs() { flags "$@" | grep -oE 'arch=[^ ]*' | sed 's/arch=compute_//; s/,code=/:/' | xargs; }
fallback="80:sm_80 90:sm_90 100:sm_100 100:compute_100"

same "one GPU" "$(archs)" "90:sm_90 90:compute_90"
gpus 10.0 8.6 8.6
same "GPUs of two kinds" "$(archs)" "86:sm_86 100:sm_100 100:compute_100"
gpus
same "nvidia-smi fails" "$(archs)" "$fallback"
gpus "No devices were found"
same "nvidia-smi finds none" "$(archs)" "$fallback"
gpus 12.1
same "a GPU that nvcc does not know" "$(archs)" "$fallback"
gpus 7.5
same "a GPU without bf16" "$(archs)" "$fallback"
same "the same in fp32" "$(archs PRECISION=fp32)" "75:sm_75 75:compute_75"
rm -f "$dir/calls"
same "GPU_ARCHS by hand" "$(archs GPU_ARCHS="86 120")" "86:sm_86 120:sm_120 120:compute_120"
[ ! -e "$dir/calls" ] || note "nvidia-smi is asked although GPU_ARCHS is given"
gpus
knows="75 80 90"
same "an older nvcc" "$(archs)" "80:sm_80 90:sm_90 90:compute_90"
end cuda_architectures_are_detected

# ---- precision and libraries ----

[[ $(flags) == *-DPRECISION_FP32* ]] && note "bf16 is not the default"
[[ $(flags PRECISION=fp32) == *-DPRECISION_FP32* ]] || note "PRECISION=fp32 gives bf16"
[[ $(flags PRECISION=tf32) == *-DPRECISION_FP32\ -DPRECISION_TF32* ]] || note "PRECISION=tf32 is not fp32 multiplied so"
[[ $(flags OPENMP=0) == *-fopenmp* ]] && note "OpenMP with OPENMP=0"
end cuda_precision_is_a_flag

# Of a toolkit; or else of pip's packages, which lack the library's name without a number.
site=$dir/site
mkdir -p "$site"/{cu13,nccl}/{include,lib}
touch "$site"/cu13/{include/cublasLt.h,lib/libcublasLt.so.13} \
    "$site"/nccl/{include/nccl.h,lib/libnccl.so.2}
found=$(flags PIP_NVIDIA="$site")
[[ $found == *" -lcublasLt"* && $found != *"idirafter,$site"* ]] || note "not the toolkit's: $found"
found=$(flags NVCC=false PIP_NVIDIA="$site")
for flag in "-idirafter,$site/cu13/include" "-L$site/cu13/lib/ -l:libcublasLt.so.13" -DWITH_NCCL \
            "-idirafter,$site/nccl/include" "-rpath,$site/cu13/lib" "-rpath,$site/nccl/lib"; do
    [[ $found == *"$flag"* ]] || note "no $flag: $found"
done
make -C "$tree" CC=true NVCC=false PIP_NVIDIA= train_gpt2cu > "$dir/out" 2> "$dir/said" &&
    note "no cuBLASLt, and no error"
same "lines about a missing cuBLASLt" "$(grep -c 'cublasLt.h is neither in' "$dir/said")" 1
make -C "$tree" CC=true NVCC="$dir/none/nvcc" train_gpt2cu > "$dir/out" 2> "$dir/said" &&
    note "no nvcc, and no error"
same "lines about a missing nvcc" "$(grep -c 'there is no .*none/nvcc' "$dir/said")" 1
end cuda_libraries_are_found

# ---- the emulator: the rewriter takes in the .cu files that a .cu file includes ----

programs="build/train_gpt2.cu.cpp build/tests/test_gpt2.cu.cpp"
for kernels in dev/{ranks/{kernels,tensor_model},cuda/{machine,memory,attention_tiles}}.cu; do
    sleep 0.1                               # files written at once have the same time
    touch "$tree/$kernels"
    make -s -C "$tree" $programs > "$dir/said" 2>&1 || note "$(tail -n 1 "$dir/said")"
    for program in $programs; do
        [ "$tree/$program" -nt "$tree/$kernels" ] ||
            note "$program is not made anew after a change of $kernels"
    done
done
end emulated_build_follows_kernels

# ---- the true nvcc ----

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
if [ -z "$nvcc" ]; then
    skip cuda_compiles_without_warnings "nvcc"
    exit $failed
fi
PATH=${PATH#*:}                             # without the false nvidia-smi

# compiles ARCHS ARGS...: no word from nvcc, ptxas and the compiler behind them; so no kernel has a
# register in memory, spilled or (in the trainer) indexed. That compiler optimizes nothing but at
# night: it is slow, and the emulator's builds are optimized.
printf '#!/bin/sh\nexec g++ "$@" %s\n' "$([ -n "${LONG:-}" ] || echo -O0)" > "$dir/bin/host"
chmod +x "$dir/bin/host"
compiles() {
    local strict="-Werror all-warnings -Xptxas -warn-spills $indexed"
    strict+=" -Xcompiler -Werror -ccbin $dir/bin/host"
    make -s -C "$tree" NVCC="$nvcc $strict" GPU_ARCHS="$1" CFLAGS=-O1 "${@:2}" \
        > "$dir/said" 2>&1 ||
        note "make ${*:2}: $(grep -m 1 -E 'error|warning' "$dir/said")"
    grep -v '^note: ' "$dir/said" | grep -q . && note "make ${*:2}: $(head -n 1 "$dir/said")"
}
indexed="-Xptxas -warn-lmem-usage"
if [ -z "${LONG:-}" ]; then                 # of the library only what calls CUDA, as for make profile
    make -s "$build/emulated/library.a"
    compiles 90 $(ls dev/ranks/*.c | sed 's|dev/\(.*\)c$|build/cuda/objects/\1o|')
    cp "$build/emulated/library.a" "$tree/build/cuda/library.a"
    ar r "$tree/build/cuda/library.a" "$tree"/build/cuda/objects/ranks/*.o
    compiles 90 PRECISION=bf16 -o build/cuda/library.a train_gpt2cu
else
    compiles 90 PRECISION=bf16 train_gpt2cu
    compiles 90 PRECISION=fp32 train_gpt2cu
    compiles "80 100" PRECISION=bf16 build/bench_cuda
    compiles 90 build/cuda/test_gpt2-{bf16,fp32}
    indexed=                                # a rung of a ladder may index its registers
    compiles 90 $(cd dev/ladders && grep -l 'include "ladder.cu"' -- *.cu |
        sed 's|\(.*\)\.cu$|build/cuda/\1|')
fi
end cuda_compiles_without_warnings

for header in dataloader.h gpt2.h train.h ranks.h kernels.cu tensor_model.cu product.h; do
    grep -q "[/ ]$header" "$tree/build/train_gpt2cu.d" || note "nvcc's dependencies lack $header"
done
end cuda_build_follows_headers

if nvidia-smi -L > /dev/null 2>&1; then
    skip cuda_without_a_driver "a machine without a GPU"
elif ! "$tree/train_gpt2cu" --help > "$dir/said" 2>&1; then
    note "--help: $(head -n 1 "$dir/said")"
    end cuda_without_a_driver
else
    "$prepare" tales --out "$dir/tales" --tokens 5000 > /dev/null
    "$tree/train_gpt2cu" --data "$dir/tales" --layers 1 --heads 1 --channels 8 --seq-len 16 \
        --out "$dir/run" > "$dir/out" 2> "$dir/said"
    same "exit status without a driver" $? 1
    same "lines on stderr" "$(wc -l < "$dir/said")" 1
    grep -q 'no NVIDIA driver' "$dir/said" || note "$(cat "$dir/said")"
    [ -e "$dir/run" ] && note "--out is made although nothing can run"
    end cuda_without_a_driver
fi
exit $failed
