// The variants of attention's kernels, which compute the same in other steps. Included by
// train_gpt2.cu behind them. The tuner times a kernel's variants at the shape of the run, and takes
// the fastest (tune.h).
//
// The backward kernels add in the same order in all variants; forward, AT_ONCE decides the bits.

// A step of the forward pass in pieces of AT_ONCE keys. While the tensor cores compute the scores
// of a piece, other units compute the softmax of the piece before: nothing makes one wait for the
// other. Two pieces of scores are in registers at a time.
template <class V>
__device__ inline void attend_by_pieces(SoftmaxState<V> &w, const Fragment q[][V::D/16],
                                        const real *k_tile, const real *v_tile, int col, int row,
                                        float scale) {
    const int PIECES = V::STEP / V::AT_ONCE;
    Square s[2][V::AT_ONCE/16][V::M];
    scores<V>(s[0], q, k_tile);
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        int c = p*V::AT_ONCE, next = c + V::AT_ONCE;
        if (p + 1 < PIECES) scores<V>(s[(p + 1) % 2], q, k_tile + next*V::LENGTH);
        mask_later<V>(s[p % 2], col + c, row);
        softmax_step<V>(s[p % 2], w.hi, w.sum, w.o, scale);
        accumulate<V>(w.o, s[p % 2], v_tile + c*V::LENGTH);
    }
}

// ---- launchers of a variant ----

// False, and nothing done, if this GPU has too little shared memory.
template <class Kernel, class... Arguments>
static bool tiles_launch(Kernel *kernel, dim3 blocks, int bytes, cudaStream_t stream,
                         Arguments... arguments) {
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)
        != cudaSuccess) return cudaGetLastError(), false;    // LAUNCH_CHECK would report it
    kernel<<<blocks, 32*WARPS, bytes, stream>>>(arguments...);
    LAUNCH_CHECK();
    return true;
}

template <class V>
static bool attention_forward_tiles(real *out, float *lse, const real *qkv,
                                    int B, int T, int first, int C, int NH, cudaStream_t stream) {
    int tiles = (int)blocks_for(T, V::ROWS) - first/V::ROWS;
    int bytes = (V::ROWS + 2*V::STAGES*V::STEP) * V::LENGTH * (int)sizeof(real);
    return tiles_launch(attention_forward_kernel<V>, dim3(B*NH, tiles), bytes, stream,
                        out, lse, qkv, T, first, C, NH);
}

template <class V> static int backward_bytes() {
    int rows = V::ROWS + V::STAGES*V::STEP;
    return 2*rows*V::LENGTH * (int)sizeof(real) + V::STAGES*V::STEP * (int)sizeof(float2);
}

//   partials: NULL, or scratch for the sums of dq's rows (*parts,C)
template <class V>
static bool attention_dq_tiles(real *dqkv, float *partials, int *parts, const float2 *rows,
                               const real *dout, const real *qkv, int B, int T, int C, int NH,
                               cudaStream_t stream) {
    int tiles = (int)blocks_for(T, V::ROWS);
    *parts = B*tiles;
    return tiles_launch(attention_dq_kernel<V>, dim3(B*NH, tiles), backward_bytes<V>(), stream,
                        dqkv, partials, rows, dout, qkv, T, C, NH);
}

//   the same for dk and dv (*parts,2,C)
template <class V>
static bool attention_dk_dv_tiles(real *dqkv, float *partials, int *parts, const float2 *rows,
                                  const real *dout, const real *qkv, int B, int T, int C, int NH,
                                  cudaStream_t stream) {
    int tiles = (int)blocks_for(T, V::ROWS);
    *parts = B*tiles;
    return tiles_launch(attention_dk_dv_kernel<V>, dim3(B*NH, tiles), backward_bytes<V>(), stream,
                        dqkv, partials, rows, dout, qkv, T, C, NH);
}

// ---- the variants ----

// A list for heads of up to 32, 64 and 128 channels each. The first variant is the default, and is
// never changed; NULL ends the others. Whoever changes or moves one of the others raises
// VARIANTS_VERSION, so that older choices are not taken. README.md has their registers and shared
// memory.
#define FORWARD_TILES(...) attention_forward_tiles<Tile<__VA_ARGS__>>
#define DQ_TILES(...) attention_dq_tiles<Tile<__VA_ARGS__>>
#define DK_DV_TILES(...) attention_dk_dv_tiles<Tile<__VA_ARGS__>>

enum { MAX_VARIANTS = 6, VARIANTS_VERSION = 1 };

// D, M, STEP, STAGES, AT_ONCE, BLOCKS (2)
typedef decltype(&FORWARD_TILES(64, 2, 64, 2, 64)) ForwardTiles;
static const ForwardTiles forward_variants[][MAX_VARIANTS] = {
    { FORWARD_TILES(32, 2, 64, 2, 64) },
    { FORWARD_TILES(64, 2, 64, 2, 64),
      FORWARD_TILES(64, 2, 64, 3, 64),           // three stages
      FORWARD_TILES(64, 1, 64, 2, 64, 3),        // fewer queries a warp, more warps
      FORWARD_TILES(64, 1, 64, 2, 32, 3),        // the next scores beside this softmax
      FORWARD_TILES(64, 1, 128, 2, 64) },        // longer steps, the next scores beside the softmax
    { FORWARD_TILES(128, 1, 32, 2, 32),
      FORWARD_TILES(128, 1, 32, 3, 32),          // three stages
      FORWARD_TILES(128, 1, 64, 2, 64),          // longer steps
      FORWARD_TILES(128, 1, 64, 2, 32) },        // and the next scores beside this softmax
};

typedef decltype(&DQ_TILES(64, 2, 64, 2, 16)) BackwardTiles;
static const BackwardTiles dq_variants[][MAX_VARIANTS] = {
    { DQ_TILES(32, 2, 64, 2, 16) },
    { DQ_TILES(64, 2, 64, 2, 16),
      DQ_TILES(64, 2, 64, 3, 16),                // three stages
      DQ_TILES(64, 2, 64, 2, 32),                // two squares of scores at a time
      DQ_TILES(64, 1, 64, 2, 32, 3) },           // fewer queries a warp, more warps
    { DQ_TILES(128, 1, 32, 2, 16),
      DQ_TILES(128, 1, 32, 3, 16),
      DQ_TILES(128, 1, 32, 2, 32) },
};
static const BackwardTiles dk_dv_variants[][MAX_VARIANTS] = {
    { DK_DV_TILES(32, 2, 64, 2, 16) },
    { DK_DV_TILES(64, 2, 64, 2, 16),
      DK_DV_TILES(64, 2, 64, 3, 16),             // three stages
      DK_DV_TILES(64, 2, 128, 2, 16),            // longer steps
      DK_DV_TILES(64, 1, 64, 2, 16, 3),          // fewer keys a warp, more warps
      DK_DV_TILES(64, 1, 64, 2, 32) },           // and two squares of scores at a time
    { DK_DV_TILES(128, 1, 32, 2, 16),
      DK_DV_TILES(128, 1, 32, 3, 16),
      DK_DV_TILES(128, 1, 32, 2, 32) },
};

// The variants for heads of HS channels.
template <class Tiles>
static const Tiles *variants_for(const Tiles variants[][MAX_VARIANTS], int HS) {
    return variants[HS <= 32 ? 0 : HS <= 64 ? 1 : 2];
}

template <class Tiles> static int variants_count(const Tiles *of) {
    int n = 0;
    while (n < MAX_VARIANTS && of[n]) n++;
    return n;
}

// Runs a kernel of attention, in the variant that was chosen for this shape.
template <class Tiles, class... Arguments>
static void attention_tiles(const Tiles variants[][MAX_VARIANTS], AttentionKernel kernel,
                            AttentionShape s, Gpu *g, Arguments... arguments) {
    const Tiles *of = variants_for(variants, s.HS);
    variant_run(kernel, s, VARIANTS_VERSION, variants_count(of), g,
                [&](int i) { return of[i](arguments...); });
}
