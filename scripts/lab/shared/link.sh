#!/usr/bin/env bash
# Emulates two machines with a slow link between them: runs an MPI program as two ranks, each in its
# own network namespace with its own host name. A pair of virtual Ethernet devices joins them, and
# `tc tbf` limits the bits a second in each direction.
#
#     scripts/lab/shared/link.sh RATE COMMAND...     RATE in tc's units: 25mbit, 1gbit; none: unlimited
#     scripts/lab/shared/link.sh --check             whether this machine can do it, or why not
#
# Needs Linux with util-linux, iproute2 and Open MPI; root only where users may not make namespaces.
# The machine's own devices stay untouched: everything is made inside new namespaces, which vanish
# with their last process, however it ends.
set -u
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
here=10.0.0.1 there=10.0.0.2

die() { echo "link.sh: $*" >&2; exit 1; }

# ---- outside: make the namespaces, and end every process in them when this script ends ----

needs() {
    local tool
    for tool in unshare nsenter ip tc mpirun; do
        command -v $tool > /dev/null || die "needs $tool"
    done
    case $(mpirun --version 2>&1) in
        *"Open MPI"* | *OpenRTE*) ;;
        *) die "mpirun is not Open MPI's" ;;
    esac
}

outside() {                                  # RATE COMMAND...
    local namespaces=(unshare --net --uts --mount --pid --fork --kill-child --mount-proc)
    local die_with_me=() child status
    needs
    # Root of a user namespace has no rights over the machine outside it.
    if unshare --map-root-user "${namespaces[@]:1}" true 2> /dev/null; then
        namespaces+=(--map-root-user)
    elif ! "${namespaces[@]}" true 2> /dev/null; then
        die "this user may not make network namespaces"
    fi
    ! setpriv --pdeathsig KILL true 2> /dev/null || die_with_me=(setpriv --pdeathsig KILL)
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/link.XXXXXX") || exit 1
    "${die_with_me[@]}" "${namespaces[@]}" bash "$self" --inside "$scratch" "$@" &
    child=$!
    trap 'kill -KILL $child 2> /dev/null' INT TERM HUP
    wait $child
    status=$?
    trap '' INT TERM HUP
    wait $child 2> /dev/null                 # a signal may have ended the first wait
    rmdir "$scratch"
    exit $status
}

# ---- inside: the link, and mpirun, which enters the other namespace with nsenter, not ssh ----

attach() {                                   # DEVICE ADDRESS RATE, in the namespace of the caller
    ip link set lo up && ip addr add "$2/24" dev "$1" && ip link set "$1" up || exit 1
    # The token bucket holds 64 KiB: a burst of that size passes at once.
    [ "$3" = none ] || tc qdisc add dev "$1" root tbf rate "$3" burst 64kb latency 200ms
}

inside() {                                   # SCRATCH RATE COMMAND...
    local scratch=$1 rate=$2 other
    shift 2
    mount -t tmpfs tmpfs "$scratch" || exit 1            # for Open MPI's files: they vanish as well
    hostname $here || exit 1
    unshare --net --uts sleep infinity &
    other=$!
    while [ "$(readlink /proc/$other/ns/uts)" = "$(readlink /proc/$$/ns/uts)" ]; do sleep 0.01; done
    nsenter -t $other --uts hostname $there &&
        ip link add near type veth peer name far netns $other &&
        attach near $here "$rate" &&
        nsenter -t $other --net bash "$self" --attach far $there "$rate" ||
        die "cannot make the link at rate '$rate'"
    printf '#!/bin/sh\nshift\nexec nsenter -t %d --net --uts sh -c "$*"\n' $other > "$scratch/enter"
    chmod +x "$scratch/enter"
    mpirun --allow-run-as-root --bind-to none --host $here:1,$there:1 -n 2 \
        --mca orte_tmpdir_base "$scratch" --mca plm_rsh_agent "$scratch/enter" \
        --mca oob_tcp_if_include $here/24 --mca btl_tcp_if_include $here/24 \
        --mca pml ob1 --mca btl tcp,self "$@" < /dev/null
}

case ${1:-} in
    --inside) shift; inside "$@" ;;
    --attach) shift; attach "$@" ;;
    --check) outside 1gbit true ;;
    '' | -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$self" ;;
    *) [ $# -gt 1 ] || die "$1: expected a command after the rate"
       outside "$@" ;;
esac
