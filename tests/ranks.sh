# What the tests that start many ranks share; sourced after tests/tools.sh.

# As root, with more ranks than cores, and ranks that wait politely: for Open MPI.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
export OMPI_MCA_pml=ob1                     # without a search for other networks: 0.2 s a start
export OMPI_CC=$cc MPICH_CC=$cc
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE PMI_RANK PMI_SIZE OMPI_COMM_WORLD_RANK

needs() {                                   # needs TOOL...: or every test in $tests is skipped
    local tool
    for tool in "$@"; do command -v "$tool" > /dev/null || skip_all "there is no $tool here"; done
}
# Whether mpirun itself did not come up, as happens on a machine that runs several: it alone speaks.
never_began() {
    [ $status = 1 ] && [ ! -s "$dir/stdout" ] && grep -q '^-----' "$dir/stderr" &&
        ! grep -q '^train_gpt2' "$dir/stderr" &&
        echo "    mpirun did not start: $(grep '[a-z]' "$dir/stderr" | head -n 12 | tr '\n' ' ')"
}
mpi() {                                     # mpi N ARGS...: that many ranks of $program
    local start=(timeout -k 5 300 mpirun -n "$1" "$program" --threads 1 "${@:2}")
    run "${start[@]}"
    ! never_began || run "${start[@]}"
}
good() {                                    # good N ARGS...: ends well, with nothing on stderr
    mpi "$@"
    [ $status = 0 ] || note "status $status of '$*': $(grep -m 1 train_gpt2: "$dir/stderr")"
    ! grep -q . "$dir/stderr" || note "'$*' writes to stderr: $(head -n 1 "$dir/stderr")"
}
# One line of ours, whatever mpirun says after it; status 1; nothing made.
refused() {                                 # refused WORDS COMMAND...
    run timeout -k 5 60 "${@:2}" --out "$dir/no"
    same "status of '${*:2}'" $status 1
    same "lines of '${*:2}'" "$(grep -c '^train_gpt2: ' "$dir/stderr")" 1
    grep '^train_gpt2: ' "$dir/stderr" | grep -qF -e "$1" ||
        note "'${*:2}' says '$(grep -m 1 '^train_gpt2: ' "$dir/stderr")', without '$1'"
    [ ! -e "$dir/no" ] || note "'${*:2}' leaves $(find "$dir/no" | xargs) behind"
    rm -rf "$dir/no"
}
shown() {                                   # stdout, which some mpiruns make a terminal
    tr '\r' '\n' < "$dir/stdout" | sed "s/$(printf '\033')\[K//g" | grep .
}
# apart KEY RUN RUN [FIRST]: the largest relative difference of what the steps log, from step FIRST.
apart() {
    paste <(values step "$1" "$2" | tail -n +"${4:-1}") <(values step "$1" "$3") | awk '
        NF != 2 || !($2 > 0) { bad = 1 }
        { d = $1 > $2 ? $1/$2 - 1 : 1 - $1/$2; if (d > worst) worst = d }
        END { if (bad || !NR) print "nothing"; else printf "%.1e\n", worst }'
}
same_files() {                              # same_files RUN RUN FILE...: of the last checkpoint
    local file
    for file in "${@:3}"; do
        cmp -s "$1/latest/$file" "$2/latest/$file" || note "$file of ${2##*/} has other bits"
    done
}
cut_at() {                                  # cut_at STEP RUN: as $dir/cut, as it was at STEP
    rm -rf "$dir/cut"
    mkdir "$dir/cut"
    cp -r "$2/step_$(printf %08d "$1")" "$dir/cut"
    ln -s "step_$(printf %08d "$1")" "$dir/cut/latest"
}
