// Instructions that do more than compute: loads and stores, jumps, barriers, what the lanes of a
// warp do together, tensor cores. The table at the end says which PTX names are known.
#include "interpreter.h"

namespace ptx {

// ---- memory ----

// The address that a lane's [%rd1+16] names.
static uint64_t address_in(const Step &s, int operand, int lane) {
    return s.row(operand)[lane] + (uint64_t)s.i.operands[operand].offset;
}

static uint64_t extended(uint64_t x, Type t) {
    int unused = 64 - 8*size_of(t);
    bool is_signed = t == S8 || t == S16 || t == S32 || t == S64;
    return is_signed ? (uint64_t)((int64_t)(x << unused) >> unused) : x;
}

template <Space SPACE> static void load(Step &s) {
    int size = size_of(s.i.type), parts = (int)s.i.operands[0].rows.size();
    for_lanes(s.lanes, [&](int l) {
        uint8_t *from = address(s, l, SPACE, address_in(s, 1, l), size*parts, READ);
        for (int k = 0; k < parts; k++) {
            uint64_t x = 0;
            memcpy(&x, from + k*size, size);
            s.row(0, k)[l] = extended(x, s.i.type);
        }
    });
}

template <Space SPACE> static void store(Step &s) {
    int size = size_of(s.i.type), parts = (int)s.i.operands[1].rows.size();
    for_lanes(s.lanes, [&](int l) {
        uint8_t *to = address(s, l, SPACE, address_in(s, 0, l), size*parts, WRITE);
        for (int k = 0; k < parts; k++) memcpy(to + k*size, &s.row(1, k)[l], size);
    });
}

// An address within shared memory, from one that may be of any memory.
static void to_shared(Step &s) {
    uint64_t *d = s.row(0), *a = s.row(1), begin = (uint64_t)s.block.shared.data();
    for_lanes(s.lanes, [&](int l) { d[l] = a[l] - begin; });
}
// cp.async [to], [from], bytes, read: of fewer bytes than it writes, the others become zeros.
static void copy_async(Step &s) {
    for_lanes(s.lanes, [&](int l) {
        int bytes = (int)s.row(2)[l], read = s.i.operands.size() > 3 ? (int)s.row(3)[l] : bytes;
        copy_start(s, l, (uint32_t)address_in(s, 0, l), address_in(s, 1, l), bytes, read);
    });
}

static void copies_commit(Step &s) {
    for_lanes(s.lanes, [&](int l) { s.block.threads[s.thread(l)].groups++; });
}

static void copies_wait(Step &s) {
    for_lanes(s.lanes, [&](int l) { copies_finish(s, l, (int)s.row(0)[l]); });
}

// ---- where lanes go: they have been moved to the next instruction already ----

static void branch(Step &s) {
    for_lanes(s.lanes, [&](int l) { s.warp.pc[l] = s.i.target; });
}

static void leave(Step &s) { s.warp.exited |= s.lanes; }

static void barrier(Step &s) {
    int first = __builtin_ctz(s.lanes);
    if (s.i.operands.size() != 1 || s.row(0)[first] != 0)
        fault(s, first, "only bar.sync 0, the __syncthreads of a whole block, is known");
    s.warp.at_barrier |= s.lanes;
}

// ---- collectives: all lanes in s.lanes do them at once ----

static void sync_warp(Step &s) { s.warp.syncs++; }

enum Shuffle { BUTTERFLY, INDEX };

// shfl d|p, a, by, c: c is 31 for shuffles of the whole warp.
template <Shuffle KIND> static void shuffle(Step &s) {
    uint64_t given[32];
    memcpy(given, s.row(1), sizeof given);
    for_lanes(s.lanes, [&](int l) {
        int by = (int)s.row(2)[l] & 31, from = KIND == BUTTERFLY ? l ^ by : by;
        if (s.row(3)[l] != 31) fault(s, l, "a shuffle within segments of a warp is not known");
        if (!(s.lanes >> from & 1)) fault(s, l, "shuffle from lane %d, which takes no part", from);
        s.row(0)[l] = (uint32_t)given[from];
        if (s.i.operands[0].rows.size() > 1) s.row(0, 1)[l] = true;
    });
}

// ---- tensor cores: the PTX manual's pictures of which lane holds which element ----

// Two bf16 share a register, the first one in the lower half.
static float half_of(uint64_t bits, int k) {
    uint32_t b = (uint32_t)(bits >> 16*k) << 16;
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static void whole_warp(const Step &s) {
    if (s.lanes != ~0u) fault(s, __builtin_ctz(s.lanes), "a part of a warp: lanes %08x", s.lanes);
}

// ldmatrix loads 8x8 matrices of 16 bits. Lane 8m + r gives the address of row r of matrix m.
// Lane l receives elements 2(l%4) and 2(l%4) + 1 of row l/4, or, transposed, of column l/4.
template <bool TRANSPOSED> static void load_matrices(Step &s) {
    whole_warp(s);
    uint16_t x[4][8][8];
    for (int l = 0; l < 32; l++)
        memcpy(x[l / 8][l % 8], address(s, l, SHARED, address_in(s, 1, l), 16, READ), 16);
    for (int m = 0; m < 4; m++)
        for (int l = 0; l < 32; l++) {
            int r = l / 4, c = l % 4 * 2;
            uint16_t low = TRANSPOSED ? x[m][c][r] : x[m][r][c];
            uint16_t high = TRANSPOSED ? x[m][c + 1][r] : x[m][r][c + 1];
            s.row(0, m)[l] = low | (uint32_t)high << 16;
        }
}

// mma: D (16,8) = A (16,16) B (16,8) + C. A lane holds 8 elements of A and 4 of the others. Element
// e is in register e/2 of A and of B, and in register e of C and of D.
static int row_of_a(int lane, int e) { return lane/4 + 8*(e/2 % 2); }
static int column_of_a(int lane, int e) { return 2*(lane%4) + e%2 + 8*(e/4); }
static int row_of_b(int lane, int e) { return 2*(lane%4) + e%2 + 8*(e/2); }
static int column_of_b(int lane) { return lane/4; }
static int row_of_c(int lane, int e) { return lane/4 + 8*(e/2); }
static int column_of_c(int lane, int e) { return 2*(lane%4) + e%2; }

static void multiply_matrices(Step &s) {
    whole_warp(s);
    float a[16][16], b[16][8], d[32][4];
    for (int l = 0; l < 32; l++) {
        for (int e = 0; e < 8; e++)
            a[row_of_a(l, e)][column_of_a(l, e)] = half_of(s.row(1, e/2)[l], e%2);
        for (int e = 0; e < 4; e++)
            b[row_of_b(l, e)][column_of_b(l)] = half_of(s.row(2, e/2)[l], e%2);
    }
    for (int l = 0; l < 32; l++)
        for (int e = 0; e < 4; e++) {
            double sum = 0.0;
            for (int k = 0; k < 16; k++)
                sum += (double)a[row_of_c(l, e)][k] * b[k][column_of_c(l, e)];
            memcpy(&d[l][e], &s.row(3, e)[l], sizeof(float));
            d[l][e] = (float)(sum + d[l][e]);
        }
    for (int l = 0; l < 32; l++)
        for (int e = 0; e < 4; e++) {
            s.row(0, e)[l] = 0;
            memcpy(&s.row(0, e)[l], &d[l][e], sizeof(float));
        }
}

const Meaning instructions[] = {
    { "ld.param", load<PARAM> },
    { "ld", load<GENERIC> },
    { "ld.global ld.global.nc", load<GLOBAL> },
    { "ld.shared", load<SHARED> },
    { "st", store<GENERIC> },
    { "st.global", store<GLOBAL> },
    { "st.shared", store<SHARED> },
    { "cvta.to.shared", to_shared },
    { "cp.async.ca.shared.global cp.async.cg.shared.global", copy_async },
    { "cp.async.commit_group", copies_commit },
    { "cp.async.wait_group", copies_wait },

    { "bra bra.uni", branch },
    { "ret exit", leave },
    { "bar.sync barrier.sync", barrier },

    { "bar.warp.sync", sync_warp, 0 },
    { "shfl.sync.bfly", shuffle<BUTTERFLY>, 4 },
    { "shfl.sync.idx", shuffle<INDEX>, 4 },

    { "ldmatrix.sync.aligned.m8n8.x4.shared", load_matrices<false>, WHOLE_WARP },
    { "ldmatrix.sync.aligned.m8n8.x4.trans.shared", load_matrices<true>, WHOLE_WARP },
    { "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", multiply_matrices, WHOLE_WARP },
    { nullptr, nullptr },
};

}  // namespace ptx
