// A cached row of V in 8 bits: `dim` signed bytes, then the fp32 scale that they are times. K has
// the same codes and scales, in places of its own (see KvCache).
#pragma once

#include "vector_math.h"

namespace pagoda {
namespace {

struct Int8 {
    int8_t value;
};

// Elements that a row takes.
template <typename T>
constexpr int64_t row_size(int64_t dim) {
    return dim;
}
template <>
constexpr int64_t row_size<Int8>(int64_t dim) {
    return dim + static_cast<int64_t>(sizeof(float));
}

inline float row_scale(const Int8* row, int64_t dim) {
    float scale;
    std::memcpy(&scale, row + dim, sizeof scale);
    return scale;
}

inline float widen(Int8 x) { return static_cast<float>(x.value); }

// Rounding to nearest even, for |x| up to 127.
inline void narrow(float x, Int8* out) {
    // Beside 1.5 * 2^23 there is no room for a fraction.
    constexpr float kWhole = 0x1.8p23f;
    out->value = static_cast<int8_t>(to_bits(x + kWhole) - to_bits(kWhole));
}

#if PAGODA_ISA_AVX512

inline Floats load(const Int8* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
inline void store(Floats x, Int8* p) {
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

#elif PAGODA_ISA_AVX2

inline Floats load(const Int8* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
}
inline void store(Floats x, Int8* p) {
    const __m256i whole = _mm256_cvtps_epi32(x.v);
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

#else

inline Floats load(const Int8* p) {
    float lanes[Floats::kSize];
    for (int i = 0; i < Floats::kSize; ++i) lanes[i] = widen(p[i]);
    return Floats::load(lanes);
}
inline void store(Floats x, Int8* p) {
    float lanes[Floats::kSize];
    x.store(lanes);
    for (int i = 0; i < Floats::kSize; ++i) narrow(lanes[i], p + i);
}

#endif

// The largest magnitude; NaN if one of them is infinite or NaN: then x - x is NaN.
inline float finite_magnitude(const float* x, int64_t dim) {
    const int64_t whole = dim - dim % Floats::kSize;
    Floats most = Floats::zero();
    bool nan = false;
    for (int64_t i = 0; i < whole; i += Floats::kSize) {
        const Floats part = Floats::load(x + i);
        const Floats difference = part - part;
        nan |= any_nan(difference, difference);
        most = max(most, max(part, Floats::zero() - part));
    }
    float largest = max(most);
    for (int64_t i = whole; i < dim; ++i) {
        nan |= x[i] - x[i] != 0.0f;
        largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    }
    return nan ? __builtin_nanf("") : largest;
}

struct RowScale {
    float scale;
    float inverse;
};

// A row with infinity or NaN in it has the scale NaN, and reads as NaN throughout.
inline RowScale scale_of(const float* x, int64_t dim) {
    const float scale = finite_magnitude(x, dim) / 127.0f;
    return {scale, scale < 0x1p-126f ? 0.0f : 1.0f / scale};
}

inline void store_value(const float* x, int64_t dim, Int8* out) {
    const auto [scale, inverse] = scale_of(x, dim);
    const int64_t whole = dim - dim % Floats::kSize;
    for (int64_t i = 0; i < whole; i += Floats::kSize)
        store(Floats::load(x + i) * Floats::all(inverse), out + i);
    for (int64_t i = whole; i < dim; ++i) narrow(x[i] * inverse, out + i);
    std::memcpy(out + dim, &scale, sizeof scale);
}

}  // namespace
}  // namespace pagoda
