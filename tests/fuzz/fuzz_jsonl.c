// Documents from JSON lines, with a buffer that has to grow. What is accepted has one document a
// line that is not blank, in UTF-8; what is refused names the file.
#define PROGRAM "fuzz_jsonl"
#define JSONL_BLOCK 8u
#define JSONL_LINE_MOST 512u
#include <assert.h>
#include "../../dev/data/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Jsonl j = { .key = "text" };
    const JsonNode *text;
    Error err;
    size_t lines = 1, documents = 0;
    bool good;
    FILE *f = size ? fmemopen((void *)(uintptr_t)data, size, "rb") : NULL;
    if (!f) return 0;
    for (size_t i = 0; i < size; i++) lines += data[i] == '\n';
    jsonl_begin(&j, f, "input");
    while ((good = jsonl_next(&j, &text, &err)) && text) {
        for (size_t i = 0, n; i < text->length; i += n) {
            n = utf8_length((const unsigned char *)text->text + i, text->length - i);
            assert(n > 0);
        }
        documents++;
    }
    assert(documents <= lines && j.line <= lines && j.capacity <= JSONL_LINE_MOST);
    assert(good || strncmp(err.text, "input: ", 7) == 0);
    jsonl_free(&j);
    fclose(f);
    return 0;
}
