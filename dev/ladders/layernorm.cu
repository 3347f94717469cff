// LayerNorm, forward and backward, rung by rung. The trainer's section LayerNorm has the formulas.
//
//     make ladder OP=layernorm
//
// A row is read, a row is written, and a few operations an element lie between: memory is the
// limit. Forward must move 2*N*C elements, backward 4*N*C with the residual's gradient. A rung is
// good if its threads read neighbouring bytes, and if it reads them once.
#include "ladder.cu"                   // Rung, Result, ladder_climb, ladder_main

struct Shape { size_t N; int C; };

// ---- forward ----

struct Forward {
    real *out;
    float *mean, *rstd;
    const real *x;
    real *gain, *bias;
    size_t N;
    int C;
};

// The formula, for the first three rungs: row n is read three times, for the mean, for the
// variance, for the result. This thread, number i of `threads`, has elements i, i + threads, ...
// of it, and `sum` adds up what these threads have.
template <class Sum>
__device__ inline void norm_row(const Forward &f, size_t n, int i, int threads, Sum sum) {
    const real *x = f.x + n*f.C;
    float own = 0.0f, squares = 0.0f;
    for (int c = i; c < f.C; c += threads) own += (float)x[c];
    float m = sum(own) / f.C;
    for (int c = i; c < f.C; c += threads) squares += ((float)x[c] - m) * ((float)x[c] - m);
    float r = 1.0f / sqrtf(sum(squares) / f.C + 1e-5f);
    for (int c = i; c < f.C; c += threads)
        f.out[n*f.C + c] = (real)(((float)x[c] - m) * r * (float)f.gain[c] + (float)f.bias[c]);
    if (i > 0) return;
    f.mean[n] = m;
    f.rstd[n] = r;
}

// A thread a row. Neighbouring threads read elements that lie a row apart. So each of a warp's 32
// lanes is in a sector of its own, and uses 2 of its 32 bytes.
__global__ void thread_a_row_kernel(Forward f) {
    size_t n = thread_in_grid();
    if (n < f.N) norm_row(f, n, 0, 1, [](float x) { return x; });
}

static void thread_a_row(const Forward *f, Gpu *g) {
    thread_a_row_kernel<<<blocks_for(f->N, 32), 32, 0, g->stream>>>(*f);
}

// The sum over a block of 256 threads, to all of them.
__device__ inline float sum_to_all(float x) {
    __shared__ float of_thread[256];
    of_thread[threadIdx.x] = x;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();                         // the sums of the last round are there
        if ((int)threadIdx.x < half) of_thread[threadIdx.x] += of_thread[threadIdx.x + half];
    }
    __syncthreads();                             // the sum is there
    float sum = of_thread[0];
    __syncthreads();                             // all have read it: the next call may overwrite
    return sum;
}

// A block a row. Now a warp's 32 elements lie side by side, in two sectors: the largest gain of
// this ladder. But each sum over the block's threads takes ten barriers. Every warp waits there, in
// most of them for a sum in which it has no part.
__global__ void block_a_row_kernel(Forward f) {
    norm_row(f, blockIdx.x, threadIdx.x, 256, [](float x) { return sum_to_all(x); });
}

static void block_a_row(const Forward *f, Gpu *g) {
    block_a_row_kernel<<<(unsigned)f->N, 256, 0, g->stream>>>(*f);
}

// A warp a row. Its lanes exchange their sums by shuffles: five of them, no shared memory, and no
// barrier, since a warp's lanes run together. The requests for global memory are those of before.
__global__ void warp_a_row_kernel(Forward f) {
    size_t n = thread_in_grid() / 32;            // a whole warp's
    if (n < f.N) norm_row(f, n, lane(), 32, [](float x) { return warp_sum(x); });
}

static void warp_a_row(const Forward *f, Gpu *g) {
    warp_a_row_kernel<<<blocks_for(f->N, 8), 256, 0, g->stream>>>(*f);
}

// Packs: a lane loads and stores 16 bytes at a time. In bf16 that is an eighth of the requests for
// rows, and the same sectors. It saves instructions, and more bytes are under way at once.
__global__ void packs_kernel(Forward f) {
    size_t n = thread_in_grid() / 32;
    if (n >= f.N) return;                        // the whole warp leaves together
    const real *x = f.x + n*f.C;
    float v[PACK], gain[PACK], bias[PACK], sum = 0.0f, squares = 0.0f;
    for (int c = lane()*PACK; c < f.C; c += 32*PACK) {
        load(v, x + c);
        for (int k = 0; k < PACK; k++) sum += v[k];
    }
    float m = warp_sum(sum) / f.C;
    for (int c = lane()*PACK; c < f.C; c += 32*PACK) {
        load(v, x + c);
        for (int k = 0; k < PACK; k++) squares += (v[k] - m) * (v[k] - m);
    }
    float r = 1.0f / sqrtf(warp_sum(squares) / f.C + 1e-5f);
    for (int c = lane()*PACK; c < f.C; c += 32*PACK) {
        load(v, x + c);
        load(gain, f.gain + c);
        load(bias, f.bias + c);
        for (int k = 0; k < PACK; k++) v[k] = (v[k] - m) * r * gain[k] + bias[k];
        store(f.out + n*f.C + c, v);
    }
    if (lane() > 0) return;
    f.mean[n] = m;
    f.rstd[n] = r;
}

static void packs(const Forward *f, Gpu *g) {
    packs_kernel<<<blocks_for(f->N, 8), 256, 0, g->stream>>>(*f);
}

// The trainer's layernorm_forward: a lane keeps its packs of the row in registers, so the row is
// read once. Of six passes (three of x, then gain, bias and out) two are gone. They came from a
// cache: the bytes of memory are the same on all rungs.
static void forward_trainer(const Forward *f, Gpu *g) {
    layernorm_forward({ f->out, f->mean, f->rstd }, f->x, { f->gain, f->bias }, f->N, f->C,
                      g->stream);
}

static const Rung<Forward> forward_rungs[] = {
    { "a thread a row", "the formula: each thread reads its row three times", thread_a_row },
    { "a block a row", "neighbouring threads read neighbouring elements", block_a_row },
    { "a warp a row", "shuffles in place of shared memory and barriers", warp_a_row },
    { "packs", "a lane reads 16 bytes at a time", packs },
    { "registers: the trainer's", "a row is kept in registers, so it is read once",
      forward_trainer },
};

// ---- backward ----

struct Backward {
    real *dx;
    float *dgain, *dbias, *db;           // db: the trainer alone sums skip
    const real *skip, *dout, *x;
    real *gain;
    float *mean, *rstd;
    size_t N;
    int C;
};

// The definition: dx by rows, a warp a row, as forward taught; dgain and dbias by columns, a thread
// a column. dout and x are read three times in all: for the two means of a row, for dx, for the
// columns. (The ladder of bias says how more threads share the columns' rows.)
__global__ void columns_naive_kernel(Backward b) {
    int c = (int)thread_in_grid();
    if (c >= b.C) return;
    float gain = 0.0f, bias = 0.0f;
    for (size_t n = 0; n < b.N; n++) {
        float d = (float)b.dout[n*b.C + c];
        gain += d * ((float)b.x[n*b.C + c] - b.mean[n]) * b.rstd[n];
        bias += d;
    }
    b.dgain[c] += gain;
    b.dbias[c] += bias;
}

__global__ void dx_warp_kernel(Backward b) {
    size_t n = thread_in_grid() / 32;
    if (n >= b.N) return;                        // the whole warp leaves together
    const real *dout = b.dout + n*b.C, *x = b.x + n*b.C;
    float m = b.mean[n], r = b.rstd[n], mean_g = 0.0f, mean_gx = 0.0f;
    for (int c = lane(); c < b.C; c += 32) {
        float g = (float)dout[c] * (float)b.gain[c];
        mean_g += g / b.C;
        mean_gx += g * ((float)x[c] - m) * r / b.C;
    }
    mean_g = warp_sum(mean_g);
    mean_gx = warp_sum(mean_gx);
    for (int c = lane(); c < b.C; c += 32) {
        float g = (float)dout[c] * (float)b.gain[c], xhat = ((float)x[c] - m) * r;
        b.dx[n*b.C + c] = (real)((g - mean_g - xhat * mean_gx) * r + (float)b.skip[n*b.C + c]);
    }
}

static void backward_warp(const Backward *b, Gpu *g) {
    dx_warp_kernel<<<blocks_for(b->N, 8), 256, 0, g->stream>>>(*b);
    columns_naive_kernel<<<blocks_for(b->C, 256), 256, 0, g->stream>>>(*b);
}

// One kernel: the warp that has a row's dout and xhat at hand for the two means also adds them to
// its column sums, which lie in shared memory. At the end the block's warps become one row of
// partials. dout and x are read twice in place of three times. Shared memory pays for it: four
// accesses an element, and room for few blocks at a time.
//   partials (blocks,2,C)
__global__ void one_kernel(float *partials, Backward b) {
    extern __shared__ __align__(16) float sums[];            // (warps,2,C)
    int warps = blockDim.x / 32;
    float *dgain = sums + warp_in_block()*2*b.C, *dbias = dgain + b.C;
    for (int c = lane(); c < 2*b.C; c += 32) dgain[c] = 0.0f;
    __syncwarp();                                // zeros are there before others add to them
    for (size_t n = blockIdx.x*warps + warp_in_block(); n < b.N; n += gridDim.x*warps) {
        const real *dout = b.dout + n*b.C, *x = b.x + n*b.C;
        float m = b.mean[n], r = b.rstd[n], mean_g = 0.0f, mean_gx = 0.0f;
        for (int c = lane(); c < b.C; c += 32) {
            float d = (float)dout[c], xhat = ((float)x[c] - m) * r, g = d * (float)b.gain[c];
            mean_g += g / b.C;
            mean_gx += g * xhat / b.C;
            dgain[c] += d * xhat;
            dbias[c] += d;
        }
        mean_g = warp_sum(mean_g);
        mean_gx = warp_sum(mean_gx);
        for (int c = lane(); c < b.C; c += 32) {
            float g = (float)dout[c] * (float)b.gain[c], xhat = ((float)x[c] - m) * r;
            b.dx[n*b.C + c] = (real)((g - mean_g - xhat*mean_gx) * r + (float)b.skip[n*b.C + c]);
        }
    }
    __syncthreads();                             // all warps have added up their rows
    for (int c = threadIdx.x; c < 2*b.C; c += blockDim.x) {
        float sum = 0.0f;
        for (int w = 0; w < warps; w++) sum += sums[w*2*b.C + c];
        partials[(size_t)blockIdx.x*2*b.C + c] = sum;
    }
}

static void backward_one_kernel(const Backward *b, Gpu *g) {
    NormGrid grid = layernorm_grid(b->N, b->C, &g->properties);
    size_t bytes = (size_t)grid.warps*2*b->C * sizeof(float);
    allow_shared(one_kernel, bytes);
    one_kernel<<<grid.blocks, 32*grid.warps, bytes, g->stream>>>(g->scratch, *b);
    column_sums_add({ b->dgain, b->dbias }, 2, g->scratch, grid.blocks, b->C, g->stream);
}

// The trainer's layernorm_backward: packs, and rows kept in registers. dout and x are read once, in
// an eighth of the requests. The halves of a pack of sums lie apart in shared memory, so that there
// are no bank conflicts. A third set of sums is that of skip: the gradient of a bias, for which the
// model would otherwise read skip once more.
static void backward_trainer(const Backward *b, Gpu *g) {
    layernorm_backward(b->dx, { b->dgain, b->dbias }, b->db, b->skip, b->dout, b->x,
                       { NULL, b->mean, b->rstd }, { b->gain, NULL }, b->N, b->C, g);
}

static const Rung<Backward> backward_rungs[] = {
    { "a warp a row", "dx by a warp a row; dgain and dbias by a thread a column", backward_warp },
    { "one kernel", "the warp that reads a row also adds it to its columns' sums",
      backward_one_kernel },
    { "registers: the trainer's", "packs, and rows kept in registers", backward_trainer },
};

// ---- the shapes ----

// Backward gets the mean and rstd that forward's last rung has left.
static void climb(Ladder *l, Shape s) {
    size_t n = s.N * s.C;
    Array<real> x(drawn(n, 1)), gain(drawn(s.C, 2)), bias(drawn(s.C, 3)), dout(drawn(n, 4));
    Array<real> skip(drawn(n, 5)), out(n), dx(n);
    Array<float> mean(s.N), rstd(s.N), dgain(s.C), dbias(s.C), db(s.C);
    char title[100];
    snprintf(title, sizeof title, "LayerNorm, forward: N=%zu, C=%d, " PRECISION, s.N, s.C);
    Forward f = { out.gpu, mean.gpu, rstd.gpu, x.gpu, gain.gpu, bias.gpu, s.N, s.C };
    ladder_climb(l, title, forward_rungs, f,
                 { result("out", out, NAN, 1), result("mean", mean, NAN, 0),
                   result("rstd", rstd, NAN, 0) },
                 { 2.0 * (double)(n * sizeof(real)), 0.0 });
    snprintf(title, sizeof title, "LayerNorm, backward: N=%zu, C=%d, " PRECISION, s.N, s.C);
    Backward b = { dx.gpu, dgain.gpu, dbias.gpu, db.gpu, skip.gpu, dout.gpu, x.gpu, gain.gpu,
                   mean.gpu, rstd.gpu, s.N, s.C };
    ladder_climb(l, title, backward_rungs, b,
                 { result("dx", dx, NAN, 1), result("dgain", dgain, 1.0f, 0),
                   result("dbias", dbias, 1.0f, 0) },
                 { 4.0 * (double)(n * sizeof(real)), 0.0 });
}

int main(int argc, char **argv) {
    static const Shape small[] = { { 3, 8 }, { 37, 264 }, { 301, 776 } };
    return ladder_main(argc, argv, small, { 512, 768 }, { 65536, 768 }, climb,
                       "lesson 13 has the ideas, dev/ladders/layernorm.cu the code; "
                       "`make ladder OP=xent`.");
}
