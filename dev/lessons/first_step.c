// One update of a tiny model, stage by stage, with numbers that a beginner can check by hand:
// make lesson. The stages are those of train_step in train_gpt2.c.
#include "lesson.h"

static const char TEXT[] = "banana", LETTERS[] = "abn";
enum { T = sizeof TEXT - 2, V = sizeof LETTERS - 1, STEPS = 60 };
static const Config TINY = { .L = 1, .NH = 1, .C = 4, .V = V, .P = T };

static int token_of(char letter) { return (int)(strchr(LETTERS, letter) - LETTERS); }

static void print_row(const float *x, int n) {
    for (int i = 0; i < n; i++) printf(" %7.4f", x[i]);
}

static void show_tokens(const int *inputs, const int *targets) {
    printf("1. TOKENS. A model reads numbers. Here each letter has one: a = 0, b = 1, n = 2.\n"
           "   The text is \"%s\". At each place the model must guess the next letter.\n\n"
           "       place  reads  guesses\n", TEXT);
    for (int t = 0; t < T; t++)
        printf("       %d      %c = %d  %c = %d\n", t, TEXT[t], inputs[t], TEXT[t + 1], targets[t]);
}

static void show_embedding(Model *m, const int *inputs) {
    printf("\n2. EMBEDDINGS, %d rows of %d numbers. Each letter has a vector in wte, each place\n"
           "   one in wpe. Their sum enters the model. At place 0, which reads b:\n\n", T, TINY.C);
    printf("       wte[b]");
    print_row(m->w.wte + inputs[0]*TINY.C, TINY.C);
    printf("\n       wpe[0]");
    print_row(m->w.wpe, TINY.C);
    printf("\n       sum   ");
    print_row(m->x_in, TINY.C);
    printf("     <- add a column\n\n"
           "   The block then mixes the places (attention) and works on each (MLP).\n"
           "   What leaves it at place 0, after the last LayerNorm:\n\n       lnf   ");
    print_row(m->lnf.out, TINY.C);
    printf("\n\n   The score of a letter is the dot product of lnf and the letter's row of wte.\n");
}

// Prints the scores, the probabilities and the losses; returns the mean loss, computed from the
// scores in double precision.
static double show_loss(Model *m, const int *targets, float p[T][V]) {
    double mean = 0.0;
    printf("\n3. SCORES, %d rows of %d: one for each letter that may come next; and LOSS.\n"
           "   Softmax makes them probabilities: p = e^score / (sum of the row's e^score).\n"
           "   The loss at a place is -ln p of the letter that does come.\n\n"
           "       reads   score a       b       n     p(a)   p(b)   p(n)   next   -ln p\n", T, V);
    for (int t = 0; t < T; t++) {
        const float *score = model_logits(m, t);
        double sum = 0.0;
        for (int v = 0; v < V; v++) sum += exp(score[v]);
        for (int v = 0; v < V; v++) p[t][v] = (float)(exp(score[v]) / sum);
        double loss = -log(p[t][targets[t]]);
        printf("       %c      ", TEXT[t]);
        print_row(score, V);
        printf("   %.4f %.4f %.4f   %c     %.4f\n", p[t][0], p[t][1], p[t][2], TEXT[t + 1], loss);
        mean += loss / T;
    }
    printf("\n   The mean of the last column is the loss: %.4f. A guess that knows nothing\n"
           "   gives each letter 1/3 and has -ln(1/3) = ln 3 = %.4f.\n"
           "   By hand: e^score for the three scores of a row, then their shares of the sum.\n",
           mean, log(3.0));
    return mean;
}

// The length of each tensor's gradient.
static void show_gradients(Model *m, const int *targets, float p[T][V]) {
    printf("\n4. GRADIENT: how the loss changes with each number, from the last layer back to\n"
           "   the first. At the scores it is p, less 1 at the next letter, divided by\n"
           "   the 5 places. Before that division, at place 0, %c:\n\n"
           "       p - 1[next]", TEXT[1]);
    for (int v = 0; v < V; v++) printf(" %7.4f", p[0][v] - (v == targets[0]));
    printf("     <- the three sum to 0\n\n"
           "   The chain rule carries it on. Each tensor's gradient has the tensor's shape:\n\n"
           "       tensor                      shape    length of the gradient\n");
    double squares = 0.0;
    for (int i = 0; i < gpt2_n_tensors(&TINY); i++) {
        Tensor t = gpt2_tensor(&TINY, i);
        double own = 0.0;
        for (size_t j = 0; j < t.count; j++) {
            double g = m->params.grads[t.offset + j];
            own += g * g;
        }
        squares += own;
        printf("       %-24s %2zu x %-4zu   %.4f\n", t.key, t.rows, t.cols, sqrt(own));
    }
    printf("\n   All together: %.4f. It is the square root of the sum of their squares.\n",
           sqrt(squares));
}

static void show_update(const float *p, const float *g, float before, AdamW o) {
    printf("\n5. UPDATE. AdamW moves every number a little against its gradient. In the first\n"
           "   update each moves by about the learning rate, %.2f, whatever its size.\n"
           "   The first number of wte, in the row of a:\n\n"
           "       before %.4f   gradient %.4f   after %.4f   moved %.4f\n",
           o.lr, before, *g, *p, *p - before);
}

static void show_more(Model *m, const int *inputs, const int *targets, double first, AdamW o) {
    printf("\n6. LOSS AGAIN, with the new numbers: %.4f. It was %.4f.\n"
           "   The same five stages, over and over:\n\n", lesson_loss(m, inputs, targets, 1, T),
           first);
    for (int step = 2; step <= STEPS; step++) {
        double loss = lesson_update(m, inputs, targets, 1, T, o, step);
        if (step == 2 || step % 10 == 0)
            printf("       before update %2d   loss %.4f\n", step, loss);
    }
    int text[T + 1] = { inputs[0] };
    for (int t = 0; t < T; t++) {
        model_forward(m, text + t, 1, 1, t);
        const float *score = model_logits(m, 0);
        for (int v = 1; v < V; v++) if (score[v] > score[text[t + 1]]) text[t + 1] = v;
    }
    printf("\n   Given b, it now writes the likeliest letter, reads it, and goes on:  ");
    for (int t = 0; t <= T; t++) putchar(LETTERS[text[t]]);
    printf("\n\nThat is training: more text, more layers and more updates, and the same stages.\n"
           "Next: dev/lessons/01_first_run.md; train_step and model_forward in train_gpt2.c.\n");
}

int main(void) {
    static Model m;
    AdamW o = lesson_adamw;
    int inputs[T], targets[T];
    float p[T][V];
    for (int t = 0; t < T; t++) inputs[t] = token_of(TEXT[t]), targets[t] = token_of(TEXT[t + 1]);
    lesson_model(&m, TINY, 1, T, 1337);
    float *wte = m.params.masters, before = *wte;

    printf("One update of a GPT-2 with %zu numbers, on the text \"%s\".\n\n",
           gpt2_n_params(&TINY), TEXT);
    show_tokens(inputs, targets);
    model_forward(&m, inputs, 1, T, 0);
    show_embedding(&m, inputs);
    double by_hand = show_loss(&m, targets, p);
    double loss = lesson_update(&m, inputs, targets, 1, T, o, 1);
    if (fabs(loss - by_hand) > 1e-5) die("the trainer's loss is %.6f", loss);
    show_gradients(&m, targets, p);
    show_update(wte, m.params.grads, before, o);
    show_more(&m, inputs, targets, loss, o);
    model_free(&m);
    return 0;
}
