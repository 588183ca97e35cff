// Activations on their way into a matrix product: cut into tiles of tokens and converted to what
// the product's instructions take. Tiles lie one after another, in each tile the blocks of 32
// columns, in each block the tile's tokens: a kernel finds all it needs at constant distances.
#pragma once

#include "formats.h"
#include "lanes.h"

namespace pagoda {
namespace {

// Tokens that one pass over a panel serves, at most: their sums stay in registers, or with AVX2 at
// hand.
#if PAGODA_ISA_AVX512
constexpr int kMaxTile = 16;
#elif PAGODA_ISA_AVX2
constexpr int kMaxTile = 6;
#else
constexpr int kMaxTile = 4;
#endif
// Whether there are tiles of every size up to the largest, or of powers of two.
constexpr bool kAllTileSizes = kMaxTile == 6;

// Tokens of the next tile when so many are left.
inline int tile_size(int64_t tokens) {
    if (kAllTileSizes) return tokens < kMaxTile ? static_cast<int>(tokens) : kMaxTile;
    int size = kMaxTile;
    while (size > tokens) size /= 2;
    return size;
}

#if PAGODA_ISA_AVX2

// 32 columns of one token in 8 bits: x = scale * multiplier * q with |q| <= 127, a scale per row
// and a multiplier per 16 columns. Steps are rounded up to whole multiples of the row's largest
// step / kMaxMultiplier: so sums of products stay whole numbers over a block, which saves a sixth
// of the time, and the largest step's own error hides what that adds.
struct Q8Block {
    static constexpr bool kRowScale = true;
    static constexpr int kHalf = kBlockColumns / 2;
    // 32 columns of levels up to 31 times this fit 32 bits, as do 16 of levels up to 63.
    static constexpr int kMaxMultiplier = 16384;
    int8_t q[kBlockColumns];
    int32_t multiplier[2];  // twice, in 16 bits each
    int32_t minus_sum[2];   // of -multiplier * q
    int32_t minus_total;    // of both
    float total;            // of multiplier * q over the block
    float scale;
};

// 32 columns in 16 bits: x = scale * q; of each four the even ones first, then the odd ones.
struct WordBlock {
    static constexpr bool kRowScale = true;
    int16_t q[kBlockColumns];
    float scale;
};

#else

// 32 columns of one token in 8 bits: x = scale * q with |q| <= 127, and a scale per 16 columns.
// Against one scale per 32 this costs a twelfth of the arithmetic and takes off a quarter of the
// error (mean KL of the default model to its fp32 self: 3.0e-3 against 3.7e-3).
struct Q8Block {
    static constexpr bool kRowScale = false;
    static constexpr int kHalf = kBlockColumns / 2;
    int8_t q[kBlockColumns];
    float scale[2];
    int32_t minus_sum[2];   // of -q
    float sum;              // of scale * q over the block
};

inline float half_sum(const Q8Block& block, int half) {
    return block.scale[half] * static_cast<float>(-block.minus_sum[half]);
}

#endif

struct FloatBlock {
    static constexpr bool kRowScale = false;
    float x[kBlockColumns];
};

// Pairs of bf16 for instructions that multiply those.
struct Bf16Block {
    static constexpr bool kRowScale = false;
    uint16_t x[kBlockColumns];
};

// As whole numbers, NaN is the largest magnitude: it gets into the scale and is not lost.
inline float largest_magnitude(const float* x, int64_t count) {
    int32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t magnitude = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
        largest = largest < magnitude ? magnitude : largest;
    }
    return std::bit_cast<float>(largest);
}

// Adding 1.5 * 2^23 rounds to the nearest whole number, ties to even.
inline int32_t rounded(float x) {
    constexpr float kRound = 0x1.8p23f;
    return std::bit_cast<int32_t>(x + kRound) - std::bit_cast<int32_t>(kRound);
}

#if PAGODA_ISA_AVX512

inline void convert_half(const float* x, Q8Block& out, int half) {
    const __m512 values = _mm512_loadu_ps(x + half * Q8Block::kHalf);
    // As whole numbers, NaN is the largest magnitude: it gets into the scale and is not lost.
    const int32_t largest = _mm512_reduce_max_epi32(
        _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff)));
    const float scale = std::bit_cast<float>(largest) / 127.0f;
    const __m512 inverse = _mm512_set1_ps(scale < 0x1p-126f ? 0.0f : 1.0f / scale);
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out.q + half * Q8Block::kHalf),
                     _mm512_cvtepi32_epi8(q));
    out.scale[half] = scale;
    out.minus_sum[half] = -_mm512_reduce_add_epi32(q);
}

inline void convert(const float* x, float, Bf16Block& out) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
    std::memcpy(out.x, &both, sizeof out.x);
}

#elif PAGODA_ISA_AVX2

template <typename Combine>
inline int32_t reduced(__m256i x, Combine combine) {
    __m128i y = combine(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = combine(y, _mm_unpackhi_epi64(y, y));
    return _mm_cvtsi128_si32(combine(y, _mm_shuffle_epi32(y, 1)));
}

// 16 columns times `inverse`, rounded; returns their sum.
inline int32_t store_half(__m256 first, __m256 second, float inverse, int8_t* q) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(first, factor)),
                           _mm256_cvtps_epi32(_mm256_mul_ps(second, factor))),
        0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q),
                     _mm_packs_epi16(_mm256_castsi256_si128(words),
                                     _mm256_extracti128_si256(words, 1)));
    return reduced(_mm256_madd_epi16(words, _mm256_set1_epi16(1)),
                   [](__m128i a, __m128i b) { return _mm_add_epi32(a, b); });
}

inline void convert(const float* x, float largest, Q8Block& out) {
    constexpr float kMax = Q8Block::kMaxMultiplier;
    out.scale = largest / (127.0f * kMax);
    const float per_unit = kMax / largest;
    int32_t minus_total = 0;
    for (int half = 0; half < 2; ++half, x += Q8Block::kHalf) {
        const __m256 first = _mm256_loadu_ps(x), second = _mm256_loadu_ps(x + 8);
        const __m256i positive = _mm256_set1_epi32(0x7fffffff);
        const int32_t magnitude =
            reduced(_mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(first), positive),
                                     _mm256_and_si256(_mm256_castps_si256(second), positive)),
                    [](__m128i a, __m128i b) { return _mm_max_epi32(a, b); });
        // Never 0, and kMax for NaN.
        const float steps = std::ceil(std::bit_cast<float>(magnitude) * per_unit);
        const float multiplier = steps < 1.0f ? 1.0f : steps < kMax ? steps : kMax;
        const float inverse = out.scale < 0x1p-126f ? 0.0f : 1.0f / (out.scale * multiplier);
        const int factor = static_cast<int>(multiplier);
        const int32_t sum = store_half(first, second, inverse, out.q + half * Q8Block::kHalf);
        out.multiplier[half] = factor * 0x10001;
        out.minus_sum[half] = -factor * sum;
        minus_total -= factor * sum;
    }
    out.minus_total = minus_total;
    out.total = static_cast<float>(-minus_total);
}

inline void convert(const float* x, float largest, WordBlock& out) {
    out.scale = largest / 32767.0f;
    const float inverse = out.scale < 0x1p-126f ? 0.0f : 1.0f / out.scale;
    for (int i = 0; i < kBlockColumns; i += 4)
        for (int j = 0; j < 4; ++j)
            out.q[i + j % 2 * 2 + j / 2] = static_cast<int16_t>(rounded(x[i + j] * inverse));
}

#else

inline void convert_half(const float* x, Q8Block& out, int half) {
    x += half * Q8Block::kHalf;
    const float scale = largest_magnitude(x, Q8Block::kHalf) / 127.0f;
    const float inverse = scale < 0x1p-126f ? 0.0f : 1.0f / scale;
    int32_t sum = 0;
    for (int i = 0; i < Q8Block::kHalf; ++i) {
        const auto q = static_cast<int8_t>(rounded(x[i] * inverse));
        out.q[half * Q8Block::kHalf + i] = q;
        sum += q;
    }
    out.scale[half] = scale;
    out.minus_sum[half] = -sum;
}

#endif

#if !PAGODA_ISA_AVX2

inline void convert(const float* x, float, Q8Block& out) {
    convert_half(x, out, 0);
    convert_half(x, out, 1);
    out.sum = half_sum(out, 0) + half_sum(out, 1);
}

#endif

inline void convert(const float* x, float, FloatBlock& out) { std::memcpy(out.x, x, sizeof out.x); }

// Columns past the last are zero.
template <typename Block>
void convert_part(const float* x, int columns, float largest, Block& out) {
    float padded[kBlockColumns] = {};
    std::memcpy(padded, x, sizeof(float) * static_cast<size_t>(columns));
    convert(padded, largest, out);
}

// Blocks [first, last) of `size` tokens from `x` on, into their tile.
template <typename Block>
void convert_tile(const float* x, int64_t ldx, int64_t columns, int size, int64_t first,
                  int64_t last, Block* tile) {
    for (int token = 0; token < size; ++token, x += ldx) {
        const float largest = Block::kRowScale ? largest_magnitude(x, columns) : 0;
        for (int64_t block = first; block < last; ++block) {
            const float* from = x + block * kBlockColumns;
            const int64_t left = columns - block * kBlockColumns;
            Block& out = tile[block * size + token];
            if (left >= kBlockColumns)
                convert(from, largest, out);
            else
                convert_part(from, static_cast<int>(left), largest, out);
        }
    }
}

}  // namespace
}  // namespace pagoda
