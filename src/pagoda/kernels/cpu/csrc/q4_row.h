// Cached K and V in 4 bits, as llama.cpp's q4_0 has them: blocks of 32 dimensions, the last one of
// what is left, that share an fp16 scale.
//
// Byte j of a block of n dimensions has dimension j in its low nibble and n / 2 + j in its high
// one, in two's complement. K's bytes lie [dim / 2, block_size], V's [block_size, dim / 2]; the
// scales [blocks of a row, block_size] lie behind either.
#pragma once

#include "int8_row.h"

namespace pagoda {
namespace {

struct Q4_0 {
    uint8_t pair;
};

constexpr int64_t kQ4Block = 32;

// fp16 scales of a row.
constexpr int64_t q4_scales(int64_t dim) { return (dim + kQ4Block - 1) / kQ4Block; }

// Dimensions of a row's block.
constexpr int64_t q4_block_size(int64_t dim, int64_t block) {
    const int64_t rest = dim - block * kQ4Block;
    return rest < kQ4Block ? rest : kQ4Block;
}

template <>
constexpr int64_t row_size<Q4_0>(int64_t dim) {
    return dim / 2 + q4_scales(dim) * static_cast<int64_t>(sizeof(Float16));
}

// From one row of V to the next, and vectors of keys that lie one behind the other in a block.
template <typename T>
constexpr int64_t value_stride(int64_t dim) {
    return std::is_same_v<T, Q4_0> ? dim / 2 : row_size<T>(dim);
}
template <typename T>
constexpr int64_t key_vectors(int64_t dim) {
    return std::is_same_v<T, Q4_0> ? dim / 2 : dim;
}

// The scales of a row's first block; those of the next one lie `block_size` further.
inline const Float16* scales_of(const char* head, int64_t dim, int64_t block_size,
                                int64_t offset) {
    return reinterpret_cast<const Float16*>(head + dim / 2 * block_size) + offset;
}

inline float low_nibble(Q4_0 x) {
    return static_cast<float>(static_cast<int8_t>(static_cast<uint8_t>(x.pair << 4)) >> 4);
}
inline float high_nibble(Q4_0 x) {
    return static_cast<float>(static_cast<int8_t>(x.pair) >> 4);
}

// `nibbles` has the low nibbles of a vector's bytes, times kLowUnit, and the high ones.
#if PAGODA_ISA_AVX2
constexpr float kLowUnit = 0x1p28f;  // as they lie once they are shifted to the top
#else
constexpr float kLowUnit = 1;
#endif

#if PAGODA_ISA_AVX512

inline FloatPair nibbles(const Q4_0* p) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m512i bytes = _mm512_cvtepu8_epi32(packed);
    // A permutation looks at no more than 4 bits of an index.
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return {{_mm512_permutexvar_ps(bytes, values)},
            {_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values)}};
}

#elif PAGODA_ISA_AVX2

inline FloatPair nibbles(const Q4_0* p) {
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m256i bytes = _mm256_cvtepi8_epi32(packed);
    return {{_mm256_cvtepi32_ps(_mm256_slli_epi32(bytes, 28))},
            {_mm256_cvtepi32_ps(_mm256_srai_epi32(bytes, 4))}};
}

#elif PAGODA_ISA_NEON

inline Floats widened(int8x8_t x) {
    const int16x8_t words = vmovl_s8(x);
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))),
            vcvtq_f32_s32(vmovl_s16(vget_high_s16(words)))};
}
inline FloatPair nibbles(const Q4_0* p) {
    const int8x8_t bytes = vreinterpret_s8_u8(vld1_u8(&p->pair));
    return {widened(vshr_n_s8(vshl_n_s8(bytes, 4), 4)), widened(vshr_n_s8(bytes, 4))};
}

#else

inline FloatPair nibbles(const Q4_0* p) {
    FloatPair out;
    for (int i = 0; i < Floats::kSize; ++i) {
        out.first.v[i] = low_nibble(p[i]);
        out.second.v[i] = high_nibble(p[i]);
    }
    return out;
}

#endif

// Rounds `count` numbers of one block, as llama.cpp does: of those of largest magnitude the first
// becomes -8, and what lies beyond 7 on the other side is cut off. Bytes go `stride` apart. A block
// with infinity or NaN in it reads as NaN throughout.
inline void store_q4_block(const float* x, int64_t count, int64_t stride, Q4_0* out,
                           Float16* scale) {
    const int64_t half = count / 2;
    float largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
        finite &= x[i] - x[i] == 0.0f;
        if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
    }
    const float step = finite ? largest / -8.0f : __builtin_nanf("");
    const float inverse = std::fabs(step) >= 0x1p-126f ? 1.0f / step : 0.0f;
    Float16 stored;
    narrow(step, &stored);
    std::memcpy(scale, &stored, sizeof stored);
    uint8_t codes[kQ4Block] = {};
    for (int64_t i = 0; i < count && finite; ++i) {
        const int code = static_cast<int>(__builtin_fmaf(x[i], inverse, 8.5f));
        codes[i] = static_cast<uint8_t>((code < 15 ? code : 15) ^ 8);
    }
    for (int64_t i = 0; i < half; ++i)
        out[i * stride].pair = static_cast<uint8_t>(codes[i] | codes[half + i] << 4);
}

// A row of K or V: the bytes of its block's elements go `stride` apart from `out` on, its scales
// `block_size` apart from `scales` on.
inline void store_q4_row(const float* x, int64_t dim, int64_t stride, int64_t block_size,
                         Q4_0* out, Float16* scales) {
    for (int64_t block = 0; block < q4_scales(dim); ++block)
        store_q4_block(x + block * kQ4Block, q4_block_size(dim, block), stride,
                       out + block * (kQ4Block / 2) * stride, scales + block * block_size);
}

}  // namespace
}  // namespace pagoda
