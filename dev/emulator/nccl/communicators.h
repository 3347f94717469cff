// Forming, splitting and ending communicators. Forming: MPI starts, then all ranks exchange a Hello
// and check that they have the same unique id and a GPU each. Splitting: all ranks exchange their
// colors and keys; the ranks of one color form a communicator, in the order of their keys. Ending:
// each rank waits for what it has queued, then for all other ranks to end the communicator too.
#pragma once
#include <signal.h>
#include <algorithm>
#include "requests.h"

namespace emulator {

#ifdef EMULATOR_MPI

// MPI_Finalize waits for all ranks. A rank that still has a communicator has failed, and the others
// will not call MPI_Finalize: mpirun ends them.
static void finalize_mpi(void) {
    for (const ncclComm *c = nccl.communicators; c; c = c->next)
        if (c->size > 1 && !c->ended) return;
    MPI_Finalize();
}

static void on_alarm(int) {
    static const char text[] = "emulator: ncclCommInitRank has waited for ranks that do not come\n";
    if (write(STDERR_FILENO, text, sizeof text - 1)) { }     // a failure here cannot be reported
    _exit(1);
}

// MPI_Init waits for all ranks; only a signal can interrupt it.
static inline void initialize_mpi(void) {
    int level;
    void (*before)(int) = signal(SIGALRM, on_alarm);
    alarm(timeout());
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    alarm(0);
    signal(SIGALRM, before);
    atexit(finalize_mpi);
}

static inline ncclResult_t start_mpi(int rank, int size) {
    int started, mpi_rank, mpi_size;
    MPI_Initialized(&started);
    if (!started) initialize_mpi();
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    if (rank == mpi_rank && size == mpi_size) return ncclSuccess;
    return refuse(ncclInvalidUsage, "ncclCommInitRank: rank %d of %d, but MPI says rank %d of %d "
                  "(mpirun -n %d starts as many)", rank, size, mpi_rank, mpi_size, size);
}

#else

static inline ncclResult_t start_mpi(int, int size) {
    return refuse(ncclSystemError, "ncclCommInitRank: %d ranks, but this program was built "
                  "without MPI (mpicxx -DEMULATOR_MPI)", size);
}

#endif

// Ranks of one host must have a GPU each, unless NCCL_MULTI_RANK_GPU_ENABLE is set.
static inline ncclResult_t check_hellos(const std::vector<Bytes> &parts) {
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    std::vector<Hello> hellos(parts.size());
    for (size_t r = 0; r < parts.size(); r++) {
        memcpy(&hellos[r], parts[r].data() + sizeof(Call), sizeof(Hello));
        if (memcmp(&hellos[r].id, &hellos[0].id, sizeof(ncclUniqueId)) != 0)
            return refuse(ncclInvalidUsage, "ncclCommInitRank: ranks 0 and %zu have different "
                          "unique ids", r);
        for (size_t k = 0; k < r && !(shared && atoi(shared)); k++)
            if (hellos[k].device == hellos[r].device && strcmp(hellos[k].host, hellos[r].host) == 0)
                return refuse(ncclInvalidUsage, "Duplicate GPU detected: ranks %zu and %zu both on "
                              "device %d of %s", k, r, hellos[k].device, hellos[k].host);
    }
    return ncclSuccess;
}

static inline ncclResult_t exchange_hellos(ncclComm_t comm, const ncclUniqueId &id) {
    Hello hello = { id, "", comm->device };
    const char *host = getenv("NCCL_HOSTID");
    if (host) snprintf(hello.host, sizeof hello.host, "%s", host);
    else gethostname(hello.host, sizeof hello.host - 1);
    comm->tag = 100 + nccl.made++;
    return check_hellos(exchange(comm, { INIT, ncclInt8, 0, 0, 1, 0 }, (const char *)&hello));
}

// With a communicator's rank numbers go those of MPI, which messages need.
static inline ncclComm_t split_communicator(ncclComm_t parent, int color, int key) {
    int own[2] = { color, key };
    std::vector<std::pair<int, int>> chosen;               // keys and ranks in the parent
    wait_for(nccl.last);
    std::vector<Bytes> parts = exchange(parent, { SPLIT, ncclInt32, 0, 0, 2, ++parent->calls },
                                        (const char *)own);
    for (int r = 0; r < parent->size; r++) {
        int theirs[2];
        memcpy(theirs, parts[(size_t)r].data() + sizeof(Call), sizeof theirs);
        if (theirs[0] == color) chosen.push_back({ theirs[1], r });
    }
    std::sort(chosen.begin(), chosen.end());
    ncclComm c = { 0, (int)chosen.size(), parent->device, 100 + nccl.made++, 0, false, false,
                   nccl.communicators, {} };
    for (size_t i = 0; i < chosen.size(); i++) {
        if (chosen[i].second == parent->rank) c.rank = (int)i;
        c.members.push_back(parent->mpi_rank(chosen[i].second));
    }
    if (color == NCCL_SPLIT_NOCOLOR) return nullptr;
    return nccl.communicators = new ncclComm(c);
}

// Waits for what is queued, then for all other ranks to leave.
static inline void leave_communicator(ncclComm_t comm) {
    if (comm->ended) return;
    wait_for(nccl.last);
    exchange(comm, { GOODBYE, ncclInt8, 0, 0, 0, ++comm->calls }, nullptr);
    comm->ended = true;
}

}  // namespace emulator
