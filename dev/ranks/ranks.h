// ranks: processes that train one model together. From the wire up: the connection that notices who
// is gone, collectives, a layer cut across ranks, and what each rank stores. Each section is one
// file of this folder; a process alone sends nothing and waits for nobody.
#pragma once
#include <math.h>
#include "../model/gpt2.h"
#include "tree.h"

// ==== heartbeat.c ================================================================================
// The control plane of a run of several ranks: a TCP connection between rank 0 and each other rank.
// It carries no training data. It connects the ranks, shares one small message of rank 0, and ends
// the run when a rank has failed. All ranks call heartbeat_init, rank 0 heartbeat_listen, all
// heartbeat_join and heartbeat_start; and at the end, after a barrier, heartbeat_stop.
//
// 1. A rank connects to rank 0 and sends a hello: its rank, the number of ranks, its host's name.
// 2. Once all ranks have connected, or one of them cannot take part, or the timeout has passed,
//    rank 0 sends every rank a verdict: an Error, which is empty if all ranks are connected, its
//    host's name, and what it shares.
// 3. From heartbeat_start on, each rank has a thread. Rank 0's sends a BEAT to each rank every
//    timeout/10 seconds, at least once a second; each rank's answers at once. The thread runs
//    beside the computation: a slow rank answers; a killed, stopped or disconnected one does not.
// 4. A rank is lost if its connection closes without BYE, or after `timeout` seconds of silence.
//    Rank 0 then sends END to all. A rank that receives END, or loses rank 0, calls _exit(1). A
//    rank that leaves by die() has printed the reason: it sends END itself and is not reported.
// 5. heartbeat_stop: a rank sends BYE, and whoever receives it closes the connection.
//
// Structures are sent as they lie in memory: all ranks run one program, and trust their network.
// =================================================================================================

#if defined(_WIN32) || defined(__wasm__)                // one process alone
typedef struct { bool told; } Heartbeat;

static inline bool heartbeat_start(Heartbeat *w, const char *advice, Error *err) {
    return (void)w, (void)advice, (void)err, true;
}
#else
typedef struct {
    int fd;                        // -1: not connected
    char host[64];
    double heard;                  // when it last sent something, by the thread's clock
} HeartbeatPeer;

typedef struct {
    int rank, size;
    double timeout, beat;          // seconds
    bool told;                     // heartbeat_join failed, and rank 0 prints the reason
    int listener, n;               // rank 0's socket; length of peers
    HeartbeatPeer *peers;          // rank 0: by rank; others: rank 0. The thread's while it runs
    pthread_t thread;
    bool running;
    bool ending;                   // atomic: this process is in die(), which has printed the reason
    bool stopping;                 // atomic: heartbeat_stop was called
    double clock;                  // seconds that the thread was awake
    char advice[256];
    const char *(*fault)(void *);  // atomic: what has failed in the GPUs' network, or NULL. The
    void *fault_of;                // thread asks at each beat: the main thread may be waiting
    int faults;                    // beats since it failed
} Heartbeat;

// Rank 0...size-1 of at least two; timeout in seconds.
void heartbeat_init(Heartbeat *w, int rank, int size, double timeout);

// Rank 0: listens at a port of a host's address; NULL: of all addresses. Port 0 chooses a free port
// and stores it. Errors: the port is in use, the host is not this machine.
bool heartbeat_listen(Heartbeat *w, const char *host, int *port, Error *err);

// Connects all ranks, and gives all of them rank 0's n bytes. True on all, or false on all within
// `timeout` of rank 0's call. Errors: ranks that are missing, started twice, or of another size; on
// other ranks also that rank 0 cannot be reached at host:port (rank 0 ignores both). An error that
// rank 0 finds reaches all ranks: they get the same text and w->told, and leave the printing to it.
bool heartbeat_join(Heartbeat *w, const char *host, int port, void *shared, size_t n, Error *err);

// Starts the thread; all ranks call this within `timeout` of each other. From then until
// heartbeat_stop, this process ends with status 1 when any rank is lost; one rank prints a line
// that names the lost rank, followed by the advice ("": none). Error: no thread can be started.
bool heartbeat_start(Heartbeat *w, const char *advice, Error *err);

// Leaves the run, after a barrier: from here on a rank that is gone is not reported.
void heartbeat_stop(Heartbeat *w);
#endif

// ==== comm.c =====================================================================================
// Communication between ranks: the processes of one run, each of which trains on a part of every
// batch. Collectives combine their results and run while the caller computes. A program is built
// with one of three backends:
//
//     alone          one rank; a collective does nothing       at the end of comm.c
//     WITH_MPI       CPUs; a thread of its own calls MPI       comm_mpi.c
//     WITH_NCCL      GPUs; NCCL on a CUDA stream of its own    comm_nccl.c
//
//     Ticket t = comm_mean(&comm, grads, n, COMM_FP32);        begins an all-reduce
//     ... compute something else ...                           while the data travels
//     comm_wait(&comm, t);                                     grads hold the mean over all ranks
//
// All ranks call the same collectives in the same order, with the same counts. A collective starts
// when the caller's computation so far is done, and returns a ticket at once. Its buffers must not
// be touched until comm_wait(ticket). Collectives finish in the order in which they were called.
//
// A buffer is divided into one slice a rank. Data parallelism and ZeRO need two collectives:
//
//     reduce-scatter   rank r receives slice r from every rank and sums the slices: in fp32, in
//                      the order of a fixed binary tree over the ranks (tree.h), so that the sum
//                      has the same bits in every run
//     all-gather       every rank receives slice r from rank r
//
// An all-reduce is a reduce-scatter and then an all-gather: with n ranks and a buffer of B bytes, a
// rank sends (n-1)/n B bytes in each, and no algorithm sends less (Patarasuk and Yuan 2009).
//
// Ranks on several machines communicate in two levels (comm.c).
//
// Within a group of ranks (comm_group) a Comm numbers the group's ranks from 0. All groups share a
// queue.
// =================================================================================================

typedef uint64_t Ticket;                   // a collective to wait for; 0: none
typedef struct { size_t begin, count; } Slice;

// Rank r's slice of a buffer of `count` elements. Slices are equal multiples of 64 elements; the
// last ranks may have less, or nothing.
Slice comm_slice(size_t count, int rank, int size);

// ---- what a rank holds ----

enum {
    COMM_MAX_RANKS = 256,
    COMM_QUEUE = 1024,                     // most collectives queued and not finished
    COMM_SMALL = 4096,                     // most bytes of a rank in comm_collect
    COMM_BUFFERS = 2,                      // pieces under way: one travels, the last one is summed
    COMM_PIECES = 4,                       // a slice is cut into at least as many pieces, unless
    COMM_LEAST = 1 << 18,                  // these would have fewer elements
    COMM_GROUPS = 2*COMM_BUFFERS,          // groups of messages under way: two levels of each piece
};

#if defined(COMM_ON_GPU)
typedef cudaStream_t Stream;               // the device runs operations in its order
#else
typedef int Stream;                        // unused: a CPU runs an operation at once
#endif

// Bytes that comm_open allocates for received slices, in COMM_BUFFERS buffers. Slices to send take
// half as many: they need a buffer only in bf16.
#if defined(WITH_NCCL)
static const size_t COMM_SCRATCH = 64 << 20;
#else
static const size_t COMM_SCRATCH = 16 << 20;           // small models need little memory
#endif

// All of these bytes, in a run of so many ranks.
size_t comm_bytes(int ranks);

typedef enum {
    OP_REDUCE_SCATTER, OP_ALL_GATHER, OP_COLLECT, OP_FETCH
} CommOpKind;

typedef struct Comm Comm;

// A queued collective.
typedef struct {
    CommOpKind kind;
    void *out;
    const void *in;
    size_t count, bytes;                   // elements; bytes of each, or of the whole message
    float scale;
    CommType type;
    CommMode mode;
    int from;                              // the rank that OP_FETCH fetches from
    Comm *comm;                            // of all ranks, or of a group
} CommOp;

// What communication has cost this rank since comm_open.
typedef struct {
    double waited, busy;                   // seconds: the caller waited; collectives ran
    uint64_t bytes_sent, bytes_across;     // to all ranks; to ranks on other machines
} CommCounters;

typedef struct CommBackend CommBackend;    // the state of comm_mpi.c or comm_nccl.c

struct Comm {
    int rank, size;
    Comm *whole;                           // of a group: the Comm of all ranks; else NULL
    int first, stride;                     // of a group: its rank i is rank first + i*stride there
    int local_rank, local_size;            // among the ranks of this machine
    int hosts;                             // machines
    char layout[200];                      // which rank is where: "node1: 0-3, node2: 4-7"
    uint8_t host[COMM_MAX_RANKS];          // each rank's machine, from 0
    int near, far;                         // the levels: ranks of a machine, and machines; if there
                                           // is one: all ranks, and 1
    CommCounters counters;                 // read through comm_counters
    size_t piece;                          // most elements of a slice in one message
    char *scratch_in;                      // (COMM_BUFFERS,size,piece) floats, on the device
    char *scratch_out;                     // (COMM_BUFFERS,size,piece) bf16, on the device
    Heartbeat heartbeat;
    Stream sums;                           // runs the sums, and copies
#if defined(COMM_ON_GPU)
    cudaStream_t compute;                  // the stream that the caller computes on
    int blocks;                            // multiprocessors left to messages; 0: NCCL decides
#endif
    CommBackend *backend;                  // NULL: one rank alone
};

// The Comm of all ranks; the number among them of this group's rank `peer`.
Comm *comm_whole(Comm *c);
int comm_peer(const Comm *c, int peer);

// ---- what a backend provides ----

// Finds the other ranks, through the launcher's environment variables; `timeout` is the
// heartbeat's, in seconds. Errors: the launcher's variables are wrong or missing, a rank does not
// connect.
bool comm_open(Comm *c, double timeout, Error *err);

// For comm_open: what the launcher says. Error: too many ranks.
bool comm_launched(Comm *c, Error *err);

#if defined(COMM_ON_GPU)
// After comm_open, once this rank has chosen its GPU and set `blocks`: connects the GPUs of all
// ranks. `compute` is the caller's stream.
void comm_open_gpu(Comm *c, cudaStream_t compute);
#endif

// Waits until all ranks call it, then disconnects them and frees what comm_open took.
void comm_close(Comm *c);

// Queues a collective. It runs after those queued before it and after what the caller has computed.
Ticket comm_queue(Comm *c, CommOp op);

// Waits for this collective and all before it: then their buffers may be used again. On a GPU the
// CPU does not wait; kernels launched after this call do. With ticket 0, `c` may be NULL.
void comm_wait(Comm *c, Ticket ticket);

// What communication has cost so far; on a GPU, in the collectives that are over. c NULL: zeros.
CommCounters comm_counters(Comm *c);

// comm_collect among several ranks: all (size,bytes) = every rank's `own`, both in CPU memory.
void comm_collect_now(Comm *c, void *all, const void *own, size_t bytes);

#if defined(WITH_MPI) || defined(WITH_NCCL)
// A group of messages, one of COMM_GROUPS: comm_begin, sends and receives to and from any peers,
// comm_end. Its messages start after the work before comm_begin; the work after comm_arrived starts
// when they have arrived. Work between the two runs beside the messages. Groups start in order.
void comm_begin(Comm *c, int group);
void comm_send(Comm *c, int peer, const void *bytes, size_t n);
void comm_receive(Comm *c, int peer, void *bytes, size_t n);
void comm_end(Comm *c, int group);
void comm_arrived(Comm *c, int group);

// out (bytes) = in, unless they are the same; on a GPU, both in its memory.
void comm_copy(Comm *c, void *out, const void *in, size_t bytes);

// Carries out one collective.
void comm_run(Comm *c, const CommOp *op);
#endif

// Work on device buffers: tree_sum of x (terms), which is an array on the CPU, of n elements each;
// floats to bf16, and back. A GPU's are in kernels.cu.
void comm_sum_terms(float *out, const void *const *x, int terms, float scale, CommType type,
                    CommMode mode, size_t n, Stream stream);
void comm_narrow(uint16_t *out, const float *x, size_t n, Stream stream);
void comm_widen(float *out, const uint16_t *x, size_t n, Stream stream);

// ---- the collectives that a trainer calls: each is queued and returns a ticket ----

// Reduce-scatter. With s = this rank's slice of count: out (s.count) = scale * the sum over all
// ranks of in[s.begin ...]; COMM_ADD: out += that. in (count); `out` may be in + s.begin.
Ticket comm_reduce_scatter(Comm *c, float *out, const float *in, size_t count, float scale,
                           CommType type, CommMode mode);

// All-gather. data (count elements of `bytes` bytes each) = all ranks' slices. `own` is this rank's
// slice, which may already lie in its place in `data`.
Ticket comm_all_gather(Comm *c, void *data, const void *own, size_t count, size_t bytes);

// All-reduce. data (count) = scale * the sum of data over all ranks; the same bits on each.
Ticket comm_all_reduce(Comm *c, float *data, size_t count, float scale, CommType type);

// The same for bf16. The sum is computed in fp32 and rounded once; NCCL also rounds partial sums.
Ticket comm_all_reduce_bf16(Comm *c, uint16_t *data, size_t count);

// data (count) = its mean over all ranks: an all-reduce.
Ticket comm_mean(Comm *c, float *data, size_t count, CommType type);

// all (size,bytes) = every rank's `own`, in the order of the ranks; with NCCL, both on the GPU.
Ticket comm_collect_there(Comm *c, void *all, const void *own, size_t bytes);

// Rank 0's data (bytes) = `own` of rank `from`, another one. All ranks call it.
Ticket comm_fetch(Comm *c, void *data, const void *own, size_t bytes, int from);

// ---- small messages between CPUs: each call returns when its data has arrived ----

// all (size,bytes) = every rank's `own`, in the order of the ranks; at most COMM_SMALL bytes a
// rank.
void comm_collect(Comm *c, void *all, const void *own, size_t bytes);

// x (n) = its sum over all ranks, added in the order of the ranks.
void comm_add(Comm *c, double *x, int n);

void comm_barrier(Comm *c);

// Ends the program unless all ranks pass the same number: a rank that computes something else would
// corrupt the run silently. `what` names the difference: "another build of this program".
void comm_agree(Comm *c, const char *what, uint64_t number);

// The same for a JSON object of fewer than COMM_SMALL bytes; names the first member that differs.
void comm_agree_json(Comm *c, const char *json);

// Sets hosts, host, local_rank, local_size, layout and the two levels, from the names of all ranks'
// machines.
void comm_find_neighbours(Comm *c);

// `c` = the group of `size` ranks, `stride` apart, that this rank belongs to. Of 8 ranks: size 4,
// stride 1: 0-3 and 4-7. Size 2, stride 4: 0 4, 1 5, 2 6 and 3 7. The group uses the queue and the
// buffers of `whole`, so on a GPU comm_open_gpu comes first.
void comm_group(Comm *c, Comm *whole, int size, int stride);

// ==== tensor.c ===================================================================================
// Tensor parallelism: n ranks of a group compute the same sequences together, and each holds 1/n of
// every large matrix (Megatron-LM, Shoeybi et al. 2019, arXiv 1909.08053). tensor.c has a picture;
// tensor_model.cu has the kernels for a GPU.
//
// Ranks that follow one another form a tensor group. Ranks with equal places in their groups hold
// the same share of the model; they form a data group, across which all of zero.c works as it does
// without tensor parallelism. Of 8 ranks with --tensor-parallel 2:
//
//     tensor groups   0 1   2 3   4 5   6 7         comm_group(&tensor, &comm, 2, 1)
//     data groups     0 2 4 6   1 3 5 7             comm_group(&data, &comm, 4, 2)
//
// Files hold the whole model: tp_copy_bucket cuts what is loaded, and puts together what is saved.
// Blocks call tp_sum and tp_sum_rows (branch_project and branch_input_sum of both trainers);
// embedding and cross-entropy have forms of their own.
// =================================================================================================

typedef struct {
    bool shares;                           // the model is cut; false: one rank holds all of it
    Comm *comm;                            // the group; NULL: this rank alone
    int index, size;                       // this rank's place in the group, and its ranks
    Config whole;                          // the model's sizes, as in files
    Config own;                            // a rank's share: the same sizes on all ranks
    Slice words;                           // this rank's words; rows of wte beyond them are 0
    // Scratch, in CPU memory
    float *parts;                          // of losses (size+1,3,rows); or logits (size+1,V)
    int *targets;                          // (N) targets as columns of this rank's logits
} TpGroup;

TpGroup tp_group(const Config *whole, Comm *comm);

// This rank's heads, and its channels of attention. Its channels of the MLP are 4 times as many.
int tp_heads(const TpGroup *g);
int tp_channels(const TpGroup *g);

// Whether this rank's elements of a tensor of this kind count in a norm over all parameters.
bool tp_counts(const TpGroup *g, int kind);

// Errors: `size` ranks cannot share the model.
bool tp_group_check(const Config *whole, int size, Error *err);

// ---- what ranks exchange ----

// x (n) = its sum over the group: the same bits on all ranks and in every run. On a GPU, kernels
// launched after this call wait for the sum.
void tp_sum(const TpGroup *g, float *x, size_t n);

// out (N,C) = the sum of the ranks' terms plus the bias, once: the end of a layer by rows.
void tp_sum_rows(const TpGroup *g, float *out, const float *b, size_t N, int C);

// all (size,n) = each rank's own (n), in the order of the ranks; on a GPU, in its memory.
void tp_collect(const TpGroup *g, float *all, const float *own, size_t n);

// ---- the vocabulary ----

// The row of wte, and the column of the logits, of each word; -1: another rank has it.
void tp_rows(int *rows, const int *tokens, size_t N, const TpGroup *g);

// The columns of N targets in this rank's logits: words.count, a column of padding, for the words
// of other ranks. Valid until the next call.
const int *tp_targets(const TpGroup *g, const int *target, size_t N);

// On a CPU, in place of the functions of train_gpt2.c without tp_; the ranks of a group call them
// together. A rank gives the rows of its own words, and zeros for the others, and has the logits of
// its own.
void tp_embedding_forward(float *x, const int *token, const float *wte, const float *wpe,
                          const TpGroup *g, int B, int T, int C);
void tp_embedding_backward(float *dwte, float *dwpe, const float *dx, const int *token,
                           const TpGroup *g, int B, int T, int C);

// Losses over the words of all ranks. xent_backward follows as it stands: where the target is
// another rank's word it writes to column words.count, which no product reads.
//   logits (N,Vp)   target: tp_targets   loss, lse (N)
void tp_xent_forward(float *loss, float *lse, const float *logits, const int *target,
                     const TpGroup *g, size_t N, int Vp);

// Lays out the scratch for N tokens, whose logits are computed so many rows at a time.
void tp_carve(TpGroup *g, Memory *mem, size_t N, size_t rows);

typedef enum { TP_PART, TP_WHOLE } TpCopy;

// Copies rank `index`'s part of a bucket out of the whole (TP_PART), or into it (TP_WHOLE).
//   part (gpt2_bucket(&g->own, bucket).count)   whole (gpt2_bucket(&g->whole, bucket).count)
void tp_copy_bucket(float *part, float *whole, const TpGroup *g, int bucket, int index,
                    TpCopy copy);

// ==== params.c ===================================================================================
// The flat buffers of weights, gradients and moments, in this rank's memory or its GPU's.
//
// Their unit is a bucket of dev/model/gpt2.h: a block, the embeddings, or the final norm. A rank
// owns a slice of each bucket; in a buffer of size 1/n its slices lie one after the other. A
// bucket's parameters and gradients have a fixed place (bucket_at), which the model points at (with
// --exact-sum gradients move from one micro-batch to the next).
// =================================================================================================

// How ranks share the work, from the command line; all zeros: one rank alone.
typedef struct {
    Comm *comm;              // the data group; NULL: one rank alone
    Comm *tensor;            // the tensor group; NULL: each rank holds the whole model
    int stage;               // of ZeRO
    CommType type;           // the format in which gradients travel
    int levels;              // --exact-sum: levels of the tree that sums micro-batches; else 0
    bool apart;              // --outer-every: gradients stay with their rank (DiLoCo)
    bool in_turn;            // --no-overlap: compute, then communicate
    bool measure;            // measure the small gradients of dev/train/noise.c
    bool sgd;                // --optimizer sgd: no moments
    bool averages;           // --average-tokens: averaged weights
} Sharing;

// A piece of one tensor that this rank updates: its offsets in the buffers of parameters, gradients
// and moments.
typedef struct {
    size_t param, grad, moment;
    int count;
    bool decays;
    bool in_norm;                          // counts in the gradient's norm (tp_counts)
} Chunk;

enum { PARAMS_SLOTS = 4 };                 // whole buckets in temporary buffers: embeddings, final
                                           // norm, and two blocks, the one in use and the next

// Most elements of a chunk (a thread block's work), and of each partial sum of squares.
#if defined(COMM_ON_GPU)
enum { PARAMS_CHUNK = 1 << 14, PARAMS_MEASURED = 1 << 13 };
#else
enum { PARAMS_CHUNK = 1 << 16, PARAMS_MEASURED = 1 << 16 };
#endif

// Squared norms for dev/train/noise.c, before clipping: of the small gradients, added up; and in
// Adam's metric, of the small ones and of the mean gradient.
typedef enum { SMALLS, SMALLS_ADAM, BIG_ADAM, N_NORMS } Norms;

static const float ADAM_EPS = 1e-8f;

// Sums over this rank, or over all ranks.
typedef struct {
    double loss;                           // of all tokens
    double squares;                        // the gradient's squared norm
    double norms[N_NORMS];                 // of the noise scale
    int64_t stop;                          // the signal that told a rank to stop; 0: none
} Totals;

typedef enum { THIS_RANK, ALL_RANKS } Scope;           // THIS_RANK, or its tensor group: within a
                                                       // DiLoCo round
typedef enum { PARAMS, GRADS } Flat;

typedef struct {
    bool alone;                            // no hook has anything to do
    volatile sig_atomic_t *stop;           // the signal that came, 0: none
    Comm *comm;
    int rank, size;
    int stage;
    CommType type;
    bool apart, in_turn, measure, sgd, averages;       // as in Sharing
    TpGroup tp;                            // the ranks that share this model
    Config c;                              // this rank's share of the model, with the vocabulary
                                           // rounded up where a GPU pads it
    Config file;                           // the same without padding
    size_t param_bytes;                    // of one parameter as layers read it
    Stream stream;

    // What this rank stores: whole buffers, or its slices
    char *values;                          // elements of param_bytes
    float *masters;                        // fp32 master weights; params itself, if that is fp32
    float *grads;
    size_t n_grads;                        // elements of grads
    float *adam_m, *adam_v;                // SGD has no moments: NULL
    float *average;                        // averaged weights; NULL: none
    float *outer_params, *outer_momentum;  // DiLoCo: as the last round left them
    Chunk *chunks;                         // (n_chunks) what this rank updates
    double *norm_partials;                 // (n_chunks) sums of squares of gradients
    int n_chunks;

    // Whole buckets, temporarily
    char *gathered[PARAMS_SLOTS];          // stage 3: parameters, after an all-gather
    float *collected[PARAMS_SLOTS];        // stages 2 and 3: gradients, before a reduce-scatter
    int held[PARAMS_SLOTS];                // the bucket in gathered; -1: none
    float *bucket;                         // for checkpoints; NULL where all buffers are whole
    float *whole;                          // tensor parallel: a bucket of the whole model, in CPU
                                           // memory, for checkpoints
    float *host_bucket;                    // on a GPU: the same, in CPU memory
    Ticket *arrives;                       // (buckets) the last collective that receives parameters
    Ticket leaves[PARAMS_SLOTS];           // the last one that reads gradients from this slot

    // This update
    Scope scope;                           // whose gradients it averages
    bool last;                             // this is its last micro-batch
    float *levels[TREE_LEVELS];            // --exact-sum: a gradient for each level of the tree
    int n_levels;                          // 0 without --exact-sum
    int level;                             // the level that this micro-batch's gradient reaches
    float *small;                          // one rank alone: one micro-batch's gradient, to measure
    double *partials;                      // (N_NORMS, params_partials_count) of squares
    double norms[N_NORMS];
    float correct_v;                       // bias correction of adam_v; 0: no Adam's metric
    uint64_t hash;                         // of all parameters, as they were loaded or drawn
} Params;

// For a model of whole->V words, which its buffers round up to a multiple of `words`.
void params_init(Params *p, const Sharing *s, const Config *whole, int words, size_t param_bytes);

// Waits for what is still under way first: the caller frees the buffers next.
void params_free(Params *p);

// The slot that holds a bucket temporarily.
int params_slot(const Params *p, int bucket);

// The part of a bucket that this rank updates: all of it, or its slice.
Slice params_own(const Params *p, int bucket);

// The offset of this rank's part of a bucket, in a buffer of slices or in a whole buffer.
size_t params_own_begin(const Params *p, int bucket, bool slices);

// Where a bucket's whole parameters lie while the model reads them, as layers read them; or where
// the model adds its gradients.
void *bucket_at(const Params *p, int bucket, Flat flat);

size_t params_partials_count(const Params *p);

// Divides what this rank updates into chunks of at most `largest` elements. Returns their number
// and writes them to `chunks`, unless that is NULL.
int params_chunks(Chunk *chunks, const Params *p, int largest);

// Lay out the parameters, and the buffers that only training needs; see dev/base/memory.c.
void params_carve(Params *p, Memory *mem);
void params_carve_training(Params *p, Memory *mem);

// Work on flat buffers, on the device where they lie.
void floats_clear(float *x, size_t n, Stream stream);
void floats_axpby(float *y, float a, const float *x, float b, size_t n, Stream stream);
void floats_measure(Params *p, Norms norm, const float *x, const float *v, size_t n);

// ---- buckets for checkpoints: loading, drawing, saving ----

// A flat buffer of what a checkpoint keeps; `slices`: it holds only this rank's slices.
typedef struct { float *data; bool slices; } Buffer;

Buffer kept_buffer(const Params *p, Kept what);
void params_open(Params *p);
void params_close(Params *p);
float *bucket_place_own(Params *p, Kept what, int bucket);
void bucket_take(Params *p, Buffer b, int bucket);
const float *bucket_show(Params *p, float *whole, int bucket);
void params_loaded(Params *p);

// Buffer to load a bucket of the whole model into; then bucket_keep() keeps this rank's part.
float *bucket_place(Params *p, Kept what, int bucket);
void bucket_keep(Params *p, Kept what, int bucket);

// GPT-2's fresh weights.
void params_draw(Params *p, uint64_t seed);

// A bucket of the whole model in rank 0's CPU memory, valid until the next call; all ranks call it
// together. For Adam's moments, which differ between DiLoCo's workers: those of `worker`, or with
// -1 their mean. A Checkpoint's source (dev/files/checkpoint.c).
const float *bucket_get(void *zero, Kept what, int worker, int bucket);

// ==== zero.c =====================================================================================
// Data parallelism and ZeRO: what the ranks communicate when; zero.c has the table of stages. Its
// hooks:
//
//     zero_micro_batch(&p, i, n)         before micro-batch i of n
//     forward_needs(&p, bucket)          before the bucket's parameters are read, in forward
//     backward_needs(&p, bucket)         the same in backward; its gradients can be added to then
//     gradients_ready(&p, bucket)        starts to sum the bucket's gradients over the ranks
//     zero_wait_grads(&p)                waits until the sums have arrived
//     totals_share(&p, &totals)          sums loss and squared norm over the ranks
//     ... the rank updates its chunks ...
//     zero_send_params(&p)               sends updated parameters to the other ranks
//
// A rank is alone if it shares neither batch nor model with others, measures no noise and makes no
// exact sums. Then the hooks have nothing to do; totals_share alone passes on the signal to stop.
// =================================================================================================

// The hooks. Forward goes from the first bucket to the last. Backward begins with embeddings and
// final norm, which the classifier needs; then come blocks from the last to the first.
// zero_micro_batch with --exact-sum moves p->grads to the level that this gradient reaches.
void forward_needs(Params *p, int bucket);
void backward_needs(Params *p, int bucket);
void zero_micro_batch(Params *p, size_t i, size_t n);
void gradients_ready(Params *p, int bucket);
void zero_wait_grads(Params *p);
void zero_send_params(Params *p);
void zero_wait_params(Params *p);          // until all have arrived

// Adam's metric needs the second moment of every parameter that a small gradient has: no ZeRO.
bool zero_has_metric(const Params *p);

// Whether this micro-batch's gradients travel to other ranks.
bool zero_sends(const Params *p);

// The number of small gradients that this rank measures in an update.
size_t zero_smalls_count(const Params *p, size_t micro_batches);

// ---- an update's totals ----

// The ranks of `scope` whose `squares` add up to the gradient's squared norm. Stage 0: every data
// rank has the whole mean gradient, so one counts. DiLoCo: the norm is this rank's own. Each rank
// of a tensor group has a part.
Slice totals_squares(const Params *p, Scope scope);

// The totals of `scope` from its ranks' totals, all (ranks), summed in rank order. The ranks of a
// tensor group have the same losses, and each some of the squares.
Totals totals_sum(const Params *p, const Totals *all, Scope scope);

// The ranks of `scope`, if there are several: all ranks, or this rank's tensor group. Else NULL.
Comm *totals_comm(const Params *p, Scope scope);

// On a CPU: replaces this rank's loss and squared norm by those of p->scope, and adds the norms of
// the noise scale, and the signal to stop. The sums have the same bits on all ranks.
void totals_share(const Params *p, Totals *totals);

// ==== averages.c =================================================================================
// Weights beside those that are trained: averages over updates, and DiLoCo's, which workers average
// after each round of updates of their own.
// =================================================================================================

// average = keep * average + (1 - keep) * weights. Each rank averages the masters it updates.
void average_update(Params *p, float keep);

// Between two updates: the averaged weights take the place of the weights, to be evaluated, until
// average_end. The buffer of gradients, not needed now, holds the weights meanwhile.
void average_begin(Params *p);
void average_end(Params *p);

// The first round begins at the current parameters. Ending one needs the buffer of gradients.
void diloco_begin(Params *p);
void diloco_end_round(Params *p, float lr, float mu);
