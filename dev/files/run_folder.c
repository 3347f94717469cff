// A run's directory: its checkpoints, the links to them, and saving so that a crash at any moment
// leaves a whole one (files.h).
#include "files.h"
#include <sys/file.h>
#include <sys/stat.h>

// ---- finding a checkpoint ----

int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step_", 5) != 0 || strspn(name + 5, "0123456789") < 8) return -1;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return errno == 0 && (*end == '\0' || strcmp(end, ".1") == 0) ? step : -1;
}

// The target of a link of OUT, "latest" or "best", or the name that a file in its place holds; "":
// neither.
static StepName link_name(const char *out, const char *link) {
    StepName name = { "" };
    Path path = path_join(out, link);
    FileMap file;
    Error err;
    ssize_t n = readlink(path.text, name.text, sizeof name.text - 1);
    name.text[n > 0 ? n : 0] = '\0';
    if (n > 0 || !file_map(&file, path.text, &err)) return name;
    snprintf(name.text, sizeof name.text, "%.*s", (int)(file.n < 60 ? file.n : 60), file.bytes);
    name.text[strcspn(name.text, "\r\n")] = '\0';
    if (step_of(name.text) < 0) name.text[0] = '\0';
    file_unmap(&file);
    return name;
}

StepName latest_name(const char *out) { return link_name(out, "latest"); }

// The checkpoint that OUT/latest names, if it is there; else the newest one, or "".
static StepName current_name(const char *out) {
    StepName current = latest_name(out);
    if (current.text[0] && path_is_dir(path_join(out, current.text).text)) return current;
    current.text[0] = '\0';
    DIR *dir = opendir(out);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL; )
        if (step_of(e->d_name) > step_of(current.text))
            snprintf(current.text, sizeof current.text, "%.60s", e->d_name);
    if (dir) closedir(dir);
    return current;
}

bool path_is_dir(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

// Where a directory is meant: for the files of weights in DIR and DIR/config.json, DIR; for the
// file OUT/latest, OUT; for OUT/best, a link or not, the best checkpoint in OUT.
static Path checkpoint_dir(const char *where) {
    const char *slash = strrchr(where, '/'), *name = slash ? slash + 1 : where;
    bool inside = strcmp(name, "model.safetensors") == 0 || strcmp(name, "config.json") == 0
               || strcmp(name, "latest") == 0 || strcmp(name, WEIGHTS_INDEX) == 0
               || strncmp(name, "model-", 6) == 0;       // a shard
    Path dir, around;
    Saved best;
    snprintf(dir.text, sizeof dir.text, "%s", where);
    snprintf(around.text, sizeof around.text, "%.*s.", (int)(name - where), where);
    if (strcmp(name, "best") == 0 && checkpoint_best_in(&best, around.text))
        return path_join(around.text, best.name.text);
    return inside && access(where, F_OK) == 0 && !path_is_dir(where) ? around : dir;
}

bool checkpoint_find(Path *found, const char *path, Error *err) {
    Path dir = checkpoint_dir(path);
    struct stat info;
    const char *where = dir.text, *choice = where;
    Path config = path_join(where, "config.json"), latest = path_join(where, "latest");
    if (stat(where, &info) != 0)
        return fail(err, "%s: cannot open it: %s", where, strerror(errno));
    if (S_ISDIR(info.st_mode) && access(config.text, F_OK) != 0) {
        StepName current = current_name(where);
        bool linked = path_is_dir(latest.text);
        if (!linked && !current.text[0])
            return weights_foreign_in(where, err)
                && fail(err, "%s: no checkpoint: the directory has neither config.json nor latest",
                        where);
        if (!linked) latest = path_join(where, current.text);
        choice = latest.text;
    }
    char *real = realpath(choice, NULL);     // resolved now: a save may move `latest`
    int n = real ? snprintf(found->text, sizeof found->text, "%s", real) : -1;
    free(real);
    return (n > 0 && (size_t)n < sizeof found->text)
        || fail(err, "%s: cannot open it: %s", choice, strerror(errno));
}

// ---- keeping them: names, links, what is removed ----

// The name for a checkpoint of this step. An older one of the same step is replaced. If `latest`
// points to the older one, that must stay until the link has moved: the new one gets another name.
static StepName checkpoint_name(const char *out, int64_t step) {
    StepName name, latest = latest_name(out);
    snprintf(name.text, sizeof name.text, "step_%08lld", (long long)step);
    if (strcmp(name.text, latest.text) == 0)
        snprintf(name.text, sizeof name.text, "step_%08lld.1", (long long)step);
    return name;
}

// Renames before it deletes: a crash leaves a .tmp- name, never an incomplete step_ directory.
static bool checkpoint_remove(const char *out, const char *name, Error *err) {
    Path from = path_join(out, name), away = path_join(out, ".tmp-old");
    if (!path_remove(away.text, err)) return false;
    if (rename(from.text, away.text) != 0)
        return errno == ENOENT || fail(err, "%s: cannot remove it: %s", from.text, strerror(errno));
    return path_remove(away.text, err);
}

static double saved_val_loss(const char *out, const char *name) {
    Json json;
    Error err;
    double loss = INFINITY;
    if (!json_open(&json, path_join(out, name).text, "state.json", &err)) return INFINITY;
    if (!json_get_double(&loss, json.root, "val_loss", &err)) loss = INFINITY;
    json_free(&json);
    return loss;
}

static int saved_earlier(const void *a, const void *b) {
    const Saved *x = (const Saved *)a, *y = (const Saved *)b;
    return x->step != y->step ? (x->step > y->step) - (x->step < y->step)
                              : strcmp(x->name.text, y->name.text);
}

// The checkpoints in OUT, in the order of their steps; free(*all) in any case.
static bool checkpoint_list(Saved **all, size_t *n, const char *out, Error *err) {
    size_t room = 0;
    *all = NULL;
    *n = 0;
    DIR *dir = opendir(out);
    if (!dir) return fail(err, "%s: cannot read the directory: %s", out, strerror(errno));
    for (struct dirent *e; (e = readdir(dir)) != NULL; ) {
        if (step_of(e->d_name) < 0) continue;
        *all = (Saved *)grow_or_die(*all, &room, *n + 1, sizeof **all, "a list of checkpoints");
        Saved *s = *all + (*n)++;
        snprintf(s->name.text, sizeof s->name.text, "%.60s", e->d_name);
        s->step = step_of(e->d_name);
        s->val_loss = saved_val_loss(out, s->name.text);
    }
    closedir(dir);
    if (*n > 1) qsort(*all, *n, sizeof **all, saved_earlier);
    return true;
}

size_t checkpoint_best(const Saved *all, size_t n) {
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (all[i].val_loss < (best < n ? all[best].val_loss : INFINITY)) best = i;
    return best;
}

// The best checkpoint in OUT; false if none has a validation loss.
bool checkpoint_best_in(Saved *best, const char *out) {
    Saved *all;
    size_t n;
    Error err;
    checkpoint_list(&all, &n, out, &err);
    size_t i = checkpoint_best(all, n);
    if (i < n) *best = all[i];
    free(all);
    return i < n;
}

// Whether a run can go on from this checkpoint of OUT: all its files are there and whole. (Headers
// and sizes are read; damaged weights are not noticed.)
static bool checkpoint_is_whole(const char *out, const char *name) {
    Checkpoint k;
    Path dir = path_join(out, name);
    Json json;
    TensorFile f;
    Error err;
    int64_t tokens;
    memset(&k, 0, sizeof k);
    if (!checkpoint_config(&k.config, dir.text, &err)) return false;
    bool whole = access(path_join(dir.text, "tokenizer.json").text, F_OK) != 0;
    if (!whole && (whole = json_open(&json, dir.text, "tokenizer.json", &err))) json_free(&json);
    if (!whole || !checkpoint_load_state(&k.state, &json, dir.text, &err)) return false;
    const JsonNode *options = json_get(json.root, "options");
    const JsonNode *optimizer = json_get(options, "optimizer");
    k.sgd = optimizer && json_is(optimizer, "sgd");
    k.averages = json_get_int(&tokens, options, "average_tokens", 1, INT64_MAX, &err);
    json_free(&json);
    for (int file = FILE_OPTIMIZER; whole && file < N_FILES; file++) {
        if (!kept_file_has(&k, file)) continue;
        whole = tensor_file_open(&f, dir.text, (KeptFile)file, k.state.workers, &k.config, &err);
        if (whole) tensor_file_close(&f);
    }
    return whole;
}

bool checkpoint_list_whole(Saved **all, size_t *n, const char *out, Error *err) {
    size_t kept = 0;
    if (!checkpoint_list(all, n, out, err)) return false;
    for (size_t i = 0; i < *n; i++)
        if (checkpoint_is_whole(out, (*all)[i].name.text)) (*all)[kept++] = (*all)[i];
    *n = kept;
    return true;
}

bool checkpoint_of_step(Path *found, const char *out, int64_t step, Error *err) {
    Saved *all;
    size_t n, i = 0, at = 0;
    char names[400] = "none";
    if (!checkpoint_list(&all, &n, out, err)) return false;
    while (i < n && all[i].step != step) i++;
    bool there = i < n;
    if (there) *found = path_join(out, all[i].name.text);
    for (i = 0; i < n && !there && at + 24 < sizeof names; i++)
        if (checkpoint_is_whole(out, all[i].name.text))
            at += (size_t)snprintf(names + at, 24, "%s%lld", at ? ", " : "",
                                   (long long)all[i].step);
    free(all);
    if (there) return true;
    return fail(err, "%s: no checkpoint of step %lld; there are: %s", out, (long long)step, names);
}

// Creates OUT/.tmp-latest: a link, or a file where there are none (Windows, FAT, some shared disks).
static bool link_draft(Path *link, const char *out, const char *name, Error *err) {
    char line[80];
    int n = snprintf(line, sizeof line, "%s\n", name);
    *link = path_join(out, ".tmp-latest");
    if (!path_remove(link->text, err)) return false;
    return symlink(name, link->text) == 0 || file_write(link->text, line, (size_t)n, err);
}

bool link_move(const char *out, const char *link, const char *name, Error *err) {
    Path draft, path = path_join(out, link);
    if (!link_draft(&draft, out, name, err)) return false;
    if (rename(draft.text, path.text) == 0) return dir_sync(out, err);
    fail(err, "%s: cannot be replaced: %s", path.text, strerror(errno));
    unlink(draft.text);
    return false;
}

// Points OUT/best at a checkpoint, or removes it if the name is "". What is not ours stays.
static bool best_move(const char *out, const char *name, Error *err) {
    StepName now = link_name(out, "best");
    Path path = path_join(out, "best");
    struct stat info;
    bool there = lstat(path.text, &info) == 0, theirs = there && step_of(now.text) < 0;
    if (theirs || strcmp(now.text, name) == 0) return true;
    return name[0] ? link_move(out, "best", name, err) : path_remove(path.text, err);
}

bool checkpoint_lock(int *fd, const char *out, Error *err) {
    *fd = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) return fail(err, "%s: cannot open the directory: %s", out, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
    close(*fd);
    *fd = -1;
    return fail(err, "another run is writing to %s; wait until it ends, or stop it", out);
}

// Points OUT/best at the best checkpoint. Then, unless keep is 0, removes those up to this step
// except the newest `keep`, the best of them and OUT/latest.
static bool checkpoint_prune(const char *out, int64_t step, size_t keep, Error *err) {
    Saved *all;
    size_t n;
    bool good = checkpoint_list(&all, &n, out, err);
    size_t best = checkpoint_best(all, n);
    good = good && best_move(out, best < n ? all[best].name.text : "", err);
    while (n > 0 && all[n - 1].step > step) n--;
    best = checkpoint_best(all, n);
    StepName latest = latest_name(out);
    for (size_t i = 0; good && keep > 0 && i + keep < n; i++)
        if (i != best && strcmp(all[i].name.text, latest.text) != 0)
            good = checkpoint_remove(out, all[i].name.text, err);
    free(all);
    return good;
}

// OUT/latest, unless it is neither a link nor a file that names a checkpoint.
static bool latest_is_ours(Path *latest, const char *out, Error *err) {
    struct stat info;
    *latest = path_join(out, "latest");
    return lstat(latest->text, &info) != 0 || S_ISLNK(info.st_mode) || latest_name(out).text[0]
        || fail(err, "%s: not a link of a run; move it away or change --out", latest->text);
}

// Makes OUT/latest the link, or file, that a save can move, before any training. A copy may have
// lost it, and another system may have written the other form; a directory, of a copy that followed
// the link, is refused. If OUT cannot be written, this fails: a save must not be the first to find
// out.
static bool latest_repair(const char *out, Error *err) {
    StepName current = current_name(out);
    Path latest, link;
    if (!latest_is_ours(&latest, out, err)) return false;
    bool works = path_is_dir(latest.text);               // a link
    if (!works && current.text[0]) return link_move(out, "latest", current.text, err);
    return link_draft(&link, out, "none", err) && path_remove(link.text, err);
}

// Whether this program gives a temporary this name: .tmp-old, .tmp-latest, .tmp-step_00001000.
static bool is_temporary(const char *name) {
    return strcmp(name, ".tmp-old") == 0 || strcmp(name, ".tmp-latest") == 0
        || (strncmp(name, ".tmp-", 5) == 0 && step_of(name + 5) >= 0);
}

bool checkpoint_begin(const char *out, Error *err) {
    if (!make_directories(out, err)) return false;
    DIR *dir = opendir(out);
    if (!dir) return fail(err, "%s: cannot read the directory: %s", out, strerror(errno));
    bool good = true;
    for (struct dirent *e; good && (e = readdir(dir)) != NULL; ) {
        if (is_temporary(e->d_name)) good = path_remove(path_join(out, e->d_name).text, err);
    }
    closedir(dir);
    return good && latest_repair(out, err);
}

bool checkpoint_exists(const char *out) {
    return latest_name(out).text[0] || current_name(out).text[0];
}

bool checkpoint_clear(const char *out, Error *err) {
    Path latest;
    Saved *all;
    size_t n;
    bool good = latest_is_ours(&latest, out, err) && path_remove(latest.text, err)
             && best_move(out, "", err) && checkpoint_list(&all, &n, out, err);
    if (!good) return false;
    for (size_t i = 0; good && i < n; i++) good = checkpoint_remove(out, all[i].name.text, err);
    free(all);
    return good;
}

bool checkpoint_save(const char *out, const Checkpoint *k, int keep, Error *err) {
    StepName name = checkpoint_name(out, k->state.step), before = latest_name(out);
    char hidden[80];
    Error later;
    snprintf(hidden, sizeof hidden, ".tmp-%s", name.text);
    Path temporary = path_join(out, hidden), final = path_join(out, name.text);
    bool made = path_remove(temporary.text, err);
    if (made && mkdir(temporary.text, 0777) != 0)
        made = fail(err, "%s: cannot create it: %s", temporary.text, strerror(errno));
    bool written = checkpoint_write_files(made ? temporary.text : NULL, k, err)
                && checkpoint_remove(out, name.text, err);       // an older one of the same step
    if (written && rename(temporary.text, final.text) != 0)
        written = fail(err, "%s: cannot rename it: %s", temporary.text, strerror(errno));
    if (!written) {
        path_remove(temporary.text, &later);
        return false;
    }
    if (k->whole) *k->whole = true;
    if (!dir_sync(out, err) || !link_move(out, "latest", name.text, err)) return false;
    bool again = step_of(before.text) == k->state.step;
    if (again && strcmp(link_name(out, "best").text, before.text) == 0
        && !link_move(out, "best", name.text, err)) return false;
    if (again && !checkpoint_remove(out, before.text, err)) return false;
    return checkpoint_prune(out, k->state.step, (size_t)keep, err);
}

void checkpoint_follow(const Checkpoint *k) {
    Error none;
    checkpoint_write_files(NULL, k, &none);
}
