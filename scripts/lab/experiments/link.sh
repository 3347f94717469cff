#!/usr/bin/env bash
# Emulates two machines with a slow link between them: runs an MPI program as two ranks, each in its
# own network namespace with its own host name. A pair of virtual Ethernet devices joins them, and
# `tc tbf` limits the bits a second in each direction.
#
#     scripts/lab/experiments/link.sh RATE COMMAND...    RATE in tc's units: 25mbit; none: unlimited
#
# Needs Linux with util-linux, iproute2 and Open MPI; root only where users may not make namespaces.
# The machine's own devices stay untouched: everything is made inside new namespaces, which vanish
# with their last process, however it ends.
set -eu
here=10.0.0.1 there=10.0.0.2

if [ "$1" != --inside ]; then                # makes the namespaces, and ends with what is in them
    # Root of a user namespace has no rights over the machine outside it.
    user=--map-root-user
    unshare $user true 2> /dev/null || user=
    setpriv --pdeathsig KILL unshare $user --net --uts --mount --pid --fork --kill-child \
        --mount-proc bash "$0" --inside "$@" &
    trap 'kill -KILL $!' INT TERM HUP
    wait $!
    exit
fi

rate=$2
shift 2
mount -t tmpfs tmpfs /run                    # the second namespace's name, Open MPI's files
hostname $here
ip netns add there
ip link add near type veth peer name far netns there

attach() {                                   # DEVICE ADDRESS [-n NAMESPACE]
    ip "${@:3}" link set lo up
    ip "${@:3}" addr add "$2/24" dev "$1"
    ip "${@:3}" link set "$1" up
    # The token bucket holds 64 KiB: a burst of that size passes at once.
    [ "$rate" = none ] ||
        tc "${@:3}" qdisc add dev "$1" root tbf rate "$rate" burst 64kb latency 200ms
}
attach near $here
attach far $there -n there

# mpirun enters the other namespace with this in place of ssh.
printf '#!/bin/sh\nshift\nexec ip netns exec there unshare --uts sh -c "hostname %s && $*"\n' \
    $there > /run/enter
chmod +x /run/enter
mpirun --allow-run-as-root --bind-to none --host $here:1,$there:1 -n 2 \
    --mca orte_tmpdir_base /run --mca plm_rsh_agent /run/enter \
    --mca oob_tcp_if_include $here/24 --mca btl_tcp_if_include $here/24 \
    --mca pml ob1 --mca btl tcp,self "$@" < /dev/null
