// How many rows of logits a GPU's classifier computes at a time.
//
// The logits of all N tokens would be the largest array of the model: for GPT-2 and 64 sequences of
// 1024 tokens 6.6 GB in bf16. So they are computed in chunks of rows. Every chunk but the last has
// its products fill whole waves: a GPU divides the result of a product into tiles, mostly of 128 x
// 256, and its multiprocessors compute a wave of them at a time, one each. If the last wave has few
// tiles, most multiprocessors wait for those. The product with few tiles is the gradient of the
// classifier's input, (rows,C). With C = 768 and 132 multiprocessors, an H100's:
//
//     3 tiles lie side by side, so a wave is 44 tiles high, which are 5,632 rows of logits
//     two waves are 11,264 rows, 1.13 GB; a third would pass LOGITS_BYTES
//     65,536 rows are 5 chunks of two waves, and 9,216 rows that take two waves: 12 waves
//     7 chunks of equal size, 9,363 rows below 1 GB, would take 14; all rows at once, 12
//
// Beyond that a chunk only costs one more addition to the classifier's fp32 gradient, 0.3 GB of
// traffic, so larger chunks would save little. The order of the sums in that gradient depends on
// the chunks: GPUs with other numbers of multiprocessors give other last bits.
#pragma once
#include <stddef.h>

enum { LOGITS_BYTES = 5 << 28 };       // most bytes of a chunk: 1.25 GiB
enum { TILE_ROWS = 128, TILE_COLUMNS = 256 };

// Rows of a chunk of logits (N,V) of `bytes` each, from inputs (N,C). If not even one wave fits, or
// the number of multiprocessors is not known (0), chunks have equal size.
static inline size_t logits_chunk_rows(size_t N, size_t V, size_t C, size_t bytes,
                                       int multiprocessors) {
    size_t most = LOGITS_BYTES / (V*bytes), at_once = (size_t)multiprocessors;
    if (most < 1) most = 1;
    if (N <= most) return N;
    size_t across = (C + TILE_COLUMNS - 1) / TILE_COLUMNS;
    size_t waves = at_once > 0 ? most / TILE_ROWS * across / at_once : 0;
    size_t rows = waves * at_once / across / 2 * (2*TILE_ROWS);      // or tiles of 256 x 128
    if (rows > 0) return rows;
    size_t chunks = (N + most - 1) / most;
    return (N + chunks - 1) / chunks;
}
