// Bytes and whole numbers, one lane of 32 bits per row of a panel, for the instruction set that
// this file is compiled for; as many lanes as `Floats` has.
#pragma once

#include <cstring>

#include "half.h"
#include "simd.h"

// Without VNNI, AVX2 multiplies bytes in pairs into 16 bits (pair_tiles.h).
#if PAGODA_ISA_AVX2 && !defined(__AVXVNNI__)
#define PAGODA_BYTE_PAIRS 1
#endif

namespace pagoda {
namespace {

constexpr int kLanes = Floats::kSize;

inline int32_t load_int(const void* p) {
    int32_t x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

#if PAGODA_ISA_AVX512

// The dot product takes unsigned weights: signed ones get 128 added, and an offset takes it off.
constexpr bool kSignedDot = false;

struct Ints {
    __m512i v;
    static Ints zero() { return {_mm512_setzero_si512()}; }
    static Ints all(int32_t x) { return {_mm512_set1_epi32(x)}; }
    Ints operator-(Ints o) const { return {_mm512_sub_epi32(v, o.v)}; }
    template <int kBits>
    Ints shifted_left() const { return {_mm512_slli_epi32(v, kBits)}; }
    Floats floats() const { return {_mm512_cvtepi32_ps(v)}; }
};

struct Bytes {
    __m512i v;
    static Bytes load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
    static Bytes all(int x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
    static Bytes table(const uint8_t* p) {
        return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    Bytes operator&(Bytes o) const { return {_mm512_and_si512(v, o.v)}; }
    Bytes operator|(Bytes o) const { return {_mm512_or_si512(v, o.v)}; }
    Bytes operator^(Bytes o) const { return {_mm512_xor_si512(v, o.v)}; }
    // Right, or left if negative; bits of neighbouring bytes come in and are to be masked off.
    template <int kBits>
    Bytes shifted() const {
        if constexpr (kBits >= 0) return {_mm512_srli_epi16(v, kBits)};
        return {_mm512_slli_epi16(v, -kBits)};
    }
    static Bytes look_up(Bytes table, Bytes index) {
        return {_mm512_shuffle_epi8(table.v, index.v)};
    }
};

// start + sum over `kCount` vectors of the products of their four bytes with those of q.
template <int kMaxLevel, bool kSigned, int kCount>
[[gnu::always_inline]] inline Ints dot(const Bytes* weights, const int8_t* q, Ints start) {
    static_assert(!kSigned);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i)
        start.v = _mm512_dpbusd_epi32(start.v, weights[i].v,
                                      _mm512_set1_epi32(load_int(q + i * 4)));
    return start;
}

inline Floats load_halves(const uint8_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Ints load_signed(const uint8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Ints load_unsigned(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Ints load_nibbles(const uint8_t* p, bool high) {
    const __m512i x = load_unsigned(p).v;
    return {high ? _mm512_srli_epi32(x, 4) : _mm512_and_si512(x, _mm512_set1_epi32(15))};
}
// Half of 2^(exponent - 127).
inline Floats load_e8m0(const uint8_t* p) {
    const __m512i x = load_unsigned(p).v, one = _mm512_set1_epi32(1);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(x, one), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), x);
    const __mmask16 is_normal = _mm512_cmpgt_epi32_mask(x, one);
    return {_mm512_castsi512_ps(_mm512_mask_blend_epi32(is_normal, small, normal))};
}

#ifndef __AVX512BF16__
// Of pairs of bf16, each pair's first or second.
template <bool kSecond>
inline Floats load_bf16(const uint8_t* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    if constexpr (kSecond)
        return {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))};
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
}
#endif

#elif PAGODA_ISA_AVX2

constexpr bool kSignedDot = true;

struct Ints {
    __m256i v;
    static Ints zero() { return {_mm256_setzero_si256()}; }
    static Ints all(int32_t x) { return {_mm256_set1_epi32(x)}; }
    // As with Pairs: in this order.
    void add(Ints o) {
        v = _mm256_add_epi32(v, o.v);
        asm("" : "+x"(v));
    }
    template <int kBits>
    Ints shifted_left() const { return {_mm256_slli_epi32(v, kBits)}; }
    Floats floats() const { return {_mm256_cvtepi32_ps(v)}; }
};

struct Bytes {
    __m256i v;
    static Bytes load(const uint8_t* p) {
        return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
    }
    static Bytes all(int x) { return {_mm256_set1_epi8(static_cast<char>(x))}; }
    static Bytes repeated(const void* four) { return {_mm256_set1_epi32(load_int(four))}; }
    static Bytes table(const uint8_t* p) {
        return {_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    Bytes operator&(Bytes o) const { return {_mm256_and_si256(v, o.v)}; }
    Bytes operator|(Bytes o) const { return {_mm256_or_si256(v, o.v)}; }
    Bytes operator^(Bytes o) const { return {_mm256_xor_si256(v, o.v)}; }
    template <int kBits>
    Bytes shifted() const {
        if constexpr (kBits >= 0) return {_mm256_srli_epi16(v, kBits)};
        return {_mm256_slli_epi16(v, -kBits)};
    }
    static Bytes look_up(Bytes table, Bytes index) {
        return {_mm256_shuffle_epi8(table.v, index.v)};
    }
};

#if !PAGODA_BYTE_PAIRS

// The instruction takes unsigned weights: signed ones move their sign to q, which is never -128.
template <int kMaxLevel, bool kSigned, int kCount>
[[gnu::always_inline]] inline Ints dot(const Bytes* weights, const int8_t* q, Ints start) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
        const __m256i w = weights[i].v, x = _mm256_set1_epi32(load_int(q + i * 4));
        start.v = kSigned ? _mm256_dpbusd_avx_epi32(start.v, _mm256_abs_epi8(w),
                                                    _mm256_sign_epi8(x, w))
                          : _mm256_dpbusd_avx_epi32(start.v, w, x);
    }
    return start;
}

#else

// Sums of neighbouring products of bytes in 16 bits.
struct Pairs {
    __m256i v;
    // Of unsigned weights with the four bytes of q, the same for every row.
    static Pairs products(Bytes weights, Bytes q) { return {_mm256_maddubs_epi16(weights.v, q.v)}; }
    // The compiler must not reorder these sums: it would keep all products alive at once.
    void add(Pairs o) {
        v = _mm256_add_epi16(v, o.v);
        asm("" : "+x"(v));
    }
    // Sums of neighbouring 16-bit products.
    Ints times(Ints factors) const { return {_mm256_madd_epi16(v, factors.v)}; }
};

// Signed bytes in 16 bits: those of even columns, and of odd ones.
inline Pairs even_words(Bytes x) { return {_mm256_srai_epi16(_mm256_slli_epi16(x.v, 8), 8)}; }
inline Pairs odd_words(Bytes x) { return {_mm256_srai_epi16(x.v, 8)}; }

#endif

inline __m128i load_eight(const uint8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
inline Floats load_halves(const uint8_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Ints load_signed(const uint8_t* p) { return {_mm256_cvtepi8_epi32(load_eight(p))}; }
inline Ints load_unsigned(const uint8_t* p) { return {_mm256_cvtepu8_epi32(load_eight(p))}; }
inline Ints load_nibbles(const uint8_t* p, bool high) {
    const __m256i x = load_unsigned(p).v;
    return {high ? _mm256_srli_epi32(x, 4) : _mm256_and_si256(x, _mm256_set1_epi32(15))};
}
inline Floats load_e8m0(const uint8_t* p) {
    const __m256i x = load_unsigned(p).v, one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(x, one), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), x);
    const __m256i is_normal = _mm256_cmpgt_epi32(x, one);
    return {_mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, is_normal))};
}

// Of pairs of bf16, each pair's first or second.
template <bool kSecond>
inline Floats load_bf16(const uint8_t* p) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kSecond)
        return {_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)))};
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))};
}

#elif PAGODA_ISA_NEON

constexpr bool kSignedDot = true;

struct Ints {
    int32x4_t low, high;
    static Ints zero() { return all(0); }
    static Ints all(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
    Ints operator-(Ints o) const { return {vsubq_s32(low, o.low), vsubq_s32(high, o.high)}; }
    template <int kBits>
    Ints shifted_left() const { return {vshlq_n_s32(low, kBits), vshlq_n_s32(high, kBits)}; }
    Floats floats() const { return {vcvtq_f32_s32(low), vcvtq_f32_s32(high)}; }
};

struct Bytes {
    uint8x16_t low, high;
    static Bytes load(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
    static Bytes all(int x) {
        const uint8x16_t same = vdupq_n_u8(static_cast<uint8_t>(x));
        return {same, same};
    }
    static Bytes table(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p)}; }
    Bytes operator&(Bytes o) const { return {vandq_u8(low, o.low), vandq_u8(high, o.high)}; }
    Bytes operator|(Bytes o) const { return {vorrq_u8(low, o.low), vorrq_u8(high, o.high)}; }
    template <int kBits>
    Bytes shifted() const {
        const int8x16_t left = vdupq_n_s8(-kBits);
        return {vshlq_u8(low, left), vshlq_u8(high, left)};
    }
    static Bytes look_up(Bytes table, Bytes index) {
        return {vqtbl1q_u8(table.low, index.low), vqtbl1q_u8(table.high, index.high)};
    }
};

#ifdef __ARM_FEATURE_DOTPROD

// Levels are below 128, so that signed weights and unsigned ones are multiplied alike.
template <int kMaxLevel, bool kSigned, int kCount>
[[gnu::always_inline]] inline Ints dot(const Bytes* weights, const int8_t* q, Ints start) {
    static_assert(kSigned || kMaxLevel < 128);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
        const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(load_int(q + i * 4)));
        start.low = vdotq_s32(start.low, vreinterpretq_s8_u8(weights[i].low), x);
        start.high = vdotq_s32(start.high, vreinterpretq_s8_u8(weights[i].high), x);
    }
    return start;
}

#else

// Products of `kCount` vectors' bytes in 16 bits, as many of a place as cannot overflow before
// they are widened (-128 times 127, twice); q repeats its four bytes in each lane.
template <int kRun, int kCount>
[[gnu::always_inline]] inline int32x4_t dot_lanes(const int8x16_t* weights, const int8x8_t* q,
                                                  int32x4_t start) {
    int32x4_t sums[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};  // of pairs, of two lanes each
    int16x8_t runs[2];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
        const int8x8_t low = vget_low_s8(weights[i]), high = vget_high_s8(weights[i]);
        const bool first = i % kRun == 0;
        runs[0] = first ? vmull_s8(low, q[i]) : vmlal_s8(runs[0], low, q[i]);
        runs[1] = first ? vmull_s8(high, q[i]) : vmlal_s8(runs[1], high, q[i]);
        if (i % kRun != kRun - 1 && i != kCount - 1) continue;
        sums[0] = vpadalq_s16(sums[0], runs[0]);
        sums[1] = vpadalq_s16(sums[1], runs[1]);
    }
    return vaddq_s32(start, vpaddq_s32(sums[0], sums[1]));
}

template <int kMaxLevel, bool kSigned, int kCount>
[[gnu::always_inline]] inline Ints dot(const Bytes* weights, const int8_t* q, Ints start) {
    static_assert(kSigned || kMaxLevel < 128);
    constexpr int kRun = 32767 / ((kSigned ? 128 : kMaxLevel) * 127);
    int8x16_t low[kCount], high[kCount];
    int8x8_t x[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
        low[i] = vreinterpretq_s8_u8(weights[i].low);
        high[i] = vreinterpretq_s8_u8(weights[i].high);
        x[i] = vreinterpret_s8_s32(vdup_n_s32(load_int(q + i * 4)));
    }
    return {dot_lanes<kRun, kCount>(low, x, start.low),
            dot_lanes<kRun, kCount>(high, x, start.high)};
}

#endif

inline Floats load_halves(const uint8_t* p) {
    const float16x8_t x = vreinterpretq_f16_u8(vld1q_u8(p));
    return {vcvt_f32_f16(vget_low_f16(x)), vcvt_f32_f16(vget_high_f16(x))};
}
inline Ints load_signed(const uint8_t* p) {
    const int16x8_t x = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return {vmovl_s16(vget_low_s16(x)), vmovl_s16(vget_high_s16(x))};
}
inline Ints widened(uint8x8_t bytes) {
    const uint16x8_t x = vmovl_u8(bytes);
    return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(x))),
            vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(x)))};
}
inline Ints load_unsigned(const uint8_t* p) { return widened(vld1_u8(p)); }
inline Ints load_nibbles(const uint8_t* p, bool high) {
    const uint8x8_t x = vld1_u8(p);
    return widened(high ? vshr_n_u8(x, 4) : vand_u8(x, vdup_n_u8(15)));
}
inline float32x4_t e8m0_lanes(int32x4_t x) {
    const int32x4_t one = vdupq_n_s32(1);
    const int32x4_t normal = vshlq_n_s32(vsubq_s32(x, one), 23);
    const int32x4_t small = vshlq_s32(vdupq_n_s32(0x00200000), x);
    return vreinterpretq_f32_s32(vbslq_s32(vcgtq_s32(x, one), normal, small));
}
inline Floats load_e8m0(const uint8_t* p) {
    const Ints x = load_unsigned(p);
    return {e8m0_lanes(x.low), e8m0_lanes(x.high)};
}

// Of pairs of bf16, each pair's first or second.
template <bool kSecond>
inline Floats load_bf16(const uint8_t* p) {
    const uint32x4_t low = vreinterpretq_u32_u8(vld1q_u8(p));
    const uint32x4_t high = vreinterpretq_u32_u8(vld1q_u8(p + 16));
    if constexpr (kSecond) {
        const uint32x4_t second = vdupq_n_u32(0xffff0000);
        return {vreinterpretq_f32_u32(vandq_u32(low, second)),
                vreinterpretq_f32_u32(vandq_u32(high, second))};
    }
    return {vreinterpretq_f32_u32(vshlq_n_u32(low, 16)),
            vreinterpretq_f32_u32(vshlq_n_u32(high, 16))};
}

#else

constexpr bool kSignedDot = true;

typedef int32_t IntVector __attribute__((vector_size(4 * kLanes)));
typedef int16_t WordVector __attribute__((vector_size(4 * kLanes)));
typedef uint8_t ByteVector __attribute__((vector_size(4 * kLanes)));

struct Ints {
    IntVector v;
    static Ints zero() { return {IntVector{}}; }
    static Ints all(int32_t x) { return {x - IntVector{}}; }
    Ints operator-(Ints o) const { return {v - o.v}; }
    template <int kBits>
    Ints shifted_left() const { return {v << kBits}; }
    Floats floats() const { return {__builtin_convertvector(v, FloatVector)}; }
};

struct Bytes {
    ByteVector v;
    static Bytes load(const uint8_t* p) {
        Bytes out;
        std::memcpy(&out.v, p, sizeof out.v);
        return out;
    }
    static Bytes all(int x) { return {static_cast<uint8_t>(x) - ByteVector{}}; }
    static Bytes table(const uint8_t* p) {
        Bytes out{};
        std::memcpy(&out.v, p, 16);
        return out;
    }
    Bytes operator&(Bytes o) const { return {v & o.v}; }
    Bytes operator|(Bytes o) const { return {v | o.v}; }
    template <int kBits>
    Bytes shifted() const {
        if constexpr (kBits >= 0) return {v >> kBits};
        return {v << -kBits};
    }
    static Bytes look_up(Bytes table, Bytes index) {
        for (int i = 0; i < 4 * kLanes; ++i) index.v[i] = table.v[index.v[i]];
        return index;
    }
};

// Sums of pairs of products in 16 bits, as many as cannot overflow before they are widened;
// signed weights reach 128 * 127 * 2.
template <int kMaxLevel, bool kSigned, int kCount>
[[gnu::always_inline]] inline Ints dot(const Bytes* weights, const int8_t* q, Ints start) {
    constexpr int kRun = kSigned ? 1 : 32767 / (kMaxLevel * 127 * 2);
    static_assert(kRun >= 1);
    WordVector run{};
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
        const WordVector w = (WordVector)weights[i].v, x = (WordVector)Ints::all(load_int(q + 4 * i)).v;
        const WordVector even = kSigned ? (w << 8) >> 8 : w & 255;
        const WordVector odd = kSigned ? w >> 8 : (w >> 8) & 255;
        const WordVector pairs = even * ((x << 8) >> 8) + odd * (x >> 8);
        run = i % kRun == 0 ? pairs : run + pairs;
        if (i % kRun == kRun - 1 || i == kCount - 1) {
            const auto both = (IntVector)run;
            start.v += ((both << 16) >> 16) + (both >> 16);
        }
    }
    return start;
}

inline Floats load_halves(const uint8_t* p) {
    Floats out;
    for (int i = 0; i < kLanes; ++i) {
        uint16_t x;
        std::memcpy(&x, p + 2 * i, sizeof x);
        out.v[i] = half_to_float(x);
    }
    return out;
}
inline Ints load_signed(const uint8_t* p) {
    Ints out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = static_cast<int8_t>(p[i]);
    return out;
}
inline Ints load_unsigned(const uint8_t* p) {
    Ints out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = p[i];
    return out;
}
inline Ints load_nibbles(const uint8_t* p, bool high) {
    Ints out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = high ? p[i] >> 4 : p[i] & 15;
    return out;
}
inline Floats load_e8m0(const uint8_t* p) {
    Floats out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = e8m0_halved(p[i]);
    return out;
}

template <bool kSecond>
inline Floats load_bf16(const uint8_t* p) {
    Floats out;
    for (int i = 0; i < kLanes; ++i) {
        const uint32_t pair = static_cast<uint32_t>(load_int(p + 4 * i));
        out.v[i] = std::bit_cast<float>(kSecond ? pair & 0xffff0000u : pair << 16);
    }
    return out;
}

#endif

}  // namespace
}  // namespace pagoda
