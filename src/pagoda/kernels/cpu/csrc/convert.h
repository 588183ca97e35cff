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
#elif PAGODA_BYTE_PAIRS
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

// As whole numbers, NaN is the largest magnitude: it gets into the scale and is not lost.
inline float largest_magnitude(const float* x, int64_t count) {
    int32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t magnitude = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
        largest = largest < magnitude ? magnitude : largest;
    }
    return std::bit_cast<float>(largest);
}

// What the blocks of one token's row share: nothing, or a scale.
struct NoRow {
    NoRow(const float*, int64_t) {}
};

#if PAGODA_BYTE_PAIRS

// 32 columns of one token in 8 bits: x = scale * multiplier * q with |q| <= 127, a scale per row
// and a multiplier per 16 columns. Steps are rounded up to whole multiples of the row's largest
// step / kMaxMultiplier: so sums of products stay whole numbers over a block, which saves a sixth
// of the time, and the largest step's own error hides what that adds.
struct Q8Block {
    // 32 columns of levels up to 31 times this fit 32 bits, as do 16 of levels up to 63.
    static constexpr int kMaxMultiplier = 16384;
    struct Row {
        float scale, per_unit;
        Row(const float* x, int64_t columns) {
            const float largest = largest_magnitude(x, columns);
            scale = largest / (127.0f * kMaxMultiplier);
            per_unit = kMaxMultiplier / largest;
        }
    };
    int8_t q[kBlockColumns];
    int32_t multiplier[2];  // twice, in 16 bits each
    int32_t minus_sum[2];   // of -multiplier * q
    int32_t minus_total;    // of both
    float total;            // of multiplier * q over the block
    float scale;
};

// 32 columns in 16 bits: x = scale * q; of each four the even ones first, then the odd ones.
struct WordBlock {
    struct Row {
        float scale, inverse;
        Row(const float* x, int64_t columns) {
            scale = largest_magnitude(x, columns) / 32767.0f;
            inverse = scale < 0x1p-126f ? 0.0f : 1.0f / scale;
        }
    };
    int16_t q[kBlockColumns];
    float scale;
};

#else

// 32 columns of one token in 8 bits: x = scale * q with |q| <= 127, and a scale per 16 columns.
// Against one scale per 32 this costs a twelfth of the arithmetic and takes off a quarter of the
// error (mean KL of the default model to its fp32 self: 3.0e-3 against 3.7e-3).
struct Q8Block {
    using Row = NoRow;
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
    using Row = NoRow;
    float x[kBlockColumns];
};

// Pairs of bf16 for instructions that multiply those.
struct Bf16Block {
    using Row = NoRow;
    uint16_t x[kBlockColumns];
};

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
    const __m128i q = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(values, inverse)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out.q + half * Q8Block::kHalf), q);
    out.scale[half] = scale;
    // Of the codes as they are stored: NaN and infinity become whole numbers too large to add up.
    out.minus_sum[half] = -_mm512_reduce_add_epi32(_mm512_cvtepi8_epi32(q));
}

#ifdef __AVX512BF16__
inline void convert(const float* x, NoRow, Bf16Block& out) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
    std::memcpy(out.x, &both, sizeof out.x);
}
#endif

#elif PAGODA_BYTE_PAIRS

// In each half of the result, four numbers: of x or of y, combined by pairs; then all four.
template <typename Combine>
inline __m256i reduced(__m256i x, __m256i y, Combine combine) {
    __m256i z = combine(_mm256_permute2x128_si256(x, y, 0x20),
                        _mm256_permute2x128_si256(x, y, 0x31));
    z = combine(z, _mm256_shuffle_epi32(z, 0x4e));
    return combine(z, _mm256_shuffle_epi32(z, 0xb1));
}

inline __m256i largest_of(const __m256* two) {
    const __m256i positive = _mm256_set1_epi32(0x7fffffff);
    return _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(two[0]), positive),
                            _mm256_and_si256(_mm256_castps_si256(two[1]), positive));
}

// The first numbers of both halves.
inline void store_halves(__m256i x, int32_t* to) {
    const __m256i both = _mm256_permute4x64_epi64(_mm256_shuffle_epi32(x, 0), 0x08);
    const __m128i four = _mm_shuffle_epi32(_mm256_castsi256_si128(both), 0x08);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), four);
}

// The low half of each vector here belongs to columns 0 to 15, the high one to 16 to 31.
inline void convert(const float* x, const Q8Block::Row& row, Q8Block& out) {
    __m256 values[4];
    for (int i = 0; i < 4; ++i) values[i] = _mm256_loadu_ps(x + 8 * i);
    const __m256i magnitude =
        reduced(largest_of(values), largest_of(values + 2),
                [](__m256i a, __m256i b) { return _mm256_max_epi32(a, b); });
    const __m256 units =
        _mm256_ceil_ps(_mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(row.per_unit)));
    // From 1 to the largest, which NaN becomes: the second operand is what is left of it.
    const __m256 multiplier =
        _mm256_max_ps(_mm256_min_ps(units, _mm256_set1_ps(Q8Block::kMaxMultiplier)),
                      _mm256_set1_ps(1));
    const __m256 smallest = _mm256_set1_ps(0x1p-126f);
    const __m256 step =
        _mm256_max_ps(_mm256_mul_ps(multiplier, _mm256_set1_ps(row.scale)), smallest);
    const __m256 one = _mm256_set1_ps(row.scale < 0x1p-126f ? 0.0f : 1.0f);
    const __m256 inverse = _mm256_div_ps(one, step);
    const __m256 first = _mm256_permute2f128_ps(inverse, inverse, 0x00);
    const __m256 second = _mm256_permute2f128_ps(inverse, inverse, 0x11);
    __m256i q[4];
    for (int i = 0; i < 4; ++i)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], i < 2 ? first : second));
    // Codes are added up as they are stored, in bytes: of NaN and infinity the sums would overflow.
    const __m256i least = _mm256_set1_epi16(-128);
    const __m256i low = _mm256_max_epi16(_mm256_packs_epi32(q[0], q[1]), least);
    const __m256i high = _mm256_max_epi16(_mm256_packs_epi32(q[2], q[3]), least);
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(out.q),
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), in_order));
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i sum = reduced(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones),
                                [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); });
    const __m256i factor = _mm256_cvtps_epi32(multiplier);
    store_halves(_mm256_or_si256(factor, _mm256_slli_epi32(factor, 16)), out.multiplier);
    const __m256i minus_sum =
        _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_mullo_epi32(factor, sum));
    store_halves(minus_sum, out.minus_sum);
    out.minus_total = _mm_cvtsi128_si32(_mm_add_epi32(_mm256_castsi256_si128(minus_sum),
                                                      _mm256_extracti128_si256(minus_sum, 1)));
    out.total = static_cast<float>(-out.minus_total);
    out.scale = row.scale;
}

inline void convert(const float* x, const WordBlock::Row& row, WordBlock& out) {
    out.scale = row.scale;
    for (int i = 0; i < kBlockColumns; i += 4)
        for (int j = 0; j < 4; ++j)
            out.q[i + j % 2 * 2 + j / 2] = static_cast<int16_t>(rounded(x[i + j] * row.inverse));
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

#if !PAGODA_BYTE_PAIRS

inline void convert(const float* x, NoRow, Q8Block& out) {
    convert_half(x, out, 0);
    convert_half(x, out, 1);
    out.sum = half_sum(out, 0) + half_sum(out, 1);
}

#endif

inline void convert(const float* x, NoRow, FloatBlock& out) { std::memcpy(out.x, x, sizeof out.x); }

// Columns past the last are zero.
template <typename Block>
void convert_part(const float* x, int columns, const typename Block::Row& row, Block& out) {
    float padded[kBlockColumns] = {};
    std::memcpy(padded, x, sizeof(float) * static_cast<size_t>(columns));
    convert(padded, row, out);
}

// Blocks [first, last) of `size` tokens from `x` on, into their tile.
template <typename Block>
void convert_tile(const float* x, int64_t ldx, int64_t columns, int size, int64_t first,
                  int64_t last, Block* tile) {
    for (int token = 0; token < size; ++token, x += ldx) {
        const typename Block::Row row(x, columns);
        for (int64_t block = first; block < last; ++block) {
            const float* from = x + block * kBlockColumns;
            const int64_t left = columns - block * kBlockColumns;
            Block& out = tile[block * size + token];
            if (left >= kBlockColumns)
                convert(from, row, out);
            else
                convert_part(from, static_cast<int>(left), row, out);
        }
    }
}

}  // namespace
}  // namespace pagoda
