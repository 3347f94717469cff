// Files: reading by mmap, and writing with fsync so that the data survives a crash; and the numbers
// in them (files.h).
#include "files.h"
#include <sys/mman.h>
#include <sys/stat.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are used in the byte order of the file, little-endian; this machine is big-endian"
#endif

Path path_join(const char *dir, const char *name) {
    Path path;
    int n = snprintf(path.text, sizeof path.text, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path.text)
        die("%.80s...: the path is longer than %zu bytes", dir, sizeof path.text - 1);
    return path;
}

// ---- reading ----

const char *file_kind(const unsigned char *bytes, size_t n) {
    static const char *const kinds[][2] = {
        { "<", "a web page (HTML): the download failed" },
        { "version https://git-lfs", "a Git LFS pointer; `git lfs pull` fetches the file" },
        { "\x1f\x8b", "a gzip file; gunzip it first" },
        { "\xFD""7zXZ", "an xz file; unxz it first" },
        { "(\xB5/\xFD", "a zstd file; unzstd it first" },
        { "BZh91AY&SY", "a bzip2 file; bunzip2 it first" },
        { "PK\x03\x04", "a zip or PyTorch archive (docx, epub); unzip it, or export its text" },
        { "%PDF-", "a PDF; pdftotext writes its text" },
        { "PAR1\x15", "a Parquet file; export its column of texts as JSON lines" },
        { "\x80\x02", "a Python pickle" },
        { "\x80\x04", "a Python pickle" },
        { "GGUF\x02", "a GGUF file" },
        { "GGUF\x03", "a GGUF file" },
        { "\x93NUMPY", "a NumPy array" },
        { "\x88\xD8\x34\x01", "a shard of tokens; train_gpt2 --train FILE --val FILE reads it" },
        { "\xA1\xD9\x34\x01", "a shard of Llama 3's tokens (llm.c), 4 bytes each; `prepare text` "
                              "writes shards with 2" },
        { "\xC6\xD7\x34\x01", "a model of llm.c; train_gpt2 --init FILE reads it" },
        { "\xC8\xD7\x34\x01", "a tokenizer of llm.c; dev/data/fetch.sh vocabulary fetches "
                              "GPT-2's in another format" },
        { "\xFF\xFE", "UTF-16 (or UTF-32); `iconv -f UTF-16 -t UTF-8` converts it" },
        { "\xFE\xFF", "UTF-16 (or UTF-32); `iconv -f UTF-16 -t UTF-8` converts it" },
    };
    if (n >= 262 && memcmp(bytes + 257, "ustar", 5) == 0) return "a tar archive; unpack it first";
    while (n > 0 && (*bytes == ' ' || *bytes == '\n' || *bytes == '\r' || *bytes == '\t'))
        bytes++, n--;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i][0]);
        if (n >= length && memcmp(bytes, kinds[i][0], length) == 0) return kinds[i][1];
    }
    return NULL;
}

// SIGBUS: a page of a mapped file cannot be read. Ends the program as die() does, but with what a
// signal handler may call.
static void on_lost_page(int signal_number) {
    static const char line[] = ": shards or weights: the file shrank while it was in use, or its "
                               "disk failed\n";
    (void)signal_number;
    if (launched_as(LAUNCH_RANK, 0) > 0) sleep(2);
    bool said = write(STDERR_FILENO, *program_name(), strlen(*program_name())) > 0
             && write(STDERR_FILENO, line, sizeof line - 1) > 0;
    if (*die_last()) (*die_last())();
    _exit(said ? 1 : 2);
}

const unsigned char *map_bytes(int fd, size_t n, const char *path, Error *err) {
    void *map = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
    signal(SIGBUS, on_lost_page);
    if (map != MAP_FAILED) return (const unsigned char *)map;
    fail(err, "%s: cannot map it: %s", path, strerror(errno));
    return NULL;
}

void unmap_bytes(const unsigned char *bytes, size_t n) { munmap((void *)(uintptr_t)bytes, n); }

bool file_map(FileMap *m, const char *path, Error *err) {
    m->bytes = NULL;
    m->n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);      // do not wait on a named pipe
    if (fd < 0) return fail(err, "%s: cannot open it: %s", path, strerror(errno));
    struct stat info;
    if (fstat(fd, &info) != 0) {
        fail(err, "%s: cannot read it: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        fail(err, "%s: not a file", path);
    } else if (info.st_size == 0) {
        fail(err, "%s: the file is empty", path);
    } else {
        m->n = (size_t)info.st_size;
        m->bytes = map_bytes(fd, m->n, path, err);
    }
    close(fd);                                                   // the mapping stays valid
    return m->bytes != NULL;
}

void file_unmap(FileMap *m) {
    if (m->bytes) unmap_bytes(m->bytes, m->n);
    m->bytes = NULL;
    m->n = 0;
}

char *file_read(size_t *n, const char *path, Error *err) {
    bool dash = strcmp(path, "-") == 0;
    FILE *f = dash ? stdin : fopen(path, "rb");
    char *text = NULL;
    size_t room = 0;
    *n = 0;
    if (!f) {
        fail(err, "%s: cannot open it: %s", path, strerror(errno));
        return NULL;
    }
    do {
        text = (char *)grow_or_die(text, &room, *n + 1, 1, "a text");
        *n += fread(text + *n, 1, room - *n, f);
    } while (*n == room);
    text[*n] = '\0';
    if (ferror(f)) {
        fail(err, "%s: cannot be read: %s", dash ? "standard input" : path, strerror(errno));
        free(text);
        text = NULL;
    }
    if (!dash) fclose(f);
    return text;
}

// ---- writing: bytes are safe only when the file and then its directory have been synced ----

int file_create(const char *path, Error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) fail(err, "%s: cannot create it: %s", path, strerror(errno));
    return fd;
}

bool file_put(int fd, const void *data, size_t n, const char *path, Error *err) {
    const char *p = (const char *)data;
    while (n > 0) {
        ssize_t written = write(fd, p, n);
        if (written < 0 && errno == EINTR) continue;             // interrupted by a signal
        if (written < 0) return fail(err, "%s: cannot write it: %s", path, strerror(errno));
        p += written;
        n -= (size_t)written;
    }
    return true;
}

bool file_close(int fd, const char *path, Error *err) {
    bool synced = fsync(fd) == 0;
    int why = errno;
    bool closed = close(fd) == 0;
    if (synced && !closed) why = errno;
    return (synced && closed) || fail(err, "%s: cannot write it: %s", path, strerror(why));
}

bool file_write(const char *path, const void *data, size_t n, Error *err) {
    int fd = file_create(path, err);
    if (fd < 0) return false;
    bool put = file_put(fd, data, n, path, err);
    Error later;
    return file_close(fd, path, put ? err : &later) && put;
}

bool dir_sync(const char *dir, Error *err) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail(err, "%s: cannot open it: %s", dir, strerror(errno));
    bool synced = fsync(fd) == 0 || errno == EINVAL;             // EINVAL: not supported here
    if (!synced) fail(err, "%s: cannot write it: %s", dir, strerror(errno));
    close(fd);
    return synced;
}

int file_begin(Path *temporary, const char *path, Error *err) {
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return fail(err, "%s: not a file, and it would be replaced", path), -1;
    snprintf(temporary->text, sizeof temporary->text, "%s.tmp", path);
    unlink(temporary->text);                             // a killed program has left it
    return file_create(temporary->text, err);
}

bool file_end(int fd, const Path *temporary, const char *path, bool put, Error *err) {
    Path dir;
    Error later;
    bool good = file_close(fd, temporary->text, put ? err : &later) && put;
    if (good && rename(temporary->text, path) != 0)
        good = fail(err, "%s: cannot be renamed to %s: %s", temporary->text, path, strerror(errno));
    if (!good) unlink(temporary->text);
    snprintf(dir.text, sizeof dir.text, "%s", path);
    char *slash = strrchr(dir.text, '/');
    if (slash) slash[1] = '\0';
    return good && dir_sync(slash ? dir.text : ".", err);
}

bool path_remove(const char *path, Error *err) {
    if (unlink(path) == 0 || errno == ENOENT) return true;
    int why = errno;
    DIR *dir = opendir(path);
    bool file = errno == ENOTDIR || errno == ENOENT;         // as Windows says it
    if (!dir) return fail(err, "%s: cannot remove it: %s", path, strerror(file ? why : errno));
    bool removed = true;
    for (struct dirent *e; removed && (e = readdir(dir)) != NULL; ) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        removed = path_remove(path_join(path, e->d_name).text, err);
    }
    closedir(dir);
    if (removed && rmdir(path) != 0)
        return fail(err, "%s: cannot remove it: %s", path, strerror(errno));
    return removed;
}

bool make_directories(const char *path, Error *err) {
    char part[4096];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) return fail(err, "'%.40s': not a usable path", path);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        struct stat info;
        if (mkdir(part, 0777) == 0) continue;
        int why = errno;                         // stat changes errno
        if (lstat(part, &info) == 0 && S_ISLNK(info.st_mode) && stat(part, &info) != 0)
            return fail(err, "%s: a symbolic link whose target does not exist; create the target, "
                        "or remove the link", part);
        if (stat(part, &info) != 0)
            return fail(err, "%s: cannot create the directory: %s", part, strerror(why));
        if (!S_ISDIR(info.st_mode)) return fail(err, "%s: a file with this name exists", part);
    }
    return true;
}

// ---- floating-point elements ----

size_t float_bytes(FloatType type) { return type == FLOAT_32 ? 4 : 2; }

float float_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float float_from_bf16(uint16_t h) { return float_from_bits((uint32_t)h << 16); }

float float_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 0) {                                 // zero or subnormal: fraction * 2^-24
        float x = (float)fraction * 0x1.0p-24f;
        return sign ? -x : x;
    }
    if (exponent == 31) return float_from_bits(sign | 0x7F800000u | fraction << 13);
    return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t f16_from_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000) return (uint16_t)(sign | 0x7E00);                 // NaN
    if (size >= 0x47800000) return (uint16_t)(sign | 0x7C00);                // 65,536 and more
    if (size < 0x38800000)                               // subnormal: a multiple of 2^-24
        return (uint16_t)(sign | (uint32_t)lrintf(fabsf(x) * 0x1.0p24f));
    uint32_t rounded = size + 0xFFF + (size >> 13 & 1);  // may carry into the exponent, rightly
    return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}

// ---- arrays; those in a file need not be aligned ----

static float float_at(const unsigned char *in, size_t i, FloatType type) {
    uint16_t half;
    float x;
    if (type == FLOAT_32) {
        memcpy(&x, in + 4*i, sizeof x);
        return x;
    }
    memcpy(&half, in + 2*i, sizeof half);
    return type == FLOAT_BF16 ? float_from_bf16(half) : float_from_f16(half);
}

void floats_read(float *out, const unsigned char *in, size_t n, FloatType type) {
    if (type == FLOAT_32) memcpy(out, in, n * sizeof *out);
    else for (size_t i = 0; i < n; i++) out[i] = float_at(in, i, type);
}

void floats_transpose(float *out, const unsigned char *in, size_t rows, size_t cols,
                      FloatType type) {
    enum { SQUARE = 32 };
    for (size_t r0 = 0; r0 < rows; r0 += SQUARE)
        for (size_t c0 = 0; c0 < cols; c0 += SQUARE)
            for (size_t r = r0; r < rows && r < r0 + SQUARE; r++)
                for (size_t c = c0; c < cols && c < c0 + SQUARE; c++)
                    out[r*cols + c] = float_at(in, c*rows + r, type);
}
