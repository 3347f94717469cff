"""Solutions of the exercises for test_exercises.py: a right one that is not the original, where
orders or formulas may well differ, and three wrong ones of each that a reader may well write."""

# The whole body.
RIGHT = {
    "xent_forward": """
    for (size_t n = 0; n < N; n++) {
        double hi = -INFINITY, sum = 0.0;
        for (int v = 0; v < V; v++) hi = fmax(hi, logits[n*Vp + v]);
        for (int v = 0; v < V; v++) sum += exp(logits[n*Vp + v] - hi);
        loss[n] = (float)(hi - logits[n*Vp + target[n]] + log(sum));
        lse[n] = (float)(hi + log(sum));
    }
""",
    "layernorm_backward": """
    for (size_t n = N; n-- > 0;) {
        double sum_g = 0.0, sum_gx = 0.0;
        for (int c = 0; c < C; c++) {
            double xhat = (x[n*C + c] - a.mean[n]) * a.rstd[n], g = dout[n*C + c] * w.gain[c];
            dw.gain[c] += (float)(dout[n*C + c] * xhat);
            dw.bias[c] += dout[n*C + c];
            sum_g += g, sum_gx += g * xhat;
        }
        for (int c = 0; c < C; c++) {
            double xhat = (x[n*C + c] - a.mean[n]) * a.rstd[n], g = dout[n*C + c] * w.gain[c];
            dx[n*C + c] = (float)((C*g - sum_g - xhat*sum_gx) * a.rstd[n] / C);
        }
    }
""",
    "gelu_backward": """
    for (size_t i = 0; i < n; i++) {
        float u = 0.79788456f * (x[i] + 0.044715f * x[i]*x[i]*x[i]), t = tanhf(u);
        float du = 0.79788456f * (1.0f + 3.0f*0.044715f * x[i]*x[i]);
        dx[i] = dout[i] * (0.5f*(1.0f + t) + 0.5f*x[i]*(1.0f - t*t) * du);
    }
""",
    "linear_backward": """
    for (size_t n = 0; n < N; n++)
        for (int c = 0; c < C; c++) {
            double sum = 0.0;
            for (int o = OC - 1; o >= 0; o--) sum += dout[n*OC + o] * w[c*OC + o];
            for (int o = 0; o < OC; o++) dw[c*OC + o] += x[n*C + c] * dout[n*OC + o];
            dx[n*C + c] = (float)sum;
        }
    for (size_t i = 0; i < N*OC; i++) db[i % OC] += dout[i];
""",
    "attention_plain": """
    int HS = C / NH, rows = past + T;
    #pragma omp parallel for
    for (int i = 0; i < B*NH*T; i++) {
        int t = i % T, h = i / T % NH, b = i / T / NH;
        const float *q = head_row(qkv, b, t, h, rows, C, HS);
        float *o = out + ((size_t)b*rows + t)*C + h*HS;
        double hi = -INFINITY, sum = 0.0, acc[16] = { 0 };
        for (int t2 = -past; t2 <= t; t2++) {          // online softmax
            const float *k = head_row(qkv, b, t2, h, rows, C, HS) + C, *v = k + C;
            double s = 0.0, old = hi;
            for (int j = 0; j < HS; j++) s += (double)q[j] * k[j] / sqrt(HS);
            hi = fmax(hi, s);
            sum = sum * exp(old - hi) + exp(s - hi);
            for (int j = 0; j < HS; j++) acc[j] = acc[j] * exp(old - hi) + exp(s - hi) * v[j];
        }
        for (int j = 0; j < HS; j++) o[j] = (float)(acc[j] / sum);
        lse[((size_t)b*NH + h)*rows + t] = (float)(hi + log(sum));
    }
""",
    "attention_backward": """
    int HS = C / NH;
    for (int i = 0; i < B*T*3*C; i++) dqkv[i] = 0.0f;
    #pragma omp parallel for
    for (int i = 0; i < B*NH; i++)
        for (int t2 = 0; t2 < T; t2++)
            for (int t = T - 1; t >= t2; t--) {
                int b = i / NH, h = i % NH;
                const float *q = head_row(qkv, b, t, h, T, C, HS);
                const float *k = head_row(qkv, b, t2, h, T, C, HS) + C, *v = k + C;
                const float *d = dout + (b*T + t)*C + h*HS, *o = out + (b*T + t)*C + h*HS;
                float *dq = dqkv + (q - qkv), *dk = dqkv + (k - qkv), *dv = dk + C;
                double p = exp(dot(q, k, HS) / sqrt(HS) - lse[i*T + t]), s = 0.0;
                for (int j = 0; j < HS; j++) s += d[j] * (v[j] - o[j]);
                for (int j = 0; j < HS; j++) {
                    dv[j] += (float)(p * d[j]);
                    dq[j] += (float)(p * s * k[j] / sqrt(HS));
                    dk[j] += (float)(p * s * q[j] / sqrt(HS));
                }
            }
""",
    "adamw_update": """
    for (size_t i = 0; i < n; i++) {
        double gi = (double)g[i] * g_scale;
        double mi = o.beta1 * m[i] + (1 - o.beta1) * gi, vi = o.beta2 * v[i] + (1 - o.beta2)*gi*gi;
        m[i] = (float)mi, v[i] = (float)vi;
        mi /= 1 - pow(o.beta1, o.m_steps), vi /= 1 - pow(o.beta2, o.v_steps);
        p[i] = (float)(p[i] * (1 - (double)o.lr*o.weight_decay) - o.lr * mi / (sqrt(vi) + o.eps));
    }
""",
    "sample_token": """
    Candidate *c = s->candidates;
    int n = s->top_k > 0 && s->top_k < V ? s->top_k : V, kept = 0;
    double all = 0.0, sum = 0.0, hi = logits[0];
    for (int v = 1; v < V; v++) hi = fmax(hi, logits[v]);
    for (int v = 0; v < V; v++) {
        c[v].id = v;
        c[v].p = s->temperature > 0.0f ? (float)exp((logits[v] - hi) / s->temperature)
                                       : logits[v] == hi;
        all += c[v].p;
    }
    qsort(c, V, sizeof *c, likelier);
    if (s->temperature == 0.0f) return c[0].id;
    do sum += c[kept++].p; while (kept < n && sum < s->top_p * all);
    double u = rng_uniform(rng) * sum, below = 0.0;
    for (int i = 0; i < kept; i++) if (u < (below += c[i].p)) return c[i].id;
    return c[kept - 1].id;
""",
    "softmax_row": """
    int n = (int)(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
    if (n >= N) return;
    float hi = -INFINITY, sum = 0.0f;
    for (int c = lane(); c < C; c += 32) hi = fmaxf(hi, x[n*C + c]);
    hi = warp_max(hi);
    for (int c = lane(); c < C; c += 32) sum += p[n*C + c] = __expf(x[n*C + c] - hi);
    float inv_sum = 1.0f / warp_sum(sum);
    for (int c = lane(); c < C; c += 32) p[n*C + c] *= inv_sum;
""",
    "layernorm_cuda": """
    int n = (int)(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
    float sum = 0.0f, squares = 0.0f;
    for (int c = lane(); n < N && c < C; c += 32) sum += x[n*C + c];
    float m = warp_sum(sum) / C;
    for (int c = lane(); n < N && c < C; c += 32) squares += (x[n*C + c] - m) * (x[n*C + c] - m);
    float r = 1.0f / sqrtf(warp_sum(squares) / C + 1e-5f);
    for (int c = lane(); n < N && c < C; c += 32)
        out[n*C + c] = (x[n*C + c] - m) * r * gain[c] + bias[c];
    if (n < N && lane() == 31) mean[n] = m, rstd[n] = r;
""",
    "matmul_tiled": """
    __shared__ float at[SIDE][SIDE], bt[SIDE][SIDE];
    int y = threadIdx.y, x = threadIdx.x, m = blockIdx.y * SIDE + y, n = blockIdx.x * SIDE + x;
    double sum = 0.0;
    for (int step = 0; step < (K + SIDE - 1) / SIDE; step++) {
        int ka = step*SIDE + x, kb = step*SIDE + y;
        __syncthreads();
        at[y][x] = bt[y][x] = 0.0f;
        if (m < M && ka < K) at[y][x] = a[m*K + ka];
        if (n < N && kb < K) bt[y][x] = b[kb*N + n];
        __syncthreads();
        for (int k = SIDE - 1; k >= 0; k--) sum += (double)at[y][k] * bt[k][x];
    }
    if (m < M && n < N) c[m*N + n] = (float)sum;
""",
}

RACE = "one thread writes it while another"
SCRATCH = "two threads use it; a thread's piece"
SHARED = "threads share a variable"
BITS = "so its bits change from run to run"

# What the original says, what the mistake says, perhaps more such pairs, and a part of the verdict.
WRONG = {
    "embedding_forward": [
        ("word[c] + position[c]", "word[c]", "plus wpe's row t"),
        ("(size_t)token[n]*C", "(size_t)token[t]*C", "wrong only where b=1"),
        ("size_t n = (", "n = (", "#pragma omp", "size_t n;\n    #pragma omp", SHARED)],
    "embedding_backward": [
        ("dword[c] += ", "dword[c] = ", "dwte[v=1][c=0] is"),
        ("dwpe + n % T * C", "dwpe + n * C", "dwpe: element 16 is read"),
        ("s < strips", "s < T", "strip_begin(C, s, strips)", "0",
         "strip_begin(C, s + 1, strips)", "C", "size_t n = 0; n < (size_t)B*T; n++",
         "size_t n = s; n < (size_t)B*T; n += T", RACE)],
    "xent_forward": [
        ("v < V; v++) sum", "v < Vp; v++) sum", "lse[n=0] is"),
        ("n*Vp", "n*V", "of Vp columns"),
        ("hi = -INFINITY", "hi = 0.0f", "subtract the largest of the row")],
    "xent_backward": [
        ("-= scale", "-= 1.0f", "wrong only where v=4"),
        ("- lse[n]) * scale", "- lse[n])", "dlogits[n=0][v="),
        ("v < V; v++) d", "v < Vp; v++) d", "dlogits[n=0][v=5] is")],
    "layernorm_forward": [
        ("squares / C", "squares / (C - 1)", "rstd[n=0] is"),
        (" + 1e-5f", "", "wrong only where n=1"),
        ("gain[c] + w.bias[c]", "gain[n] + w.bias[n]", "out[n=0][c=1] is")],
    "layernorm_backward": [
        ("dw.gain[c] += ", "dw.gain[c] = ", "dgain[c=0] is"),
        ("- mean_g - ", "- ", "(g - mean(g) - xhat * mean(g * xhat)) * rstd"),
        ("s < strips", "s < (int)N", "strip_begin(C, s, strips)", "0",
         "strip_begin(C, s + 1, strips)", "C", "size_t n = 0; n < N; n++) {\n            #",
         "size_t n = s; n == (size_t)s; n++) {\n            #", RACE)],
    "gelu_backward": [
        ("dout[i] * (", "(", "dout times the slope"),
        ("dx[i] = ", "dx[i] += ", "write with ="),
        ("dx[i] = dout[i] * (s + x[i] * s * (1.0f - s) * two_du);",
         "dx[i] = s + x[i] * s * (1.0f - s) * two_du;\n dx[i] *= dout[i];", "read dout[i] before")],
    "linear_backward": [
        ("C, OC, N, ADD", "C, OC, N, WRITE", "what it contained is lost"),
        ("bias_backward(db, dout, N, OC);", "", "db: nothing is added"),
        ("bias_backward(db, dout, N, OC);",
         "#pragma omp parallel for\n"
         "    for (size_t n = 0; n < N; n++) for (int o = 0; o < OC; o++) db[o] += "
         "dout[n*OC + o];", RACE)],
    "attention_plain": [
        ("t2 <= t;", "t2 < T;", "wrong from t=3 on"),
        ("-INFINITY", "0.0f", "subtract the largest score"),
        ("thread_index()*rows", "0*rows", SCRATCH)],
    "attention_backward": [
        ("- d) * scale", ") * scale", "dqkv[b=0][t=0][p=0][h=0][i=0] is"),
        ("(dv, p,", "(dv, dqk,", "wrong only where p=2"),
        ("collapse(2)", "collapse(3)", RACE)],
    "attention_tiled": [
        ("*= inv_sum[i]", "*= 1.0f", "out[b=0][t=3][h=0][i=0] is"),
        ("rows, past + t + 1,", "rows, past + t + 2,", "lse[b=0][h=0][t=3] is"),
        ("(scratch, all", "(scratch - thread_index()*attention_scratch(all, HS), all", SCRATCH)],
    "adamw_update": [
        ("m[i]*correct_m", "m[i]", "p[i=0] is"),
        ("g[i] * g_scale", "g[i]", "m[i=0] is"),
        ("o.lr * (m[i]*correct_m / (sqrtf(v[i]*correct_v) + o.eps) + o.weight_decay * p[i])",
         "o.lr * m[i]*correct_m / (sqrtf(v[i]*correct_v) + o.eps) + o.weight_decay * p[i]",
         "p[i=0] is")],
    "global_norm": [
        ("double sum = 0.0;\n        #p", "float sum = 0.0f;\n        #p", "squares is"),
        ("chunks[i].grad", "chunks[i].param", "from grads + its `grad`"),
        ("#pragma omp parallel for",
         "double all = 0.0;\n    #pragma omp parallel for reduction(+:all)",
         "#pragma omp simd reduction(+:sum)", "if (p->chunks[i].in_norm)", "sum += (double)g",
         "all += (double)g", "return sum", "return all", BITS)],
    "sample_token": [
        (") / s->temperature", ") * s->temperature", "drawn[v="),
        ("sum = kept;", "", "drawn[v="),
        ("k < n && (k == 0 || kept < s->top_p * all)", "k < n", "drawn[v=")],
    "kv_cache": [
        ("m->acts[L - 1].x_out", "m->acts[L - 1].x_out + past*C", "logits"),
        ("B, T, past);", "B, T, 0);", "ln1"),
        ("w->wpe + (size_t)past*C", "w->wpe", "x_in")],
    "gradient_accumulation": [
        ("clear_grads(m);", "", "gradients[i=0] is"),
        ("(float)(clip / norm)", "1.0f", "adam_m[i=0] is"),
        ("if (isfinite(norm)) ", "", "adam_m[i=0] is")],
    "warp_sum": [
        ("i = 16", "i = 8", "out[w=0][l=0] is"),
        ("x += ", "x = ", "out[w=0][l=0] is"),
        ("__shfl_xor_sync", "__shfl_down_sync", "wrong from l=1 on")],
    "softmax_row": [
        ("row[c] - hi", "row[c]", "p[n="),
        ("sum = warp_sum(sum);", "", "p[n="),
        ("for (int c = lane(); c < C; c += 32)", "for (int c = 0; c < C; c++)",
         "sum = warp_sum(sum);", "", "numbers_loaded is")],
    "layernorm_cuda": [
        ("warp_sum(squares) / C", "squares / C", "rstd[n=0] is"),
        ("if (n >= N) return;", "", "x: element"),
        ("for (int c = lane(); c < C; c += 32)",
         "for (int c = lane()*((C + 31)/32); c < C && c < (lane() + 1)*((C + 31)/32); c++)",
         "sectors_of_global_memory is")],
    "find_the_race": [
        ("__syncthreads();                             // all have read the sums before "
         "they change\n"
         "    if (lane() == 0) sums[warp] = sum;",
         "if (lane() == 0) sums[warp] = sum;\n    __syncthreads();", "between which two lines"),
        ("before they change\n    if (lane() == 0) sums",
         "\n    if (lane() == 0) __syncthreads(), sums", "every thread of a block"),
        ("float d =", "__syncthreads();\n    float d =", "barriers_of_a_warp is 4, expected 3")],
    "transpose_shared": [
        ("[TILE + 1]", "[TILE]", "bank_conflicts is"),
        ("__syncthreads();", "__syncwarp();", "is nan, expected"),
        ("if (c0 + i < C && n0 + lane < N) out[(size_t)(c0 + i)*N + n0 + lane] = tile[lane][i];",
         "if (c0 + lane < C && n0 + i < N) out[(size_t)(c0 + lane)*N + n0 + i] = tile[i][lane];",
         "sectors_of_global_memory is")],
    "matmul_tiled": [
        ("a_tile[y][k]", "(m < M && k0 + k < K ? a[(size_t)m*K + k0 + k] : 0.0f)",
         "numbers_loaded is"),
        ("__syncthreads();                         // all have", "//",
         "read by all before the next step"),
        ("a_tile[y][x] =", "a_tile[x][y] =", "a_tile[y][k]", "a_tile[k][y]", "bank_conflicts is")],
    "ring_allreduce": [
        ("step < n - 1", "step < n", "adds[r=0][s=1] is 1, expected 0"),
        ("- step - 1", "- step + 1", "receive[r=0][s=0] is"),
        ("(rank - step + 2*n)", "(rank - step)", "a negative number is negative")],
    "zero1": [
        ("1.0f / n", "1.0f", "m[c=0] is"),
        ("z.m, z.v", "z.m + z.begin, z.v + z.begin", "an index runs past its end"),
        ("all_gather(ranks, n);", "", "params[r=1][c=0] is")],
}

# The same for the solutions of open exercises, with the verdict's parts behind a pair.
OPEN_WRONG = {
    "post_norm": [
        ("linear_forward(a.fc, a.x_mid", "linear_forward(a.fc, sum1", "h0.fc[b=0][t=0][c=0] is"),
        ("residual_backward(dx, dbranch, N*C);\n}", "}", "through the branch is added"),
        ("residual_forward(sum2, a.x_mid", "residual_forward(sum2, a.x", "h0.x_out[b=0][t=0][c=0]",
         "x_out = LN2(x_mid + MLP(x_mid))")],
    "rotary": [
        ("(first + i) % T", "i % T", "generation, 4 rows are past", "row 0 of the new rows"),
        ("rotate(dqkv, -1.0f", "rotate(dqkv, 1.0f", "h1.dqkv_b[j=0] is", "turn back"),
        ("c < 2*C", "c < 3*C", "h0.qkv[b=0][t=1][p=2][c=0] is", "values do not")],
    "muon": [
        ("x[i] = g_scale * g[i] + o.beta1 * m[i];", "x[i] = m[i];", "X = G + beta1 M"),
        ("0.2f * sqrtf((float)l)", "0.2f * sqrtf((float)s)", "0.2 sqrt(max(R,C))"),
        ("t.layer >= 0 && t.decays", "t.decays", "AdamW updates this")],
}
