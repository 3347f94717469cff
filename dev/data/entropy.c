// The entropy floor: the lowest loss that any model can reach, for a corpus of known probabilities
// (data.h).
#include "data.h"

void floor_close(Floor *f) {
    for (int i = 0; i < f->n_shards; i++) {
        free(f->shards[i].end);
        free(f->shards[i].nats);
    }
    free(f->shards);
    memset(f, 0, sizeof *f);
}

// Finds the end-of-text tokens of a shard.
static void floor_find_documents(ShardFloor *f, const Shard *s) {
    f->n = 0;
    for (size_t t = 0; t < s->n_tokens; t++) f->n += s->tokens[t] == s->eot;
    f->end = (size_t *)alloc_or_die(f->n * sizeof *f->end, "the entropy floor");
    f->nats = (double *)alloc_or_die(f->n * sizeof *f->nats, "the entropy floor");
    size_t d = 0;
    for (size_t t = 0; t < s->n_tokens; t++)
        if (s->tokens[t] == s->eot) f->end[d++] = t;
}

// Reads the floor of shard i, if there is one: a line, then the nats of each document.
static bool floor_open_shard(Floor *f, const Loader *val, int i, Error *err) {
    ShardFloor *own = &f->shards[i];
    char path[4096], head[40], more[2];
    size_t stem = strlen(val->shards[i].path), d = 0;
    if (ends_with(val->shards[i].path, ".bin")) stem -= 4;
    snprintf(path, sizeof path, "%.*s.floor", (int)stem, val->shards[i].path);
    FILE *file = fopen(path, "r");
    if (!file) return f->known = false, true;
    floor_find_documents(own, &val->shards[i]);
    bool good = fgets(head, sizeof head, file) && strcmp(head, "batchwise floor 1\n") == 0;
    if (!good)
        fail(err, "%s: does not begin with \"batchwise floor 1\"; remove it, or write the corpus "
             "again", path);
    for (; good && d < own->n; d++) {
        double *nats = &own->nats[d];
        good = (fscanf(file, "%lf", nats) == 1 && *nats >= 0.0 && isfinite(*nats))
            || fail(err, "%s: line %zu is not a number of nats, and the shard has %zu documents; "
                    "write the corpus again", path, d + 2, own->n);
        f->nats += *nats;
    }
    if (good && fscanf(file, "%1s", more) == 1)
        good = fail(err, "%s: has more lines than the shard has documents (%zu); write the corpus "
                    "again", path, own->n);
    fclose(file);
    if (own->n > 0) f->tokens += own->end[own->n - 1] + 1;
    return good;
}

bool floor_open(Floor *f, const Loader *val, Error *err) {
    memset(f, 0, sizeof *f);
    f->known = val->eot > 0;
    f->n_shards = val->n_shards;
    f->shards = (ShardFloor *)alloc_or_die(f->n_shards * sizeof *f->shards, "the entropy floor");
    for (int i = 0; f->known && i < f->n_shards; i++)
        if (!floor_open_shard(f, val, i, err)) return floor_close(f), false;
    f->known = f->known && f->tokens > 0;
    return true;
}

void floor_score_window(WholeScore *score, const Floor *f, const Loader *val, size_t window,
                        const float *loss) {
    int i = loader_find_shard(val, window);
    const ShardFloor *s = &f->shards[i];
    size_t first = (window - val->first_window[i]) * (size_t)val->T, last = first + (size_t)val->T;
    size_t low = 0, high = s->n;                  // bisection: the first document with end >= first
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (s->end[middle] < first) low = middle + 1;
        else high = middle;
    }
    for (size_t d = low + 1; d < s->n && s->end[d] <= last; d++) {
        for (size_t t = s->end[d - 1] + 1; t <= s->end[d]; t++)
            score->loss += loss[t - first - 1];   // token t is target t - first - 1
        score->floor += s->nats[d];
        score->tokens += s->end[d] - s->end[d - 1];
    }
}
