// Activations on their way into a matrix product: cut into tiles of tokens and converted to what
// the product's instructions take. Tiles lie one after another, in each tile the blocks of 32
// columns, in each block the tile's tokens: a kernel finds all it needs at constant distances.
#pragma once

#include "formats.h"
#include "lanes.h"

namespace pagoda {
namespace {

// Tokens that one pass over a panel serves, at most: their sums stay in registers.
#if PAGODA_ISA_AVX512
constexpr int kMaxTile = 16;
#else
constexpr int kMaxTile = 4;
#endif

// Tokens of the next tile when so many are left.
inline int tile_size(int64_t tokens) {
    int size = kMaxTile;
    while (size > tokens) size /= 2;
    return size;
}

// 32 columns of one token in 8 bits: x = scale * q with |q| <= 127, and a scale per 16 columns.
// Against one scale per 32 this costs a twelfth of the arithmetic and takes off a quarter of the
// error (mean KL of the default model to its fp32 self: 3.0e-3 against 3.7e-3).
struct Q8Block {
    static constexpr int kHalf = kBlockColumns / 2;
    int8_t q[kBlockColumns];
    float scale[2];
    int32_t minus_sum[2];   // of -q
    float sum;              // of scale * q over the block
};

inline float half_sum(const Q8Block& block, int half) {
    return block.scale[half] * static_cast<float>(-block.minus_sum[half]);
}

struct FloatBlock {
    float x[kBlockColumns];
};

// Pairs of bf16 for instructions that multiply those.
struct Bf16Block {
    uint16_t x[kBlockColumns];
};

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

#ifdef __AVX512BF16__
inline void convert(const float* x, Bf16Block& out) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
    std::memcpy(out.x, &both, sizeof out.x);
}
#endif

#else

inline void convert_half(const float* x, Q8Block& out, int half) {
    x += half * Q8Block::kHalf;
    // As whole numbers, NaN is the largest magnitude: it gets into the scale and is not lost.
    int32_t largest = 0;
    for (int i = 0; i < Q8Block::kHalf; ++i) {
        const int32_t magnitude = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
        largest = largest < magnitude ? magnitude : largest;
    }
    const float scale = std::bit_cast<float>(largest) / 127.0f;
    const float inverse = scale < 0x1p-126f ? 0.0f : 1.0f / scale;
    // Adding 1.5 * 2^23 rounds to the nearest whole number, ties to even.
    constexpr float kRound = 0x1.8p23f;
    int32_t sum = 0;
    for (int i = 0; i < Q8Block::kHalf; ++i) {
        const int32_t q = std::bit_cast<int32_t>(x[i] * inverse + kRound) -
                          std::bit_cast<int32_t>(kRound);
        out.q[half * Q8Block::kHalf + i] = static_cast<int8_t>(q);
        sum += static_cast<int8_t>(q);
    }
    out.scale[half] = scale;
    out.minus_sum[half] = -sum;
}

#endif

inline void convert(const float* x, Q8Block& out) {
    convert_half(x, out, 0);
    convert_half(x, out, 1);
    out.sum = half_sum(out, 0) + half_sum(out, 1);
}

inline void convert(const float* x, FloatBlock& out) { std::memcpy(out.x, x, sizeof out.x); }

// Columns past the last are zero.
template <typename Block>
void convert_part(const float* x, int columns, Block& out) {
    float padded[kBlockColumns] = {};
    std::memcpy(padded, x, sizeof(float) * static_cast<size_t>(columns));
    convert(padded, out);
}

// Blocks [first, last) of `size` tokens from `x` on, into their tile.
template <typename Block>
void convert_tile(const float* x, int64_t ldx, int64_t columns, int size, int64_t first,
                  int64_t last, Block* tile) {
    for (int token = 0; token < size; ++token)
        for (int64_t block = first; block < last; ++block) {
            const float* from = x + token * ldx + block * kBlockColumns;
            const int64_t left = columns - block * kBlockColumns;
            Block& out = tile[block * size + token];
            if (left >= kBlockColumns)
                convert(from, out);
            else
                convert_part(from, static_cast<int>(left), out);
        }
}

}  // namespace
}  // namespace pagoda
