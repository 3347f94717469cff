// What a lane computes for itself. The table at the end is the arithmetic of PTX, an instruction a
// line: a, b and c are its operands, read as the type that ends its name (add.f32: floats).
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include "interpreter.h"

namespace ptx {

// ---- numbers in registers ----

// A register holds 64 bits, of which an instruction reads as many as its type has.
template <class T> static T value(uint64_t bits) {
    T x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
template <class T> static uint64_t bits(T x) {
    uint64_t b = 0;
    memcpy(&b, &x, sizeof x);
    return b;
}

typedef __nv_bfloat16 Bf16;

// ---- types of the text become types of C++: f is called with a zero of that type ----

static void refuse_type(const Step &s) {
    fault(s, __builtin_ctz(s.lanes), "arithmetic.cpp does not have it for this type");
}

template <class F> static void with_integer(const Step &s, Type t, F f) {
    switch (t) {
    case U8: return f(uint8_t());
    case S8: return f(int8_t());
    case U16: return f(uint16_t());
    case S16: return f(int16_t());
    case U32: return f(uint32_t());
    case S32: return f(int32_t());
    case U64: return f(uint64_t());
    case S64: return f(int64_t());
    default: refuse_type(s);
    }
}

template <class F> static void with_number(const Step &s, Type t, F f) {
    if (t == F32) f(float());
    else if (t == F64) f(double());
    else with_integer(s, t, f);
}

// ---- d = f(a), f(a, b) or f(a, b, c) in each lane: operands are T's, the result is an R ----

template <class T, class R, class F> static void compute(Step &s, F f) {
    uint64_t *d = s.row(0), *a = s.row(1);
    if constexpr (std::is_invocable_v<F, T>) {
        for_lanes(s.lanes, [&](int l) { d[l] = bits((R)f(value<T>(a[l]))); });
    } else if constexpr (std::is_invocable_v<F, T, T>) {
        uint64_t *b = s.row(2);
        for_lanes(s.lanes, [&](int l) { d[l] = bits((R)f(value<T>(a[l]), value<T>(b[l]))); });
    } else {
        uint64_t *b = s.row(2), *c = s.row(3);
        for_lanes(s.lanes, [&](int l) {
            d[l] = bits((R)f(value<T>(a[l]), value<T>(b[l]), value<T>(c[l])));
        });
    }
}

template <class F> static void integers(Step &s, F f) {
    with_integer(s, s.i.type, [&](auto t) { compute<decltype(t), decltype(t)>(s, f); });
}
template <class F> static void numbers(Step &s, F f) {
    with_number(s, s.i.type, [&](auto t) { compute<decltype(t), decltype(t)>(s, f); });
}
template <class F> static void compared(Step &s, F f) {
    with_number(s, s.i.type, [&](auto t) { compute<decltype(t), bool>(s, f); });
}
template <class F> static void logic(Step &s, F f) {
    if (s.i.type == PRED) compute<bool, bool>(s, f);
    else integers(s, f);
}
// Operands of 32 bits, a result of 64.
template <class F> static void widened(Step &s, F f) {
    if (s.i.type == S32)
        compute<int32_t, int64_t>(s, [&](int64_t a, int64_t b) { return f(a, b); });
    else if (s.i.type == U32)
        compute<uint32_t, uint64_t>(s, [&](uint64_t a, uint64_t b) { return f(a, b); });
    else refuse_type(s);
}

// ---- what C++ has no operator for ----

template <class T> static T quotient(T a, T b) {
    if constexpr (std::is_integral_v<T>) if (b == 0) return (T)-1;           // as GPUs do
    return a / b;
}
template <class T> static T remainder(T a, T b) { return b == 0 ? a : a % b; }

// A number wins over NaN.
template <class T> static T smaller(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
    else return std::min(a, b);
}
template <class T> static T larger(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
    else return std::max(a, b);
}

template <class T> static T shifted_left(T a, T by) {
    return (uint32_t)by < 8*sizeof(T) ? a << (uint32_t)by : 0;
}
template <class T> static T shifted_right(T a, T by) {
    if ((uint32_t)by < 8*sizeof(T)) return a >> (uint32_t)by;
    return a < T() ? (T)-1 : 0;
}

static float without_denormals(float x) {
    return std::fabs(x) < std::numeric_limits<float>::min() ? 0.0f : x;
}

// Byte i of the result is that byte of b:a which digit i of `choice` names; 8 and more: its sign.
template <class T> static T permuted_bytes(T a, T b, T choice) {
    uint64_t all = (uint64_t)(uint32_t)b << 32 | (uint32_t)a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t digit = (uint32_t)choice >> 4*i & 15, byte = all >> 8*(digit & 7) & 255;
        if (digit & 8) byte = byte & 128 ? 255 : 0;
        d |= byte << 8*i;
    }
    return (T)d;
}

// ---- instructions that are more than a formula ----

// The parts of {%r1, %r2} are joined, the first one lowest, or filled.
static void move(Step &s) {
    size_t to = s.i.operands[0].rows.size(), from = s.i.operands[1].rows.size();
    int width = 8*size_of(s.i.type) / (int)std::max(to, from);
    uint64_t mask = ~0ull >> (64 - width);
    for_lanes(s.lanes, [&](int l) {
        uint64_t x = s.row(1)[l];
        if (from > 1) x &= mask;
        for (size_t k = 1; k < from; k++) x |= (s.row(1, k)[l] & mask) << k*width;
        for (size_t k = 1; k < to; k++) s.row(0, k)[l] = x >> k*width & mask;
        s.row(0)[l] = to > 1 ? x & mask : x;
    });
}

static void select(Step &s) {
    uint64_t *d = s.row(0), *a = s.row(1), *b = s.row(2), *p = s.row(3);
    for_lanes(s.lanes, [&](int l) { d[l] = p[l] ? a[l] : b[l]; });
}

// `length` bits of a, in place of those of b from `first` on.
static void insert_bits(Step &s) {
    uint64_t *d = s.row(0), *a = s.row(1), *b = s.row(2), *first = s.row(3), *length = s.row(4);
    for_lanes(s.lanes, [&](int l) {
        uint64_t mask = ((1ull << (length[l] & 63)) - 1) << (first[l] & 63);
        d[l] = (b[l] & ~mask) | (a[l] << (first[l] & 63) & mask);
    });
}

template <class F> static void with_any(const Step &s, Type t, F f) {
    if (t == BF16) f(Bf16());
    else with_number(s, t, f);
}

static void convert(Step &s) {
    with_any(s, s.i.type, [&](auto to) {
        with_any(s, s.i.from, [&](auto from) {
            compute<decltype(from), decltype(to)>(s, [](auto a) { return a; });
        });
    });
}

static void pack_bf16(Step &s) {                 // the first operand becomes the upper half
    compute<float, uint32_t>(s, [](float a, float b) {
        return (uint32_t)Bf16(a).__x << 16 | Bf16(b).__x;
    });
}

#define UNARY(types, result) [](Step &s) { types(s, [](auto a) { return result; }); }
#define BINARY(types, result) [](Step &s) { types(s, [](auto a, auto b) { return result; }); }
#define TERNARY(types, result) \
    [](Step &s) { types(s, [](auto a, auto b, auto c) { return result; }); }

const Meaning arithmetic[] = {
    { "add add.rn", BINARY(numbers, a + b) },
    { "sub sub.rn", BINARY(numbers, a - b) },
    { "mul mul.rn mul.lo", BINARY(numbers, a * b) },
    { "mul.wide", BINARY(widened, a * b) },
    { "mad.lo", TERNARY(integers, a * b + c) },
    { "fma.rn", TERNARY(numbers, std::fma(a, b, c)) },
    { "div div.rn div.full div.approx", BINARY(numbers, quotient(a, b)) },
    { "rem", BINARY(integers, remainder(a, b)) },
    { "abs", UNARY(numbers, larger<decltype(a)>(a, -a)) },
    { "min", BINARY(numbers, smaller(a, b)) },
    { "max", BINARY(numbers, larger(a, b)) },
    { "sqrt.rn sqrt.approx", UNARY(numbers, std::sqrt(a)) },
    { "rsqrt.approx", UNARY(numbers, 1 / std::sqrt(a)) },
    { "rcp.rn rcp.approx", UNARY(numbers, 1 / a) },
    { "ex2.approx", UNARY(numbers, std::exp2(a)) },
    { "ex2.approx.ftz", UNARY(numbers, without_denormals(std::exp2(without_denormals(a)))) },

    { "and", BINARY(logic, a & b) },
    { "or", BINARY(logic, a | b) },
    { "xor", BINARY(logic, a ^ b) },
    { "not", UNARY(logic, a ^ (decltype(a))-1) },
    { "shl", BINARY(integers, shifted_left(a, b)) },
    { "shr", BINARY(integers, shifted_right(a, b)) },
    { "bfi", insert_bits },
    { "prmt", TERNARY(integers, permuted_bytes(a, b, c)) },

    { "setp.eq", BINARY(compared, a == b) },
    { "setp.ne", BINARY(compared, a < b || a > b) },
    { "setp.lt", BINARY(compared, a < b) },
    { "setp.le", BINARY(compared, a <= b) },
    { "setp.gt", BINARY(compared, a > b) },
    { "setp.ge", BINARY(compared, a >= b) },
    { "setp.equ", BINARY(compared, !(a < b || a > b)) },          // true also if one is NaN
    { "setp.neu", BINARY(compared, !(a == b)) },
    { "setp.ltu", BINARY(compared, !(a >= b)) },
    { "setp.leu", BINARY(compared, !(a > b)) },
    { "setp.gtu", BINARY(compared, !(a <= b)) },
    { "setp.geu", BINARY(compared, !(a < b)) },
    { "selp", select },

    { "mov", move },
    { "cvta.to.global cvta.global", UNARY(integers, a) },
    { "cvt cvt.rn", convert },
    { "cvt.rn.bf16x2", pack_bf16 },
    { nullptr, nullptr },
};

}  // namespace ptx
