// Functions of fp32 vectors, and the 16-bit formats that they are read from and written to.
#pragma once

#include <cstring>

#include "pool.h"
#include "simd.h"

namespace pagoda {
namespace {

struct BFloat16 {
    uint16_t bits;
};

struct Float16 {
    uint16_t bits;
};

inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline uint32_t to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float widen(float x) { return x; }
inline float widen(BFloat16 x) { return from_bits(uint32_t{x.bits} << 16); }

inline float widen(Float16 x) {
    const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16, magnitude = x.bits & 0x7fffu;
    if (magnitude >= 0x7c00) return from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    // Shifted into fp32's places the exponent is 112 too small, subnormals included.
    return from_bits(sign | to_bits(from_bits(magnitude << 13) * 0x1p112f));
}

// Rounding to nearest even; NaN becomes the quiet NaN without payload, as in torch.
inline void narrow(float x, float* out) { *out = x; }

inline void narrow(float x, BFloat16* out) {
    const uint32_t bits = to_bits(x);
    out->bits = x == x ? static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : 0x7fc0;
}

inline void narrow(float x, Float16* out) {
    const uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) {
        half = 0x7e00;
    } else if (magnitude >= 0x47800000) {  // 65536 and above
        half = 0x7c00;
    } else if (magnitude < 0x38800000) {
        // Subnormal: the sum's last bits are the half's, rounded by the addition.
        half = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
    } else {
        half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    }
    out->bits = static_cast<uint16_t>(sign | half);
}

struct FloatPair {
    Floats first, second;
};

template <typename T>
struct WidenedPairs;

#if PAGODA_ISA_AVX512

inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
// b where either is NaN.
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline float max(Floats x) { return _mm512_reduce_max_ps(x.v); }
inline Floats round_even(Floats x) {
    return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// y * 2^n for whole n from -126 to 128.
inline Floats times_power(Floats y, Floats n) { return {_mm512_scalef_ps(y.v, n.v)}; }
// y, but 0 where x < limit.
inline Floats zero_below(Floats y, Floats x, Floats limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), y.v)};
}
inline bool any_greater(Floats a, Floats b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0;
}
inline bool any_nan(Floats a, Floats b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q) != 0;
}

inline Floats load(const float* p) { return Floats::load(p); }
inline Floats load(const BFloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
// Two vectors of bf16 in three instructions (two where they lie side by side) instead of four.
inline FloatPair widen_pair(__m512i bits) {
    const __m512i odd = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))}, {_mm512_castsi512_ps(odd)}};
}
template <>
struct WidenedPairs<BFloat16> {
    static FloatPair neighbours(const BFloat16* p) { return widen_pair(_mm512_loadu_si512(p)); }
    static FloatPair of(const BFloat16* p, const BFloat16* q) {
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
        return widen_pair(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
    }
    static FloatPair in_order(FloatPair x) {
        const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                              23);
        const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
        return {{_mm512_permutex2var_ps(x.first.v, low, x.second.v)},
                {_mm512_permutex2var_ps(x.first.v, high, x.second.v)}};
    }
    static FloatPair apart(FloatPair x) {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26,
                                               28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        return {{_mm512_permutex2var_ps(x.first.v, even, x.second.v)},
                {_mm512_permutex2var_ps(x.first.v, odd, x.second.v)}};
    }
};

inline Floats load(const Float16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store(Floats x, float* p) { x.store(p); }
inline void store(Floats x, BFloat16* p) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    const __m512i out = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(out));
}
inline void store(Floats x, Float16* p) {
    const __m256i half = _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}

#elif PAGODA_ISA_AVX2

inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.v, b.v)}; }
inline float max(Floats x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
inline Floats round_even(Floats x) {
    return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats times_power(Floats y, Floats n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(y.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}
inline Floats zero_below(Floats y, Floats x, Floats limit) {
    return {_mm256_and_ps(_mm256_cmp_ps(x.v, limit.v, _CMP_NLT_UQ), y.v)};
}
inline bool any_greater(Floats a, Floats b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) != 0;
}
inline bool any_nan(Floats a, Floats b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q)) != 0;
}

inline Floats load(const float* p) { return Floats::load(p); }
inline Floats load(const BFloat16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
inline FloatPair widen_pair(__m256i bits) {
    const __m256i odd = _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000)));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))}, {_mm256_castsi256_ps(odd)}};
}
template <>
struct WidenedPairs<BFloat16> {
    static FloatPair neighbours(const BFloat16* p) {
        return widen_pair(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static FloatPair of(const BFloat16* p, const BFloat16* q) {
        const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
        return widen_pair(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
    }
    static FloatPair in_order(FloatPair x) {
        const __m256 low = _mm256_unpacklo_ps(x.first.v, x.second.v);
        const __m256 high = _mm256_unpackhi_ps(x.first.v, x.second.v);
        return {{_mm256_permute2f128_ps(low, high, 0x20)},
                {_mm256_permute2f128_ps(low, high, 0x31)}};
    }
    static FloatPair apart(FloatPair x) {
        const __m256 low = _mm256_permute2f128_ps(x.first.v, x.second.v, 0x20);
        const __m256 high = _mm256_permute2f128_ps(x.first.v, x.second.v, 0x31);
        return {{_mm256_shuffle_ps(low, high, 0x88)}, {_mm256_shuffle_ps(low, high, 0xdd)}};
    }
};

inline Floats load(const Float16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store(Floats x, float* p) { x.store(p); }
inline void store(Floats x, BFloat16* p) {
    const __m256i bits = _mm256_castps_si256(x.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
    const __m256i out = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
    const __m128i low = _mm256_castsi256_si128(out), high = _mm256_extracti128_si256(out, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(low, high));
}
inline void store(Floats x, Float16* p) {
    const __m128i half = _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
}

#elif PAGODA_ISA_NEON

inline Floats operator-(Floats a, Floats b) {
    return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
}
inline Floats operator/(Floats a, Floats b) {
    return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
}
// Not vmaxq_f32, which is NaN where a is.
inline Floats max(Floats a, Floats b) {
    return {vbslq_f32(vcgtq_f32(a.low, b.low), a.low, b.low),
            vbslq_f32(vcgtq_f32(a.high, b.high), a.high, b.high)};
}
inline Floats min(Floats a, Floats b) {
    return {vbslq_f32(vcltq_f32(a.low, b.low), a.low, b.low),
            vbslq_f32(vcltq_f32(a.high, b.high), a.high, b.high)};
}
inline float max(Floats x) { return vmaxvq_f32(vmaxq_f32(x.low, x.high)); }
inline Floats round_even(Floats x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }
inline float32x4_t power_lanes(float32x4_t n) {
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
}
inline Floats times_power(Floats y, Floats n) {
    return y * Floats{power_lanes(n.low), power_lanes(n.high)};
}
inline float32x4_t zero_where(uint32x4_t mask, float32x4_t y) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), mask));
}
inline Floats zero_below(Floats y, Floats x, Floats limit) {
    return {zero_where(vcltq_f32(x.low, limit.low), y.low),
            zero_where(vcltq_f32(x.high, limit.high), y.high)};
}
inline bool any_greater(Floats a, Floats b) {
    return vmaxvq_u32(vorrq_u32(vcgtq_f32(a.low, b.low), vcgtq_f32(a.high, b.high))) != 0;
}
inline uint32x4_t numbers(Floats x) {
    return vandq_u32(vceqq_f32(x.low, x.low), vceqq_f32(x.high, x.high));
}
inline bool any_nan(Floats a, Floats b) {
    return vminvq_u32(vandq_u32(numbers(a), numbers(b))) == 0;
}

inline Floats load(const float* p) { return Floats::load(p); }
inline Floats load(const BFloat16* p) {
    const uint16x8_t bits = vld1q_u16(&p->bits);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits), 16))};
}
inline Floats load(const Float16* p) {
    const float16x8_t x = vreinterpretq_f16_u16(vld1q_u16(&p->bits));
    return {vcvt_f32_f16(vget_low_f16(x)), vcvt_f32_f16(vget_high_f16(x))};
}
inline void store(Floats x, float* p) { x.store(p); }
inline uint16x4_t to_bf16(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, vdupq_n_u32(0x7fc00000)), 16);
}
inline void store(Floats x, BFloat16* p) {
    vst1q_u16(&p->bits, vcombine_u16(to_bf16(x.low), to_bf16(x.high)));
}
inline void store(Floats x, Float16* p) {
    const float16x8_t half = vcombine_f16(vcvt_f16_f32(x.low), vcvt_f16_f32(x.high));
    vst1q_u16(&p->bits, vreinterpretq_u16_f16(half));
}

#else

typedef uint32_t BitVector __attribute__((vector_size(4 * Floats::kSize)));

inline Floats operator-(Floats a, Floats b) { return {a.v - b.v}; }
inline Floats operator/(Floats a, Floats b) { return {a.v / b.v}; }
inline Floats max(Floats a, Floats b) { return {a.v > b.v ? a.v : b.v}; }
inline Floats min(Floats a, Floats b) { return {a.v < b.v ? a.v : b.v}; }
inline float max(Floats x) {
    float out = x.v[0];
    for (int i = 1; i < Floats::kSize; ++i) out = x.v[i] > out ? x.v[i] : out;
    return out;
}
// Beside 1.5 * 2^23 there is no room for a fraction; exact for |x| < 2^22.
constexpr float kWholeFloat = 12582912.0f;
inline Floats round_even(Floats x) { return {(x.v + kWholeFloat) - kWholeFloat}; }
inline Floats times_power(Floats y, Floats n) {
    // By bits: a conversion of NaN to an integer is undefined, and NaN it stays by y.
    const BitVector exponent = (BitVector)(n.v + kWholeFloat) - to_bits(kWholeFloat) + 127u;
    return {y.v * (FloatVector)(exponent << 23)};
}
inline Floats zero_below(Floats y, Floats x, Floats limit) {
    return {x.v < limit.v ? FloatVector{} : y.v};
}
inline bool any_greater(Floats a, Floats b) {
    int any = 0;
    for (int i = 0; i < Floats::kSize; ++i) any |= a.v[i] > b.v[i];
    return any != 0;
}
inline bool any_nan(Floats a, Floats b) {
    int any = 0;
    for (int i = 0; i < Floats::kSize; ++i) any |= (a.v[i] != a.v[i]) | (b.v[i] != b.v[i]);
    return any != 0;
}

template <typename T>
inline Floats load(const T* p) {
    Floats out;
    for (int i = 0; i < Floats::kSize; ++i) out.v[i] = widen(p[i]);
    return out;
}
template <typename T>
inline void store(Floats x, T* p) {
    for (int i = 0; i < Floats::kSize; ++i) narrow(x.v[i], p + i);
}

#endif

// Two vectors of `T` widened at once, side by side or anywhere. Where that is cheaper, `first` has
// their even elements and `second` the odd ones: sums are kept `apart` like that, and put
// `in_order` behind a loop.
template <typename T>
struct WidenedPairs {
    static FloatPair neighbours(const T* p) { return of(p, p + Floats::kSize); }
    static FloatPair of(const T* p, const T* q) { return {load(p), load(q)}; }
    static FloatPair in_order(FloatPair x) { return x; }
    static FloatPair apart(FloatPair x) { return x; }
};

inline float first(Floats x) {
    float lanes[Floats::kSize];
    x.store(lanes);
    return lanes[0];
}

// The first `count` of a vector's values, then zeros.
template <typename T>
inline Floats load_first(const T* p, int64_t count) {
    float lanes[Floats::kSize] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = widen(p[i]);
    return Floats::load(lanes);
}

inline float sum_of_squares(const float* x, int64_t size) {
    const int64_t whole = size - size % Floats::kSize;
    Floats squares = Floats::zero();
    for (int64_t i = 0; i < whole; i += Floats::kSize) {
        const Floats part = Floats::load(x + i);
        squares = Floats::fma(part, part, squares);
    }
    float total = sum(squares);
    for (int64_t i = whole; i < size; ++i) total += x[i] * x[i];
    return total;
}

// 2^part from -0.5 to 0.5. Relative error 1.6e-7: minimax polynomial (Lawson's iteration) with
// 2^0 = 1 exactly.
inline Floats power_of_part(Floats part) {
    Floats y = Floats::all(0x1.5bba14p-10f);
    y = Floats::fma(y, part, Floats::all(0x1.3cea88p-7f));
    y = Floats::fma(y, part, Floats::all(0x1.c6b752p-5f));
    y = Floats::fma(y, part, Floats::all(0x1.ebf9bcp-3f));
    y = Floats::fma(y, part, Floats::all(0x1.62e42ap-1f));
    return Floats::fma(y, part, Floats::all(1.0f));
}

// 2^(whole + part) for whole numbers from -127 on; 0 below 2^-126.
inline Floats power_of_two(Floats whole, Floats part) {
    const Floats limit = Floats::all(-126.0f);
    return zero_below(times_power(power_of_part(part), max(limit, whole)), whole, limit);
}

constexpr float kLog2E = 0x1.715476p+0f;

// 2^x; NaN stays NaN.
inline Floats exp2(Floats x) {
    x = min(Floats::all(128.0f), max(Floats::all(-127.0f), x));
    const Floats whole = round_even(x);
    return power_of_two(whole, x - whole);
}

// 2^x for x up to 0, and 2^-126 at the least; NaN stays NaN. Half as long as `exp2`.
inline Floats exp2_of_negative(Floats x) {
    x = max(Floats::all(-126.0f), x);
    const Floats whole = round_even(x);
    return times_power(power_of_part(x - whole), whole);
}

// e^x; NaN stays NaN.
inline Floats exp(Floats x) {
    // ln 2 in two parts; whole numbers times the first are exact.
    constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
    x = min(Floats::all(88.75f), max(Floats::all(-88.0f), x));
    const Floats whole = round_even(x * Floats::all(kLog2E));
    Floats rest = Floats::fma(whole, Floats::all(-kLn2High), x);
    rest = Floats::fma(whole, Floats::all(-kLn2Low), rest);
    return power_of_two(whole, rest * Floats::all(kLog2E));
}

// Work on `rows` in ranges of about 64 KiB of fp32 (1 us), so that handing out costs little.
template <typename Body>
inline void run_rows(Pool& pool, int64_t rows, int64_t floats_per_row, const Body& body) {
    constexpr int64_t kFloatsPerChunk = 1 << 14;
    const int64_t step = floats_per_row < kFloatsPerChunk ? kFloatsPerChunk / floats_per_row : 1;
    pool.run((rows + step - 1) / step, [&](int64_t chunk) {
        const int64_t end = (chunk + 1) * step < rows ? (chunk + 1) * step : rows;
        for (int64_t row = chunk * step; row < end; ++row) body(row);
    });
}

}  // namespace
}  // namespace pagoda
