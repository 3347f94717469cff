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

// ---- tensor cores: ../tensor_core.h says which lane holds which element ----

static void whole_warp(const Step &s) {
    if (s.lanes != ~0u) fault(s, __builtin_ctz(s.lanes), "a part of a warp: lanes %08x", s.lanes);
}

template <bool TRANSPOSED> static void load_matrices(Step &s) {
    uint32_t r[32][4];
    emulator::LoadMatrix of_lane[32];
    void *operands[32];
    whole_warp(s);
    for (int l = 0; l < 32; l++) {
        of_lane[l] = { r[l], address(s, l, SHARED, address_in(s, 1, l), 16, READ), TRANSPOSED };
        operands[l] = &of_lane[l];
    }
    emulator::ldmatrix_combine(operands, s.lanes);
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < 4; m++) s.row(0, m)[l] = r[l][m];
}

static void multiply_matrices(Step &s) {
    uint32_t a[32][4], b[32][2];
    float c[32][4];
    emulator::Mma of_lane[32];
    void *operands[32];
    whole_warp(s);
    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < 4; i++) a[l][i] = (uint32_t)s.row(1, i)[l];
        for (int i = 0; i < 2; i++) b[l][i] = (uint32_t)s.row(2, i)[l];
        for (int i = 0; i < 4; i++) memcpy(&c[l][i], &s.row(3, i)[l], sizeof(float));
        of_lane[l] = { {}, a[l], b[l], c[l] };
        operands[l] = &of_lane[l];
    }
    emulator::mma_combine(operands, s.lanes);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            s.row(0, i)[l] = 0;
            memcpy(&s.row(0, i)[l], &of_lane[l].d[i], sizeof(float));
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
