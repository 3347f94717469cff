// Vectors that are copied whole. A GPU moves a float4 with one instruction. A C++ compiler may
// split the copy into four, and drop those that nobody reads. The counters of make profile
// (count.h) would then count what no GPU does. So in that build a copy passes through a register
// that the compiler cannot see into.
#pragma once
#ifdef EMULATOR_COUNT

namespace emulator {

typedef float Word128 __attribute__((vector_size(16), may_alias));
typedef uint64_t __attribute__((may_alias)) Word64;
typedef uint32_t __attribute__((may_alias)) Word32;
typedef uint16_t __attribute__((may_alias)) Word16;

#if defined(__x86_64__)
inline Word128 opaque(Word128 x) { asm("" : "+x"(x)); return x; }
#elif defined(__aarch64__)
inline Word128 opaque(Word128 x) { asm("" : "+w"(x)); return x; }
#else
inline Word128 opaque(Word128 x) { asm("" : "+m"(x)); return x; }
#endif
inline Word64 opaque(Word64 x) { asm("" : "+r"(x)); return x; }
inline Word32 opaque(Word32 x) { asm("" : "+r"(x)); return x; }
inline Word16 opaque(Word16 x) { asm("" : "+r"(x)); return x; }

template <class Word> inline void copy_words(void *to, const void *from, size_t n) {
    for (size_t i = 0; i < n; i++) ((Word *)to)[i] = opaque(((const Word *)from)[i]);
}

template <size_t BYTES> inline void copy_whole(void *to, const void *from) {
    if constexpr (BYTES % 16 == 0) copy_words<Word128>(to, from, BYTES / 16);
    else if constexpr (BYTES == 8) copy_words<Word64>(to, from, 1);
    else if constexpr (BYTES == 4) copy_words<Word32>(to, from, 1);
    else copy_words<Word16>(to, from, BYTES / 2);
}

}  // namespace emulator

#define EMULATOR_COPIED_WHOLE(name) \
    name(const name &from) { emulator::copy_whole<sizeof(name)>(this, &from); } \
    name &operator=(const name &from) { \
        emulator::copy_whole<sizeof(name)>(this, &from); \
        return *this; \
    }
#define EMULATOR_WHOLE(name, parameters, ...) \
    name() = default; \
    name parameters : __VA_ARGS__ { } \
    EMULATOR_COPIED_WHOLE(name)

#else
#define EMULATOR_COPIED_WHOLE(name)
#define EMULATOR_WHOLE(name, parameters, ...)
#endif
