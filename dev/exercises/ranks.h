// Two exercises on many ranks, played in one process: entry r of an array is what rank r stores.
// side.c includes this file behind train_gpt2.c, whose adamw_update it calls.
#pragma once

// ---- a ring all-reduce: every rank brings a vector, every rank gets the sum of all ----
// The n ranks cut their vectors into n chunks. There are 2(n-1) steps. In each of them a rank sends
// chunk *send to its right neighbour, rank + 1, and receives chunk *receive from its left one. The
// last rank's right neighbour is rank 0. *adds: what arrives is added to the rank's own chunk, else
// it replaces the chunk.
//     reduce-scatter, steps 0 ... n-2: each chunk goes round, and every rank adds its own part
//     all-gather, the other n-1 steps: the finished chunks go round once more, and are copied
// A rank passes on in a step what it received in the step before; it begins with chunk `rank`.

static void ring_allreduce(int *send, int *receive, bool *adds, int step, int rank, int n) {
    *send = (rank - step + 2*n) % n;
    *receive = (rank - step - 1 + 2*n) % n;
    *adds = step < n - 1;
}

// ---- ZeRO 1: each rank keeps the moments of its slice only, and updates this slice ----

typedef struct {
    float *params, *grads;             // (total) whole
    float *m, *v;                      // (count) AdamW's moments of the slice
    size_t begin, count;               // the slice: parameters begin ... begin+count-1; the slices
                                       // of all ranks hold each parameter once, in any order
    size_t scattered, gathered;        // elements that the rank has sent in the two exchanges
} ZeroRank;

// Each rank's slice of grads becomes the sum over all ranks. Outside its slice a rank does not get
// the sum: those elements of its grads become NaN here, so that a use of them shows.
static void reduce_scatter(ZeroRank *ranks, int n, size_t total) {
    for (size_t i = 0; i < total; i++) {
        float sum = 0.0f;
        for (int r = 0; r < n; r++) sum += ranks[r].grads[i];
        for (int r = 0; r < n; r++)
            ranks[r].grads[i] = i - ranks[r].begin < ranks[r].count ? sum : NAN;
    }
    for (int r = 0; r < n; r++) ranks[r].scattered += total - ranks[r].count;
}

// Every rank receives the slices of params that the others own.
static void all_gather(ZeroRank *ranks, int n) {
    for (int owner = 0; owner < n; owner++)
        for (size_t i = ranks[owner].begin; i < ranks[owner].begin + ranks[owner].count; i++)
            for (int r = 0; r < n; r++) ranks[r].params[i] = ranks[owner].params[i];
    for (int r = 0; r < n; r++) ranks[r].gathered += ranks[r].count * (size_t)(n - 1);
}

// One update of n ranks. The grads of a rank are those of the mean loss over its part of the batch,
// and all parts are equal. So the gradient of the batch is the mean over the ranks: the sum that
// reduce_scatter gives, divided by n. Each exchange happens once.
static void zero1(ZeroRank *ranks, int n, size_t total, AdamW o) {
    reduce_scatter(ranks, n, total);
    for (int r = 0; r < n; r++) {
        ZeroRank z = ranks[r];
        adamw_update(z.params + z.begin, z.m, z.v, z.grads + z.begin, 1.0f / n, o, z.count);
    }
    all_gather(ranks, n);
}
