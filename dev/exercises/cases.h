// The exercises in C as data: what a function reads and writes, how it is called, by how many
// roundings it may err, and a hint. dev/check/side.h says what a row means.

CASE(embedding_forward, "B6 T40 C70 V500", 4,
     F(x, OUT, "btc", B, T, C) I(token, IN, V, "bt", B, T) F(wte, IN, "vc", V, C)
     F(wpe, IN, "tc", T + 2, C),
     BEFORE(), CALL(embedding_forward(x, token, wte, wpe, B, T, C)),
     "row b*T + t is wte's row of token[b*T + t] plus wpe's row t")
CASE(embedding_backward, "B6 T40 C70 V500", 100,
     F(dwte, ADDED, "vc", V, C) F(dwpe, ADDED, "tc", T, C) F(dx, IN, "btc", B, T, C)
     I(token, IN, V, "bt", B, T),
     BEFORE(), CALL(embedding_backward(dwte, dwpe, dx, token, B, T, C)),
     "a token's row receives dx from every place where it stands, position t from every sequence")
CASE(xent_forward, "N100 V200 P300", 6000,
     F(lse, OUT, "n", N) F(loss, OUT, "n", N) F(logits, IN, "nv", N, V + P - 1)
     I(target, IN, V, "n", N),
     BEFORE(far_rows(logits, N, V + P - 1); padding(logits, N, V, V + P - 1);
            for (int n = 4; n < N; n += 4) logits[n*(V + P - 1) + V - 1] += 600),
     CALL(xent_forward(loss, lse, logits, target, N, V, V + P - 1)),
     "lse is the log of the sum of e^logit over columns 0 ... V-1 of its row, of Vp columns; "
     "subtract the largest of the row before exp; loss = lse - the target's logit")
CASE(xent_backward, "N100 V200 P300", 5000,
     F(dlogits, IO, "nv", N, V + P - 1) F(lse, IN, "n", N) F(loss, SCRATCH, "n", N)
     I(target, IN, V, "n", N),
     BEFORE(far_rows(dlogits, N, V + P - 1); padding(dlogits, N, V, V + P - 1);
            xent_forward(loss, lse, dlogits, target, N, V, V + P - 1)),
     CALL(xent_backward(dlogits, lse, target, 0.125f, N, V, V + P - 1)),
     "(p - onehot(target)) * scale, with p = e^(logit - lse); padding, columns V ... Vp-1, stays")
CASE(layernorm_forward, "N70 C129", 6000,
     F(mean, OUT, "n", N) F(rstd, OUT, "n", N) F(out, OUT, "nc", N, C) F(x, IN, "nc", N, C)
     F(gain, IN, "c", C) F(bias, IN, "c", C),
     BEFORE(spread(x, N, C)),
     CALL(layernorm_forward((NormActs){ out, mean, rstd }, x, (Norm){ gain, bias }, N, C)),
     "mean and var are those of a row's C channels, rstd = 1/sqrt(var + 1e-5), "
     "out = (x - mean) * rstd * gain + bias")
#define LAYERNORM_BACKWARD "dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd, g = dout * gain, " \
     "with the rstd that forward kept; dgain += sum dout * xhat; dbias += sum dout"
CASE(layernorm_backward, "N70 C3-129", 6000,
     F(dgain, ADDED, "c", C) F(dbias, ADDED, "c", C) F(dx, OUT, "nc", N, C)
     F(dout, IN, "nc", N, C) F(x, IN, "nc", N, C) F(mean, IN, "n", N) F(rstd, IN, "n", N)
     F(gain, IN, "c", C) F(out, SCRATCH, "nc", N, C),
     BEFORE(spread(x, N, C);
            layernorm_forward((NormActs){ out, mean, rstd }, x, (Norm){ gain, gain }, N, C)),
     CALL(layernorm_backward(dx, (Norm){ dgain, dbias }, dout, x, (NormActs){ out, mean, rstd },
                             (Norm){ gain, NULL }, N, C)),
     LAYERNORM_BACKWARD)
CASE(layernorm_backward__in_place, "N70 C3-129", 6000,
     F(dgain, ADDED, "c", C) F(dbias, ADDED, "c", C) F(dx, IO, "nc", N, C) F(x, IN, "nc", N, C)
     F(mean, IN, "n", N) F(rstd, IN, "n", N) F(gain, IN, "c", C) F(out, SCRATCH, "nc", N, C),
     BEFORE(layernorm_forward((NormActs){ out, mean, rstd }, x, (Norm){ gain, gain }, N, C)),
     CALL(layernorm_backward(dx, (Norm){ dgain, dbias }, dx, x, (NormActs){ out, mean, rstd },
                             (Norm){ gain, NULL }, N, C)),
     "dx may overwrite dout: write dgain and dbias first; " LAYERNORM_BACKWARD)
CASE(gelu_backward, "n2000", 300, F(dx, OUT, "i", n) F(dout, IN, "i", n) F(x, IN, "i", n),
     BEFORE(for (int i = 1; i < n; i++) x[i] *= i % 9 ? 3.0f : 30.0f; x[0] = dout[0] = 1.0f),
     CALL(gelu_backward(dx, dout, x, n)),
     "dout times the slope of GELU at x: s + x s (1 - s) 2 du/dx")
CASE(gelu_backward__in_place, "n2000", 300, F(dx, IO, "i", n) F(x, IN, "i", n),
     BEFORE(x[0] = dx[0] = 1.0f), CALL(gelu_backward(dx, dx, x, n)),
     "dx may be dout: read dout[i] before dx[i] is written")
CASE(linear_backward, "N40 C20 O20", 200,
     F(dx, OUT, "nc", N, C) F(dw, ADDED, "co", C, OC) F(db, ADDED, "o", OC)
     F(dout, IN, "no", N, OC) F(x, IN, "nc", N, C) F(w, IN, "co", C, OC),
     BEFORE(), CALL(linear_backward(dx, dw, db, dout, x, w, N, C, OC)),
     "dx = dout times w transposed; dw += x transposed times dout; db += the sum of dout's rows")

#define ATTENTION "lse: log of the sum of e^(q . k / sqrt(HS)) over t2 <= t; out: the values of " \
     "tokens t2 <= t, weighted by the softmax; subtract the largest score of the query; " \
     "a sequence has past + T rows, of which the last T are computed"
CASE(attention_plain, "B3 T20 H5 S9 p20", 2000,
     F(lse, OUT, "bht", B, NH, past + T) F(out, OUT, "bthi", B, past + T, NH, HS)
     F(qkv, IN, "btphi", B, past + T, 3, NH, HS) F(scratch, SCRATCH, "rt", threads, past + T),
     BEFORE(far_queries(qkv, B*(past + T), NH, HS)),
     CALL(attention_forward_plain(out + past*C, lse + past, scratch, qkv + past*3*C, B, T, past, C,
                                  NH)), ATTENTION)
CASE(attention_tiled, "B2 T70 H4 S17 p70", 2000,
     F(lse, OUT, "bht", B, NH, past + T) F(out, OUT, "bthi", B, past + T, NH, HS)
     F(qkv, IN, "btphi", B, past + T, 3, NH, HS)
     F(scratch, SCRATCH, "ri", threads, (int)attention_scratch(past + T, HS)),
     BEFORE(far_queries(qkv, B*(past + T), NH, HS)),
     CALL(attention_forward_fast(out + past*C, lse + past, scratch, qkv + past*3*C, B, T, past, C,
                                 NH)), ATTENTION)
CASE(attention_backward, "B3 T20 H5 S9", 2000,
     F(dqkv, OUT, "btphi", B, T, 3, NH, HS) F(dout, IN, "btc", B, T, C)
     F(qkv, IN, "btphi", B, T, 3, NH, HS) F(out, IN, "btc", B, T, C) F(lse, IN, "bht", B, NH, T)
     F(scratch, SCRATCH, "ri", threads, (int)attention_scratch(T, HS)),
     BEFORE(attention_forward_plain(out, lse, scratch, qkv, B, T, 0, C, NH)),
     CALL(attention_backward_plain(dqkv, scratch, dout, qkv, out, lse, B, T, C, NH)),
     "ds = p (dout . v - dout . out); dq += ds k / sqrt(HS), dk += ds q / sqrt(HS), dv += p dout; "
     "dqkv is written, each head apart")

CASE(adamw_update, "n200 r6", 500,
     F(m, IO, "i", n) F(v, IO, "i", n) F(p, IO, "i", n) F(g, IN, "ki", 3, n),
     BEFORE(for (int i = 0; i < n; i++) v[i] = r % 2 ? v[i]*v[i] : 0.0f),
     CALL(AdamW o = rates_of(r);
          for (int k = 0; k < 3; k++, o.m_steps++, o.v_steps++)
              adamw_update(p, m, v, g + k*n, k == 1 ? 1.0f : 0.013f, o, n)),
     "m = beta1 m + (1 - beta1) g and v = beta2 v + (1 - beta2) g^2, with g scaled by g_scale; "
     "p -= lr (m^ / (sqrt(v^) + eps) + weight_decay p), with bias corrections by m_steps, v_steps")
CASE(global_norm, "n90 c2000", 1e-4,
     D(squares, OUT, "i", 1) I(counts, IN, c + 1, "i", n) F(grads, IN, "ij", n, c + 1)
     D(partials, SCRATCH, "i", n),
     BEFORE(),
     CALL(static Model model;
          Chunk chunks[90];
          for (int i = 0; i < n; i++)
              chunks[i] = (Chunk){ .count = counts[i], .grad = (n - 1 - i)*(size_t)(c + 1),
                                   .param = i, .moment = i, .in_norm = i % 16 != 5 };
          model.params.chunks = chunks; model.params.n_chunks = n; model.params.grads = grads;
          model.params.n_grads = n*(size_t)(c + 1); model.params.norm_partials = partials;
          *squares = gradients_squares(&model)),
     "the sum of the squares, in double, of the gradients of chunks whose `in_norm` is true, each "
     "from grads + its `grad`, the chunks' sums added in order")
CASE(sample_token, "V8-300 k6", 0,
     D(drawn, NEARLY, "v", V) D(numbers_taken, IO, "i", 1) F(logits, IN, "v", V)
     D(candidates, SCRATCH, "v", V),
     BEFORE(far_rows(logits, 1, V)),
     CALL(draw_tokens(drawn, numbers_taken, logits, candidates, V, k)),
     "token v is drawn as often, of 500 times, as its part of what top_k and top_p keep says, at "
     "the temperature; one rng_uniform decides; temperature 0 takes the likeliest, and no number")
CASE(kv_cache, "L3 C4 V40 T14 k9", 5000,
     F(x_in, OUT, "tc", T + 3, 2*C) F(ln1, OUT, "ltc", L, T + 3, 2*C)
     F(qkv, OUT, "ltc", L, T + 3, 6*C) F(att, OUT, "ltc", L, T + 3, 2*C)
     F(x_out, OUT, "ltc", L, T + 3, 2*C) F(logits, OUT, "kv", 3, V)
     F(params, IN, "i", GPT2_PARAMS(L, 2*C, V, T + 3)) I(tokens, IN, V, "t", T + 3),
     BEFORE(),
     CALL(extend_three_times((KeptRows){ logits, x_in, ln1, qkv, att, x_out }, params, tokens, L,
                             2*C, V, T, k)),
     "only rows past ... T-1 are computed, each in its place: their tokens, positions and tensors "
     "begin at row `past`; the logits are those of the last row")
CASE(gradient_accumulation, "n5 B3 T8 k9", 5000,
     D(calls_of_step_begin, IO, "i", 1) D(micro_batches_read, IO, "i", 1)
     D(micro_batches_before_gradients_arrive, IO, "i", 1) D(calls_of_totals_share, IO, "i", 1)
     D(calls_of_step_end, IO, "i", 1) F(gradients, OUT, "i", STEP_PARAMS) F(loss, OUT, "i", 1)
     F(norm, OUT, "i", 1) F(adam_m, OUT, "i", STEP_PARAMS)
     F(params_at_step_end, OUT, "i", STEP_PARAMS) F(params, OUT, "i", STEP_PARAMS)
     F(weights, IN, "i", STEP_PARAMS) I(tokens, IN, 16, "knbt", 2, n, B, T),
     BEFORE(memset(&around, 0, sizeof around);
            around.n = n, around.B = B, around.T = T, around.k = k, around.tokens = tokens),
     CALL(one_step(params, adam_m, gradients, weights);
          memcpy(params_at_step_end, around.at_end, sizeof around.at_end);
          *loss = around.totals.loss; *norm = sqrt(around.totals.squares);
          *micro_batches_read = around.read; *calls_of_step_begin = around.begun;
          *calls_of_totals_share = around.shared; *calls_of_step_end = around.ended;
          *micro_batches_before_gradients_arrive = around.arrived),
     "clear_grads once, forward and backward by s->scale for each micro-batch, their losses added, "
     "one model_update unless the norm is not finite; the factor is r->o.clip / norm above the limit, "
     "else 1")
CASE(ring_allreduce, "n60", 0,
     D(send, OUT, "rs", n, 2*n) D(receive, OUT, "rs", n, 2*n) D(adds, OUT, "rs", n, 2*n),
     BEFORE(),
     CALL(for (int r = 0; r < n; r++)
              for (int step = 0; step < 2*n; step++) {
                  int to = -1, from = -1;
                  bool plus = false;
                  if (step < 2*(n - 1)) ring_allreduce(&to, &from, &plus, step, r, n);
                  send[r*2*n + step] = to; receive[r*2*n + step] = from; adds[r*2*n + step] = plus;
              }),
     "in step s rank r sends its own number's chunk first, then what it received in the step "
     "before, from rank r-1; steps 0 ... n-2 add; the remainder % of a negative number is negative")
CASE(zero1, "n8 c300 r6", 500,
     F(m, IO, "c", c) F(v, IO, "c", c) F(params, IO, "rc", n, c)
     D(sent_in_reduce_scatter, IO, "r", n) D(sent_in_all_gather, IO, "r", n)
     F(drawn, IN, "rc", n, c) F(grads, SCRATCH, "rc", n, c) I(cuts, IN, c + 1, "r", n),
     BEFORE(for (int i = 0; i < c; i++) v[i] = v[i]*v[i];
            for (int i = c; i < n*c; i++) params[i] = params[i % c];
            memcpy(grads, drawn, n*c * sizeof *grads)),
     CALL(ZeroRank ranks[8]; zero_ranks(ranks, params, m, v, grads, cuts, n, c);
          zero1(ranks, n, c, rates_of(r));
          for (int i = 0; i < n; i++) sent_in_reduce_scatter[i] = ranks[i].scattered;
          for (int i = 0; i < n; i++) sent_in_all_gather[i] = ranks[i].gathered),
     "reduce_scatter once, adamw_update of each rank's slice with the mean of the gradients, "
     "all_gather once")
