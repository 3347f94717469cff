// Lesson 2: a model that learns one batch of random tokens by heart, and nothing else.
#include "lesson.h"

enum { B = 4, T = 16, N = B*T, V = 32, UPDATES = 200 };

int main(void) {
    static Model m;
    Config c = { .L = 2, .NH = 2, .C = 64, .V = V, .P = T };
    AdamW o = lesson_adamw;
    Rng rng = rng_make(2, 0);
    int batch[N], next[N], unseen[N], unseen_next[N];
    for (int i = 0; i < N; i++) {
        batch[i] = lesson_token(&rng, V), next[i] = lesson_token(&rng, V);
        unseen[i] = lesson_token(&rng, V), unseen_next[i] = lesson_token(&rng, V);
    }
    o.lr = 3e-3f;
    lesson_model(&m, c, B, T, 1337);
    printf("update   loss of the batch   loss of a batch it never saw   (ln %d = %.3f)\n", V,
           log(V));
    double first = 0.0;
    for (int step = 1; step <= UPDATES; step++) {
        double unseen_loss = lesson_loss(&m, unseen, unseen_next, B, T);
        double loss = lesson_update(&m, batch, next, B, T, o, step);
        if (step == 1) first = loss;
        if (step == 1 || step % 40 == 0) printf("%6d %15.4f %25.4f\n", step, loss, unseen_loss);
    }
    double seen = lesson_loss(&m, batch, next, B, T);
    double unseen_loss = lesson_loss(&m, unseen, unseen_next, B, T);
    claim(fabs(first - log(V)) < 0.1, "the loss begins within 0.1 of ln V");
    claim(seen < 0.05, "one batch can be learned by heart: %.4f nats are left", seen);
    claim(unseen_loss > log(V),
          "nothing else was learned: %.2f nats on the unseen batch, more than ln V", unseen_loss);
    model_free(&m);
    return 0;
}
