// Communication between ranks: the processes of one run, each of which trains on a part of every
// batch (ranks.h).
//
// Ranks on several machines communicate in two levels. With M machines of G ranks each:
//
//     reduce-scatter   1. within a machine: its rank g receives slice g of every machine (M slices)
//                         from the machine's G ranks, and sums each slice over them
//                      2. between machines: rank g of machine m receives its own slice's M partial
//                         sums from the ranks g of all machines, and sums them
//     all-gather       the same in reverse: between ranks of equal number, then within the machine
//
// A rank sends (M-1)/(GM) B bytes to other machines instead of (M-1)/M B. If a machine's ranks
// follow one another and G is a power of two, the two sums are the lower and the upper levels of
// the same tree: the result has the same bits. Otherwise all ranks communicate in one level.
#include "ranks.h"
#include <assert.h>

Slice comm_slice(size_t count, int rank, int size) {
    size_t units = (count + 63) / 64, each = (units + (size_t)size - 1) / (size_t)size * 64;
    size_t begin = each * (size_t)rank < count ? each * (size_t)rank : count;
    Slice s = { begin, count - begin < each ? count - begin : each };
    return s;
}

// ---- what a rank holds ----

size_t comm_bytes(int ranks) {
    return ranks > 1 ? COMM_SCRATCH + COMM_SCRATCH / 2 : 0;
}

Comm *comm_whole(Comm *c) { return c->whole ? c->whole : c; }

int comm_peer(const Comm *c, int peer) {
    return c->whole ? c->first + peer*c->stride : peer;
}

#if defined(WITH_MPI) || defined(WITH_NCCL)
// ---- pieces: what is under way of a collective ----

// Piece k of a collective: elements at ... at+most-1 of every slice.
typedef struct { size_t k, at, most; } Piece;

static Piece piece_at(const Comm *c, const CommOp *op, size_t k) {
    size_t size = comm_slice(op->count, 0, c->size).count / COMM_PIECES / 64 * 64;
    if (size < COMM_LEAST) size = COMM_LEAST;
    if (size > c->piece) size = c->piece;
    Piece p = { k, k*size, size };
    return p;
}

static size_t piece_count(const Comm *c, const CommOp *op) {
    size_t size = piece_at(c, op, 0).most;
    return (comm_slice(op->count, 0, c->size).count + size - 1) / size;
}

// Elements of piece p in rank r's slice.
static size_t piece_of(const Comm *c, const CommOp *op, Piece p, int r) {
    size_t count = comm_slice(op->count, r, c->size).count, left = p.at < count ? count - p.at : 0;
    return left < p.most ? left : p.most;
}

// The place of rank r's slice among received pieces, and among pieces to send as bf16. A piece
// shares its buffer with the piece two before it.
static char *slot_in(const Comm *c, Piece p, int r) {
    size_t slot = p.k % COMM_BUFFERS * (size_t)c->size + (size_t)r;
    return c->scratch_in + slot*c->piece*sizeof(float);
}

static uint16_t *slot_out(const Comm *c, Piece p, int r) {
    size_t slot = p.k % COMM_BUFFERS * (size_t)c->size + (size_t)r;
    return (uint16_t *)c->scratch_out + slot*c->piece;
}

static int group_near(Piece p) { return (int)(p.k % COMM_BUFFERS); }

static int group_far(Piece p) { return (int)(p.k % COMM_BUFFERS) + COMM_BUFFERS; }

// The rank of number `index` on machine m; this rank's two. In one level, all are on machine 0.
static int rank_on(const Comm *c, int m, int index) { return m*c->near + index; }
static int own_machine(const Comm *c) { return c->rank / c->near; }
static int own_index(const Comm *c) { return c->rank % c->near; }

// ---- reduce-scatter ----

// Whether floats must be narrowed to bf16 before they are sent. Buffers of bf16 travel as they are.
static bool scatter_narrows(const CommOp *op) {
    return op->type == COMM_BF16 && op->bytes == sizeof(float);
}

// What this rank contributes to rank r's slice: its elements in place, or narrowed to bf16.
static const void *scatter_own(const Comm *c, const CommOp *op, Piece p, int r) {
    if (scatter_narrows(op)) return slot_out(c, p, r);
    return (const char *)op->in + (comm_slice(op->count, r, c->size).begin + p.at)*op->bytes;
}

// The sum of a piece to the result. Buffers of bf16 receive it rounded, once: it is computed in
// fp32, in this rank's own slot.
static void scatter_write(Comm *c, const CommOp *op, Piece p, const void *const *terms,
                          int n_terms, CommType type) {
    size_t n = piece_of(c, op, p, c->rank);
    bool rounds = op->bytes == sizeof(uint16_t);
    float *sum = rounds ? (float *)slot_in(c, p, c->rank) : (float *)op->out + p.at;
    comm_sum_terms(sum, terms, n_terms, op->scale, type, op->mode, n, c->sums);
    if (rounds) comm_narrow((uint16_t *)op->out + p.at, sum, n, c->sums);
}

// Level 1: for each machine m, sends each rank of this machine its number's slice of m.
static void scatter_near(Comm *c, const CommOp *op, Piece p) {
    size_t bytes = op->type == COMM_BF16 ? sizeof(uint16_t) : sizeof(float);
    for (int r = 0; r < c->size && scatter_narrows(op); r++)
        comm_narrow(slot_out(c, p, r), (const float *)op->in + p.at
                                       + comm_slice(op->count, r, c->size).begin,
                    piece_of(c, op, p, r), c->sums);
    comm_begin(c, group_near(p));
    for (int i = 0; i < c->near; i++) {
        int peer = rank_on(c, own_machine(c), i);
        for (int m = 0; m < c->far && peer != c->rank; m++) {
            int theirs = rank_on(c, m, i), own = rank_on(c, m, own_index(c));
            size_t n_out = piece_of(c, op, p, theirs), n_in = piece_of(c, op, p, own);
            if (n_out > 0) comm_send(c, peer, scatter_own(c, op, p, theirs), n_out*bytes);
            if (n_in > 0) comm_receive(c, peer, slot_in(c, p, theirs), n_in*bytes);
        }
    }
    comm_end(c, group_near(p));
}

// Sums what level 1 has brought: into the result, or with two levels into this rank's own slots,
// which level 1 leaves free.
static void scatter_sum_near(Comm *c, const CommOp *op, Piece p) {
    const void *terms[COMM_MAX_RANKS];
    bool last = c->far == 1;
    comm_arrived(c, group_near(p));
    for (int m = 0; m < c->far; m++) {
        int own = rank_on(c, m, own_index(c));
        for (int i = 0; i < c->near; i++)
            terms[i] = i == own_index(c) ? scatter_own(c, op, p, own)
                                         : slot_in(c, p, rank_on(c, m, i));
        if (last) scatter_write(c, op, p, terms, c->near, op->type);
        else comm_sum_terms((float *)slot_in(c, p, own), terms, c->near, 1.0f, op->type,
                            COMM_WRITE, piece_of(c, op, p, own), c->sums);
    }
}

// Level 2: sends partial sums to the ranks of this number. In fp32, since bf16 would round them;
// they arrive in a neighbour's slots, which level 1 has read.
static void scatter_far(Comm *c, const CommOp *op, Piece p) {
    comm_begin(c, group_far(p));
    for (int m = 0; m < c->far; m++) {
        int peer = rank_on(c, m, own_index(c));
        size_t n_out = piece_of(c, op, p, peer), n_in = piece_of(c, op, p, c->rank);
        char *received = slot_in(c, p, rank_on(c, m, own_index(c) ^ 1));
        if (peer == c->rank) continue;
        if (n_out > 0) comm_send(c, peer, slot_in(c, p, peer), n_out * sizeof(float));
        if (n_in > 0) comm_receive(c, peer, received, n_in * sizeof(float));
    }
    comm_end(c, group_far(p));
}

static void scatter_sum_far(Comm *c, const CommOp *op, Piece p) {
    const void *terms[COMM_MAX_RANKS];
    comm_arrived(c, group_far(p));
    for (int m = 0; m < c->far; m++)
        terms[m] = slot_in(c, p, m == own_machine(c) ? c->rank : rank_on(c, m, own_index(c) ^ 1));
    scatter_write(c, op, p, terms, c->far, COMM_FP32);
}

// Piece k travels within the machine while piece k-1 is summed. Its buffer is free again once piece
// k-2 has been summed in both levels.
static void run_reduce_scatter(Comm *c, const CommOp *op) {
    size_t pieces = piece_count(c, op);
    bool two_levels = c->far > 1;
    for (size_t k = 0; k < pieces + 2; k++) {
        if (two_levels && k >= 2) scatter_sum_far(c, op, piece_at(c, op, k - 2));
        if (k < pieces) scatter_near(c, op, piece_at(c, op, k));
        if (k < 1 || k > pieces) continue;
        scatter_sum_near(c, op, piece_at(c, op, k - 1));
        if (two_levels) scatter_far(c, op, piece_at(c, op, k - 1));
    }
}

// ---- all-gather ----

// Where rank r's slice arrives: in its place, or to be widened from bf16.
static char *gathered(const Comm *c, const CommOp *op, Piece p, int r) {
    if (op->type == COMM_BF16) return slot_in(c, p, r);
    return (char *)op->out + (comm_slice(op->count, r, c->size).begin + p.at)*op->bytes;
}

// Sends rank `own`'s slice to `peer`, and receives rank `theirs`'s from it.
static void gather_swap(Comm *c, const CommOp *op, Piece p, int peer, int own, int theirs) {
    size_t n_out = piece_of(c, op, p, own), n_in = piece_of(c, op, p, theirs);
    if (n_out > 0) comm_send(c, peer, gathered(c, op, p, own), n_out*op->bytes);
    if (n_in > 0) comm_receive(c, peer, gathered(c, op, p, theirs), n_in*op->bytes);
}

// Between machines: this rank's slice to the ranks of this number.
static void gather_far(Comm *c, const CommOp *op, Piece p) {
    for (int m = 0; m < c->far; m++) {
        int peer = rank_on(c, m, own_index(c));
        if (peer != c->rank) gather_swap(c, op, p, peer, c->rank, peer);
    }
}

// Within the machine: the slices of this number of all machines.
static void gather_near(Comm *c, const CommOp *op, Piece p) {
    for (int i = 0; i < c->near; i++)
        for (int m = 0; m < c->far && i != own_index(c); m++)
            gather_swap(c, op, p, rank_on(c, own_machine(c), i), rank_on(c, m, own_index(c)),
                        rank_on(c, m, i));
}

// Piece k travels between machines while piece k-1 travels within them. With COMM_BF16, floats are
// sent as bf16; a slice's owner also rounds its own copy, so that all ranks end with the same bits.
static void run_all_gather(Comm *c, const CommOp *op) {
    bool rounded = op->type == COMM_BF16;
    Slice own = comm_slice(op->count, c->rank, c->size);
    size_t pieces = piece_count(c, op);
    if (!rounded)
        comm_copy(c, (char *)op->out + own.begin*op->bytes, op->in, own.count*op->bytes);
    for (size_t k = 0; k <= pieces; k++) {
        Piece p = piece_at(c, op, k), last = piece_at(c, op, k > 0 ? k - 1 : 0);
        if (rounded && k < pieces)
            comm_narrow((uint16_t *)slot_in(c, p, c->rank), (float *)op->out + own.begin + p.at,
                        piece_of(c, op, p, c->rank), c->sums);
        comm_begin(c, group_near(p));
        if (k < pieces) gather_far(c, op, p);
        if (k > 0) gather_near(c, op, last);
        comm_end(c, group_near(p));
        comm_arrived(c, group_near(p));
        for (int r = 0; r < c->size && rounded && k > 0; r++)
            comm_widen((float *)op->out + comm_slice(op->count, r, c->size).begin + last.at,
                       (uint16_t *)slot_in(c, last, r), piece_of(c, op, last, r), c->sums);
    }
}

// ---- the other collectives, as messages from each rank to each other rank ----

// Rank 0's `out` = `in` of another rank.
static void run_fetch(Comm *c, const CommOp *op) {
    const size_t most = 64 << 20;                      // bytes: MPI counts in int
    for (size_t at = 0; at < op->bytes; at += most) {
        size_t n = min_size(most, op->bytes - at);
        comm_begin(c, 0);
        if (c->rank == op->from) comm_send(c, 0, (const char *)op->in + at, n);
        if (c->rank == 0) comm_receive(c, op->from, (char *)op->out + at, n);
        comm_end(c, 0);
        comm_arrived(c, 0);
    }
}

// out (size,bytes) = every rank's `in`, in the order of the ranks.
static void run_collect(Comm *c, const CommOp *op) {
    char *all = (char *)op->out;
    comm_copy(c, all + (size_t)c->rank*op->bytes, op->in, op->bytes);
    comm_begin(c, 0);
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        comm_send(c, r, all + (size_t)c->rank*op->bytes, op->bytes);
        comm_receive(c, r, all + (size_t)r*op->bytes, op->bytes);
    }
    comm_end(c, 0);
    comm_arrived(c, 0);
}

void comm_run(Comm *c, const CommOp *op) {
    switch (op->kind) {
        case OP_REDUCE_SCATTER: run_reduce_scatter(c, op); break;
        case OP_ALL_GATHER:     run_all_gather(c, op); break;
        case OP_COLLECT:        run_collect(c, op); break;
        case OP_FETCH:          run_fetch(c, op); break;
    }
}
#endif

// ---- the collectives that a trainer calls: each is queued and returns a ticket ----

Ticket comm_reduce_scatter(Comm *c, float *out, const float *in, size_t count, float scale,
                           CommType type, CommMode mode) {
    CommOp op = { OP_REDUCE_SCATTER, out, in, count, sizeof(float), scale, type, mode, 0, c };
    return comm_queue(c, op);
}

Ticket comm_all_gather(Comm *c, void *data, const void *own, size_t count, size_t bytes) {
    CommOp op = { OP_ALL_GATHER, data, own, count, bytes, 1.0f, COMM_FP32, COMM_WRITE, 0, c };
    return comm_queue(c, op);
}

Ticket comm_all_reduce(Comm *c, float *data, size_t count, float scale, CommType type) {
    if (c->size == 1) return 0;
    float *own = data + comm_slice(count, c->rank, c->size).begin;
    comm_reduce_scatter(c, own, data, count, scale, type, COMM_WRITE);
    if (type == COMM_FP32) return comm_all_gather(c, data, own, count, sizeof *data);
    CommOp op = { OP_ALL_GATHER, data, own, count, sizeof(uint16_t), 1.0f, type, COMM_WRITE, 0, c };
    return comm_queue(c, op);
}

Ticket comm_all_reduce_bf16(Comm *c, uint16_t *data, size_t count) {
    uint16_t *own = data + comm_slice(count, c->rank, c->size).begin;
    CommOp op = { OP_REDUCE_SCATTER, own, data, count, sizeof *data, 1.0f, COMM_BF16, COMM_WRITE,
                  0, c };
    if (c->size == 1) return 0;
    comm_queue(c, op);
    return comm_all_gather(c, data, own, count, sizeof *data);
}

Ticket comm_mean(Comm *c, float *data, size_t count, CommType type) {
    return comm_all_reduce(c, data, count, 1.0f / (float)c->size, type);
}

Ticket comm_collect_there(Comm *c, void *all, const void *own, size_t bytes) {
    CommOp op = { OP_COLLECT, all, own, 0, bytes, 1.0f, COMM_FP32, COMM_WRITE, 0, c };
    return comm_queue(c, op);
}

Ticket comm_fetch(Comm *c, void *data, const void *own, size_t bytes, int from) {
    CommOp op = { OP_FETCH, data, own, 0, bytes, 1.0f, COMM_FP32, COMM_WRITE, from, c };
    return comm_queue(c, op);
}

// ---- small messages between CPUs: each call returns when its data has arrived ----

#if !defined(WITH_NCCL)
void comm_collect_now(Comm *c, void *all, const void *own, size_t bytes) {
    comm_wait(c, comm_collect_there(c, all, own, bytes));
}
#endif

void comm_collect(Comm *c, void *all, const void *own, size_t bytes) {
    assert(bytes <= COMM_SMALL);
    if (c->size == 1) memcpy(all, own, bytes);
    else comm_collect_now(c, all, own, bytes);
}

void comm_add(Comm *c, double *x, int n) {
    double all[COMM_SMALL];
    if (!c || c->size == 1) return;
    assert((size_t)n*(size_t)c->size <= COMM_SMALL);
    comm_collect(c, all, x, (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++) {
        x[i] = 0.0;
        for (int r = 0; r < c->size; r++) x[i] += all[r*n + i];
    }
}

void comm_barrier(Comm *c) {
    double nothing = 0.0;
    comm_add(c, &nothing, 1);
}

void comm_agree(Comm *c, const char *what, uint64_t number) {
    uint64_t all[COMM_MAX_RANKS];
    comm_collect(c, all, &number, sizeof number);
    for (int r = 1; r < c->size; r++)
        if (all[r] != all[0])
            die("ranks: rank %d has %s than rank 0; start them all the same way", r, what);
}

void comm_agree_json(Comm *c, const char *json) {
    size_t n_all = (size_t)c->size * COMM_SMALL;
    char *all = (char *)alloc_or_die(n_all + COMM_SMALL, "the ranks' configurations");
    char *own = all + n_all;
    snprintf(own, COMM_SMALL, "%s", json);
    comm_collect(c, all, own, COMM_SMALL);
    for (int r = 1; r < c->size; r++) {
        const char *there = all + (size_t)r*COMM_SMALL;
        size_t at = 0, begin = 0;
        if (strcmp(all, there) == 0) continue;
        for (; all[at] == there[at]; at++) if (all[at] == ',') begin = at + 1;
        int n = (int)strcspn(all + begin, ",}\n"), n_there = (int)strcspn(there + begin, ",}\n");
        die("ranks: rank %d has %.*s, rank 0 has %.*s; start them all the same way", r,
            n_there, there + begin, n, all + begin);
    }
    free(all);
}

// Name of this rank's machine. BATCHWISE_HOSTS="a,a,b,b" names each rank's machine instead of the
// system, for tests of several machines on one.
static void comm_host_name(char *name, size_t size, int rank) {
    const char *named = getenv("BATCHWISE_HOSTS");
    for (int r = 0; named && r < rank; r++) {
        named += strcspn(named, ",");
        named += *named == ',';
    }
    if (named) snprintf(name, size, "%.*s", (int)strcspn(named, ","), named);
    else gethostname(name, size - 1);
}

// Sets hosts, host, local_rank, local_size and the levels. first (size): the first rank that is on
// the same machine as rank r. There are two levels if each machine has equally many ranks, a power
// of two, and they follow one another. Otherwise one: the sum's order would depend on who is where.
static void comm_place(Comm *c, const int *first) {
    c->hosts = c->local_rank = c->local_size = 0;
    for (int r = 0; r < c->size; r++) {
        bool here = first[r] == first[c->rank];
        c->host[r] = (uint8_t)(first[r] == r ? c->hosts++ : c->host[first[r]]);
        c->local_size += here;
        c->local_rank += here && r < c->rank;
    }
    int G = c->local_size;
    bool regular = G > 1 && (G & (G - 1)) == 0 && G*c->hosts == c->size;
    for (int r = 0; r < c->size; r++) regular = regular && c->host[r] == r / G;
    c->near = regular ? G : c->size;
    c->far = c->size / c->near;
}

void comm_find_neighbours(Comm *c) {
    typedef struct { char name[64]; } Host;
    Host own, all[COMM_MAX_RANKS];
    int first[COMM_MAX_RANKS];
    size_t at = 0;
    memset(&own, 0, sizeof own);
    comm_host_name(own.name, sizeof own.name, c->rank);
    comm_collect(c, all, &own, sizeof own);
    for (int r = 0, last; r < c->size; r = last + 1) {         // ranks r ... last share a machine
        for (last = r; last + 1 < c->size && strcmp(all[last + 1].name, all[r].name) == 0; ) last++;
        if (at < sizeof c->layout)
            at += (size_t)snprintf(c->layout + at, sizeof c->layout - at, "%s%.30s: %d-%d",
                                   r ? ", " : "", all[r].name, r, last);
    }
    for (int r = 0; r < c->size; r++)
        for (first[r] = 0; strcmp(all[first[r]].name, all[r].name) != 0; ) first[r]++;
    comm_place(c, first);
}

void comm_group(Comm *c, Comm *whole, int size, int stride) {
    int first[COMM_MAX_RANKS];
    *c = *whole;
    c->whole = whole;
    c->rank = whole->rank / stride % size;
    c->size = size;
    c->first = whole->rank - c->rank*stride;
    c->stride = stride;
    for (int r = 0; r < size; r++) {
        int machine = whole->host[comm_peer(c, r)];
        for (first[r] = 0; whole->host[comm_peer(c, first[r])] != machine; ) first[r]++;
    }
    comm_place(c, first);
}

// ---- the backend ----

bool comm_launched(Comm *c, Error *err) {
    memset(c, 0, sizeof *c);
    c->rank = launched_as(LAUNCH_RANK, 0);
    c->size = launched_as(LAUNCH_SIZE, 1);
    c->local_rank = launched_as(LAUNCH_LOCAL_RANK, c->rank);
    c->local_size = launched_as(LAUNCH_LOCAL_SIZE, c->size);
    c->hosts = 1;
    return c->size <= COMM_MAX_RANKS
        || fail(err, "ranks: %d of them; this program supports at most %d", c->size,
                COMM_MAX_RANKS);
}

#if !defined(WITH_MPI) && !defined(WITH_NCCL)

#ifdef _WIN32
#define RANKS_NEED "on Windows, several ranks need WSL 2"
#else
#define RANKS_NEED "build it with make MPI=1 (for GPUs: with NCCL)"
#endif

// One rank alone sends nothing: comm_collect and all-reduce return at once, and only a run of
// several ranks calls the other collectives.
Ticket comm_queue(Comm *c, CommOp op) {
    (void)c, (void)op;
    assert(!"one rank alone has no collectives");
    return 0;
}

void comm_wait(Comm *c, Ticket ticket) { (void)c, (void)ticket; }

CommCounters comm_counters(Comm *c) {
    CommCounters none = { 0.0, 0.0, 0, 0 };
    (void)c;
    return none;
}

bool comm_open(Comm *c, double timeout, Error *err) {
    (void)timeout;
    memset(c, 0, sizeof *c);
    c->size = c->hosts = c->local_size = 1;
    int size = launched_as(LAUNCH_SIZE, 1);
    // Rank 0 prints the error, unless mpirun started another program as rank 0, which waits for us.
    c->heartbeat.told = launched_as(LAUNCH_RANK, 0) > 0 && getenv("RANK");
    if (c->heartbeat.told) sleep(2);           // our end may end it
    return size == 1
        || fail(err, "ranks: started as one of %d, but this program was built for one; "
                RANKS_NEED, size);
}

#if defined(COMM_ON_GPU)
void comm_open_gpu(Comm *c, cudaStream_t compute) { c->compute = compute; }
#endif

void comm_close(Comm *c) { (void)c; }
#endif

