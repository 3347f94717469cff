// Instructions of a GPU that C++ has no name for: asynchronous copies to shared memory, and those
// of tensor cores. Included by train_gpt2.cu, whose `real` and PRECISION_FP32 it uses. The emulator
// has functions in their place (dev/emulator/tensor_core.h), which say what an instruction does.
//
//     copy_async<16>(to, from, there)         starts a copy; copy_async_commit, copy_async_wait
//     load_matrices<TRANSPOSED>(row)          ldmatrix: four 8x8 matrices, one to a register
//     mma(c, a, b)                            c (16,8) += a (16,16) b (16,8)
//     exp2_fast(x)                            2^x
#pragma once

// Starts to copy BYTES, 8 or 16, to shared memory, or as many zeros. copy_async_commit makes a
// group of the copies that this thread has started; copy_async_wait waits for all groups but LEFT.
template <int BYTES> __device__ inline void copy_async(void *to, const void *from, bool there) {
#if defined(EMULATOR)
    emulated_cp_async(to, from, BYTES, there ? BYTES : 0);
#elif defined(PRECISION_FP32)                    // which GPUs run that do not know cp.async
    static_assert(BYTES == 16, "a pack");
    *(uint4 *)to = there ? *(const uint4 *)from : uint4{ 0, 0, 0, 0 };
#else
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to), n = there ? BYTES : 0;
    if constexpr (BYTES == 16)                   // past the L1 cache; 8 bytes must go through it
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(n));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(at), "l"(from), "r"(n));
#endif
}
__device__ inline void copy_async_commit() {
#if defined(EMULATOR)
    emulated_cp_async_commit();
#elif !defined(PRECISION_FP32)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT> __device__ inline void copy_async_wait() {
#if defined(EMULATOR)
    emulated_cp_async_wait(LEFT);
#elif !defined(PRECISION_FP32)
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
#endif
}

__device__ inline float exp2_fast(float x) {     // exp2f without its care for denormals
#ifdef EMULATOR
    return exp2f(x);
#else
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#endif
}

#ifndef PRECISION_FP32
// What a lane holds of an A, or of two B side by side: see the picture in train_gpt2.cu.
typedef struct { uint32_t x[4]; } Fragment;

// Loads four 8x8 matrices, matrix i to register i. Lane l passes the address of row l%8 of matrix
// l/8, and receives elements 2(l%4) and 2(l%4) + 1 of row l/4, or, transposed, of column l/4.
template <bool TRANSPOSED> __device__ inline Fragment load_matrices(const real *row) {
    Fragment f;
#ifdef EMULATOR
    emulated_ldmatrix_x4<TRANSPOSED>(f.x, row);
#else
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3]) : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3]) : "r"(at));
#endif
    return f;
}

// c (16,8) += a (16,16) b (16,8)
__device__ inline void mma(float c[4], const Fragment &a, const uint32_t b[2]) {
#ifdef EMULATOR
    emulated_mma_m16n8k16(c, a.x, b, c);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b[0]), "r"(b[1]));
#endif
}
#endif
