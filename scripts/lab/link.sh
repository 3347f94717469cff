#!/usr/bin/env bash
# Two machines in one, and a slow cable between them: runs an MPI program as two ranks, each in a
# network namespace of its own with a host name of its own, joined by a pair of virtual Ethernet
# devices on which `tc tbf` lets only so many bits a second through, in either direction.
#
#     scripts/lab/link.sh RATE COMMAND...     RATE as tc writes it: 25mbit, 1gbit; none: unlimited
#     scripts/lab/link.sh --check             whether that is possible here; why not
#
# Linux with util-linux, iproute2 and Open MPI; root only where others may not make namespaces. The
# machine's own devices are out of reach: everything is made inside namespaces that no other process
# is in, and vanishes with the last process in them, whatever ended it.
set -u
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
here=10.0.0.1 there=10.0.0.2

die() { echo "link.sh: $*" >&2; exit 1; }

# ---- outside: make the namespaces, and see to it that nobody outlives this script ----

needs() {
    local tool
    for tool in unshare nsenter ip tc mpirun; do
        command -v $tool > /dev/null || die "there is no $tool here"
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
    # As root of a user namespace there is nothing that this could harm.
    if unshare --map-root-user "${namespaces[@]:1}" true 2> /dev/null; then
        namespaces+=(--map-root-user)
    elif ! "${namespaces[@]}" true 2> /dev/null; then
        die "this user may not make network namespaces here"
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

# ---- inside: a cable, and mpirun, which reaches the other end by this script in place of ssh ----

attach() {                                   # DEVICE ADDRESS RATE, in the namespace of the caller
    ip link set lo up && ip addr add "$2/24" dev "$1" && ip link set "$1" up || exit 1
    # The bucket holds 64 KiB, so a message may be ahead of the rate by that much.
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
        die "the link cannot be made, at a rate of '$rate'"
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
    *) [ $# -gt 1 ] || die "which command?"
       outside "$@" ;;
esac
