// The inner loops of attention over keys and values in q4_0 (q4_row.h).
#pragma once

#include "attention_tile.h"
#include "q4_row.h"

namespace pagoda {
namespace {

inline float q4_scale(const Float16* scales, int64_t place) {
    Float16 scale;
    std::memcpy(&scale, scales + place, sizeof scale);
    return widen(scale);
}

// Calls body(i, d, value) for key i of a piece and its dimension d.
template <typename Body>
inline void each_q4_key(const Piece& piece, int64_t block_size, int64_t dim, const Body& body) {
    const Q4_0* bytes = reinterpret_cast<const Q4_0*>(piece.keys) + piece.offset;
    const Float16* scales = scales_of(piece.keys, dim, block_size, piece.offset);
    for (int64_t block = 0; block < q4_scales(dim); ++block, scales += block_size) {
        const int64_t half = q4_block_size(dim, block) / 2, d = block * kQ4Block;
        for (int64_t i = 0; i < piece.count; ++i) {
            const float scale = q4_scale(scales, i);
            for (int64_t j = 0; j < half; ++j) {
                const Q4_0 found = bytes[(d / 2 + j) * block_size + i];
                body(i, d + j, low_nibble(found) * scale);
                body(i, d + half + j, high_nibble(found) * scale);
            }
        }
    }
}

// As `pack_keys`, with their scales.
inline void pack_q4_keys(const Piece* pieces, int64_t num_pieces, int64_t block_size, int64_t dim,
                         float* out) {
    for (const Piece* piece = pieces; piece < pieces + num_pieces; ++piece)
        each_q4_key(*piece, block_size, dim, [&](int64_t i, int64_t d, float x) {
            out[d * kTileKeys + piece->first + i] = x;
        });
}

// As `turn_keys`, with their scales.
inline void turn_q4_keys(const Piece* pieces, int64_t num_pieces, int64_t block_size, int64_t dim,
                         int64_t padded_dim, float* out) {
    for (const Piece* piece = pieces; piece < pieces + num_pieces; ++piece) {
        float* rows = out + piece->first * padded_dim;
        for (int64_t i = 0; i < piece->count; ++i)
            for (int64_t d = dim; d < padded_dim; ++d) rows[i * padded_dim + d] = 0;
        each_q4_key(*piece, block_size, dim,
                    [&](int64_t i, int64_t d, float x) { rows[i * padded_dim + d] = x; });
    }
}

// As `pack_values`, with their scales.
inline void pack_q4_values(const Piece* pieces, int64_t num_pieces, int64_t block_size,
                           int64_t dim, int64_t padded_dim, float* out) {
    for (const Piece* piece = pieces; piece < pieces + num_pieces; ++piece)
        for (int64_t i = 0; i < piece->count; ++i) {
            const int64_t offset = piece->offset + i;
            const Q4_0* from = reinterpret_cast<const Q4_0*>(piece->values) + offset * (dim / 2);
            const Float16* scales = scales_of(piece->values, dim, block_size, offset);
            float* to = out + (piece->first + i) * padded_dim;
            for (int64_t d = dim; d < padded_dim; ++d) to[d] = 0;
            for (int64_t block = 0; block < q4_scales(dim); ++block) {
                const int64_t half = q4_block_size(dim, block) / 2;
                const float scale = q4_scale(scales, block * block_size);
                int64_t j = 0;
                for (; j + Floats::kSize <= half; j += Floats::kSize) {
                    const FloatPair found = nibbles(from + j);
                    (found.first * Floats::all(scale / kLowUnit)).store(to + j);
                    (found.second * Floats::all(scale)).store(to + half + j);
                }
                for (; j < half; ++j) {
                    to[j] = low_nibble(from[j]) * scale;
                    to[half + j] = high_nibble(from[j]) * scale;
                }
                from += half;
                to += 2 * half;
            }
        }
}

// Queries as `score_block` takes them: low dimensions over kLowUnit.
inline void scale_q4_queries(float* q, int64_t rows, int64_t dim) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t block = 0; block < q4_scales(dim); ++block) {
            float* low = q + r * dim + block * kQ4Block;
            const int64_t half = q4_block_size(dim, block) / 2;
            for (int64_t j = 0; j < half; ++j) low[j] *= 1 / kLowUnit;
        }
}

struct Q4Keys {
    const Q4_0* const* vectors;
    const Float16* const* scales;  // of the first block of each vector's keys
    int64_t block_size;
};

#if PAGODA_ISA_AVX512
constexpr int kFloatRegisters = 32;
#else
constexpr int kFloatRegisters = 16;
#endif

// sums += x(r, 0) times the low nibbles and x(r, 1) times the high ones of each of Vecs vectors, in
// the order that needs fewer registers.
template <int Rows, int Vecs, typename X, typename Pair>
[[gnu::always_inline]] inline void add_nibbles(const X& x, const Pair& pair,
                                               Floats (&sums)[Rows][Vecs]) {
    const auto add = [&](int r, int v, Floats low, Floats high, FloatPair found) {
        sums[r][v] = Floats::fma(low, found.first, sums[r][v]);
        sums[r][v] = Floats::fma(high, found.second, sums[r][v]);
    };
    if constexpr (Rows < Vecs) {
        Floats low[Rows], high[Rows];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) low[r] = x(r, 0), high[r] = x(r, 1);
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; ++v) {
            const FloatPair found = pair(v);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) add(r, v, low[r], high[r], found);
        }
    } else if constexpr (Rows * Vecs + 2 * Vecs < kFloatRegisters) {
        FloatPair found[Vecs];
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; ++v) found[v] = pair(v);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats low = x(r, 0);
#pragma GCC unroll 8
            for (int v = 0; v < Vecs; ++v)
                sums[r][v] = Floats::fma(low, found[v].first, sums[r][v]);
            const Floats high = x(r, 1);
#pragma GCC unroll 8
            for (int v = 0; v < Vecs; ++v)
                sums[r][v] = Floats::fma(high, found[v].second, sums[r][v]);
        }
    } else {
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; ++v) {
            const FloatPair found = pair(v);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) add(r, v, x(r, 0), x(r, 1), found);
        }
    }
}

template <int Rows, int Vecs>
[[gnu::noinline]] void score_block(const float* q, int64_t dim, Q4Keys keys, int64_t vec,
                                   Lines& lines, float* scores) {
    for (int64_t block = 0; block < q4_scales(dim); ++block) {
        const int64_t half = q4_block_size(dim, block) / 2;
        const float* x = q + block * kQ4Block;
        const Q4_0* from[Vecs];
        Floats sums[Rows][Vecs];
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; ++v) {
            from[v] = keys.vectors[vec + v] + block * (kQ4Block / 2) * keys.block_size;
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) sums[r][v] = Floats::zero();
        }
        for (int64_t j = 0; j < half;) {
            lines.fetch(kSteps * Vecs * Floats::kSize);
            for (const int64_t stop = j + kSteps < half ? j + kSteps : half; j < stop; ++j)
                add_nibbles<Rows, Vecs>(
                    [&](int r, int64_t high) { return Floats::all(x[r * dim + high * half + j]); },
                    [&](int v) { return nibbles(from[v] + j * keys.block_size); }, sums);
        }
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; ++v) {
            const Floats scale = load(keys.scales[vec + v] + block * keys.block_size);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                float* const to = scores + r * kTileKeys + (vec + v) * Floats::kSize;
                const Floats before = block == 0 ? Floats::zero() : Floats::load(to);
                Floats::fma(sums[r][v], scale, before).store(to);
            }
        }
    }
}

// out[Count, kTileKeys] = weights times the scales of the values' block.
template <int Rows>
inline void scale_q4_weights(const float* weights, const Piece* pieces, int64_t num_pieces,
                             int64_t block, int64_t block_size, int64_t dim, float* out) {
    for (const Piece* piece = pieces; piece < pieces + num_pieces; ++piece) {
        const Float16* scales =
            scales_of(piece->values, dim, block_size, piece->offset) + block * block_size;
        // In blocks of other sizes scales may lie at odd bytes.
        const int64_t whole = block_size % Floats::kSize == 0 ? piece->count : 0;
        int64_t i = 0;
        for (; i + Floats::kSize <= whole; i += Floats::kSize) {
            const Floats scale = load(scales + i);
            for (int r = 0; r < Rows; ++r) {
                const int64_t at = r * kTileKeys + piece->first + i;
                (Floats::load(weights + at) * scale).store(out + at);
            }
        }
        for (; i < piece->count; ++i)
            for (int r = 0; r < Rows; ++r) {
                const int64_t at = r * kTileKeys + piece->first + i;
                out[at] = weights[at] * q4_scale(scales, i);
            }
    }
}

// As `weigh_block`, of Pairs vectors of low nibbles and the high ones beside them; `out` is where
// the low ones belong.
template <int Rows, int Pairs>
[[gnu::noinline]] void weigh_q4_block(const float* weights, const float* factors,
                                      const Q4_0* const* values, int64_t byte, int64_t begin,
                                      int64_t end, int64_t half, int64_t stride, Lines& lines,
                                      float* out) {
    constexpr int64_t kSize = Floats::kSize;
    Floats low[Rows][Pairs], high[Rows][Pairs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Pairs; ++v) {
            const float* from = out + r * stride + v * kSize;
            low[r][v] = Floats::load(from) * Floats::all(factors[r] * kLowUnit);
            high[r][v] = Floats::load(from + half) * Floats::all(factors[r]);
        }
    for (int64_t key = begin; key < end;) {
        lines.fetch(kSteps * Pairs * kSize);
        for (const int64_t stop = key + kSteps < end ? key + kSteps : end; key < stop; ++key) {
            FloatPair found[Pairs];
#pragma GCC unroll 8
            for (int v = 0; v < Pairs; ++v) found[v] = nibbles(values[key] + byte + v * kSize);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const Floats weight = Floats::all(weights[r * kTileKeys + key]);
#pragma GCC unroll 8
                for (int v = 0; v < Pairs; ++v) {
                    low[r][v] = Floats::fma(weight, found[v].first, low[r][v]);
                    high[r][v] = Floats::fma(weight, found[v].second, high[r][v]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Pairs; ++v) {
            float* to = out + r * stride + v * kSize;
            (low[r][v] * Floats::all(1 / kLowUnit)).store(to);
            high[r][v].store(to + half);
        }
}

// As `weigh`, where the halves of all blocks are whole vectors. `scaled` is room for as many numbers
// as `weights` has.
template <int Rows>
inline void weigh_q4(const float* weights, const float* factors, const Q4_0* const* values,
                     const Piece* pieces, int64_t num_pieces, int64_t begin, int64_t end,
                     int64_t block_size, int64_t dim, int64_t stride, Lines& lines, float* scaled,
                     float* out) {
    constexpr int kAll = kQ4Block / 2 / Floats::kSize;  // pairs of vectors in a block
    // 3 rows x 4 vectors and what they are made of are more than 16 registers hold.
    constexpr int kPairs = Rows <= 2 ? kAll : 1;
    for (int64_t block = 0; block < q4_scales(dim); ++block) {
        scale_q4_weights<Rows>(weights, pieces, num_pieces, block, block_size, dim, scaled);
        const int64_t half = q4_block_size(dim, block) / 2, byte = block * (kQ4Block / 2);
        float* const to = out + block * kQ4Block;
        int64_t at = 0;
        for (; at + kPairs * Floats::kSize <= half; at += kPairs * Floats::kSize)
            weigh_q4_block<Rows, kPairs>(scaled, factors, values, byte + at, begin, end, half,
                                         stride, lines, to + at);
        for (; at < half; at += Floats::kSize)
            weigh_q4_block<Rows, 1>(scaled, factors, values, byte + at, begin, end, half, stride,
                                    lines, to + at);
    }
}

}  // namespace
}  // namespace pagoda
