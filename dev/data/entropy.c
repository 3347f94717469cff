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

// Reads a floor file's text (NUL-terminated) into f->nats.
static bool floor_parse(ShardFloor *f, const char *text, const char *path, Error *err) {
    static const char head[] = "batchwise floor 1\n";
    if (strncmp(text, head, sizeof head - 1) != 0)
        return fail(err, "%s: does not begin with \"batchwise floor 1\"; remove it, or write the "
                         "corpus again", path);
    const char *at = text + sizeof head - 1;
    for (size_t d = 0; d < f->n; d++) {
        char *end;
        f->nats[d] = strtod(at, &end);
        if (end == at || !(f->nats[d] >= 0.0 && isfinite(f->nats[d])))
            return fail(err, "%s: line %zu is not a number of nats, and the shard has %zu "
                             "documents; write the corpus again", path, d + 2, f->n);
        at = end;
    }
    if (at[strspn(at, " \n\r")] != '\0')
        return fail(err, "%s: has more lines than the shard has documents (%zu); write the corpus "
                         "again", path, f->n);
    return true;
}

// The text of a whole file, NUL-terminated. If there is no such file: NULL, and no error.
static bool floor_read_text(char **text, const char *path, Error *err) {
    FileMap file;
    *text = NULL;
    if (access(path, F_OK) != 0) return true;
    if (!file_map(&file, path, err)) return false;
    *text = (char *)alloc_or_die(file.n + 1, "the entropy floor");
    memcpy(*text, file.bytes, file.n);
    file_unmap(&file);
    return true;
}

// Reads the floor of shard i, if there is one.
static bool floor_open_shard(Floor *f, const Loader *val, int i, Error *err) {
    const Shard *s = &val->shards[i];
    char path[4096], *text;
    size_t stem = strlen(s->path);
    if (stem > 4 && strcmp(s->path + stem - 4, ".bin") == 0) stem -= 4;
    snprintf(path, sizeof path, "%.*s.floor", (int)stem, s->path);
    if (!floor_read_text(&text, path, err)) return free(text), false;
    if (!text) return f->known = false, true;
    floor_find_documents(&f->shards[i], s);
    bool ok = floor_parse(&f->shards[i], text, path, err);
    free(text);
    for (size_t d = 0; ok && d < f->shards[i].n; d++) f->nats += f->shards[i].nats[d];
    if (ok && f->shards[i].n) f->tokens += f->shards[i].end[f->shards[i].n - 1] + 1;
    return ok;
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
