// Whatever the bytes: no crash, and every tensor of an accepted file can be read in full.
//
// A file begins with the length of its header, which no longer fits when a fuzzer inserts a byte.
// So an input that begins with the header's bracket gets its length put before it; the header then
// ends at the first NUL, and the tensors' bytes follow.
#include "../../dev/files/checkpoint.c"
#include "../../dev/files/weights.c"
#include "../../dev/files/safetensors.c"

// As one of a checkpoint's files, of the smallest model, with one worker.
static void check_kept(const SafeTensors *s, KeptFile file) {
    const Config c = { 1, 1, 2, 3, 2, 0 };
    TensorFile f;
    Error err;
    float numbers[100];
    if (gpt2_largest_bucket(&c) > sizeof numbers / sizeof *numbers) abort();
    memset(&f, 0, sizeof f);
    f.s = *s;
    f.config = c;
    f.first = kept_file_first(file, 1);
    f.end = kept_file_first(file + 1, 1);
    if (tensor_file_check(&f, &err) && tensor_file_check_others(&f, &err))
        for (int i = f.first; i < f.end; i++)
            for (int b = 0; b < gpt2_n_buckets(&c); b++)
                tensor_file_bucket(numbers, &f, series_at(i).what, series_at(i).worker, b);
    free(f.tensors);
}

static void check_file(const unsigned char *bytes, size_t n) {
    SafeTensors s;
    Error err;
    if (!safetensors_parse(&s, bytes, n, &err)) return;
    for (size_t i = 0; i < s.n_tensors; i++) {
        float *values = (float *)malloc(s.tensors[i].count * sizeof(float) + 1);
        if (values) safetensors_read(values, &s.tensors[i], &err);
        free(values);
    }
    for (int file = 0; file < N_FILES; file++) check_kept(&s, (KeptFile)file);
    safetensors_close(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0 || data[0] != '{') {
        check_file(data, size);
        return 0;
    }
    const uint8_t *nul = (const uint8_t *)memchr(data, 0, size);
    uint64_t length = nul ? (uint64_t)(nul - data) : size;
    size_t rest = nul ? size - length - 1 : 0;
    unsigned char *bytes = (unsigned char *)malloc(8 + length + rest);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, data, length);
    if (rest) memcpy(bytes + 8 + length, nul + 1, rest);
    check_file(bytes, 8 + length + rest);
    free(bytes);
    return 0;
}
