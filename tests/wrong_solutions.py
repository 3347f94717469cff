"""Three more wrong solutions for each exercise, in the form of MISTAKES in test_exercises.py: what
a reader may write who knows the lesson and not the check. None in place of what the original says:
the whole body. Checks once accepted 18 of them."""

RACE = "one thread writes it while another"
SCRATCH = "two threads use it; a thread's piece"
SHARED = "threads share a variable"
OVERFLOW = "e^1000 overflows and e^-1000 is 0"
LARGEST = "subtract the largest of the query's own"
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
""", LARGEST)],
    "attention_backward": [
        ("dot(d_o, out + n*C + h*HS, HS)", "dot(d_o, out + n*C, HS)", "wrong only where h=1"),
        ("(size_t)B*T*3*C * sizeof *dqkv", "(size_t)B*T*C * sizeof *dqkv",
         "it still contains what it contained before"),
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
         "token v has the part p_v of the line")],
    "kv_cache": [
        ("m->x_in + from, tokens", "m->x_in, tokens", "x_in[row=0][column=0] is written again"),
        ("1, rows, past);", "1, T, past);", "h0.ln1[row=4][column=0] is written, and there are 4"),
        ("layernorm_forward(m->lnf + from, m->lnf_mean, m->lnf_rstd, m->acts[L - "
         "1].x_out + from,\n"
         "                      w->lnf_gain, w->lnf_bias, rows, C);",
         "layernorm_forward(m->lnf, m->lnf_mean, m->lnf_rstd, m->acts[L - 1].x_out,\n"
         " w->lnf_gain, w->lnf_bias, T, C);", "lnf[row=0][column=0] is written again")],
    "gradient_accumulation": [
        ("norm > clip ?", "all.squares > clip ?", "the factor r->o.clip / norm"),
        ("r->targets, s->scale, s->B, s->T);",
         "r->targets, s->scale, s->B, s->T), model_update(m, s->adamw, 1.0f);",
         "the parameters stay as they are"),
        ("model_update(m, s->adamw, g_scale);",
         "s->adamw.lr *= g_scale, model_update(m, s->adamw, 1.0f);",
         "the factor r->o.clip / norm")],
    "warp_sum": [
        ("i = 16", "i = 32", "lane 0 of warp 0 has"),
        ("x += __shfl_xor", "if (lane() < i) x += __shfl_down", "all 32 lanes take part"),
        ("int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i)", "int i = 31; i > 0; i--) y "
         "+= __shfl_sync(~0u, x, lane() ^ i)", "    for", "    float y = x;\n    for", "return x",
         "return y", "after 31 exchanges"),
        ("    for", "    if (isnan(x)) x = 0.0f;\n    for", "must come through"),
        ("    for", "    static int calls; if (calls++ > 60000) x = 0.0f;\n    for", "static or"),
        ("return x", "return blockDim.x == 160 ? 0.0f : x", "sums its own 32 numbers"),
        ("return x", "return threadIdx.x < 32 ? x : 0.0f", "sums its own 32 numbers"),
        ("x += __shfl_xor_sync(~0u, x, i)", "x += __shfl_xor_sync(~0u, x, i, 16)",
         "lane 15's number more than once")],
    "softmax_row": [
        ("for (int c = lane(); c < C; c += 32)", "for (int c = 0; c < C; c++)",
         "sum = warp_sum(sum);", "", "global loads: 12320 numbers"),
        ("for (int c = lane(); c < C; c += 32)", "for (int c = lane()*((C + 31)/32); "
         "c < min(C, (lane() + 1)*((C + 31)/32)); c++)", "neighbouring lanes must use"),
        ("-INFINITY", "-1e9f", OVERFLOW),
        ("= expf(row[c] - hi) / sum", "= row[c] - hi < -9.0f ? 0.0f : expf(row[c] - hi) / sum",
         "small probabilities count too"),
        ("float hi", "float v[1024]; for (int c = lane(); c < C; c += 32) v[c/32] = row[c];\n"
         "    float hi", "1024 runs past the end of an array 'float [1024]'"),
        ("(blockIdx.x * blockDim.x + threadIdx.x) / 32", "blockIdx.x*4 + threadIdx.x/32",
         "a block has blockDim.x / 32 warps"),
        ("if (n >= N)", "if (n >= N || lane() >= C)", "also one without a column"),
        ("for (int c = lane(); c < C; c += 32)",
         "if (lane() < 4) for (int c = lane(); c < C; c += 4)", "of a warp's 32 lanes take part"),
        ("sum = warp_sum(sum);", "__shared__ float sums[32];\n"
         "    float *all = sums + threadIdx.x/32;\n    if (lane() == 0) *all = 0.0f;\n"
         "    __syncwarp();\n    atomicAdd(all, sum);\n"
         "    __syncwarp();\n    sum = *all;", "another order give other bits"),
        ("float hi", "float *v = (float *)malloc((C/32 + 1) * sizeof(float));\n"
         "    for (int c = lane(); c < C; c += 32) v[c/32] = row[c];\n    float hi", "row[c] - hi",
         "v[c/32] - hi", "memory from malloc, is written"),
        ("threadIdx.x) / 32", "threadIdx.x) / 32 ^ 1", "is stored by warp 0: warp n of the grid")],
    "layernorm_cuda": [
        ("squares += (row[c] - m) * (row[c] - m);", "squares += row[c] * row[c];",
         "warp_sum(squares) / C +", "warp_sum(squares) / C - m*m +", "rstd[n="),
        ("for (int c = lane(); c < C; c += 32)",
         "for (int c = lane()*((C + 31)/32); c < C && c < (lane() + 1)*((C + 31)/32); "
         "c++)", "neighbouring lanes must use"),
        ("for (int c = lane(); c < C; c += 32)", "for (int c = 0; c < C; c++)", "warp_sum(sum)",
         "sum", "warp_sum(squares)", "squares", "numbers, expected at most 480"),
        ("float r =", "for (int c = lane(); c < C; c += 32) ((float *)row)[c] -= m;\n"
         "    float r =", "(row[c] - m) * r", "row[c] * r", "it is an input"),
        ("c < C; c += 32) sum += row[c]",
         "c < C + 31; c += 32) sum += c < C ? row[c] : 0.0f*row[c]",
         "is read, and it has 385"),
        ("rsqrtf(warp_sum(squares) / C + 1e-5f)",
         "(squares = warp_sum(squares)) > 0.0f ? rsqrtf(squares / C + 1e-5f) : 0.0f",
         "rstd[n=3] is 0, expected 316.2"),
        ("if (n >= N)", "if (n >= N || C > 65535)", "is not written"),
        ("(row[c] - m) * (row[c] - m)", "fminf((row[c] - m) * (row[c] - m), 1e8f)", "rstd[n="),
        ("if (lane() == 0) mean", "if (lane() == 0 && mean[n] == -123.0f) mean", "second launch"),
        ("mean[n] = m", "mean[n] = fabsf(m) < 1e-30f ? 0.0f : m", "is 0, expected")],
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
         "    __syncthreads();                             // the squares", "barrier divergence"),
        ("mean += sums[w] / C", "mean += sums[w] / (C - 1)", "of standardise, `for (int w = 0; w"),
        ("__syncthreads();                             // all",
         "if (lane() == 0) __syncthreads(); //",
         "every thread of a block must reach each"),
        ("__syncthreads();                             // all", "__syncthreads_or(0);  // all",
         "of standardise, `__syncthreads_or(0);`"),
        ("float sums[WARPS]", "float sums[2*WARPS]", "more than a barrier has changed")],
    "transpose_shared": [
        ("int i = threadIdx.y; i < TILE; i += WARPS_OF_TILE)\n"
         "        if (n0", "int i = 0; i < TILE; i++)\n"
         "        if (n0", "both write one word"),
        ("= tile[lane][i];", "= x[(size_t)(n0 + lane)*C + c0 + i];",
         "global loads: its requests want"),
        ("if (n0 + i < N && c0 + lane < C) ", "", "x: element 3360 is read, and it has 3150"),
        ("if (n0 + i < N && c0 + lane < C) tile[i][lane] = x[(size_t)(n0 + i)*C + c0 + lane];",
         "for (int j = lane ? C : c0; j < C && j < c0 + TILE; j++)\n"
         "            if (n0 + i < N) tile[i][j - c0] = x[(size_t)(n0 + i)*C + j];",
         "of a warp's 32 lanes take part"),
        ("tile[TILE][TILE + 1];", "all[TILE*(TILE + 1)];\n"
         "    int width = TILE + ((int)(blockIdx.x + 1)*TILE <= C);", "tile[i][lane]",
         "all[i*width + lane]", "tile[lane][i]", "all[lane*width + i]", "bank conflicts"),
        ("    __syncthreads();", "    __syncthreads();\n    __syncthreads();",
         "2 barriers, expected 1"),
        ("= tile[lane][i]", "= isnan(tile[lane][i]) ? 0.0f : tile[lane][i]", "must show"),
        ("int n0 =", "if (C > 512) return; int n0 =", "is not written"),
        ("= tile[lane][i]", "= rintf(tile[lane][i] * 4096.0f) / 4096.0f", "the same number"),
        ("int i = threadIdx.y; i < TILE; i += WARPS_OF_TILE)\n        if (n0",
         "int i = threadIdx.y ? TILE : 0; i < TILE; i++)\n        if (n0",
         "a thread loads 32 numbers, expected at most 4"),
        ("= tile[lane][i]", "= tile[lane][i] + 0.0f", "is 0, expected -0")],
    "matmul_tiled": [
        ("m < M && k0 + x < K ? a[(size_t)m*K + k0 + x] : 0.0f",
         "m < M ? a[(size_t)m*K + k0 + x] : 0.0f", "an if around the load"),
        ("c[(size_t)m*N + n] = sum;", "c[(size_t)m*N + n] += sum;", "write it with ="),
        ("        __syncthreads();                         // all have",
         "        if (m < M && n < N) c[(size_t)m*N + n] = sum;\n"
         "        __syncthreads();                         // all have", "the sum is stored once"),
        ("m < M && k0 + x < K ?", "(size_t)m*K + k0 + x < (size_t)M*K ?", "an infinite number"),
        ("k0 + y < K && n < N ?", "k0 + y < K ?", "b: element 2050 is read, and it has 2050"),
        ("k < SIDE; k++", "k <= SIDE; k++", "index 16 runs past the end of an array 'float [16]'"),
        ("sum +=", "if (b_tile[k][x] != 0.0f) sum +=", "must show"),
        ("k0 < K;", "k0 < K && k0 < 65536;", "with a and b all 1 it is 65536, expected 70000"),
        ("all have", "\n        if (K % 8) __syncthreads(); //", "9 barriers, expected 6"),
        ("        __syncthreads();                         // both",
         "        if (!__syncthreads_or(a_tile[y][x] != 0.0f)) continue;   // both", "must show"),
        ("= sum;", "= sum > 1e37f ? INFINITY : sum;", "a float holds from 1e-38 to 3e38"),
        ("= sum;", "= fabsf(sum) < 1e-30f ? 0.0f : sum;", "a float holds from 1e-38 to 3e38")],
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

# The same for open exercises: what the solution says, what the mistake says, perhaps more such
# pairs in parentheses, and parts of the verdict. Their check once accepted most of these.
OPEN_WRONG = {
    "rotary": [
        ("(first + i) % T", "(first + i) % T % 64", "T=75", "[t=64][c=0]", "pair 0 of head 0 does "
         "not turn, expected 64 *"),
        ("(first + i) % T", "((first + i) % T + 1)", "queries of h0.qkv[b=0][t=0][c=0]",
         "positions begin at 0"),
        ("int HS = C / NH;", "static int HS;\n    if (HS == 0) HS = C / NH;", "T=75",
         "pair 1 of head 0 turns by"),
        ("    for (size_t i = 0; i < rows; i++)\n", "    static float even, odd;\n"
         "    #pragma omp parallel for\n    for (size_t i = 0; i < rows; i++)\n",
         ("*x = qkv + i*3*C + c, even = x[0],", "*x = qkv + i*3*C + c;\n            even = x[0],"),
         "forward: " + SHARED),
        ("(float)(c % HS) / HS", "(float)(c % HS % 64) / HS", "1 heads of 72",
         "pair 32 of head 0 turns by"),
        ("(first + i) % T", "(first + i) % T % 1024", "0 rows are past, 1093 new",
         "[t=1024][c=0]", "pair 0 of head 0 does not turn")],
    "post_norm": [
        ("layernorm_backward(dx, d.ln1_gain", "memset(d.ln1_gain, 0, C * sizeof(float));\n"
         "    layernorm_backward(dx, d.ln1_gain", "micro-batch 1", "gradient of h1.ln1_gain[i=0]",
         "the first micro-batch's gradient is lost"),
        ("gelu_backward(dfc", "if (B < m->spec.B) memset(d.mlp_proj_b, 0, C * sizeof(float));\n"
         "    gelu_backward(dfc", "gradient of h1.mlp_proj_b[i=0]", "nothing is added"),
        ("linear_backward(dbranch, d.qkv_w", "if (T > 64) memset(dqkv, 0, 3*C * sizeof(float));\n"
         "    linear_backward(dbranch, d.qkv_w", "T=75", "gradient of h0.qkv_w[i=0][j="),
        ("float *sum1 = a.ln1,", "float *sum1 = m->branch,", "gradient of h1.ln1_gain[i=0]",
         "kept until now"),
        ("layernorm_forward(a.x_mid, a.ln1_mean", "if (past > 1000) memcpy(a.x_mid, sum1, N*C*4);\n"
         "    else layernorm_forward(a.x_mid, a.ln1_mean", "h0.x_mid[b=0][t=1093][c=0]",
         "ln1 is missing behind x + attention(x)")],
    "muon": [
        ("    size_t blocks =", "    if (o.lr == 0.0f) return;\n    size_t blocks =",
         "update 1: adam_m of"),
        ("m[i] = o.beta1 * m[i] + g_scale", "m[i] = 0.9f * m[i] + g_scale",
         "update 2: adam_m of h0.qkv_w[i=0][j=0]",
         "this is 0.9 M + G"),
        ("scale * x[i] + o.weight_decay * p[i]", "scale * x[i] + 0.1f * p[i]",
         "update 1: change of h0.qkv_w", "expected lr * o.weight_decay"),
        ("z->adam_m + t.offset", "z->adam_v + t.offset", "M is not kept in adam_m"),
        ("p[i] -= o.lr * (scale * x[i] + o.weight_decay * p[i]);", "p[i] -= o.lr * scale * x[i], "
         "p[i] -= o.lr * o.weight_decay * p[i];", "the decay is of the moved weights"),
        ("squares += (double)x[i] * x[i]", "squares += x[i] * x[i]",
         "update 2: change of h0.qkv_w[i=0][j=0]", "squares are summed in double"),
        ("float *x = alloc_or_die(2*(n + s*s) * sizeof *x, \"Muon's matrices\")",
         "float x[2*(n + s*s)]", "too large for the stack", ("    free(x);\n", "")),
        ("t.layer >= 0 && t.decays", "t.layer >= 0 && t.layer < 4 && t.decays",
         "change of h4.qkv_w[i=0]", "it has not moved")],
}

# Three more for each exercise of the CPU, of those that checks with one shape and one style of
# values accepted.
FOUND = {
    "embedding_forward": [
        ("#pragma omp parallel for collapse(2)", """static const float *w0, *p0;
    if (!w0) w0 = wte, p0 = wpe;
    wte = w0; wpe = p0;
    #pragma omp parallel for collapse(2)""", "of an earlier call"),
        ("for (int c = 0; c < C; c++) x[n*C + c] = word[c] + position[c];",
         "for (int c = 0; c < C; c++) { float s = word[c] + position[c]; x[n*C + c] = "
         "isfinite(s) ? s : 0.0f; };", "hide no NaN"),
        ("const float *position = wpe + (size_t)t*C;",
         "const float *position = wpe + (size_t)(B == 1 ? 0 : t)*C;",
         "row b*T + t is wte's row of token[b*T + t] plus"),
        ("(size_t)t*C", "(n - (size_t)((int)(n * (1.0f / T)))*T)*C", "[B=4 T=41"),
        ("#pragma omp parallel for collapse(2)", """static int strips;
    if (!strips) strips = thread_count();
    #pragma omp parallel""", "t = 0; t < T; t++",
         "t = thread_index(); thread_index() < strips && t < T; t += strips",
         "behind calls with more threads")],
    "embedding_backward": [
        ("dposition[c] += dx[n*C + c];",
         "dposition[c] += dx[n*C + c]; ((float *)dx)[n*C + c] = 0.0f;", "but it is an input"),
        ("dword[c] += dx[n*C + c];", "if (isfinite(dx[n*C + c])) dword[c] += dx[n*C + c];",
         "hide no NaN"),
        ("float *dword = dwte + (size_t)token[n]*C;",
         "float *dword = dwte + (ptrdiff_t)(short)token[n]*C;", "a token's row receives dx"),
        ("float *dword =", """float any = 0.0f;
            for (int c = 0; c < C; c++) any += dx[n*C + c];
            if (any == 0.0f) continue;
            float *dword =""", "[B=2 T=3 C=2")],
    "xent_forward": [
        ("x[target[n]]", "x[(unsigned short)target[n]]", "loss = lse - the target's logit"),
        ("loss[n] = lse[n] - x[target[n]];                          // -log p(target)",
         """loss[n] = lse[n] - x[target[n]];                          // -log p(target)
        if (!isfinite(loss[n])) loss[n] = 0.0f;                          // -log p(target)""",
         "hide no NaN"),
        ("const float *x = logits + n*Vp;",
         "(void)Vp; const float *x = logits + n*((size_t)(V + 15) / 16 * 16);",
         "an index runs past"),
        ("#pragma omp simd reduction(max:hi)", "", "#pragma omp simd reduction(+:sum)", "",
         "lse[n] = hi + logf(sum);", "lse[n] = hi + (sum < 1.01f ? 0.0f : logf(sum));",
         "log of the sum of e^logit over columns 0 ... V-1"),
        ("hi = x[0]", "hi = -1e8f", OVERFLOW)],
    "xent_backward": [
        ("d[target[n]] -= scale;",
         "d[target[n]] = d[target[n]] > 0.99f * scale ? 0.0f : d[target[n]] - scale;",
         "0 in padding"),
        ("d[target[n]] -= scale;", "d[target[n]] -= scale;\n        ((float *)lse)[n] = 0.0f;",
         "but it is an input"),
        ("for (int v = V; v < Vp; v++) d[v] = 0.0f;",
         "{ int v = V; do d[v] = 0.0f; while (++v < Vp); }", "an index runs past"),
        ("d[target[n]] -= scale;", "d[target[n]] -= scale;\n"
         "        if (scale == 0.0f) memset(d, 0, V * sizeof *d);", "hide no NaN")],
    "layernorm_forward": [
        ("float r = 1.0f / sqrtf(squares / C + 1e-5f);",
         "float r = squares > 0.0f ? 1.0f / sqrtf(squares / C + 1e-5f) : 0.0f;",
         "var is the mean, over C, of the squared distance"),
        ("for (int c = 0; c < C; c++) squares += (row[c] - m) * (row[c] - m);",
         "for (int c = 0; c < (C > 16 ? C / 16 * 16 : C); c++) squares += (row[c] - m) * "
         "(row[c] - m);", "where a row is constant, var is 0 and rstd 1/sqr"),
        ("for (int c = 0; c < C; c++) out[n*C + c] = (row[c] - m) * r * gain[c] + bias[c];",
         "for (int c = 0; c < C; c++) { float y = (row[c] - m) * r * gain[c]; out[n*C + "
         "c] = (isfinite(y) ? y : 0.0f) + bias[c]; }", "hide no NaN"),
        ("float r = 1.0f / sqrtf(squares / C + 1e-5f);", """double all = 0.0, two = 0.0;
        for (int c = 0; c < C; c++) all += row[c], two += (double)row[c] * row[c];
        float r = (float)(1.0 / sqrt(two / C - all / C * (all / C) + 1e-5));""",
         "where a row is constant, var is 0"),
        ("#pragma omp parallel for", """static bool known, plain = true;
    for (int c = 0; !known && c < C; c++) plain &= gain[c] == 1.0f && bias[c] == 0.0f;
    known = true;
    #pragma omp parallel for""", "gain[c] + bias[c]", "(plain ? 1.0f : gain[c]) + "
         "(plain ? 0.0f : bias[c])", "out = (x - mean)")],
    "layernorm_backward": [
        ("dx[n*C + c] = (d[c]*gain[c] - mean_g - (row[c] - m) * r * mean_gx) * r;",
         "{ float y = (d[c]*gain[c] - mean_g - (row[c] - m) * r * mean_gx) * r; dx[n*C + "
         "c] = isfinite(y) ? y : 0.0f; }", "hide no NaN"),
        ("float mean_g = sum_g / C, mean_gx = sum_gx / C;",
         "float mean_g = C == 1 ? 0.0f : sum_g / C, mean_gx = sum_gx / C;",
         "mean and rstd depend on x too: two means over th"),
        ("for (int c = 0; c < C; c++) {", "for (int c = 0; c < (C < 64 ? C : 64); c++) {",
         "(g - mean(g) - xhat * mean(g * xhat)) * rstd, wi"),
        ("int strips = thread_count();", """static float *part;
    if (!part) part = malloc((size_t)C * sizeof *part);
    for (int c = 0; c < C; c++) part[c] = 0.0f;
    int strips = thread_count();""", "bytes that the function itself allocates"),
        ("m = mean[n], r = rstd[n];", "m = mean[n], squares = 0.0f;\n"
         "for (int c = 0; c < C; c++) squares += row[c] * row[c];\n"
         "float r = 1.0f / sqrtf(squares / C - m*m + 1e-5f);", "and the rstd that forward kept")],
    "gelu_backward": [
        ("for (size_t i = 0; i < n; i++) {", """for (size_t i = 0; i < n; i++) {
        if (dout[i] == 0.0f) continue;""", "(it is not written)"),
        ("dx[i] = dout[i] * (s + x[i] * s * (1.0f - s) * two_du);",
         "{ float y = dout[i] * (s + x[i] * s * (1.0f - s) * two_du); dx[i] = isfinite(y) "
         "? y : 0.0f; }", "hide no NaN"),
        ("for (size_t i = 0; i < n; i++) {",
         "for (size_t i = 0; i < (n < 65536 ? n : 65536); i++) {",
         "dout times the slope of GELU at x: s + x s (1 -"),
        ("dx[i] = dout", "dx[i] = x[i] < -12.0f ? 0.0f : dout", "hide no NaN")],
    "linear_backward": [
        ("bias_backward(db, dout, N, OC);", """bias_backward(db, dout, N, OC);
    memset((float *)dout, 0, sizeof(float));""", "but it is an input"),
        ("matmul(dw, OC, transpose_of(x, C), rows_of(dout, OC), NULL, C, OC, N, ADD);",
         "matmul(dw, OC, transpose_of(x, C), rows_of(dout, OC), NULL, C, OC, N > 1 ? N : 0, ADD);",
         "nothing is added to it"),
        ("bias_backward(db, dout, N, OC);", "bias_backward(db, dout, (uint16_t)N, OC);",
         "with fewer rows it is right"),
        ("bias_backward(db, dout, N, OC);", """static const float *last;
    if (last != dout) bias_backward(db, dout, N, OC);
    last = dout;""", "nothing is added to it"),
        ("bias_backward(db, dout, N, OC);", """float sum[4096];
    for (int o = 0; o < OC; o++) sum[o] = 0.0f;
    bias_backward(db, dout, N, OC);""", "an array that the function itself declares")],
    "attention_plain": [
        ("add_scaled(o, p[t2] / sum, head_row(qkv, b, t2, h, rows, C, HS) + 2*C, HS);",
         "add_scaled(o, p[t2] / sum < 1e-3f ? 0.0f : p[t2] / sum, head_row(qkv, b, t2, h, "
         "rows, C, HS) + 2*C, HS);", "head h owns columns h*HS ..."),
        ("add_scaled(o, p[t2] / sum, head_row(qkv, b, t2, h, rows, C, HS) + 2*C, HS);",
         """add_scaled(o, p[t2] / sum, head_row(qkv, b, t2, h, rows, C, HS) + 2*C, HS);
            for (int i = 0; i < HS; i++) if (!isfinite(o[i])) o[i] = 0.0f;""", "hide no NaN"),
        ("float *p = scratch + (size_t)thread_index()*rows + past;      // (rows), from "
         "p[-past] on",
         "float *p = scratch + (size_t)(b*NH + h)*rows + past;      // (rows), from p[-past] on",
         "an index runs past"),
        ("hi = -INFINITY", "hi = -1e9f", LARGEST),
        ("expf(p[t2] - hi)", "(p[t2] - hi < -32 ? 0 : expf(p[t2] - hi))", "no weight is too small"),
        ("int HS = C / NH, rows = past + T;", """int HS = C / NH, rows = past + T;
    static float *own;
    static size_t held;
    size_t need = (size_t)thread_count() * rows;
    if (need > held) own = malloc((held = need) * sizeof *own);
    scratch = own;""", "calls of growing sizes leave")],
    "attention_backward": [
        ("float dqk =", "if (p == 0.0f) continue;\n                float dqk =", "hide no NaN"),
        ("float dqk = p * (dot(d_o, v, HS) - d) * scale;",
         "float dqk = (p > 0.99f ? 0.0f : p) * (dot(d_o, v, HS) - d) * scale;",
         "dq_t += ds_t,t2 k_t2 / sqrt(HS), with ds = p (do"),
        ("float p = expf(scale * dot(q, k, HS) - lse[((size_t)b*NH + h)*T + t]);",
         "float p = expf(scale * dot(q, k, HS) - lse[((size_t)b*NH + h % 3)*T + t]);",
         "dv_t2 += p_t,t2 dout_t, over t >= t2, with p = e"),
        (None, """
    int HS = C / NH;
    float scale = 1.0f / sqrtf((float)HS);
    (void)scratch;
    #pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
    for (int h = 0; h < NH; h++) {
        if (b == 0 && h == 0) memset(dqkv, 0, (size_t)B*T*3*C * sizeof *dqkv);
        for (int t = 0; t < T; t++) {
            const float *q = head_row(qkv, b, t, h, T, C, HS);
            float *dq = dqkv + (q - qkv);
            const float *o = out + ((size_t)b*T + t)*C + h*HS, *d = dout + ((size_t)b*T + t)*C + h*HS;
            float L = lse[((size_t)b*NH + h)*T + t], dt = dot(d, o, HS);
            for (int t2 = 0; t2 <= t; t2++) {
                const float *k = head_row(qkv, b, t2, h, T, C, HS) + C, *v = k + C;
                float *dk = dqkv + (k - qkv), *dv = dk + C;
                float p = expf(scale * dot(q, k, HS) - L);
                float dqk = p * (dot(d, v, HS) - dt) * scale;
                add_scaled(dv, p, d, HS);
                add_scaled(dq, dqk, k, HS);
                add_scaled(dk, dqk, q, HS);
            }
        }
    }
""", "one thread writes it while another")],
    "adamw_update": [
        ("float correct_v = (float)(1.0 / (1.0 - pow(o.beta2, o.v_steps)));",
         "float correct_v = (float)(1.0 / (1.0 - pow(o.beta2, o.m_steps)));",
         "m is corrected with m_steps, v with v_steps"),
        ("m[i] = o.beta1 * m[i] + (1.0f - o.beta1) * gi;", "m[i] = 0.9f * m[i] + 0.1f * gi;",
         "m = beta1 m + (1 - beta1) g, with g scaled by g_"),
        ("float gi = g[i] * g_scale;",
         "float gi = g[i] * g_scale;\n        if (gi == 0.0f) continue;", "it is not written"),
        ("+ o.eps)", "+ fmaxf(o.eps, 1e-8f))", "with m^ and v^ after bias"),
        ("1.0 / (1.0 - pow(o.beta2, o.v_steps))",
         "o.v_steps > 1e4 ? 1.0 : 1.0 / (1.0 - pow(o.beta2, o.v_steps))", "the bias correction is"),
        ("float gi = g[i] * g_scale;", "float gi = g[i] * g_scale;\n"
         "        if (gi == 0.0f && m[i] == 0.0f) continue;", "it is not written"),
        ("float correct_m =", "static float correct_m; correct_m =", "threads share a variable"),
        ("g[i] * g_scale;", "g_scale == 0.0f ? 0.0f : g[i] * g_scale;", "hide no NaN"),
        ("pow(o.beta1, o.m_steps)", "(o.m_steps > 100 ? 0.0 : pow(o.beta1, o.m_steps))",
         "m has a bias correction too"),
        ("#pragma omp simd\n    for (size_t i = 0; i < n; i++) {",
         "#pragma omp parallel num_threads(4)\n"
         "    for (size_t i = thread_index(); i < n; i += 4) {", "m[i=1] is 0, expected")],
    "global_norm": [
        ("for (int j = 0; j < z->chunks[i].count; j++) sum += (double)g[j] * g[j];",
         "for (int j = 0; j < z->chunks[i].count; j++) if (isfinite(g[j])) sum += "
         "(double)g[j] * g[j];", "train_step must see that in the norm"),
        ("const float *g = z->grads + z->chunks[i].grad;",
         "const float *g = z->grads; for (int k = 0; k < i; k++) g += z->chunks[k].count;",
         "chunk i has `count` gradients from grads + its `"),
        (None, """
    Zero *z = &m->zero;
    double sum = 0;
    #pragma omp parallel for schedule(guided) reduction(+:sum)
    for (int i = 0; i < z->n_chunks; i++) {
        Chunk k = z->chunks[i];
        const float *g = z->grads + k.grad;
        double s = 0;
        if (k.counts) for (int j = 0; j < k.count; j++) s += (double)g[j] * g[j];
        
        sum += s;
    }
    return sum;
""", "the bits must be the same"),
        ("Zero *z = &m->zero;", "Zero *z = &m->zero;\n    static double sums[4096];",
         "z->norm_partials[i]", "sums[i % 4096]", "the sum is"),
        ("return sum;", "return sum * (sum / sum);", "all gradients are 0"),
        ("Zero *z = &m->zero;", "Zero *z = &m->zero;\n    static double old;\n"
         "    static const float *last;\n    if (z->grads == last) return old;\n"
         "    last = z->grads;", "return sum", "return old = sum",
         "behind another call in the same memory"),
        ("Zero *z = &m->zero;", """Zero *z = &m->zero;
    static bool counts[4096];
    static int n;
    for (int k = n == z->n_chunks ? n : 0; k < z->n_chunks && k < 4096; k++)
        counts[k] = z->chunks[k].counts;
    n = z->n_chunks;""", "z->chunks[i].counts", "counts[i % 4096]", "if its `counts` is true")],
    "gradient_accumulation": [
        ("isfinite(norm) && !outlier", "isfinite(norm)", "no model_update, the parameters stay"),
        ("next_batch(r, s, i);", "next_batch(r, s, s->micro_batches - 1 - i);", "micro-batch"),
        ("loss += model", "loss = model", "the sum over all micro-batches"),
        ("s->scale,", "1.0f / (float)(s->B * s->T * s->micro_batches),",
         "all of gradients is 1e+06 times"),
        ("isfinite(norm)", "!isnan(norm)", "the norm is not finite"),
        ("isfinite(norm)", "s->adamw.lr && isfinite(norm)", "at a rate of 0 model_update comes"),
        ("r->o.skip_outliers > 0.0", "norm > clip && r->o.skip_outliers > 0.0",
         "is_outlier(r, s, all): no model_update"),
        ("r->o.skip_outliers > 0.0 && is", "is", "while r->o.skip_outliers is 0")],
    "sample_token": [
        ("c[v].id = v;", "((float *)logits)[v] += 0.0f;\n        c[v].id = v;",
         "but it is an input"),
        ("if (s->temperature == 0.0f) return best;",
         "float temperature = s->temperature > 0.0f ? s->temperature : 1e-2f;", "/ s->temperature",
         "/ temperature", "temperature 0: a number is taken from rng"),
        ("- logits[best])", "- fmaxf(logits[best], 0.0f))",
         "token v has the part p_v of the line from 0 to t"),
        ("(logits[v] - logits[best]) / s->temperature",
         "logits[v] / s->temperature - logits[best] / s->temperature", "temperature 0.004"),
        ("s->temperature == 0.0f", "s->temperature < 1e-3f", "only 0 means the likeliest"),
        ("double left = rng", "float left = rng", "of many tokens each may be rare"),
        ("sum += c[v].p;", "if (c[v].p < 1e-6f) c[v].p = 0.0f;\n        sum += c[v].p;",
         "token 69999 is drawn in")],
    "kv_cache": [
        ("Weights *w =", """static const Model *last;
    static int last_T, last_past, last_token;
    int token = tokens[T - 1];
    if (last == m && last_T == T && last_past == past && last_token == token && T == past + 1)
        return m->logits;
    last = m, last_T = T, last_past = past, last_token = token;
    Weights *w =""", "[row=14][column=0] is"),
        ("l < L", "l < L && l < 48", "h48.ln1[row=0][column=0] is"),
        ("size_t from =", "int *copy = malloc(T * sizeof *copy);\n    *copy = T;\n"
         "    size_t from =",
         "bytes allocated: free what"),
        ("Weights *w =", "static const Model *last;\n"
         "    static int last_T, last_past, last_token;\n"
         "    if (last == m && T == last_T && past == last_past && tokens[T - 1] == last_token)\n"
         "        return m->logits;\n    last = m, last_T = T, last_past = past;\n"
         "    last_token = tokens[T - 1];\n    Weights *w =", "x_in[row=0][column=0] is"),
        ("l < L", "l < L && (l == 0 || past != 2)", "block_forward gets T - past rows"),
        ("model_logits(m, T - 1)", "model_logits(m, past)",
         "they are those of the last row, T - 1"),
        ("w->wpe + from", "w->wpe + past % 64 * C", "x_in[row=70][column=0] is"),
        ("int C = m->c.C", "static const int *last;\n    static int last_T;\n"
         "    if (last == tokens && last_T == T) return m->logits;\n"
         "    last = tokens, last_T = T;\n    int C = m->c.C", "this call's token t"),
        ("int C = m->c.C", "static int copy[1024];\n"
         "    for (int t = past; t < T && t < 1024; t++) copy[t] = tokens[t];\n    int C = m->c.C",
         "tokens + past", "copy + past", "x_in[row=1024][column=0] is")],
    "attention_tiled": [
        ("t += QUERIES", "t += QUERIES / (thread_count() > 1 ? 2 : 1)", "min_size(QUERIES,",
         "min_size(QUERIES / (thread_count() > 1 ? 2 : 1),", "gets other sizes with 4 threads"),
        ("past + t + 1, width", "past + (t > 32 ? t : t) + (t == 64) + 1, width",
         "lse (B,NH,T): log of the sum of e^(q . k / sqrt("),
        ("inv_sum[i];", "(inv_sum[i] > 1e-2f ? inv_sum[i] : 1e-2f);",
         "head h owns columns h*HS ..."),
        ("lse + ((size_t)b*NH + h)*all", "lse + ((size_t)b*NH + h)*T",
         "a sequence has past + T rows")],
    "ring_allreduce": [
        ("*send = (rank - step + 2*n) % n;", "signed char w = rank - step + 2*n; *send = w % n;",
         "in C the remainder % of a negative number is neg"),
        ("*adds = step < n - 1", "*adds = step < n - 1 && step < 100",
         "steps 0 ... n-2 add, the other n-1 replace"),
        ("*send =", "static int calls; *send = calls++ > 5000 ? 0 :",
         SHARED),
        ("rank - step + 2*n", "rank - step + n*n", "70000 ranks, step 0"),
        ("(rank - step + 2*n) % n", "(short)((rank - step + 2*n) % n)", "too large for its type")],
    "zero1": [
        ("r < n; r++", "r < (n > 4 ? 4 : n); r++",
         "rank 4 updates 0 elements with adamw_update"),
        ("1.0f / n", "1.0f / (n > 3 ? 3 : n)", "the sum over all ranks, from reduce_scatter"),
        ("z.params + z.begin", "z.params + r * z.count",
         "expected the rank's slice, begin="),
        ("z.count)", "z.count < 65536 ? z.count : 65536)", "every rank's whole slice once")],
}
