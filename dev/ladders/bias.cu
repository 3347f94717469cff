// The gradient of a bias: db (OC) += the sum of the rows of dout (N,OC), rung by rung.
//
//     make ladder OP=bias
//
// Each element of dout is needed once, for one addition. So memory is the limit, and every rung
// reads the same bytes. What differs is how many threads read at once, and how much each of them
// reads in one go. No rung uses atomics: sums are added in the same order in every run.
#include "ladder.cu"                   // Rung, Result, ladder_climb, ladder_main

struct Data { float *db; const real *dout; size_t N; int OC; };
struct Shape { size_t N; int OC; };

// ---- the rungs ----

// The definition. A warp's 32 threads own neighbouring columns, so their loads are coalesced: no
// byte is read in vain. But OC columns are OC threads, for GPT-2 some thousands. A GPU has room for
// a hundred times as many, and needs them to have enough loads under way.
__global__ void column_kernel(float *db, const real *dout, size_t N, int OC) {
    int c = (int)thread_in_grid();
    if (c >= OC) return;
    float sum = 0.0f;
    for (size_t n = 0; n < N; n++) sum += (float)dout[n*OC + c];
    db[c] += sum;
}

static void column(const Data *d, Gpu *g) {
    column_kernel<<<blocks_for(d->OC, 256), 256, 0, g->stream>>>(d->db, d->dout, d->N, d->OC);
}

// A block of 32 warps owns 32 columns; warp w has rows w, w + 32, ... The warps' sums meet in
// shared memory. The same requests come from 32 times as many warps, for one barrier a block.
__global__ void block_kernel(float *db, const real *dout, size_t N, int OC) {
    __shared__ float sums[32][32];
    int c = blockIdx.x*32 + lane();
    float sum = 0.0f;
    for (size_t n = warp_in_block(); c < OC && n < N; n += 32) sum += (float)dout[n*OC + c];
    sums[warp_in_block()][lane()] = sum;
    __syncthreads();                             // the sums of all warps are there
    if (warp_in_block() > 0 || c >= OC) return;
    for (int w = 1; w < 32; w++) sum += sums[w][lane()];
    db[c] += sum;
}

static void block(const Data *d, Gpu *g) {
    block_kernel<<<blocks_for(d->OC, 32), 1024, 0, g->stream>>>(d->db, d->dout, d->N, d->OC);
}

// Rows are split as well: a block sums 32 columns of `rows` rows. It cannot add to db, where other
// blocks add too, so it writes a row of `partials`. The trainer's column_sums_add then adds those
// rows in their order. Now the number of warps grows with the rows, and fills any GPU. The partial
// sums are written and read again: a few per cent more bytes, and a second launch.
//   partials (parts,OC)
__global__ void part_kernel(float *partials, const real *dout, size_t rows, size_t N, int OC) {
    __shared__ float sums[8][32];
    int c = blockIdx.x*32 + lane();
    size_t first = blockIdx.y*rows, end = first + rows < N ? first + rows : N;
    float sum = 0.0f;
    for (size_t n = first + warp_in_block(); c < OC && n < end; n += 8)
        sum += (float)dout[n*OC + c];
    sums[warp_in_block()][lane()] = sum;
    __syncthreads();                             // the sums of all warps are there
    if (warp_in_block() > 0 || c >= OC) return;
    for (int w = 1; w < 8; w++) sum += sums[w][lane()];
    partials[(size_t)blockIdx.y*OC + c] = sum;
}

static void two_passes(const Data *d, Gpu *g) {
    int parts = column_parts(d->OC, d->N, 128);
    dim3 blocks(blocks_for(d->OC, 32), parts);
    part_kernel<<<blocks, 256, 0, g->stream>>>(g->scratch, d->dout, (d->N + parts - 1) / parts,
                                               d->N, d->OC);
    column_sums_add({ d->db }, 1, g->scratch, parts, d->OC, g->stream);
}

// The trainer's bias_backward: a lane reads a pack, 16 bytes, where it read one element of 2. That
// is an eighth of the requests, each with eight times the bytes under way. There are fewer warps,
// still enough. Packs of sums lie 32 bytes apart in shared memory, which costs bank conflicts: two
// stores a thread.
static void trainer(const Data *d, Gpu *g) { bias_backward(d->db, d->dout, d->N, d->OC, g); }

static const Rung<Data> rungs[] = {
    { "a thread a column", "each thread walks down one column", column },
    { "a block 32 columns", "32 warps share the rows, and add up in shared memory", block },
    { "two passes", "blocks share the rows, too; a second kernel adds their partial sums",
      two_passes },
    { "packs: the trainer's", "a lane reads 16 bytes at a time", trainer },
};

// ---- the shapes ----

static void climb(Ladder *l, Shape s) {
    Array<real> dout(drawn(s.N * s.OC, 1));
    Array<float> db(s.OC);
    char title[100];
    snprintf(title, sizeof title, "bias, backward: N=%zu, OC=%d, " PRECISION, s.N, s.OC);
    Data d = { db.gpu, dout.gpu, s.N, s.OC };
    ladder_climb(l, title, rungs, d, { result("db", db, 1.0f, 0) },
                 { (double)(dout.n * sizeof(real)), 0.0 });
}

int main(int argc, char **argv) {
    static const Shape small[] = { { 5, 8 }, { 37, 264 }, { 301, 776 } };
    return ladder_main(argc, argv, small, { 1024, 768 }, { 65536, 768 }, climb,
                       "lesson 13 has the ideas, dev/ladders/bias.cu the code; "
                       "`make ladder OP=layernorm`.");
}
