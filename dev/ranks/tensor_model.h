// Embedding and classifier cut across the ranks of a tensor group: part of train_gpt2.c. Read each
// function beside the one of train_gpt2.c without tp_. tensor.c has the picture, and why sums stand
// where they do. Vn are a rank's words.

// ---- embedding: a rank gives the rows of its own words, and zeros for the others ----

static void tp_embedding_forward(float *x, const int *token, const float *wte, const float *wpe,
                                 const TpGroup *g, int B, int T, int C) {
    size_t N = (size_t)B*T;
    #pragma omp parallel for
    for (size_t n = 0; n < N; n++) {
        int row = tp_row(g, token[n]);
        const float *word = wte + (row < 0 ? 0 : (size_t)row*C), *position = wpe + n % T * C;
        for (int c = 0; c < C; c++) x[n*C + c] = row < 0 ? 0.0f : word[c] + position[c];
    }
    tp_sum(g, x, N*C);
}

static void tp_embedding_backward(float *dwte, float *dwpe, const float *dx, const int *token,
                                  const TpGroup *g, int B, int T, int C) {
    int strips = thread_count();
    size_t N = (size_t)B*T;
    #pragma omp parallel for
    for (int s = 0; s < strips; s++) {
        int begin = strip_begin(C, s, strips), end = strip_begin(C, s + 1, strips);
        for (size_t n = 0; n < N; n++) {
            int row = tp_row(g, token[n]);
            for (int c = begin; row >= 0 && c < end; c++) dwte[(size_t)row*C + c] += dx[n*C + c];
            for (int c = begin; c < end; c++) dwpe[n % T * C + c] += dx[n*C + c];
        }
    }
}

// classifier_forward, and with TRAIN classifier_backward, for this rank's words. Returns the sum of
// the losses. Targets of other ranks are column Vn: xent_backward writes it, no product reads it.
static double tp_classifier(Model *m, float *loss, const int *targets, float scale, size_t N,
                            Use use) {
    const TpGroup *g = &m->params.tp;
    const int *target = tp_targets(g, targets, N);
    int C = m->c.C, Vn = (int)g->words.count, Vp = m->Vp;
    float *wte = m->w.wte, *dx = m->dbranch, *logits = m->logits;
    for (size_t n = 0; n < N; n += m->logit_rows) {
        size_t some = min_size(m->logit_rows, N - n);
        Mat x = rows_of(m->lnf + n*C, C);
        matmul(logits, Vp, x, transpose_of(wte, C), NULL, some, Vn, C, WRITE);
        xent_parts(g->parts + 3*some*g->size, logits, target + n, some, Vn, Vp);
        tp_xent(loss + n, m->lse + n, g->parts, g, some);
        if (use == INFER) continue;
        xent_backward(logits, m->lse + n, target + n, scale, some, Vn, Vp);
        matmul(dx + n*C, C, rows_of(logits, Vp), rows_of(wte, C), NULL, some, C, Vn, WRITE);
        matmul(m->dw.wte, C, transpose_of(logits, Vp), x, NULL, Vn, C, some, ADD);
    }
    if (use == TRAIN) tp_sum(g, dx, N*C);          // a term from each rank's words
    return sum_of(loss, N);
}
