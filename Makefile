# batchwise. A C compiler and make are all that the CPU build needs; `make help` lists the targets.

CFLAGS    ?= -O3
PYTHON    ?= python3
OPENMP    ?= 1
SANITIZE  ?= 0
PRECISION ?=

# What this compiler can do: $(call can,FLAGS) gives FLAGS back if a program builds with them.
can = $(shell echo 'int main(void) { return 0; }' | $(CC) -Werror $(1) -x c - -o /dev/null \
        2>/dev/null && echo '$(1)')

NATIVE := $(or $(call can,-march=native),$(call can,-mcpu=native))

ifeq ($(OPENMP),1)
  BREW_OMP := $(shell brew --prefix libomp 2>/dev/null)
  OMP := $(call can,-fopenmp)
  ifneq ($(BREW_OMP),)
    OMP := $(or $(OMP),$(call can,-Xpreprocessor -fopenmp -I$(BREW_OMP)/include \
                                  -L$(BREW_OMP)/lib -lomp))
  endif
  ifeq ($(OMP),)
    $(info note: $(CC) has no OpenMP here, so training uses one core (macOS: brew install libomp))
  endif
endif
ifeq ($(OMP),)
  OMP := $(call can,-fopenmp-simd) -Wno-unknown-pragmas
endif

# Sums keep their order (no -ffast-math); errno after sqrtf and trapping NaNs, nobody reads.
FLAGS := -std=gnu11 -Wall -Wextra $(NATIVE) $(CFLAGS) -fno-math-errno -fno-trapping-math \
         $(if $(call can,-Wpass-failed),-Wno-pass-failed) $(OMP)
ifeq ($(SANITIZE),1)
  FLAGS += -g -fsanitize=address,undefined -fno-sanitize-recover=all
endif

ifneq ($(filter-out fp32 bf16,$(PRECISION)),)
  $(error PRECISION=$(PRECISION): it is fp32 or bf16)
endif
FLAGS += $(if $(filter bf16,$(PRECISION)),-DPRECISION_BF16)    # the default is fp32 on a CPU

TESTS := $(patsubst tests/%.c,build/%,$(wildcard tests/test_*.c))

all: train_gpt2 prepare          ## build ./train_gpt2 and ./prepare (the default)

run: all                         ## train a small GPT-2 on the embedded corpus, about a minute
	@scripts/tales.sh

test: all $(TESTS)               ## run every test; ends with `N passed, N failed, N skipped`
	@tests/run.sh $(TESTS) $(wildcard tests/test_*.sh tests/test_*.py)

test-c: all $(TESTS)             ## the tests written in C alone
	@tests/run.sh $(TESTS)

bench: build/bench build/bench_tokenizer   ## speed and memory on this machine, layer by layer
	@build/bench
	@scripts/bench_others.sh

clean:                           ## remove what make built; data and runs stay
	rm -rf build train_gpt2 prepare

help:                            ## this list
	@sed -n 's/^\([a-z_0-9-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | \
	    while IFS='|' read -r target text; do printf '  make %-10s %s\n' "$$target" "$$text"; done
	@echo '  PRECISION=bf16 CC=clang CFLAGS="-O0 -g" SANITIZE=1 OPENMP=0   after any: another build'

train_gpt2: train_gpt2.c build/flags
	$(CC) $(FLAGS) -MMD -MP -MF build/$@.d $< -o $@ -lm

prepare: dev/data/prepare.c dev/data/tales.c build/flags
	$(CC) $(FLAGS) dev/data/prepare.c dev/data/tales.c -o $@ -lm
	@$(CC) $(FLAGS) -MM -MP -MT $@ dev/data/prepare.c dev/data/tales.c > build/$@.d

build/test_%: tests/test_%.c build/flags
	$(CC) $(FLAGS) -MMD -MP -MF $@.d $< -o $@ -lm

fuzz: all                        ## feed the parsers random bytes (needs clang); RUNS=10000000
	@tests/fuzz/run.sh

build/bench build/bench_tokenizer: build/%: dev/cpu/%.c build/flags
	$(CC) $(FLAGS) -MMD -MP -MF $@.d $< -o $@ -lm

# Changes only when the compiler or its flags do, and then everything is built anew.
build/flags: FORCE
	@mkdir -p build
	@echo '$(CC) $(FLAGS)' | cmp -s - $@ || echo '$(CC) $(FLAGS)' > $@

FORCE:
.PHONY: all run test test-c bench fuzz clean help FORCE
-include $(wildcard build/*.d)
