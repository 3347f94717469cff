"""Three more wrong solutions for each exercise, in the form of MISTAKES in test_exercises.py: what
a reader may write who knows the lesson and not the check. None in place of what the original says:
the whole body. Checks once accepted 18 of them."""

RACE = "one thread writes it while another"
SCRATCH = "two threads use it; a thread's piece"
SHARED = "threads share a variable"
OVERFLOW = "e^1000 overflows and e^-1000 is 0"
BITS = "so its bits change from run to run"

WRONG = {
    "embedding_forward": [
        ("x[n*C + c] =", "x[((size_t)t*B + b)*C + c] =", "x[b=0][t=1][c=0] is"),
        ("wpe + (size_t)t*C", "wpe + (size_t)token[n]*C", "wpe: element 18 is read"),
        ("#pragma omp parallel for collapse(2)", "static const float *word, *position;\n"
         " #pragma omp parallel for collapse(2)", "const float *word =", "word =",
         "const float *position =", "position =", SHARED)],
    "embedding_backward": [
        ("dwte + (size_t)token[n]*C", "dwte + (size_t)token[n % T]*C", "dwte[v=0][c=0] is"),
        (None, """
    #pragma omp parallel for
    for (int n = 0; n < B*T; n++)
        for (int c = 0; c < C; c++) {
            #pragma omp atomic
            dwte[token[n]*C + c] += dx[n*C + c];
            #pragma omp atomic
            dwpe[n % T * C + c] += dx[n*C + c];
        }
""", BITS),
        (None, """
    #pragma omp parallel for
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int c = 0; c < C; c++) {
                dwte[token[b*T + t]*C + c] += dx[(b*T + t)*C + c];
                #pragma omp critical
                dwpe[t*C + c] += dx[(b*T + t)*C + c];
            }
""", RACE)],
    "xent_forward": [
        (None, """
    float hi = logits[0];
    for (size_t n = 0; n < N; n++)
        for (int v = 0; v < V; v++) hi = fmaxf(hi, logits[n*Vp + v]);
    for (size_t n = 0; n < N; n++) {
        float sum = 0.0f;
        for (int v = 0; v < V; v++) sum += expf(logits[n*Vp + v] - hi);
        lse[n] = hi + logf(sum);
        loss[n] = lse[n] - logits[n*Vp + target[n]];
    }
""", "lse[n=0] is -inf"),
        (None, """
    for (size_t n = 0; n < N; n++) {
        double sum = 0.0;
        for (int v = 0; v < V; v++) sum += exp((double)logits[n*Vp + v]);
        lse[n] = (float)log(sum);
        loss[n] = lse[n] - logits[n*Vp + target[n]];
    }
""", OVERFLOW),
        ("v < V; v++) hi", "v < V - 1; v++) hi", OVERFLOW)],
    "xent_backward": [
        ("for (int v = V; v < Vp; v++) d[v] = 0.0f;", "", "v < V; v++) d[v] = exp_fast",
         "v < Vp; v++) d[v] = exp_fast", "column 11 is padding"),
        ("d[v] = 0.0f", "d[v] *= 0.0f", "column 11 is padding"),
        ("float *d =", "if (target[n] == 0) continue;\n"
         "        float *d =", "dlogits[n=3][v=0] is")],
    "layernorm_forward": [
        ("squares += (row[c] - m) * (row[c] - m);", "squares += row[c] * row[c];", "squares / C +",
         "squares / C - m*m +", "rstd[n=0] is"),
        ("(row[c] - m) * r * gain[c] + bias[c]", "((row[c] - m) * r + bias[c]) * gain[c]",
         "out[n=0][c=0] is"),
        ("rstd[n] = r;", "rstd[n] = r * r;", "rstd[n=0] is")],
    "layernorm_backward": [
        ("sum_g += d[c] * gain[c]", "sum_g += d[c]", "dx[n=0][c=0] is"),
        (None, """
    for (size_t n = 0; n < N; n++) {
        float sum_g = 0.0f, sum_gx = 0.0f;
        for (int c = 0; c < C; c++) {
            float xhat = (x[n*C + c] - mean[n]) * rstd[n], g = dout[n*C + c] * gain[c];
            sum_g += g, sum_gx += g * xhat;
        }
        for (int c = 0; c < C; c++) {
            float xhat = (x[n*C + c] - mean[n]) * rstd[n], g = dout[n*C + c] * gain[c];
            dx[n*C + c] = (g - sum_g / C - xhat * sum_gx / C) * rstd[n];
            dgain[c] += dout[n*C + c] * xhat;
            dbias[c] += dout[n*C + c];
        }
    }
""", "dx may overwrite dout: write dgain first"),
        (None, """
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        float sum_g = 0.0f, sum_gx = 0.0f;
        for (int c = 0; c < C; c++) {
            float xhat = (x[n*C + c] - mean[n]) * rstd[n], g = dout[n*C + c] * gain[c];
            sum_g += g, sum_gx += g * xhat;
            #pragma omp atomic
            dgain[c] += dout[n*C + c] * xhat;
            #pragma omp atomic
            dbias[c] += dout[n*C + c];
        }
        for (int c = 0; c < C; c++) {
            float xhat = (x[n*C + c] - mean[n]) * rstd[n], g = dout[n*C + c] * gain[c];
            dx[n*C + c] = (g - sum_g / C - xhat * sum_gx / C) * rstd[n];
        }
    }
""", BITS)],
    "gelu_backward": [
        (None, """
    for (size_t i = 0; i < n; i++) {
        float y = x[i], below = 0.5f*(1.0f + erff(y*0.70710678f));
        dx[i] = dout[i] * (below + y * 0.39894228f*expf(-0.5f*y*y));
    }
""", "exact GELU"),
        ("dx[i] = dout[i] * (s + x[i] * s * (1.0f - s) * two_du);",
         "dx[i] = s + x[i] * s * (1.0f - s) * two_du;\n"
         " dx[i] *= dout[i];", "read dout[i] before"),
        (None, """
    for (size_t i = 0; i < n; i++) {
        float u = 0.79788456f * (x[i] + 0.044715f * x[i]*x[i]*x[i]), e = expf(2.0f * u);
        float t = (e - 1.0f) / (e + 1.0f), du = 0.79788456f * (1.0f + 3.0f*0.044715f * x[i]*x[i]);
        dx[i] = dout[i] * (0.5f * (1.0f + t) + 0.5f * x[i] * (1.0f - t*t) * du);
    }
""", "inf/inf")],
    "linear_backward": [
        ("bias_backward(db, dout, N, OC);", "bias_backward(db, dout + OC, N - 1, OC);",
         "db[o=0] is"),
        ("matmul(dx, C,", "matmul(dx, OC,", "dx[n=0][c=3] is"),
        ("bias_backward(db, dout, N, OC);", "#pragma omp parallel for\n"
         "    for (size_t n = 0; n < N; n++)\n"
         "        for (int o = 0; o < OC; o++) {\n"
         "            #pragma omp atomic\n"
         "            db[o] += dout[n*OC + o];\n"
         "        }", BITS)],
    "attention_plain": [
        ("1.0f / sqrtf((float)HS)", "1.0f / sqrtf((float)C)", "q . k / sqrt(HS)"),
        ("((size_t)b*rows + t)*C", "((size_t)b*T + t)*C", "only the rows behind the past"),
        (None, """
    int HS = C / NH, rows = past + T;
    double scale = 1.0 / sqrt(HS);
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++)
        for (int t = 0; t < T; t++) {
            const float *q = head_row(qkv, b, t, h, rows, C, HS);
            float *o = out + ((size_t)b*rows + t)*C + h*HS;
            double sum = 0.0, acc[64] = {0};
            for (int t2 = -past; t2 <= t; t2++) {
                const float *k = head_row(qkv, b, t2, h, rows, C, HS) + C;
                double s = 0.0;
                for (int i = 0; i < HS; i++) s += (double)q[i]*k[i];
                double e = exp(s * scale);
                sum += e;
                for (int i = 0; i < HS; i++) acc[i] += e * k[C + i];
            }
            for (int i = 0; i < HS; i++) o[i] = (float)(acc[i] / sum);
            lse[((size_t)b*NH + h)*rows + t] = (float)log(sum);
        }
""", OVERFLOW)],
    "attention_backward": [
        ("dot(d_o, out + n*C + h*HS, HS)", "dot(d_o, out + n*C, HS)", "wrong only where h=1"),
        ("(size_t)B*T*3*C * sizeof *dqkv", "(size_t)B*T*C * sizeof *dqkv", "dv[b=0][t=4][h=0][i=0] is 6.88944, expected -0.110556: it still contains"),
        ("#pragma omp parallel for collapse(2)\n"
         "    for (int b = 0; b < B; b++)\n"
         "    for (int h = 0; h < NH; h++)\n"
         "    for (int t = 0; t < T; t++) {", "for (int b = 0; b < B; b++)\n"
         "    for (int h = 0; h < NH; h++)\n"
         "    #pragma omp parallel for\n"
         "    for (int t = 0; t < T; t++) {", RACE)],
    "attention_tiled": [
        ("width = past + t + rows", "width = past + rows", "lse[b=0][h=0][t=32] is"),
        ("HS, all);\n"
         "        pack_whole(s.v", "HS, T);\n"
         "        pack_whole(s.v", "only the rows behind the past"),
        ("c < HS; c++) block", "c < C; c++) block", "an index runs past")],
    "adamw_update": [
        ("sqrtf(v[i]*correct_v) + o.eps", "sqrtf(v[i]*correct_v + o.eps)", "not under it"),
        ("o.lr * (m[i]*correct_m / (sqrtf(v[i]*correct_v) + o.eps) + o.weight_decay * "
         "p[i])", "o.lr * m[i]*correct_m / (sqrtf(v[i]*correct_v) + o.eps) + o.weight_decay * "
         "p[i]", "the rate multiplies the decay too"),
        ("p[i] -= o.lr * (m[i]*correct_m / (sqrtf(v[i]*correct_v) + o.eps) + "
         "o.weight_decay * p[i]);",
         "p[i] -= o.lr * (m[i]*correct_m / (sqrtf(v[i]*correct_v) + o.eps));\n"
         " p[i] -= o.lr * o.weight_decay * p[i];", "p[i=0] is")],
    "global_norm": [
        ("(double)g[j] * g[j]", "(double)(g[j] * g[j])", "square in double"),
        (None, """
    double sum = 0.0;
    #pragma omp parallel for reduction(+:sum)
    for (int i = 0; i < m->zero.n_chunks; i++) {
        if (!m->zero.chunks[i].counts) continue;
        const float *g = m->zero.grads + m->zero.chunks[i].grad;
        for (int j = 0; j < m->zero.chunks[i].count; j++) sum += (double)g[j] * g[j];
    }
    return sum;
""", "with 1 thread and"),
        (None, """
    static double sum;
    for (int i = 0; i < m->zero.n_chunks; i++) {
        if (!m->zero.chunks[i].counts) continue;
        const float *g = m->zero.grads + m->zero.chunks[i].grad;
        for (int j = 0; j < m->zero.chunks[i].count; j++) sum += (double)g[j] * g[j];
    }
    return sum;
""", "the sum is")],
    "sample_token": [
        ("(k == 0 || kept < s->top_p * all)", "(k == 0 || kept + c[k].p <= s->top_p * all)",
         "top_p 0.7: token 1"),
        ("return c[k].id;\n", "return k;\n", "return the id"),
        ("double left = rng_uniform(rng) * sum;", "double left = 0.5 * sum;",
         "no number is taken from rng")],
    "kv_cache": [
        ("m->x_in + from, tokens", "m->x_in, tokens", "x_in: row 0 is written again"),
        ("1, rows, past);", "1, T, past);", "row 4 is written, and there are 4 tokens"),
        ("layernorm_forward(m->lnf + from, m->lnf_mean, m->lnf_rstd, m->acts[L - "
         "1].x_out + from,\n"
         "                      w->lnf_gain, w->lnf_bias, rows, C);",
         "layernorm_forward(m->lnf, m->lnf_mean, m->lnf_rstd, m->acts[L - 1].x_out,\n"
         " w->lnf_gain, w->lnf_bias, T, C);", "lnf: row 0 is written again")],
    "gradient_accumulation": [
        ("norm > clip ?", "all.squares > clip ?", "the factor r->o.clip / norm"),
        ("r->targets, s->scale, s->B, s->T);",
         "r->targets, s->scale, s->B, s->T), model_update(m, s->adamw, 1.0f);",
         "the parameters stay as they are"),
        ("model_update(m, s->adamw, g_scale);",
         "s->adamw.lr *= g_scale, model_update(m, s->adamw, 1.0f);",
         "the factor r->o.clip / norm")],
    "warp_sum": [
        (None, """
    for (int i = 1; i <= 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
""", "lane 0 of warp 0 has"),
        (None, """
    for (int i = 16; i > 0; i /= 2) if (lane() < i) x += __shfl_down_sync(~0u, x, i);
    return __shfl_sync(~0u, x, 0);
""", "emulator: "),
        (None, """
    float sum = 0.0f;
    for (int i = 0; i < 32; i++) sum += __shfl_sync(~0u, x, i);
    return sum;
""", "after 32 exchanges")],
    "softmax_row": [
        (None, """
    int n = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32);
    if (n >= N) return;
    const float *row = x + (size_t)n*C;
    float hi = -INFINITY, sum = 0.0f;
    for (int c = 0; c < C; c++) hi = fmaxf(hi, row[c]);
    for (int c = 0; c < C; c++) sum += expf(row[c] - hi);
    for (int c = 0; c < C; c++) p[(size_t)n*C + c] = expf(row[c] - hi) / sum;
""", "global loads: 36864 numbers"),
        (None, """
    int n = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32);
    if (n >= N) return;
    const float *row = x + (size_t)n*C;
    float hi = -INFINITY, sum = 0.0f;
    int each = (C + 31) / 32, begin = lane()*each, end = min(C, begin + each);
    for (int c = begin; c < end; c++) hi = fmaxf(hi, row[c]);
    hi = warp_max(hi);
    for (int c = begin; c < end; c++) sum += expf(row[c] - hi);
    sum = warp_sum(sum);
    for (int c = begin; c < end; c++) p[(size_t)n*C + c] = expf(row[c] - hi) / sum;
""", "its requests want 12 sectors"),
        (None, """
    int n = (int)((blockIdx.x * blockDim.x + threadIdx.x) / 32);
    if (n >= N) return;
    const float *row = x + (size_t)n*C;
    double sum = 0.0;
    for (int c = lane(); c < C; c += 32) sum += exp((double)row[c]);
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    for (int c = lane(); c < C; c += 32) p[(size_t)n*C + c] = (float)(exp((double)row[c]) / sum);
""", OVERFLOW)],
    "layernorm_cuda": [
        ("squares += (row[c] - m) * (row[c] - m);", "squares += row[c] * row[c];",
         "warp_sum(squares) / C +", "warp_sum(squares) / C - m*m +", "rstd[n=0] is"),
        ("for (int c = lane(); c < C; c += 32)",
         "for (int c = lane()*((C + 31)/32); c < C && c < (lane() + 1)*((C + 31)/32); "
         "c++)", "its requests want 8 sectors"),
        ("for (int c = lane(); c < C; c += 32)", "for (int c = 0; c < C; c++)", "warp_sum(sum)",
         "sum", "warp_sum(squares)", "squares", "numbers, expected 1280")],
    "find_the_race": [
        ("__syncthreads();                             // all", "// all", "mean += sums[w] / C;",
         "mean += sums[w] / C, __syncthreads();", "more than a barrier has changed"),
        ("__syncthreads();                             // all", "// all",
         "__shared__ float sums[WARPS];", "__shared__ float sums[WARPS], more[WARPS];",
         "if (lane() == 0) sums[warp] = sum;\n"
         "    __syncthreads();                             // the squares",
         "if (lane() == 0) more[warp] = sum;\n"
         "    __syncthreads();                             // the squares", "var += sums[w]",
         "var += more[w]", "more than a barrier has changed"),
        ("__syncthreads();                             // all", "// all",
         "if (lane() == 0) sums[warp] = sum;\n"
         "    __syncthreads();                             // the squares",
         "if (lane() == 0) { __syncthreads(); sums[warp] = sum; }\n"
         "    __syncthreads();                             // the squares", "barrier divergence")],
    "transpose_shared": [
        ("[TILE + 1]", "[TILE + 2]", "bank conflicts, expected none"),
        ("int i = threadIdx.y; i < TILE; i += WARPS_OF_TILE)\n"
         "        if (n0", "int i = 0; i < TILE; i++)\n"
         "        if (n0", "global loads: 49152 numbers"),
        ("= tile[lane][i];", "= x[(size_t)(n0 + lane)*C + c0 + i];",
         "global loads: its requests want")],
    "matmul_tiled": [
        ("m < M && k0 + x < K ? a[(size_t)m*K + k0 + x] : 0.0f",
         "m < M ? a[(size_t)m*K + k0 + x] : 0.0f", "and 0 where a or b ends"),
        ("c[(size_t)m*N + n] = sum;", "c[(size_t)m*N + n] += sum;", "write it with ="),
        ("        __syncthreads();                         // all have",
         "        if (m < M && n < N) c[(size_t)m*N + n] = sum;\n"
         "        __syncthreads();                         // all have", "the sum is stored once")],
    "ring_allreduce": [
        ("(rank - step + 2*n)", "(rank + step)", "sends chunk 1, expected 2"),
        ("(rank - step + 2*n) % n", "(rank - step + 2*n) % (n - 1)", "its own number"),
        (None, """
    *send = (rank - step + 8) % 4;
    *receive = (rank - step + 7) % 4;
    *adds = step < 3;
""", "take the remainder by n")],
    "zero1": [
        ("reduce_scatter(ranks, n, total);\n", "\n", "all_gather(ranks, n);",
         "all_gather(ranks, n);\n"
         "    reduce_scatter(ranks, n, total);", "ranks[0].params[i=0] is"),
        ("z.m, z.v", "z.v, z.m", "adamw_update takes m, then v"),
        ("adamw_update(z.params + z.begin, z.m, z.v, z.grads + z.begin, 1.0f / n, o, "
         "z.count);", "for (size_t i = 0; i < z.count; i++) z.m[i] = z.v[i] = 0.0f;\n"
         " adamw_update(z.params + z.begin, z.m, z.v, z.grads + z.begin, 1.0f / n, o, "
         "z.count);", "do the moments go on")],
}
