// Messages between ranks, over MPI. A message is a Call and its data, so that the receiver can
// compare the sender's call with its own. A send is over when it is received. A wait longer than
// EMULATOR_TIMEOUT seconds ends the program with a report.
#pragma once
#include <sched.h>
#include <unistd.h>
#include "calls.h"

namespace emulator {

#ifdef EMULATOR_MPI

static inline unsigned timeout(void) { return (unsigned)setting("EMULATOR_TIMEOUT", 120); }

// Repeats `done` until it returns true; between two tries other processes can use the core.
template <class Try>
static inline void wait_for_rank(int other, const ncclComm *comm, const Call &call, Try done) {
    double begin = now();
    for (int tries = 0; !done(); tries++) {
        if (tries < 100) sched_yield();
        else usleep(50);
        if (now() - begin > timeout())
            fail("rank %d: %s, has waited %u s for rank %d; a GPU would wait forever", comm->rank,
                 describe(call).c_str(), timeout(), other);
    }
}

// A synchronous send: it is complete only once the other rank receives it, since NCCL does not
// promise to buffer messages. MPI's own errors end the program, MPI's default.
static inline void send_begin(Outgoing *o, const ncclComm *comm) {
    if (o->bytes.size() > 0x7FFFFFFF) fail("rank %d: a message of more than 2 GB", comm->rank);
    MPI_Issend(o->bytes.data(), (int)o->bytes.size(), MPI_CHAR, comm->mpi_rank(o->to), comm->tag,
               MPI_COMM_WORLD, &o->request);
}

static inline void send_end(Outgoing *o, const ncclComm *comm, const Call &call) {
    wait_for_rank(o->to, comm, call, [=] {
        int done;
        MPI_Test(&o->request, &done, MPI_STATUS_IGNORE);
        return done != 0;
    });
}

static inline Bytes receive(int from, const ncclComm *comm, const Call &call) {
    MPI_Status status;
    int size, other = comm->mpi_rank(from);
    wait_for_rank(from, comm, call, [&] {
        int there;
        MPI_Iprobe(other, comm->tag, MPI_COMM_WORLD, &there, &status);
        return there != 0;
    });
    MPI_Get_count(&status, MPI_CHAR, &size);
    Bytes bytes((size_t)size);
    MPI_Recv(bytes.data(), size, MPI_CHAR, other, comm->tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return bytes;
}

#else   // one rank alone sends nothing

static inline void send_begin(Outgoing *, const ncclComm *) { }
static inline void send_end(Outgoing *, const ncclComm *, const Call &) { }
static inline Bytes receive(int, const ncclComm *, const Call &) { return {}; }

#endif

static inline Bytes message(const Call &call, const char *data, size_t bytes) {
    Bytes m(sizeof call + bytes);
    memcpy(m.data(), &call, sizeof call);
    if (bytes) memcpy(m.data() + sizeof call, data, bytes);
    return m;
}

static inline Call call_of(const Bytes &message) {
    Call c;
    memcpy(&c, message.data(), sizeof c);
    return c;
}

// Both ranks see the mismatch. One reports it; the other sleeps until mpirun ends it. The lower
// rank reports, or the receiver of a send, whose sender takes it for delivered and goes on.
__attribute__((noreturn, noinline))
static void fail_mismatch(const ncclComm *comm, const Call &mine, int other, const Call &theirs) {
    bool first = theirs.kind == SEND || (comm->rank < other && mine.kind != GOODBYE);
    if (!first) sleep(3);
    fail("rank %d: %s, but rank %d called %s", comm->rank, describe(mine).c_str(), other,
         describe(theirs).c_str());
}

}  // namespace emulator
