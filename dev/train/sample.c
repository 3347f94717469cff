// Sampling from logits, and generation with a key/value cache (train.h).
#include "train.h"

static int likelier(const void *a, const void *b) {
    const Candidate *x = (const Candidate *)a, *y = (const Candidate *)b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->id - y->id;    // ties in a fixed order, so that a seed gives one text
}

int sample_token(const Sampler *s, const float *logits, int V, Rng *rng) {
    Candidate *c = s->candidates;
    int best = 0, n = V;
    for (int v = 1; v < V; v++) if (logits[v] > logits[best]) best = v;
    if (s->temperature == 0.0f) return best;
    double sum = 0.0;
    for (int v = 0; v < V; v++) {
        c[v].id = v;
        c[v].p = expf((logits[v] - logits[best]) / s->temperature);
        sum += c[v].p;
    }
    if (s->top_k > 0 || s->top_p < 1.0f) {
        qsort(c, V, sizeof *c, likelier);
        if (s->top_k > 0 && s->top_k < V) n = s->top_k;
        double kept = 0.0, all = sum;
        int k = 0;
        while (k < n && (k == 0 || kept < s->top_p * all)) kept += c[k++].p;
        n = k;
        sum = kept;
    }
    double left = rng_uniform(rng) * sum;
    for (int k = 0; k < n - 1; k++)
        if ((left -= c[k].p) < 0.0) return c[k].id;
    return c[n - 1].id;
}

// Whether a rank needs the other ranks for a forward pass: ZeRO stage 3, tensor parallel.
static bool ranks_join_samples(const Run *r) {
    return r->params->stage == 3 || r->params->tp.size > 1;
}

// Where generated text goes. A stop string may come in several tokens, so bytes that may begin it
// wait: `held` of them, the first ones of `stop`.
typedef struct {
    Utf8Printer printer;
    FILE *out, *copy;                  // copy: or NULL
    const char *stop;                  // or NULL
    size_t held;
} Writer;

static void writer_put(Writer *w, const char *bytes, size_t n) {
    utf8_print(&w->printer, w->out, bytes, n);
    if (w->copy && n > 0) fwrite(bytes, 1, n, w->copy);
}

// Returns whether these n bytes complete the stop string; it is not written.
static bool writer_add(Writer *w, const char *bytes, size_t n) {
    const char *stop = w->stop;
    if (!stop) writer_put(w, bytes, n);
    for (size_t i = 0; stop && i < n; i++) {
        size_t all = w->held + 1, k = all;       // the last k bytes of all are the first of stop
        while (k > 0 && (stop[k - 1] != bytes[i] || memcmp(stop, stop + all - k, k - 1) != 0)) k--;
        writer_put(w, stop, min_size(all - k, w->held));
        if (k == 0) writer_put(w, bytes + i, 1);
        w->held = stop[k] ? k : 0;
        if (!stop[k]) return true;
    }
    return false;
}

void generate(Run *r, Rng *rng, int n, int max_new, FILE *out) {
    Writer w = { { { 0 }, 0, isatty(fileno(out)) != 0 }, out, r->sampler.copy, r->o.stop, 0 };
    const Tokenizer *tok = &r->tokenizer;
    int *text = r->text, T = r->spec.T;
    int done = 0;            // rows that the cache holds
    for (int i = 0; i < max_new; i++) {
        if (n > T) {
            int keep = T > 1 ? T / 2 : 1;
            memmove(text, text + n - keep, keep * sizeof *text);
            n = keep;
            done = 0;
        }
        if (ranks_join_samples(r) ? stop_is_asked(r) : *stop_signal() != 0) break;
        model_forward(r->model, text + done, 1, n - done, done);
        const float *logits = model_logits(r->model, n - done - 1);
        done = r->spec.recompute == RECOMPUTE_NONE ? n : 0;
        int id = sample_token(&r->sampler, logits, r->spec.c.V, rng);
        if (id == tok->eot && tok->vocab_size > 0) break;
        text[n++] = id;
        if (tok->vocab_size == 0) fprintf(out, " %d", id);
        if (id >= tok->vocab_size) continue;    // a padded vocabulary has ids with no text
        size_t length;
        const char *piece = tokenizer_piece(tok, id, &length);
        bool stopped = writer_add(&w, piece, length);
        fflush(out);
        if (stopped) break;
    }
    writer_put(&w, w.stop, w.held);
    utf8_print_end(&w.printer, out);
    fputc('\n', out);
}

// Prints and logs a sample that begins a new text.
static void print_sample(Run *r) {
    Rng rng = rng_make((uint64_t)r->o.seed, 1000000 + r->step);
    TextBuffer text;
    text_begin(&text);
    r->sampler.copy = text.f;
    r->text[0] = r->tokenizer.eot;
    printf("%s--- the model writes ---\n", isatty(STDOUT_FILENO) ? "\r\033[K" : "");
    generate(r, &rng, 1, r->o.max_new, stdout);
    printf("---\n");
    text_end(&text);
    r->sampler.copy = NULL;
    log_event(r, "sample");
    log_text_n(&r->log, "text", text.text, text.n);
    log_line_end(r);
    free(text.text);
}

void report_sample(Run *r) {
    if (r->tokenizer.vocab_size == 0 || r->stopping) return;
    if (r->comm.rank == 0 || ranks_join_samples(r)) print_sample(r);
    stop_is_asked(r);
}

void open_sampler(Run *r, int text_tokens) {
    r->text = (int *)alloc_or_die((size_t)text_tokens * sizeof(int), "a text");
    r->sampler.temperature = (float)r->o.temperature;
    r->sampler.top_k = r->o.top_k;
    r->sampler.top_p = (float)r->o.top_p;
    r->sampler.candidates = (Candidate *)alloc_or_die(r->spec.c.V * sizeof(Candidate),
                                                      "a list of candidates");
}
