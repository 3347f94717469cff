// Tensor cores and their operands: plain C++ in place of the PTX instructions mma.sync, ldmatrix
// and cp.async, for the `#ifdef EMULATOR` side of a trainer's wrappers. mma and ldmatrix are warp
// collectives: all 32 lanes call them together, and each lane holds a few elements of every matrix,
// its fragment, as the PTX manual defines it (section "Matrix fragments for mma.m16n8k16"). Lane l
// is number q = l%4 of quad g = l/4. Two bf16 share a 32-bit register, the first in the low half.
//
//     A (16,16), 4 registers             B (16,8), 2 registers        C, D (16,8), 4 floats
//     a[0]  A[g  ][2q],   A[g  ][2q+1]   b[0]  B[2q  ][g], B[2q+1][g]   c[0]  C[g  ][2q]
//     a[1]  A[g+8][2q],   A[g+8][2q+1]   b[1]  B[2q+8][g], B[2q+9][g]   c[1]  C[g  ][2q+1]
//     a[2]  A[g  ][2q+8], A[g  ][2q+9]                                  c[2]  C[g+8][2q]
//     a[3]  A[g+8][2q+8], A[g+8][2q+9]                                  c[3]  C[g+8][2q+1]
#pragma once
#include "warp.h"

namespace emulator {

inline float bf16_half(uint32_t pair, int half) {
    uint32_t bits = half ? pair & 0xFFFF0000u : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

inline void require_all_lanes(unsigned lanes, const char *call) {
    if (lanes != ALL_LANES) fail("%s by lanes %08x: it needs all 32 lanes of a warp", call, lanes);
}

// ---- mma: D = A*B + C, bf16 products summed in fp32 ----

struct Mma { float d[4]; const uint32_t *a, *b; const float *c; };

EMULATOR_UNCOUNTED inline void mma_combine(void **operands, unsigned lanes) {
    require_all_lanes(lanes, "mma");
    float A[16][16], B[16][8], D[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const Mma *m = (const Mma *)operands[lane];
        int g = lane / 4, q = lane % 4;
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 4; i++) A[g + i%2*8][2*q + i/2*8 + half] = bf16_half(m->a[i], half);
            for (int i = 0; i < 2; i++) B[2*q + i*8 + half][g] = bf16_half(m->b[i], half);
            for (int i = 0; i < 2; i++) D[g + i*8][2*q + half] = m->c[i*2 + half];
        }
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int col = 0; col < 8; col++) D[row][col] += A[row][k] * B[k][col];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            ((Mma *)operands[lane])->d[i] = D[lane/4 + i/2*8][lane%4*2 + i%2];
}

// ---- ldmatrix: 8x8 matrices of bf16 from shared memory ----

struct LoadMatrix { uint32_t *r; const void *row; bool transposed; };

// Lane l passes the address of row l%8 of matrix l/8; a row has 16 bytes. Lane l receives elements
// (l/4, 2*(l%4)) and (l/4, 2*(l%4) + 1), a fragment as mma expects it; with .trans, those of the
// transposed matrix.
EMULATOR_UNCOUNTED inline void ldmatrix_combine(void **operands, unsigned lanes) {
    require_all_lanes(lanes, "ldmatrix");
    for (int i = 0; i < 4; i++) {
        uint16_t M[8][8];
        for (int row = 0; row < 8; row++)
            memcpy(M[row], ((LoadMatrix *)operands[i*8 + row])->row, sizeof M[row]);
        for (int lane = 0; lane < 32; lane++) {
            LoadMatrix *to = (LoadMatrix *)operands[lane];
            int g = lane / 4, c = lane % 4 * 2;
            uint16_t low = to->transposed ? M[c][g] : M[g][c];
            uint16_t high = to->transposed ? M[c + 1][g] : M[g][c + 1];
            to->r[i] = (uint32_t)high << 16 | low;
        }
    }
}

// The bytes at p must lie in one __shared__ variable, aligned to their count.
EMULATOR_APART inline void check_shared(const void *p, size_t bytes, Place here) {
    const char *begin = (const char *)p;
    if ((uintptr_t)p % bytes)
        fail("%s: address %p is not a multiple of %zu, %s:%d", here.call, p, bytes, here.file,
             here.line);
    for (int i = 0; i < worker.shared_count; i++) {
        const char *data = (const char *)worker.shared[i].data;
        if (begin >= data && begin + bytes <= data + worker.shared[i].bytes) return;
    }
    fail("%s: the %zu bytes at %p are not in shared memory, %s:%d", here.call, bytes, p, here.file,
         here.line);
}

// ---- cp.async: copies from global to shared memory while the thread goes on ----

inline Copy *copies_of(const Fiber *f) { return worker.copies + index_of(f)*MAX_COPIES; }

}  // namespace emulator

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32; d may be c.
inline void emulated_mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                  const float c[4], EMULATOR_HERE) {
    emulator::Mma m = { {}, a, b, c };
    emulator::count_call(emulator::MMA);
    emulator::collective(emulator::ALL_LANES, &m, emulator::mma_combine, { "mma", file, line });
    memcpy(d, m.d, sizeof m.d);
}

// ldmatrix.sync.aligned.m8n8.x4.shared.b16, without and with .trans: four matrices.
template <bool TRANSPOSED = false>
inline void emulated_ldmatrix_x4(uint32_t r[4], const void *row, EMULATOR_HERE) {
    emulator::Place here = { TRANSPOSED ? "ldmatrix.x4.trans" : "ldmatrix.x4", file, line };
    emulator::LoadMatrix l = { r, row, TRANSPOSED };
    emulator::check_shared(row, 16, here);
    emulator::count_ldmatrix(row);
    emulator::collective(emulator::ALL_LANES, &l, emulator::ldmatrix_combine, here);
}

// cp.async of 4, 8 or 16 bytes: the first `read` are copied, the rest become zeros. It takes place
// in the wait and not before, so a kernel that forgets to wait reads the old contents.
inline void emulated_cp_async(void *to, const void *from, int bytes, int read, EMULATOR_HERE) {
    emulator::check_shared(to, (size_t)bytes, { "cp.async", file, line });
    if ((uintptr_t)from % (uintptr_t)bytes)
        emulator::fail("cp.async: address %p is not a multiple of %d, %s:%d", from, bytes, file,
                       line);
    emulator::Fiber *me = emulator::worker.current;
    if (me->copy_count == emulator::MAX_COPIES)
        emulator::fail("cp.async: more than %d pending copies", emulator::MAX_COPIES);
    emulator::copies_of(me)[me->copy_count++] = { to, from, bytes, read, me->copy_group };
    emulator::count_copy(to, from, bytes, read);
}
// cp.async.commit_group; .wait_group N: all groups but the last N are done.
inline void emulated_cp_async_commit(void) { emulator::worker.current->copy_group++; }
EMULATOR_APART inline void emulated_cp_async_wait(int groups) {
    emulator::Fiber *me = emulator::worker.current;
    emulator::Copy *copies = emulator::copies_of(me);
    int left = 0;
    for (int i = 0; i < me->copy_count; i++) {
        emulator::Copy c = copies[i];
        if (c.group >= me->copy_group - groups) {
            copies[left++] = c;
        } else {
            memset(c.to, 0, (size_t)c.bytes);
            if (c.read) memcpy(c.to, c.from, (size_t)c.read);
        }
    }
    me->copy_count = left;
}
