// Causal self-attention, fast: attention_forward_plain and attention_backward_plain of train_gpt2.c
// with the same arguments. The T x T matrix of scores never exists as a whole. Each thread takes
// one head, and of that head a block of QUERIES rows at a time; what all of a head's queries are
// multiplied by is packed once. (Blocks that never leave the cache are also the idea of
// FlashAttention, Dao et al. 2022, arXiv 2205.14135.)
//
//                            keys
//               0 ......... t-1   t ......... t+rows-1
//             +-----------------+---------------------+
//   query t   | x x x x x x x x | x . . . . . . . . . |    x  computed and kept
//         t+1 | x x x x x x x x | x x . . . . . . . . |    .  computed with the block, then masked:
//         ... | x x x x x x x x | x x x . . . . . . . |       the causal mask hides later keys
// t+rows-1    | x x x x x x x x | x x x x x x x x x x |
//             +-----------------+---------------------+    keys from t+rows on are never touched
//
// The scores of the block are one matrix product, q (rows,HS) times k^T (HS,width) with
// width = t + rows. Row i sees t + 1 + i keys. Loops run over the whole width all the same: a few
// exponentials more, but whole vectors.
#include "cpu.h"

typedef struct {
    float *p, *ds;                     // (QUERIES,T) weights, and the gradient of scores
    Word *kt, *vt, *k, *v;             // packed: (HS,T), transposed, and (T,HS)
    Word *q, *dout;                    // packed: (QUERIES,HS)
} HeadScratch;

size_t attention_scratch(int T, int HS) {
    return 2*(size_t)QUERIES*T + 2*packed_size(HS, T) + packed_size(T, HS)
         + 2*packed_size(QUERIES, HS);
}

static HeadScratch head_scratch(float *scratch, int T, int HS) {
    HeadScratch s;
    s.p = scratch + thread_index()*attention_scratch(T, HS);
    s.ds = s.p + (size_t)QUERIES*T;
    s.kt = (Word *)(s.ds + (size_t)QUERIES*T);
    s.vt = s.kt + packed_size(HS, T);
    s.k = s.v = s.vt + packed_size(HS, T);       // backward needs the one, forward the other
    s.q = s.k + packed_size(T, HS);
    s.dout = s.q + packed_size(QUERIES, HS);
    return s;
}

void attention_softmax(float *p, float *lse, float *inv_sum, int rows, int seen, int width,
                       float scale) {
    // All maxima first, kept in lse: in one loop rows wait for each other, and at T = 64 the whole
    // forward pass of attention takes a fifth longer.
    for (int i = 0; i < rows; i++) {
        float *row = p + (size_t)i*width, hi = row[0];
        for (int t = seen + i; t < width; t++) row[t] = -INFINITY;
        #pragma omp simd reduction(max:hi)
        for (int t = 0; t < width; t++) hi = row[t] > hi ? row[t] : hi;
        lse[i] = hi;
    }
    for (int i = 0; i < rows; i++) {
        float *row = p + (size_t)i*width, hi = lse[i], sum = 0.0f;
        #pragma omp simd reduction(+:sum)
        for (int t = 0; t < width; t++) {
            row[t] = exp_fast((row[t] - hi) * scale);
            sum += row[t];
        }
        for (int t = seen + i; t < width; t++) row[t] = 0.0f;      // it was e^-87
        lse[i] = hi * scale + logf(sum);
        inv_sum[i] = 1.0f / sum;
    }
}

// One query, as in generation: nothing is used twice, so nothing is packed.
static void attention_row(float *out, float *lse, float *p, const float *q, const float *k,
                          const float *v, size_t ld, int seen, int HS, float scale) {
    float inv_sum;
    matvec(p, q, transpose_of(k, ld), NULL, 0, seen, HS);
    attention_softmax(p, lse, &inv_sum, 1, seen, seen, scale);
    matvec(out, p, rows_of(v, ld), NULL, 0, HS, seen);
    for (int c = 0; c < HS; c++) out[c] *= inv_sum;
}

void attention_forward_fast(float *out, float *lse, float *scratch, const float *qkv, int B,
                            int T, int past, int C, int NH) {
    int HS = C / NH, all = past + T;
    size_t ld = 3*(size_t)C;
    float scale = 1.0f / sqrtf((float)HS);
    // Guided: a run of heads each, so that a thread meets the rows that it has just computed.
    #pragma omp parallel for collapse(2) schedule(guided)
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++) {
        HeadScratch s = head_scratch(scratch, all, HS);
        float *head_lse = lse + ((size_t)b*NH + h)*all, *head_out = out + (size_t)b*all*C + h*HS;
        const float *q = qkv + (size_t)b*all*ld + h*HS, *k = q - past*ld + C, *v = k + C;
        if (T == 1) {
            attention_row(head_out, head_lse, s.p, q, k, v, ld, all, HS, scale);
            continue;
        }
        pack_whole(s.kt, transpose_of(k, ld), HS, all);
        pack_whole(s.v, rows_of(v, ld), all, HS);
        for (int t = 0; t < T; t += QUERIES) {
            int rows = (int)min_size(QUERIES, T - t), width = past + t + rows;
            float inv_sum[QUERIES], *block = head_out + (size_t)t*C;
            matmul_packed(s.p, width, rows_of(q + t*ld, ld), s.kt, HS, rows, width, HS, WRITE);
            attention_softmax(s.p, head_lse + t, inv_sum, rows, past + t + 1, width, scale);
            matmul_packed(block, C, rows_of(s.p, width), s.v, all, rows, HS, width, WRITE);
            for (int i = 0; i < rows; i++)
                for (int c = 0; c < HS; c++) block[(size_t)i*C + c] *= inv_sum[i];
        }
    }
}

void attention_weights(float *p, const float *lse, int rows, int seen, int width, float scale) {
    for (int i = 0; i < rows; i++) {
        float *row = p + (size_t)i*width;
        #pragma omp simd
        for (int t = 0; t < width; t++) row[t] = exp_fast(row[t] * scale - lse[i]);
        for (int t = seen + i; t < width; t++) row[t] = 0.0f;
    }
}

// In place of dp: p (dp - d) scale, with d_i = dout_i . out_i. That is ds / sqrt(HS), the gradient
// of q . k, as in attention_backward_plain.
static void attention_dscores(float *ds, const float *p, const float *dout, const float *out,
                              int rows, int width, int C, int HS, float scale) {
    for (int i = 0; i < rows; i++) {
        const float *o = out + (size_t)i*C, *d_o = dout + (size_t)i*C;
        float d = 0.0f;
        #pragma omp simd reduction(+:d)
        for (int c = 0; c < HS; c++) d += o[c] * d_o[c];
        size_t row = (size_t)i*width;
        #pragma omp simd
        for (int t = 0; t < width; t++) ds[row + t] = p[row + t] * (ds[row + t] - d) * scale;
    }
}

void attention_backward_fast(float *dqkv, float *scratch, const float *dout, const float *qkv,
                             const float *out, const float *lse, int B, int T, int C, int NH) {
    int HS = C / NH;
    size_t ld = 3*(size_t)C;
    float scale = 1.0f / sqrtf((float)HS);
    #pragma omp parallel for collapse(2) schedule(guided)
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++) {
        HeadScratch s = head_scratch(scratch, T, HS);
        const float *q = qkv + (size_t)b*T*ld + h*HS, *k = q + C, *v = k + C;
        float *dq = dqkv + (size_t)b*T*ld + h*HS, *dk = dq + C, *dv = dk + C;
        pack_whole(s.kt, transpose_of(k, ld), HS, T);
        pack_whole(s.vt, transpose_of(v, ld), HS, T);
        pack_whole(s.k, rows_of(k, ld), T, HS);
        for (int t = 0; t < T; t++)      // later queries add to the gradients of earlier keys
            for (int c = 0; c < HS; c++) dk[t*ld + c] = dv[t*ld + c] = 0.0f;
        for (int t = 0; t < T; t += QUERIES) {
            int rows = (int)min_size(QUERIES, T - t), width = t + rows;
            size_t at = ((size_t)b*T + t)*C + h*HS;
            Mat q_block = rows_of(q + t*ld, ld), dout_block = rows_of(dout + at, C);
            matmul_packed(s.p, width, q_block, s.kt, HS, rows, width, HS, WRITE);
            attention_weights(s.p, lse + ((size_t)b*NH + h)*T + t, rows, t + 1, width, scale);
            matmul_packed(s.ds, width, dout_block, s.vt, HS, rows, width, HS, WRITE);
            attention_dscores(s.ds, s.p, dout + at, out + at, rows, width, C, HS, scale);
            pack_whole(s.q, q_block, rows, HS);
            pack_whole(s.dout, dout_block, rows, HS);
            matmul_packed(dq + t*ld, ld, rows_of(s.ds, width), s.k, T, rows, HS, width, WRITE);
            matmul_packed(dk, ld, transpose_of(s.ds, width), s.q, rows, width, HS, rows, ADD);
            matmul_packed(dv, ld, transpose_of(s.p, width), s.dout, rows, width, HS, rows, ADD);
        }
    }
}
