#!/usr/bin/env bash
# The Makefile, in a copy of the tree: what it finds out about a compiler, what it builds anew when,
# and that neither gcc nor clang has anything to warn of.
. "$(dirname "$0")/tools.sh"
unset CFLAGS SANITIZE OPENMP      # what a `make test` above has set
unset CC

tree=$dir/tree
mkdir "$tree"
cp -r Makefile train_gpt2.c train_gpt2.cu dataloader.h dev scripts tests "$tree"

# ---- a compiler that only writes down what it is asked, and answers for what it cannot do ----

# Its refusals are extended regular expressions, one a line, in $dir/cannot. It writes empty
# programs; and, where $dir/headers is, the true dependencies.
mkdir "$dir/bin"
cat > "$dir/bin/stub" << STUB
#!/usr/bin/env bash
real="$cc" dir="$dir"
STUB
cat >> "$dir/bin/stub" << 'STUB'
while IFS= read -r cannot; do
    echo " $* " | grep -qE -e "$cannot" && exit 1
done < "$dir/cannot"
case " $* " in
    *" -x c - "*) echo "$*" >> "$dir/probes"; exit 0 ;;  # the Makefile wants to know what works
    *" -MM "*) exec "$real" "$@" ;;
esac
echo "$*" >> "$dir/calls"
keep=()
while [ $# -gt 0 ]; do
    case $1 in
        -o) out=$2; shift ;;
        -MF) deps=$2; shift ;;
        -MMD) ;;
        -Xpreprocessor) shift ;;
        -l* | -L* | -fopenmp* | -fsanitize=* | -m*) ;;
        *) keep+=("$1") ;;
    esac
    shift
done
printf '#!/bin/sh\n' > "$out" && chmod +x "$out"
[ -n "$deps" ] && [ -e "$dir/headers" ] || exit 0
"$real" "${keep[@]}" -MM -MT "$out" > "$dir/deps.$$"
# As a compiler does: of several sources, the dependencies of the last one stay.
awk -v target="$out:" '$1 == target { text = "" } { text = text $0 "\n" }
    END { printf "%s", text }' "$dir/deps.$$" > "$deps"
STUB
chmod +x "$dir/bin/stub"

# stub ARGS...: make with that compiler; its output in $dir/said, what was compiled in $dir/calls.
stub() {
    : > "$dir/calls"
    make -C "$tree" CC="$dir/bin/stub" "$@" > "$dir/said" 2>&1 ||
        note "make $*: $(grep -E 'Error|error' "$dir/said" | head -n 1)"
}
# Which programs were built, in the order of the alphabet.
built() { sed 's/.*-o \([^ ]*\).*/\1/' "$dir/calls" | grep -v '\.o$' | sort | xargs; }
can_all() { : > "$dir/cannot"; }
cannot() { printf '%s\n' "$@" > "$dir/cannot"; }

# ---- what is built anew ----

can_all
stub
same "a first make builds" "$(built)" "prepare train_gpt2"
stub
same "a second make builds" "$(built)" ""
stub SANITIZE=1
same "make SANITIZE=1 builds" "$(built)" "prepare train_gpt2"
grep -q 'fsanitize=address,undefined' "$dir/calls" || note "SANITIZE=1 does not sanitize"
stub CFLAGS="-O0 -g"
grep -q -e ' -O3 ' "$dir/calls" && note "CFLAGS=-O0 leaves -O3"
same "another CFLAGS builds" "$(built)" "prepare train_gpt2"
ln "$dir/bin/stub" "$dir/bin/stub2"
stub CFLAGS="-O0 -g" CC="$dir/bin/stub2"
same "another compiler builds" "$(built)" "prepare train_gpt2"
end build_follows_flags

# Root's compiler may replace a device by a file. (A compiler that may do it has no place
# in this test: the stub only says where it was told to write.)
[ "$(wc -l < "$dir/probes")" -gt 5 ] || note "the Makefile asks the compiler nothing"
grep -v -e ' -o build/probe\.[0-9]*$' "$dir/probes" > "$dir/elsewhere" &&
    note "a probe elsewhere: $(head -n 1 "$dir/elsewhere")"
end build_writes_to_no_device

# What a changed file is compiled into, and no other program.
touch "$dir/headers"
stub clean; stub
cd "$tree" || exit 1
for row in "train_gpt2.c train_gpt2" "dev/prepare.c prepare" "dev/ladders/ladder.h" \
        {dataloader.h,dev/base/rng.h,dev/data/data.h,dev/files/json.c}" prepare train_gpt2" \
        {dev/cpu/cpu.h,dev/train/train.h,dev/plan/search.c}" prepare train_gpt2"; do
    find . -type f -exec touch -t 202001010000 {} +
    touch "${row%% *}"
    stub
    same "after a change of ${row%% *} make builds" "$(built)" "$(cut -s -d ' ' -f 2- <<< "$row")"
done
grep -q -e '-o build/objects/plan/search.o' "$dir/calls" || note "search.c is not compiled anew"
same "files compiled for search.c" "$(grep -c -e '-o build/objects' "$dir/calls")" 1
cd "$OLDPWD" || exit 1
rm "$dir/headers"
end build_follows_headers

# ---- what it finds out ----

flags_of() { grep -e '-o train_gpt2' "$dir/calls"; }
expect() { flags_of | grep -qF -e "$1" || note "$2: $(flags_of | cut -c 1-200)"; }
refuse() { flags_of | grep -qF -e "$1" && note "$2: $(flags_of | cut -c 1-200)"; }

can_all
stub clean; stub
expect "-march=native" "no -march=native where it works"
expect " -fopenmp " "no OpenMP where it works"
cannot "-march=native"
stub
expect "-mcpu=native" "no -mcpu=native where -march is refused"
cannot "-march=native" "-mcpu=native"
stub
refuse "native" "native where both are refused"
end build_detects_native

cannot "-fopenmp "
stub
expect "-fopenmp-simd" "no -fopenmp-simd in place of -fopenmp"
grep -q "^note: .*OpenMP" "$dir/said" || note "no word of the missing OpenMP"
cannot "-fopenmp"
stub
refuse "-fopenmp" "OpenMP where all of it is refused"
expect "-Wno-unknown-pragmas" "warnings on pragmas"
can_all
stub OPENMP=0
refuse " -fopenmp " "OpenMP with OPENMP=0"
grep -q "^note:" "$dir/said" && note "a note where OpenMP was not wanted"
end build_without_openmp

# macOS: clang takes -fopenmp only behind -Xpreprocessor, and the library is where brew put it.
cat > "$dir/bin/brew" << BREW
#!/bin/sh
[ "\$*" = "--prefix libomp" ] && echo "$dir/opt/libomp"
BREW
chmod +x "$dir/bin/brew"
cannot "[^s]or -fopenmp |[^r] -fopenmp "
PATH="$dir/bin:$PATH" stub
expect "-Xpreprocessor -fopenmp -I$dir/opt/libomp/include" "brew's OpenMP is not used"
expect "-L$dir/opt/libomp/lib -lomp" "brew's OpenMP is not linked"
grep -q "^note:" "$dir/said" && note "a note although brew has OpenMP"
cannot "[^s]or -fopenmp |[^r] -fopenmp " "-lomp"      # brew answers, but holds no such library
PATH="$dir/bin:$PATH" stub
refuse "-lomp" "brew's OpenMP is linked where it is not installed"
grep -q "^note: .*brew install libomp" "$dir/said" || note "no word of brew install libomp"
end build_with_brew

# ---- what it cannot build with: one line, and nothing is left ----

# refused WORDS COMMAND...: make's whole output is one line that holds the words.
refused() {
    "${@:2}" > "$dir/said" 2>&1
    same "status of ${*:2}" $? 2
    same "lines of ${*:2}: $(head -n 2 "$dir/said" | xargs -0)" "$(wc -l < "$dir/said" | tr -d ' ')" 1
    grep -qF -e "$1" "$dir/said" || note "it does not say '$1': $(head -n 1 "$dir/said")"
}
cat > "$dir/bin/no-vectors" << WRAPPER
#!/usr/bin/env bash
[[ " \$* " = *" -x c - "* ]] || exec $cc "\$@"
sed 's/__attribute__((vector_size([0-9]*)))//' | $cc "\$@"      # as tcc: it takes no notice
WRAPPER
chmod +x "$dir/bin/no-vectors"
make -s -C "$tree" clean
refused "CC=$dir/bin/no-vectors: is not there, or lacks vector_size" \
    make -s -C "$tree" CC="$dir/bin/no-vectors"
refused "CC=$dir/bin/nowhere: is not there" make -s -C "$tree" CC="$dir/bin/nowhere"
[ ! -e "$tree/prepare" ] && [ ! -e "$tree/train_gpt2" ] || note "it builds something"
end build_refuses_a_compiler_in_one_line

# ---- make help ----

make -s -C "$tree" help > "$dir/help" 2> "$dir/stderr" || note "make help: $(cat "$dir/stderr")"
documented=$(sed -n 's/^ *make \([^ ]*\).*/\1/p' "$dir/help")
phony=$(sed -n 's/^\.PHONY: *\(.*\) FORCE/\1/p' Makefile)      # the second line's is in no list
same "targets in make help" "$(sort <<< "$documented" | xargs)" \
    "$(printf '%s\n' $phony train_gpt2cu | sort | xargs)"      # a program; the others name no file
make -C "$tree" -n CC=true $documented > /dev/null 2> "$dir/stderr" ||
    note "$(head -n 1 "$dir/stderr")"
for given in "pages dev/web/page.py" "pages:LESSONS=1 dev/lessons/pages.py" \
             "bench scripts/bench.py" "bench:GPU=1 scripts/bench.py --gpu"; do
    make -C "$tree" -n CC=true $(tr : ' ' <<< "${given%% *}") > "$dir/out" 2>&1
    grep -q "${given#* }" "$dir/out" || note "make ${given%% *} does not run ${given#* }"
done
end build_help

stub clean
[ ! -e "$tree/train_gpt2" ] && [ ! -e "$tree/build" ] || note "make clean leaves something"
end build_clean

# ---- true compilers; .ci builds with optimization, too, where a warning is an error ----

# compiled ARGS...: builds it all in silence, and the program trains.
compiled() {
    make -s -C "$tree" clean
    rm -f "$dir/log"
    make -s -C "$tree" "$@" > "$dir/said" 2>&1 || note "make $*: does not build"
    grep -v '^note: ' "$dir/said" | grep -q . && note "make $*: $(head -n 1 "$dir/said")"
    rm -rf "$dir/tales"
    (cd "$tree" && ./prepare tales --out "$dir/tales" --tokens 5000 > "$dir/told" 2>&1 &&
        ./train_gpt2 --data "$dir/tales" --layers 1 --heads 2 --channels 16 --seq-len 32 --steps 2 \
            --eval-tokens 64 --micro-batch 2 --log "$dir/log" > "$dir/told" 2>&1) ||
        note "what make $* built fails: $(tail -n 1 "$dir/told")"
    grep -q '"reason":"done"' "$dir/log" || note "what make $* built does not train"
}

cat > "$dir/bin/no-openmp" << WRAPPER
#!/usr/bin/env bash
case " \$* " in *" -fopenmp "*) echo "unsupported option -fopenmp" >&2; exit 1 ;; esac
exec $cc "\$@"
WRAPPER
chmod +x "$dir/bin/no-openmp"
compiled CC="$dir/bin/no-openmp" CFLAGS=-O0
same "notes" "$(grep -c '^note: ' "$dir/said")" 1
grep -q '"threads_used":1[,}]' "$dir/log" || note "more than one thread without OpenMP"
[ "$(getconf _NPROCESSORS_ONLN)" = 1 ] ||
    head -n 1 "$dir/told" | grep -q '^note    built without OpenMP' ||
    note "the first line says nothing of idle cores: $(head -n 1 "$dir/told")"
end build_without_openmp_has_no_warnings

if command -v clang > /dev/null; then
    compiled CC=clang CFLAGS=-O0
    end build_clang_has_no_warnings
else
    skip build_clang_has_no_warnings "needs clang"
fi

# ---- imports point downwards: train to ranks and data, these to files, files to base ----

imports() {                                 # imports FOLDER ALLOWED...: what its files may include
    local folder=$1; shift
    local allowed="^($(echo "$@" | tr ' ' '|'))$"
    for file in dev/$folder/*.[ch]; do
        while read -r included; do
            of=$(realpath --relative-to=. "dev/$folder/$included")
            of=${of#dev/}; of=${of%%/*}
            [[ $of =~ $allowed ]] || note "$file includes $included"
        done < <(sed -n 's/^#include "\([^"]*\)".*/\1/p' "$file")
    done
}
imports base base
imports model model base
imports files files model
imports data data files dataloader.h
imports plan plan model
imports ranks ranks model cpu
imports train train plan ranks data
imports cpu cpu base train                  # peak.c is the twin's
grep -hsE '^#include "(\.\./)*train_gpt2' dev/{base,files,data,model,plan,ranks,train}/* > "$dir/upwards" &&
    note "$(head -n 1 "$dir/upwards")"
end imports_point_downwards

exit $failed
