# batchwise. A C compiler and make are all that the CPU build needs; `make help` lists the targets.

CFLAGS    ?= -O3
PYTHON    ?= python3
OPENMP    ?= 1
SANITIZE  ?= 0
MPI       ?= 0
PRECISION ?=
PLAIN     ?= 0
BUILD     ?= build
comma     := ,

# What this compiler can do: $(call can,FLAGS) gives FLAGS back if a program builds with them. The
# program goes to $(BUILD), not to /dev/null: root's compiler may replace the device by a file.
WRITABLE := $(shell mkdir -p $(BUILD) 2>/dev/null && [ -w $(BUILD) ] && [ -w . ] && echo yes)
PROGRAM  := int main(void) { return 0; }
VECTORS  := float __attribute__((vector_size(16))) v; int main(void) { return v[0] > 0; }
can = $(shell echo '$(or $(2),$(PROGRAM))' | $(CC) -Werror $(1) -x c - -o $(BUILD)/probe.$$$$ \
        2>/dev/null && rm -f $(BUILD)/probe.$$$$ && echo '$(1)')
BUILDS   := $(if $(WRITABLE),$(if $(call can,-std=gnu11,$(VECTORS)),yes))

# For Intel's processors, compilers use half of AVX-512's width unless told.
NATIVE := $(or $(call can,-march=native -mprefer-vector-width=512),$(call can,-march=native),$(call can,-mcpu=native))

ifeq ($(OPENMP),1)
  BREW_OMP := $(shell brew --prefix libomp 2>/dev/null)
  OMP := $(if $(call can,-fopenmp -include omp.h),-fopenmp)
  ifneq ($(BREW_OMP),)
    OMP := $(or $(OMP),$(call can,-Xpreprocessor -fopenmp -I$(BREW_OMP)/include \
                                  -L$(BREW_OMP)/lib -lomp))
  endif
  ifeq ($(BUILDS)$(OMP),yes)
    $(info note: $(CC) has no OpenMP here, so training uses one core (macOS: brew install libomp))
  endif
endif
ifeq ($(OMP),)
  OMP := $(call can,-fopenmp-simd) -Wno-unknown-pragmas
endif

# Windows, MinGW-w64: in MSYS2, or CC=x86_64-w64-mingw32-gcc (for another machine than this one, with
# NATIVE=-march=x86-64-v3). posix.h has what Windows lacks. gcc aligns the stack to 16 bytes there,
# whatever vectors are on it (its bug 54412), so the assembler turns aligned moves of vectors into
# unaligned ones, which are as fast; an old one cannot, and then there is no AVX.
ifneq ($(or $(findstring mingw,$(CC)),$(filter MINGW% UCRT% CLANG%,$(MSYSTEM))),)
  EXE     := .exe
  WINDOWS := -D__USE_MINGW_ANSI_STDIO=1 -D_FILE_OFFSET_BITS=64 -DWIN32_LEAN_AND_MEAN -DNOGDI \
             -include dev/base/windows/posix.h -Idev/base/windows -static -Wl,--stack,8388608 \
             $(or $(call can,-Wa$(comma)-muse-unaligned-vector-move),\
                  $(if $(call can,-Wpass-failed),,-mno-avx))
endif

# Sums keep their order (no -ffast-math); errno after sqrtf and trapping NaNs, nobody reads.
FLAGS := -std=gnu11 -Wall -Wextra $(NATIVE) $(CFLAGS) -fno-math-errno -fno-trapping-math \
         $(if $(call can,-Wpass-failed),-Wno-pass-failed) $(OMP) $(WINDOWS)
ifeq ($(SANITIZE),1)
  FLAGS += -g -fsanitize=address,undefined -fno-sanitize-recover=all
endif

ON_CPU := $(filter all run test train_gpt2 prepare,$(or $(MAKECMDGOALS),all))
ifneq ($(filter-out fp32 bf16 $(if $(ON_CPU),,tf32),$(PRECISION)),)
  $(error PRECISION=$(PRECISION): it is fp32 or bf16; of train_gpt2cu also tf32)
endif
FLAGS += $(if $(filter bf16,$(PRECISION)),-DPRECISION_BF16)    # the default is fp32 on a CPU
CPUINFO := $(if $(filter bf16,$(PRECISION)),$(if $(NATIVE),$(shell cat /proc/cpuinfo 2>/dev/null)))
ifneq ($(and $(filter GenuineIntel,$(CPUINFO)),$(filter avx512_bf16,$(CPUINFO))),)
  FLAGS += $(call can,-mno-avx512bf16)    # slower there than multiplying the rounded numbers in fp32
endif
FLAGS += $(if $(filter 1,$(PLAIN)),-DPLAIN=1)      # the products and attention of train_gpt2.c

# MPI's compiler is this one with MPI's paths: Open MPI's and MPICH's learn which from a variable.
MPICC ?= mpicc
LINK   = $(if $(filter 1,$(MPI)),$(LINK_MPI),$(CC))
LINK_MPI = OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) -DWITH_MPI -pthread
HAVE_MPI := $(if $(shell command -v $(MPICC)),1)
ifeq ($(MPI)$(EXE),1.exe)
  $(error MPI=1: on Windows, several ranks need WSL 2)
endif
ifeq ($(MPI)$(HAVE_MPI),1)
  $(error MPI=1: there is no $(MPICC) here; install Open MPI or MPICH, with its headers)
endif

# Every .c file of these folders is compiled once a build, into one library that programs and tests
# link. Only dev/ranks knows MPI.
FOLDERS := base cpu data files model plan ranks train
OBJECTS := $(patsubst dev/%.c,$(BUILD)/objects/%.o,$(wildcard $(FOLDERS:%=dev/%/*.c)))
WITH_RANKS = $(OBJECTS:$(BUILD)/objects/ranks/%=$(BUILD)/mpi/ranks/%)
AR := $(if $(filter %-gcc,$(CC)),$(CC:%gcc=%ar),ar)

TESTS := $(patsubst tests/%.c,$(BUILD)/%,$(wildcard tests/test_*.c))
LESSON_PROGRAMS := $(patsubst dev/%.c,$(BUILD)/%,$(wildcard dev/lessons/*.c))

# CUDA: for the GPUs that are here, else for three generations and the code that later ones compile
# for themselves. Nothing of this is looked up unless a CUDA target is built.
NVCC      ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc),nvcc)
NVCC_KNOWS = $(subst sm_,,$(shell $(NVCC) --list-gpu-code 2>/dev/null))
OLDEST     = $(if $(filter fp32,$(PRECISION)),7,8)          # bf16 and tf32 came with Ampere, 8.0
GPU_ARCHS ?= $(or $(filter $(NVCC_KNOWS),$(shell \
                  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
                  awk -F. '$$1 + 0 >= $(OLDEST) { print $$1 $$2 }' | sort -un)),\
                  $(filter 80 90 100,$(NVCC_KNOWS)))
GPU_CODE   = $(foreach a,$(1),-gencode arch=compute_$a$(comma)code=sm_$a) \
             $(foreach a,$(lastword $(1)),-gencode arch=compute_$a$(comma)code=compute_$a)
CU_FLAGS   = $(if $(filter fp32 tf32,$(PRECISION)),-DPRECISION_FP32) \
             $(if $(filter tf32,$(PRECISION)),-DPRECISION_TF32)     # the default is bf16 on a GPU
# cuBLASLt and NCCL come with the toolkit, or with pip: nvidia/*/include and nvidia/*/lib. A header
# of pip's is taken where the toolkit has none; programs look for libraries in all of these places.
TOOLKIT    = $(abspath $(dir $(shell command -v $(firstword $(NVCC))))..)
PIP_NVIDIA = $(shell $(PYTHON) -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null)
compiles   = $(shell echo '\#include <$(1)>' | $(NVCC) -E -x cu - > /dev/null 2>&1 && echo yes)
pip_has    = $(firstword $(wildcard $(addsuffix /*/$(1),$(PIP_NVIDIA))))
after      = $(if $(1),-Xcompiler -idirafter$(comma)$(dir $(1)))
folders_of = $(patsubst %/,%,$(sort $(dir $(wildcard $(foreach d,$(1),\
             $d/libcublasLt.so* $d/libnccl.so*)))))
RPATHS     = $(foreach d,$(call folders_of,$(TOOLKIT)/lib64 $(TOOLKIT)/lib) \
             $(call folders_of,$(addsuffix /*/lib,$(PIP_NVIDIA))),-Xlinker -rpath$(comma)$d)
PIP_LT     = $(call pip_has,include/cublasLt.h)
CUBLAS     = $(eval CUBLAS := $(if $(call compiles,cublasLt.h),-lcublasLt,$(if $(PIP_LT),\
             $(call after,$(PIP_LT)) $(foreach l,$(call pip_has,lib/libcublasLt.so.*),\
             -L$(dir $l) -l:$(notdir $l)))))$(CUBLAS)
# NCCL's header is enough: the library is looked for when a run has several ranks.
NCCL_THERE = $(if $(call compiles,nccl.h),-DWITH_NCCL -ldl,$(foreach h,$(call \
             pip_has,include/nccl.h),$(call after,$h) -DWITH_NCCL -ldl))
NVFLAGS    = $(eval NVFLAGS := -std=c++17 -O3 $(call GPU_CODE,$(GPU_ARCHS)) -Xcompiler \
             -Wall,-Wextra,$(if $(filter 1,$(OPENMP)),-fopenmp,-Wno-unknown-pragmas) \
             $(NCCL_THERE) $(RPATHS))$(NVFLAGS)

# The emulator compiles the same sources with a C++ compiler; dev/emulator/README.md says how.
CXX_MPI    = OMPI_CXX='$(CXX)' MPICH_CXX='$(CXX)' mpicxx -DEMULATOR_MPI
LINK_CXX   = $(if $(filter 1,$(MPI)),$(CXX_MPI),$(CXX))
EMULATE    = $(LINK_CXX) -DWITH_NCCL -std=c++17 -Wall -Wextra -Wno-unknown-pragmas $(CFLAGS) $(NATIVE) $(OMP) \
             $(if $(filter 1,$(SANITIZE)),-g -fsanitize=address$(comma)undefined -fno-sanitize-recover=all) \
             -DEMULATOR -Idev/emulator/include -iquote . -iquote tests
EMULATED  := $(if $(shell command -v $(CXX)),train_gpt2cu-emulated \
             $(addprefix $(BUILD)/emulated/,test_emulator test_gpt2-bf16 test_gpt2-fp32 bench_cuda))

PROGRAMS := train_gpt2$(EXE) prepare$(EXE)

# As many files at once as there are processors, unless a -j says how many.
ifeq ($(MAKELEVEL),0)
  MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
endif

all: $(PROGRAMS)                 ## build ./train_gpt2 and ./prepare (the default)

run: all                         ## train a small GPT-2 on the embedded corpus, about a minute
	@scripts/tales.sh

WITH_MPI := $(if $(HAVE_MPI),$(BUILD)/train_gpt2-mpi $(BUILD)/bench_comm)

# `make test` is for whoever changes the trainer: what reads its source, and its two programs. An MPI
# or emulated trainer may be left from an older `make test-all`: it is not looked at.
CPU_LADDERS := $(BUILD)/ladder $(BUILD)/attention-cpu $(BUILD)/bench
SHORT := $(TESTS) $(patsubst %,tests/test_%.sh,prepare resume train)
WITHOUT = TRAIN_MPI=none TRAIN_GPU=none EMULATED=none

# What a part of the tests needs, and runs.
NEEDS_c       = $(PROGRAMS) $(TESTS)
RUN_c         = tests/run.sh $(TESTS)
NEEDS_gpu     = $(BUILD)/cuda/test_gpt2-bf16 $(BUILD)/cuda/test_gpt2-fp32
RUN_gpu       = tests/run.sh $(NEEDS_gpu)
NEEDS_windows = $(PROGRAMS)
RUN_windows   = LONG=1 tests/run.sh tests/test_windows.sh
NEEDS_soak    = $(PROGRAMS) $(WITH_MPI)
RUN_soak      = tests/soak.sh
NEEDS_fuzz    = $(PROGRAMS)
RUN_fuzz      = RUNS=$(or $(RUNS),100000) FUZZ_DIR=$(BUILD)/fuzz tests/run.sh tests/test_fuzz.sh
# What nvcc makes of the kernels, run on a CPU. A build is a precision and an architecture. On the
# host's side only launches run, so it need not be optimized; PTX's integers wrap around.
PTX_BUILDS ?= bf16-80 bf16-90 fp32-90
NEEDS_ptx     = $(foreach b,$(PTX_BUILDS),$(BUILD)/ptx/$b.ptx \
                $(BUILD)/ptx/test_gpt2-$(firstword $(subst -, ,$b)))
RUN_ptx       = for build in $(PTX_BUILDS); do echo "$$build:"; EMULATOR_PTX=$(BUILD)/ptx/$$build.ptx \
                $(BUILD)/ptx/test_gpt2-$${build%-*} $(ONLY) || exit; done

ifndef PART
test:                            ## test the trainer and its data path, a minute; others: PART=c gpu windows soak fuzz ptx
	@$(MAKE) --no-print-directory $(PROGRAMS) $(TESTS) $(BUILD)/compare
	@JOBS=$${JOBS:-3} $(WITHOUT) tests/run.sh $(SHORT)
else
test: $(NEEDS_$(PART))
	@$(or $(RUN_$(PART)),echo 'make test: PART is c or gpu or windows or soak or fuzz or ptx' >&2; exit 1)
endif

build-all:                       # all programs that test-all runs
	@$(MAKE) --no-print-directory $(PROGRAMS) $(TESTS) $(EMULATED) $(CPU_LADDERS) $(BUILD)/compare $(LESSON_PROGRAMS) $(BUILD)/one_step $(WITH_MPI)

test-all: build-all              ## every test: also those of emulated CUDA, MPI and Python, and long ones
	@tests/run.sh $(TESTS) $(filter $(BUILD)/emulated/test_%,$(EMULATED)) $(wildcard tests/test_*.sh tests/test_*.py)

lab: $(PROGRAMS) $(BUILD)/one_step $(WITH_MPI)             ## short batch-size experiments: lab/report.html in about 10 minutes
	@$(PYTHON_HERE)
	@$(PYTHON) scripts/lab/experiments/report.py --quick

pages:                           ## lab/page.html: GPT-2s learn in a browser tab; LESSONS=1: the lessons as pages
	@$(PYTHON_HERE)
	@$(PYTHON) $(if $(LESSONS),dev/lessons/pages.py,dev/web/page.py)

speedrun:                        ## time how long an entry takes to a fixed loss, beside the baseline: ENTRY=muon
	@$(PYTHON_HERE)
	@CC='$(CC)' $(PYTHON) dev/speedrun/verify.py $(ENTRY)

bench: $(if $(filter 1,$(GPU)),$(BUILD)/bench_cuda,$(BUILD)/bench $(WITH_MPI))   ## measure speed and memory here, beside PyTorch; FULL=1: all; GPU=1: on a GPU
	@$(if $(filter 1,$(GPU)),,$(BUILD)/bench $(if $(FULL),--full))
	@command -v $(PYTHON) > /dev/null || { echo 'there is no $(PYTHON) here: not compared'; \
	    $(if $(filter 1,$(GPU)),$(BUILD)/bench_cuda); exit; }; \
	    BUILD=$(BUILD) PRECISION=$(or $(PRECISION),fp32) $(PYTHON) scripts/bench.py $(if \
	    $(filter 1,$(GPU)),--gpu,$(if $(FULL),--full))

# The ladders of GPUs: those that are there. They are counted; where a GPU and nvcc are, timed too.
LADDERS := $(filter matmul attention layernorm xent bias,$(basename $(notdir $(wildcard dev/ladders/*.cu))))
HAVE_GPU = $(and $(shell nvidia-smi -L 2>/dev/null),$(shell command -v $(firstword $(NVCC))))
LADDER   = $(if $(filter $(LADDERS),$(OP)),$(BUILD)/counted/$(OP) $(if $(HAVE_GPU),$(BUILD)/cuda/$(OP)),\
           $(if $(OP),$(BUILD)/$(OP),$(BUILD)/ladder))
KNOWN_OP = $(if $(filter-out $(LADDERS) attention-cpu,$(OP)),$(error OP=$(OP): there is no such ladder; there are: $(LADDERS) attention-cpu))

COUNTED = $(LADDERS:%=$(BUILD)/counted/%)
ladder: $(KNOWN_OP)$(if $(TABLE),$(COUNTED),$(LADDER))   ## speed up a matrix product, rung by rung; OP=layernorm: a GPU's kernel; TABLE=1: its page
	@$(if $(TABLE),OMP_NUM_THREADS=1 $(PYTHON) scripts/ladder_table.py $(COUNTED),\
	    for program in $(LADDER); do $$program || exit; done)

# For targets that run a script: a line that helps where there is no Python.
PYTHON_HERE = command -v $(PYTHON) > /dev/null || { echo 'make $@: there is no $(PYTHON) here; install Python 3,' \
    'or name yours: make $@ PYTHON=PATH' >&2; exit 1; }

# A lesson's check is a C program or a Python script; N=7 is N=07. Without N: one update.
LESSON   = $(if $(N),$(wildcard dev/lessons/check_$(N)_* dev/lessons/check_0$(N)_*),dev/lessons/first_step.c)
LESSON_C = $(patsubst dev/%.c,$(BUILD)/%,$(filter %.c,$(LESSON)))
lesson: $(PROGRAMS) $(LESSON_C)          ## one update of a tiny model, with numbers to check by hand; N=07: check of lesson 7
	@$(if $(filter %.py,$(LESSON)),$(PYTHON_HERE))
	@$(if $(LESSON),OMP_WAIT_POLICY=passive $(LESSON_C) $(addprefix $(PYTHON) ,$(filter %.py,$(LESSON))),\
	    echo 'make lesson N=00 ... N=19: the lessons are listed in dev/lessons/README.md' >&2; exit 1)

# A step of dev/build_up; step 10 is compared with the trainer.
step: prepare $(if $(filter 10,$(N)),train_gpt2)   ## run step N=4 from an empty file to GPT-2; FILE=mine.c: yours; DIFF=1: what it changes
	@CC='$(CC)' FLAGS='$(FLAGS)' BUILD='$(BUILD)' dev/build_up/step.sh $(if $(DIFF),--diff) '$(N)' '$(FILE)'

exercise:                        ## rewrite a function: NAME=layernorm_backward; AGAIN=1: start over; no NAME: a list
	@$(PYTHON_HERE)
	@$(PYTHON) dev/exercises/exercises.py $(if $(NAME),start '$(NAME)',list) $(if $(AGAIN),--again)

check:                           ## say in one line what is wrong with your exercise: NAME=layernorm_backward
	@$(PYTHON_HERE)
	@CC='$(CC)' CXX='$(CXX)' $(PYTHON) dev/exercises/exercises.py check '$(NAME)'

$(BUILD)/lessons/%: dev/lessons/%.c $(BUILD)/library.a       # they compute for a second at most
	@mkdir -p $(@D)
	$(CC) $(FLAGS:-O3=-O1) -MMD -MP -MF $(BUILD)/lesson_$(@F).d $< $(BUILD)/library.a -o $@ -lm

clean:                           ## remove what make built; data and runs stay
	rm -rf $(BUILD) train_gpt2 prepare train_gpt2.exe prepare.exe train_gpt2cu train_gpt2cu-emulated

help:                            ## this list
	@sed -n 's/^\([a-z_0-9-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | \
	    while IFS='|' read -r target text; do printf '  make %-12s %s\n' "$$target" "$$text"; done
	@echo '  PRECISION=bf16 PLAIN=1 MPI=1 CC=clang CFLAGS=-O0 SANITIZE=1 OPENMP=0   add to any for another build'

$(BUILD)/objects/%.o: dev/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(LINK) $(FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(BUILD)/mpi/%.o: dev/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(LINK_MPI) $(FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

LIBRARY = @rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)
$(BUILD)/library.a: $(OBJECTS)
	$(LIBRARY)

$(BUILD)/mpi/library.a: $(WITH_RANKS)
	$(LIBRARY)

train_gpt2$(EXE): train_gpt2.c $(BUILD)/library.a
	$(LINK) $(FLAGS) -MMD -MP -MF $(BUILD)/$@.d $< $(BUILD)/library.a -o $@ -lm

$(BUILD)/train_gpt2-mpi: train_gpt2.c $(BUILD)/mpi/library.a   # for tests and benchmarks
	$(LINK_MPI) $(FLAGS) -MMD -MP -MF $@.d $< $(BUILD)/mpi/library.a -o $@ -lm

$(BUILD)/bench_comm: dev/ladders/bench_comm.c $(BUILD)/mpi/library.a
	$(LINK_MPI) $(FLAGS) -MMD -MP -MF $@.d $< $(BUILD)/mpi/library.a -o $@ -lm

prepare$(EXE): dev/prepare.c $(BUILD)/library.a
	$(CC) $(FLAGS) -MMD -MP -MF $(BUILD)/$@.d $< $(BUILD)/library.a -o $@ -lm

# The same files, without dev/cpu, for the trainer of GPUs: as C++, since CUDA is.
GPU_OBJECTS = $(filter-out cpu/% data/tales%,$(OBJECTS:$(BUILD)/objects/%=%))
$(BUILD)/cuda/objects/%.o: dev/%.c $(BUILD)/nvflags
	@mkdir -p $(@D)
	$(NVCC) $(filter-out -gencode arch=%,$(NVFLAGS)) -DTRAINS_ON_GPU -x c++ -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(BUILD)/emulated/objects/%.o: dev/%.c $(BUILD)/emulate-flags
	@mkdir -p $(@D)
	$(EMULATE) -DTRAINS_ON_GPU -x c++ -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(BUILD)/counted/objects/%.o: dev/%.c $(BUILD)/count-flags
	@mkdir -p $(@D)
	$(COUNT:-Og=-O0) -DTRAINS_ON_GPU -x c++ -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(foreach way,cuda emulated,$(eval $(BUILD)/$(way)/library.a: $(GPU_OBJECTS:%=$(BUILD)/$(way)/objects/%); $$(LIBRARY)))

# Of these, only what calls CUDA is compiled anew for counting, unless another compiler made them.
ANEW = $(filter ranks/%,$(1))$(filter-out g++ c++,$(CXX))$(filter 1,$(SANITIZE))
$(BUILD)/counted/library.a: $(foreach o,$(GPU_OBJECTS),$(BUILD)/$(if $(call ANEW,$o),counted,emulated)/objects/$o)
	$(LIBRARY)

train_gpt2cu: train_gpt2.cu $(BUILD)/cuda/library.a   ## build ./train_gpt2cu for NVIDIA GPUs (needs nvcc)
	$(NVCC) $(NVFLAGS) $(CU_FLAGS) -MMD -MP -MF $(BUILD)/$@.d $< $(BUILD)/cuda/library.a -o $@ $(CUBLAS)

emulate: train_gpt2cu-emulated   ## build ./train_gpt2cu-emulated: the CUDA program, without a GPU

train_gpt2cu-emulated: $(BUILD)/emulated/train_gpt2cu.o $(BUILD)/emulated/library.a
	$(EMULATE) $(filter %.o %.a,$^) -o $@

$(BUILD)/emulated/train_gpt2cu.o: $(BUILD)/train_gpt2.cu.cpp $(BUILD)/emulate-flags      # tests of ranks link it, too
	@mkdir -p $(@D)
	$(EMULATE) $(CU_FLAGS) -MMD -MP -MF $(BUILD)/train_gpt2cu-emulated.d -c $< -o $@

$(BUILD)/%.cu.cpp: %.cu train_gpt2.cu dev/ranks/kernels.cu dev/ranks/tensor_model.cu \
                   dev/cuda/machine.cu dev/cuda/memory.cu dev/cuda/attention_tiles.cu $(BUILD)/rewrite
	@mkdir -p $(@D)
	$(BUILD)/rewrite $< > $@

$(BUILD)/tests/test_gpt2.cu.cpp: tests/real_shapes.cu

$(BUILD)/rewrite: dev/emulator/rewrite.c $(BUILD)/flags
	$(CC) $(FLAGS) $< -o $@

$(BUILD)/emulated/test_emulator: $(BUILD)/tests/test_emulator.cu.cpp $(BUILD)/emulate-flags
	@mkdir -p $(@D)
	$(EMULATE) -MMD -MP -MF $(BUILD)/$(@F).d $< -o $@

# The twin on the CPU, and the library that it needs: C, beside the GPU's C++.
REFERENCE = $(BUILD)/gpt2_reference.o $(BUILD)/library.a
$(BUILD)/emulated/test_gpt2-%: $(BUILD)/emulated/test_gpt2-%.o $(REFERENCE) $(BUILD)/emulated/library.a
	$(EMULATE) $(filter %.o %.a,$^) -o $@

$(BUILD)/emulated/test_gpt2-%.o: $(BUILD)/tests/test_gpt2.cu.cpp $(BUILD)/emulate-flags
	@mkdir -p $(@D)
	$(EMULATE) $(if $(filter fp32,$*),-DPRECISION_FP32) -MMD -MP -MF $(BUILD)/test_gpt2-$*.d -c $< -o $@

PTX_PARTS  := $(patsubst dev/emulator/%.cpp,$(BUILD)/%.o,$(wildcard dev/emulator/ptx/*.cpp))

$(BUILD)/ptx/%.ptx: tests/test_gpt2.cu $(BUILD)/nvflags
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O3 -arch=compute_$(lastword $(subst -, ,$*)) -ptx -lineinfo -I. -Itests \
	    $(if $(filter fp32-%,$*),-DPRECISION_FP32) -MMD -MP -MF $(BUILD)/$(@F).d $< -o $@ \
	    $(filter-out -l% -L%,$(CUBLAS))

$(BUILD)/ptx/%.o: dev/emulator/ptx/%.cpp $(BUILD)/emulate-flags
	@mkdir -p $(@D)
	$(EMULATE) -fwrapv -ffp-contract=off -MMD -MP -MF $(BUILD)/ptx-$(@F).d -c $< -o $@

$(BUILD)/ptx/test_gpt2-%: $(BUILD)/tests/test_gpt2.cu.cpp $(PTX_PARTS) $(REFERENCE) $(BUILD)/emulated/library.a
	$(EMULATE) -O0 -DEMULATOR_PTX -rdynamic $(if $(filter fp32,$*),-DPRECISION_FP32) -MMD -MP \
	    -MF $(BUILD)/ptx-$(@F).d $(filter %.cpp %.o %.a,$^) -o $@ -ldl

$(BUILD)/emulated/bench_cuda: $(BUILD)/dev/ladders/bench.cu.cpp $(BUILD)/emulated/library.a
	@mkdir -p $(@D)
	$(EMULATE) -O1 $(CU_FLAGS) -MMD -MP -MF $(BUILD)/$(@F)-emulated.d $< $(BUILD)/emulated/library.a -o $@

$(BUILD)/gpt2_reference.o: tests/gpt2_reference.c $(BUILD)/flags
	$(CC) $(filter-out -DPRECISION_BF16,$(FLAGS:-O3=-O1)) -w -O1 -MMD -MP -MF $(BUILD)/$(@F).d -c $< -o $@

# The counters need g++: its -fsanitize=thread reports every access as it stands. The flags keep two
# instructions of a GPU from becoming one, or one from becoming two (dev/emulator/README.md).
COUNT = g++ -std=c++17 -Wall -Wextra -Wno-unknown-pragmas -Wno-class-memaccess \
        -Wno-maybe-uninitialized -Og -g -no-pie -DEMULATOR_COUNT -DWITH_NCCL \
        $(if $(filter 1,$(OPENMP)),-fopenmp) -Idev/emulator/include -iquote . -iquote tests
WHOLE = -fno-tree-vectorize -fno-tree-slp-vectorize -fno-store-merging -fno-crossjumping \
        -fno-tree-tail-merge -fno-code-hoisting -fno-if-conversion -fno-if-conversion2 -fno-ipa-icf \
        -fno-thread-jumps

profile: $(BUILD)/count-flags $(BUILD)/profile       ## count what each kernel asks of a GPU, without one; KERNEL=xent GPU=a100
	@$(BUILD)/profile '$(MODEL)' '$(MICRO_BATCH)' '$(GPU)' '$(KERNEL)'

$(BUILD)/profile: $(BUILD)/dev/ladders/profile.cu.cpp $(BUILD)/count.o $(BUILD)/counted/library.a
	$(COUNT) $(WHOLE) $(CU_FLAGS) -fsanitize=thread -MMD -MP -MT $@ -MF $@.d -c $< -o $@.o
	$(COUNT) $@.o $(BUILD)/count.o $(BUILD)/counted/library.a -o $@

$(BUILD)/counted/%: $(BUILD)/dev/ladders/%.cu.cpp $(BUILD)/count.o $(BUILD)/counted/library.a
	@mkdir -p $(@D)
	$(COUNT) $(WHOLE) $(CU_FLAGS) -fsanitize=thread -MMD -MP -MT $@ -MF $(BUILD)/$*-counted.d -c $< -o $@.o
	$(COUNT) $@.o $(BUILD)/count.o $(BUILD)/counted/library.a -o $@

$(LADDERS:%=$(BUILD)/dev/ladders/%.cu.cpp): dev/ladders/ladder.cu
$(patsubst %,$(BUILD)/dev/ladders/%.cu.cpp,bench profile $(LADDERS)): dev/ladders/gpu.cu

$(LADDERS:%=$(BUILD)/cuda/%): $(BUILD)/cuda/%: dev/ladders/%.cu $(BUILD)/cuda/library.a
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) $(CU_FLAGS) -MMD -MP -MF $(BUILD)/$*-cuda.d $< $(BUILD)/cuda/library.a -o $@ $(CUBLAS)

$(BUILD)/test_profile: $(BUILD)/tests/test_profile.cu.cpp $(BUILD)/count.o $(BUILD)/counted/library.a
	$(COUNT) $(WHOLE) -fsanitize=thread -MMD -MP -MT $@ -MF $@.d -c $< -o $@.o
	$(COUNT) $@.o $(BUILD)/count.o $(BUILD)/counted/library.a -o $@

$(BUILD)/count.o: dev/emulator/count.cpp $(BUILD)/count-flags
	$(COUNT) -MMD -MP -MF $@.d -c $< -o $@

$(BUILD)/bench_cuda: dev/ladders/bench.cu $(BUILD)/cuda/library.a
	$(NVCC) $(NVFLAGS) $(CU_FLAGS) -MMD -MP -MF $@.d $< $(BUILD)/cuda/library.a -o $@ $(CUBLAS)

$(BUILD)/cuda/test_gpt2-%: tests/test_gpt2.cu train_gpt2.cu $(REFERENCE) $(BUILD)/cuda/library.a
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) -MMD -MP -MF $(BUILD)/$(@F)-cuda.d -I. -Itests \
	    $(if $(filter fp32,$*),-DPRECISION_FP32) $< \
	    $(REFERENCE) $(BUILD)/cuda/library.a -o $@ $(CUBLAS)

# A test runs for a moment: it is compiled without optimizing, but for those that run longer than a
# compiler. OPTIMIZED=-O3: as a user builds the kernels.
OPTIMIZED = $(if $(filter checkpoint dataloader layers tales zero,$*),-O2,\
            $(if $(filter model,$*),-O1,-O0))
$(BUILD)/test_%: tests/test_%.c $(BUILD)/library.a
	$(CC) $(FLAGS:-O3=$(OPTIMIZED)) -MMD -MP -MF $@.d $< $(BUILD)/library.a -o $@ -lm

$(BUILD)/compare: tests/compare.c
$(BUILD)/bench: dev/ladders/bench.c
$(BUILD)/one_step: scripts/lab/experiments/one_step.c        # for scripts/lab
$(BUILD)/attention-cpu: dev/ladders/attention.c
$(addprefix $(BUILD)/,compare bench one_step attention-cpu): $(BUILD)/library.a
	$(CC) $(FLAGS) -MMD -MP -MF $@.d $(firstword $(filter %.c,$^)) $(BUILD)/library.a -o $@ -lm

$(BUILD)/ladder: dev/ladders/matmul.c dev/ladders/matmul_bf16.c $(BUILD)/library.a
	$(CC) $(FLAGS) dev/ladders/matmul.c dev/ladders/matmul_bf16.c $(BUILD)/library.a -o $@ -lm
	@$(CC) $(FLAGS) -MM -MP -MT $@ dev/ladders/matmul.c > $@.d

# A stamp changes only when the compiler or its flags do, and then everything is built anew.
stamp = $(if $(WRITABLE),,$(error $(CURDIR): cannot write here, or to $(BUILD); build a copy of \
        your own))@echo '$(1)' | cmp -s - $@ || echo '$(1)' > $@

$(BUILD)/flags: FORCE
	$(call stamp,$(LINK) $(FLAGS))
	$(if $(BUILDS),,$(error CC=$(CC): is not there, or lacks vector_size, the vector types of GNU C; use gcc or clang))

$(BUILD)/nvflags: FORCE
	@command -v $(firstword $(NVCC)) > /dev/null || { echo 'there is no $(NVCC) here: install the CUDA toolkit,' \
	    'or say NVCC=PATH; make emulate needs neither' >&2; exit 1; }
	@[ -n '$(CUBLAS)' ] || { echo 'cublasLt.h is neither in $(TOOLKIT)/include nor among the packages of' \
	    '$(PYTHON): install libcublas-dev, or pip install nvidia-cublas' >&2; exit 1; }
	$(call stamp,$(NVCC) $(NVFLAGS) $(CU_FLAGS) $(CUBLAS))

$(BUILD)/emulate-flags: FORCE
	$(call stamp,$(EMULATE) $(CU_FLAGS))

$(BUILD)/count-flags: FORCE
	@command -v g++ > /dev/null || { echo 'make $(if $(OP),ladder OP=$(OP),profile): there is no g++' \
	    'here; only g++ can build it' >&2; exit 1; }
	$(call stamp,$(COUNT) $(WHOLE) $(CU_FLAGS))

FORCE:
.SECONDARY:
.DELETE_ON_ERROR:

.PHONY: all run lab pages speedrun test test-all bench ladder lesson step exercise check emulate profile clean help FORCE
.PHONY: build-all
-include $(wildcard $(BUILD)/*.d $(BUILD)/*/*/*.d $(BUILD)/*/*/*/*.d)
