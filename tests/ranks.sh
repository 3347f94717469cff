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

# ---- starting ranks ----

# Whether mpirun itself did not come up, as happens on a machine that runs several: it alone speaks.
never_began() {
    [ $status = 1 ] && [ ! -s "$dir/stdout" ] && grep -q '^-----' "$dir/stderr" &&
        ! grep -q '^train_gpt2' "$dir/stderr" &&
        echo "    mpirun did not start: $(grep '[a-z]' "$dir/stderr" | head -n 12 | tr '\n' ' ')"
}
free_port() {          # below what the kernel gives to others; the ranks take the one after it
    local port
    while :; do
        port=$((RANDOM % 12000 + 20000))
        (exec 3<> "/dev/tcp/127.0.0.1/$((port + 1))") 2> /dev/null || break
    done
    echo $port
}
mpi() {                                     # mpi N ARGS...: that many ranks of $program
    local start=(timeout -k 5 300 mpirun -n "$1" "$program" --threads 1 "${@:2}")
    [ -z "${MASTER_ADDR:-}" ] || export MASTER_PORT=$(free_port)        # where GPUs' ranks meet
    run "${start[@]}"
    ! never_began || run "${start[@]}"
}
good() {                                    # good N ARGS...: ends well, with nothing on stderr
    mpi "$@"
    [ $status = 0 ] || note "status $status of '$*': $(grep -m 1 '[a-z]' "$dir/stderr")"
    ! grep -q . "$dir/stderr" || note "'$*' writes to stderr: $(head -n 1 "$dir/stderr")"
}
# One line of ours, whatever mpirun says after it; status 1; nothing made.
refused() {                                 # refused WORDS COMMAND...
    local ours='^train_gpt2[a-z-]*: '
    run timeout -k 5 60 "${@:2}" --out "$dir/no"
    same "status of '${*:2}'" $status 1
    same "lines of '${*:2}'" "$(grep -c "$ours" "$dir/stderr")" 1
    grep "$ours" "$dir/stderr" | grep -qF -e "$1" ||
        note "'${*:2}' says '$(grep -m 1 '[a-z]' "$dir/stderr")', without '$1'"
    [ ! -e "$dir/no" ] || note "'${*:2}' leaves $(find "$dir/no" | xargs) behind"
    rm -rf "$dir/no"
}
refuses() {                                 # refuses WORDS N ARGS...: as N ranks of $program
    [ -z "${MASTER_ADDR:-}" ] || export MASTER_PORT=$(free_port)
    refused "$1" mpirun -n "$2" "$program" --threads 1 "${@:3}"
}
shown() {                                   # stdout, which some mpiruns make a terminal
    tr '\r' '\n' < "$dir/stdout" | sed "s/$(printf '\033')\[K//g" | grep .
}
told() { grep -q -e "$1" "$dir/stdout" || note "$2: $(grep -m 1 '^ranks' "$dir/stdout")"; }
