// Softmax and cross-entropy, forward and backward at once, rung by rung: the loss of each of N rows
// of logits, and the logits' gradient. The trainer's section on them has the formulas.
//
//     make ladder OP=xent
//
// GPT-2 has 50257 logits a token: this is the largest array of a step. It must be read once and
// written once, and memory is the limit. What separates the rungs is how often they pass over it.
#include "ladder.cu"                   // Rung, Result, ladder_climb, ladder_main

struct Shape { size_t N; int V, Vp; };

struct Data {
    float *loss;                       // (N)
    real *dlogits;                     // (N,Vp)
    const real *logits;                // (N,Vp); columns V ... Vp-1 are padding
    const int *target;                 // (N)
    const float *scale;                // (1) what the loss is multiplied by, before the gradient
    float *p, *lse;                    // scratch: (N,Vp) (N)
    size_t N;
    int V, Vp;
};

enum { THREADS = 256 };                // of a block, in all rungs but the last

// What `reduce` makes of a warp's lanes, made of the block's threads, to all of them: the sum or
// the largest. `none` changes neither.
template <class T, class Reduce>
__device__ inline T block_to_all(T x, T none, Reduce reduce) {
    __shared__ T of_warp[THREADS / 32];
    x = reduce(x);
    if (lane() == 0) of_warp[warp_in_block()] = x;
    __syncthreads();                             // all warps' results are there
    return reduce(lane() < THREADS / 32 ? of_warp[lane()] : none);
}
__device__ inline float block_sum_to_all(float x) {
    return block_to_all(x, 0.0f, [](float x) { return warp_sum(x); });
}
__device__ inline float block_max_to_all(float x) {
    return block_to_all(x, -FLT_MAX, [](float x) { return warp_max(x); });
}

// ---- the rungs ----

// A kernel for each formula: p = softmax(logits); loss = -log p[target]; dlogits = p - 1[target].
// The probabilities p pass through memory, as floats: written once, and read by two kernels. And a
// loss may be lost: where p underflows to 0, its logarithm is infinite.
__global__ void softmax_kernel(Data d) {
    const real *x = d.logits + blockIdx.x*(size_t)d.Vp;
    float *p = d.p + blockIdx.x*(size_t)d.Vp, hi = -FLT_MAX, sum = 0.0f;
    for (int v = threadIdx.x; v < d.V; v += THREADS) hi = fmaxf(hi, (float)x[v]);
    hi = block_max_to_all(hi);
    for (int v = threadIdx.x; v < d.V; v += THREADS) sum += __expf((float)x[v] - hi);
    sum = block_sum_to_all(sum);
    for (int v = threadIdx.x; v < d.Vp; v += THREADS)
        p[v] = v < d.V ? __expf((float)x[v] - hi) / sum : 0.0f;
}

__global__ void loss_kernel(Data d) {
    size_t n = thread_in_grid();
    if (n < d.N) d.loss[n] = -logf(d.p[n*d.Vp + d.target[n]]);
}

__global__ void gradient_kernel(Data d) {
    size_t i = thread_in_grid(), n = i / d.Vp;
    if (n >= d.N) return;
    d.dlogits[i] = (real)((d.p[i] - ((int)(i % d.Vp) == d.target[n])) * *d.scale);
}

static void separate(const Data *d, Gpu *g) {
    softmax_kernel<<<(unsigned)d->N, THREADS, 0, g->stream>>>(*d);
    loss_kernel<<<blocks_for(d->N, THREADS), THREADS, 0, g->stream>>>(*d);
    gradient_kernel<<<blocks_for(d->N*d->Vp, THREADS), THREADS, 0, g->stream>>>(*d);
}

// What the next rungs end with, once log sum exp of the block's row is known.
__device__ inline void row_end(const Data &d, float log_sum) {
    const real *x = d.logits + blockIdx.x*(size_t)d.Vp;
    int right = d.target[blockIdx.x];
    float scale = *d.scale;
    if (threadIdx.x == 0) d.loss[blockIdx.x] = log_sum - (float)x[right];
    for (int v = threadIdx.x; v < d.Vp; v += THREADS) {
        float p = v < d.V ? __expf((float)x[v] - log_sum) : 0.0f;
        d.dlogits[blockIdx.x*(size_t)d.Vp + v] = (real)((p - (v == right)) * scale);
    }
}

// Fused: one kernel, in which a block has a row. p exists in registers alone, and memory moves a
// third of the bytes. The loss is log sum exp - logit[target]: no logarithm of a p that underflows.
// A row is read three times, for the largest, the sum, the gradient; the last two from a cache.
__global__ void fused_kernel(Data d) {
    const real *x = d.logits + blockIdx.x*(size_t)d.Vp;
    float hi = -FLT_MAX, sum = 0.0f;
    for (int v = threadIdx.x; v < d.V; v += THREADS) hi = fmaxf(hi, (float)x[v]);
    hi = block_max_to_all(hi);
    for (int v = threadIdx.x; v < d.V; v += THREADS) sum += __expf((float)x[v] - hi);
    row_end(d, hi + logf(block_sum_to_all(sum)));
}

static void fused(const Data *d, Gpu *g) {
    fused_kernel<<<(unsigned)d->N, THREADS, 0, g->stream>>>(*d);
}

// Online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867): the sum so far belongs to the
// largest so far, and is scaled when that grows. So one pass finds both, and a row is read twice.
// The price is a second exponential for each element.
__global__ void online_kernel(Data d) {
    const real *x = d.logits + blockIdx.x*(size_t)d.Vp;
    Softmax s = { -FLT_MAX, 0.0f };
    for (int v = threadIdx.x; v < d.V; v += THREADS) {
        float hi = fmaxf(s.hi, (float)x[v]);
        s.sum = s.sum * __expf(s.hi - hi) + __expf((float)x[v] - hi);
        s.hi = hi;
    }
    s = block_to_all(s, { -FLT_MAX, 0.0f }, [](Softmax s) { return warp_softmax(s); });
    row_end(d, s.hi + logf(s.sum));
}

static void online(const Data *d, Gpu *g) {
    online_kernel<<<(unsigned)d->N, THREADS, 0, g->stream>>>(*d);
}

// The trainer's xent_kernel: a row is kept in shared memory, so each logit is read once and each
// gradient written once: nothing more can be saved. They move 16 bytes a lane, in bf16 an eighth of
// the requests. A pack's largest is found before its exponentials, and the sum scaled once a pack,
// so the second exponential is almost gone. Copies of a whole row are under way at once,
// and one of two blocks on a multiprocessor reads while the other waits at its barrier. It could
// write the gradient over the logits.
static void trainer(const Data *d, Gpu *g) {
    xent_launch(d->loss, d->lse, d->dlogits, d->logits, d->target, d->scale, d->N, d->V, d->Vp,
                g);
}

static const Rung<Data> rungs[] = {
    { "separate kernels", "softmax, loss and gradient, with the probabilities in memory",
      separate },
    { "fused", "one kernel; the probabilities never leave the registers", fused },
    { "online", "the largest and the sum in one pass", online },
    { "shared memory: the trainer's", "a row is kept there, and read once, in packs", trainer },
};

// ---- the shapes ----

static void climb(Ladder *l, Shape s) {
    Array<real> logits(drawn(s.N * s.Vp, 1, 8.0f));          // the largest p of a row is not small
    Array<real> dlogits(s.N * s.Vp);
    Array<float> loss(s.N), p(s.N * s.Vp), lse(s.N);
    Array<float> scale(std::vector<float>(1, 1.0f / (float)s.N));
    std::vector<int> targets(s.N);
    for (size_t n = 0; n < s.N; n++) targets[n] = (int)(n * 7919 % s.V);
    Array<int> target(targets);
    char title[100];
    snprintf(title, sizeof title, "softmax cross-entropy: N=%zu, V=%d, " PRECISION, s.N, s.V);
    Data d = { loss.gpu, dlogits.gpu, logits.gpu, target.gpu, scale.gpu, p.gpu, lse.gpu, s.N, s.V,
               s.Vp };
    ladder_climb(l, title, rungs, d,
                 { result("loss", loss, NAN, 0), result("dlogits", dlogits, NAN, 1) },
                 { 2.0 * (double)(logits.n * sizeof(real)), 0.0 });
}

int main(int argc, char **argv) {
    static const Shape small[] = { { 3, 5, 8 }, { 37, 130, 136 }, { 2, 2051, 2056 } };
    return ladder_main(argc, argv, small, { 64, 4050, 4096 }, { 2048, 50257, 50304 }, climb,
                       "lesson 13 has the ideas, dev/ladders/xent.cu the code; "
                       "`make ladder OP=matmul`.");
}
