// The MPI backend of comm.c, for CPUs. A thread runs the queued collectives one after the other,
// beside the computation. Only this thread calls MPI, so MPI_THREAD_FUNNELED suffices:
//
//     the caller                                     comm_thread
//     comm_queue: appends to a ring of CommOp        comm_next: takes the oldest
//     ... computes ...                               comm_run: MPI_Isend, MPI_Irecv, tree_sum
//     comm_wait: sleeps until done >= ticket         done++, wakes the caller
#include "ranks.h"

#if defined(WITH_MPI)
#include <mpi.h>
#include <pthread.h>
#include <sched.h>

struct CommBackend {
    pthread_t thread;
    MPI_Request *requests[COMM_GROUPS];    // (2*size) each; only the thread uses this ...
    int n_requests[COMM_GROUPS];
    int group;                             // the one that messages are added to
    CommCounters now;                      // ... to this: bytes sent by the current collective
    pthread_mutex_t lock;                  // guards what follows, and Comm's counters
    pthread_cond_t changed;
    CommOp queue[COMM_QUEUE];              // a ring: ticket t lies at (t - 1) % COMM_QUEUE
    Ticket queued, done;                   // collectives queued; collectives carried out
    bool started, closing;
    Error problem;                         // why MPI did not start; "" if it did
};

static void mpi_check(int status, const char *call) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (status == MPI_SUCCESS) return;
    MPI_Error_string(status, text, &length);
    die("%s: %s", call, text);
}

#define MPI_CHECK(call) mpi_check((call), #call)

// ---- messages, on the thread ----

void comm_begin(Comm *c, int group) {
    c->backend->group = group;
    c->backend->n_requests[group] = 0;
}

static MPI_Request *comm_request(CommBackend *b) {
    return &b->requests[b->group][b->n_requests[b->group]++];
}

void comm_send(Comm *c, int peer, const void *bytes, size_t n) {
    CommBackend *b = c->backend;
    MPI_CHECK(MPI_Isend(bytes, (int)n, MPI_BYTE, comm_peer(c, peer), 0, MPI_COMM_WORLD,
                        comm_request(b)));
    b->now.bytes_sent += n;
    if (c->host[peer] != c->host[c->rank]) b->now.bytes_across += n;
}

void comm_receive(Comm *c, int peer, void *bytes, size_t n) {
    MPI_CHECK(MPI_Irecv(bytes, (int)n, MPI_BYTE, comm_peer(c, peer), 0, MPI_COMM_WORLD,
                        comm_request(c->backend)));
}

void comm_end(Comm *c, int group) { (void)c, (void)group; }      // they have begun

// MPI moves data only inside its own calls, so the thread must keep calling it. Polling without a
// pause would take a core from the computation: after 500 polls the thread sleeps before each, some
// 70 us. (After 20, an all-reduce of two ranks took 305 us, not 18.)
void comm_arrived(Comm *c, int group) {
    CommBackend *b = c->backend;
    const struct timespec moment = { 0, 20000 };
    for (int asked = 0, over = 0; ; asked++) {
        MPI_CHECK(MPI_Testall(b->n_requests[group], b->requests[group], &over,
                              MPI_STATUSES_IGNORE));
        if (over) return;
        if (asked > 500) nanosleep(&moment, NULL);
        else sched_yield();
    }
}

void comm_copy(Comm *c, void *out, const void *in, size_t bytes) {
    (void)c;
    if (out != in) memcpy(out, in, bytes);
}

void comm_sum_terms(float *out, const void *const *x, int terms, float scale, CommType type,
                    CommMode mode, size_t n, Stream stream) {
    (void)stream;
    tree_sum(out, x, terms, scale, type, mode, n);
}

void comm_narrow(uint16_t *out, const float *x, size_t n, Stream stream) {
    (void)stream;
    for (size_t i = 0; i < n; i++) out[i] = bf16_narrow(x[i]);
}

void comm_widen(float *out, const uint16_t *x, size_t n, Stream stream) {
    (void)stream;
    for (size_t i = 0; i < n; i++) out[i] = bf16_widen(x[i]);
}

// ---- the queue, between the caller and the thread ----

Ticket comm_queue(Comm *c, CommOp op) {
    CommBackend *b = c->backend;
    pthread_mutex_lock(&b->lock);
    while (b->queued - b->done == COMM_QUEUE) pthread_cond_wait(&b->changed, &b->lock);
    b->queue[b->queued++ % COMM_QUEUE] = op;
    Ticket ticket = b->queued;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return ticket;
}

void comm_wait(Comm *c, Ticket ticket) {
    if (ticket == 0) return;
    CommBackend *b = c->backend;
    pthread_mutex_lock(&b->lock);
    if (b->done < ticket) {
        double start = seconds_now();
        while (b->done < ticket) pthread_cond_wait(&b->changed, &b->lock);
        comm_whole(c)->counters.waited += seconds_now() - start;
    }
    pthread_mutex_unlock(&b->lock);
}

CommCounters comm_counters(Comm *c) {
    CommCounters counters = { 0.0, 0.0, 0, 0 };
    if (!c || !c->backend) return counters;
    pthread_mutex_lock(&c->backend->lock);
    counters = comm_whole(c)->counters;
    pthread_mutex_unlock(&c->backend->lock);
    return counters;
}

// Waits for the next collective; false if the queue is empty and comm_close was called.
static bool comm_next(Comm *c, CommOp *op) {
    CommBackend *b = c->backend;
    pthread_mutex_lock(&b->lock);
    while (b->done == b->queued && !b->closing) pthread_cond_wait(&b->changed, &b->lock);
    bool there = b->done < b->queued;
    if (there) *op = b->queue[b->done % COMM_QUEUE];
    pthread_mutex_unlock(&b->lock);
    return there;
}

// ---- the thread ----

static void comm_start_mpi(Comm *c) {
    int level, size = 1, rank = 0;
    Error *problem = &c->backend->problem;
    MPI_CHECK(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level));
    MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    if (level < MPI_THREAD_FUNNELED)
        fail(problem, "MPI: this library does not support MPI_THREAD_FUNNELED");
    if (rank != c->rank || size != c->size)
        fail(problem, "MPI: the launcher says rank %d of %d, MPI says %d of %d; use the mpirun of "
             "the MPI that this program was built with, or scripts/launch.sh", c->rank, c->size,
             rank, size);
}

// The thread: the only one that calls MPI.
static void *comm_thread(void *argument) {
    Comm *c = (Comm *)argument;
    CommBackend *b = c->backend;
    CommOp op;
    comm_start_mpi(c);
    pthread_mutex_lock(&b->lock);
    b->started = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    while (comm_next(c, &op)) {
        double start = seconds_now();
        comm_run(op.comm, &op);
        pthread_mutex_lock(&b->lock);
        c->counters.busy += seconds_now() - start;
        c->counters.bytes_sent += b->now.bytes_sent;
        c->counters.bytes_across += b->now.bytes_across;
        memset(&b->now, 0, sizeof b->now);
        b->done++;
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->lock);
    }
    MPI_CHECK(MPI_Finalize());
    return NULL;
}

// ---- opening and closing ----

// Connects the heartbeat, whose connections do not use MPI. Rank 0 listens at a free port and sends
// the others the port over MPI.
static bool comm_open_watch(Comm *c, double timeout, Error *err) {
    typedef struct { char host[64]; int port; } Meeting;
    Meeting own, all[COMM_MAX_RANKS];
    memset(&own, 0, sizeof own);
    if (c->hosts == 1) snprintf(own.host, sizeof own.host, "127.0.0.1");
    else gethostname(own.host, sizeof own.host - 1);
    heartbeat_init(&c->heartbeat, c->rank, c->size, timeout);
    if (c->rank == 0 && !heartbeat_listen(&c->heartbeat, NULL, &own.port, err)) return false;
    comm_collect(c, all, &own, sizeof own);
    return heartbeat_join(&c->heartbeat, all[0].host, all[0].port, NULL, 0, err);
}

// Waits until the thread has started MPI; false after `timeout` seconds. MPI_Init returns when all
// ranks have called it, and has no limit of its own.
static bool comm_await_mpi(CommBackend *b, double timeout) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)ceil(timeout);
    pthread_mutex_lock(&b->lock);
    while (!b->started && pthread_cond_timedwait(&b->changed, &b->lock, &until) != ETIMEDOUT) {}
    bool started = b->started;
    pthread_mutex_unlock(&b->lock);
    return started;
}

bool comm_open(Comm *c, double timeout, Error *err) {
    if (!comm_launched(c, err)) return false;
    if (c->size == 1) return true;
    CommBackend *b = c->backend = (CommBackend *)alloc_or_die(sizeof *b, "a queue of collectives");
    c->piece = COMM_SCRATCH / sizeof(float) / COMM_BUFFERS / (size_t)c->size;
    c->scratch_in = (char *)alloc_or_die(COMM_SCRATCH, "received slices");
    c->scratch_out = (char *)alloc_or_die(COMM_SCRATCH / 2, "slices to send");
    for (int i = 0; i < COMM_GROUPS; i++)
        b->requests[i] = (MPI_Request *)alloc_or_die(2*(size_t)c->size * sizeof **b->requests,
                                                     "requests");
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    if (pthread_create(&b->thread, NULL, comm_thread, c) != 0)
        return fail(err, "ranks: the thread that calls MPI cannot be started");
    if (!comm_await_mpi(b, timeout))
        return fail(err, "ranks: not all %d have started MPI within %g s; give all of them the "
                    "same flags (--plan ends a rank before that), or raise --timeout", c->size,
                    timeout);
    if (b->problem.text[0]) return fail(err, "%s", b->problem.text);
    comm_find_neighbours(c);
    return comm_open_watch(c, timeout, err);
}

void comm_close(Comm *c) {
    CommBackend *b = c->backend;
    if (c->size == 1) return;
    comm_barrier(c);
    heartbeat_stop(&c->heartbeat);
    pthread_mutex_lock(&b->lock);
    b->closing = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    free(c->scratch_in);
    free(c->scratch_out);
    for (int i = 0; i < COMM_GROUPS; i++) free(b->requests[i]);
    free(b);
    c->backend = NULL;
}
#endif

