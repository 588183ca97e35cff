// The inner loops of attention: a tile of keys transposed, scores of a few rows, sums of values.
//
// One lane is one key (scores) or one dimension (values), so every sum is a chain in one order.
#pragma once

#include "attention_scratch.h"
#include "int8_row.h"
#include "vector_math.h"

namespace pagoda {
namespace {

// Cache lines that will be needed next, asked for a few at a time between sums: all at once they
// would fill the queue of misses, and the loads that are needed now would wait behind them.
class Lines {
   public:
    Lines(const void* const* rows, int64_t count, int64_t row_bytes)
        : rows_(rows), end_(rows + count), row_bytes_(row_bytes) {}

    void fetch(int count) {
        for (int i = 0; i < count; ++i) fetch();
    }

    void fetch() {
        if (rows_ == end_) return;
        __builtin_prefetch(static_cast<const char*>(*rows_) + at_);
        at_ += 64;
        if (at_ < row_bytes_) return;
        at_ = 0;
        ++rows_;
    }

   private:
    const void* const* rows_;
    const void* const* end_;
    int64_t row_bytes_;
    int64_t at_ = 0;
};

#if PAGODA_ISA_AVX512

constexpr int kMaxVecs = 4;  // 6 rows x 4 vectors of sums leave 8 registers

[[gnu::always_inline]] inline void transpose(__m512i (&x)[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512i even_low = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        t[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        t[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = t[i];
}

[[gnu::always_inline]] inline void transpose(Floats (&x)[16]) {
    __m512i bits[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) bits[i] = _mm512_castps_si512(x[i].v);
    transpose(bits);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i].v = _mm512_castsi512_ps(bits[i]);
}

// 16 pairs of neighbours: the first ones and the second ones.
inline Floats low_halves(__m512i pairs, BFloat16) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
}
inline Floats high_halves(__m512i pairs, BFloat16) {
    return {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)))};
}
inline Floats low_halves(__m512i pairs, Float16) {
    return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs))};
}
inline Floats high_halves(__m512i pairs, Float16) {
    return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)))};
}

// 16-bit keys are transposed as pairs, which takes half the shuffles.
template <typename T>
inline void pack_group(const T* const* keys, int64_t dim, Lines& lines, float* out) {
    for (int64_t d = 0; d < dim; d += 32) {
        lines.fetch(8);
        const int64_t pairs = dim - d < 32 ? (dim - d) / 2 : 16;
        const __mmask16 present = static_cast<__mmask16>((1u << pairs) - 1);
        __m512i x[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) x[i] = _mm512_maskz_loadu_epi32(present, keys[i] + d);
        transpose(x);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            low_halves(x[i], T{}).store(out + (d + 2 * i) * kTileKeys);
            high_halves(x[i], T{}).store(out + (d + 2 * i + 1) * kTileKeys);
        }
    }
}

// 8-bit keys as fours of neighbours. Past `dim` lie the scale's bytes: not more than two of them
// are packed, into places that nothing reads.
inline void pack_group(const Int8* const* keys, int64_t dim, Lines& lines, float* out) {
    for (int64_t d = 0; d < dim; d += 64) {
        lines.fetch(16);
        const int64_t fours = dim - d < 64 ? (dim - d + 3) / 4 : 16;
        const __mmask16 present = static_cast<__mmask16>((1u << fours) - 1);
        __m512i x[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) x[i] = _mm512_maskz_loadu_epi32(present, keys[i] + d);
        transpose(x);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            if (i >= fours) break;
            float* to = out + (d + 4 * i) * kTileKeys;
            const auto put = [&](int byte, __m512i high) {
                Floats{_mm512_cvtepi32_ps(_mm512_srai_epi32(high, 24))}
                    .store(to + byte * kTileKeys);
            };
            put(0, _mm512_slli_epi32(x[i], 24));
            put(1, _mm512_slli_epi32(x[i], 16));
            put(2, _mm512_slli_epi32(x[i], 8));
            put(3, x[i]);
        }
    }
}

#elif PAGODA_ISA_AVX2

constexpr int kMaxVecs = 2;  // 6 rows x 2 vectors of sums leave 4 registers

[[gnu::always_inline]] inline void transpose(Floats (&x)[8]) {
    __m256 t[8];
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        const __m256 a = _mm256_unpacklo_ps(x[i].v, x[i + 1].v);
        const __m256 b = _mm256_unpackhi_ps(x[i].v, x[i + 1].v);
        const __m256 c = _mm256_unpacklo_ps(x[i + 2].v, x[i + 3].v);
        const __m256 d = _mm256_unpackhi_ps(x[i + 2].v, x[i + 3].v);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        x[i].v = _mm256_permute2f128_ps(t[i], t[4 + i], 0x20);
        x[4 + i].v = _mm256_permute2f128_ps(t[i], t[4 + i], 0x31);
    }
}

#elif PAGODA_ISA_NEON

constexpr int kMaxVecs = 2;  // 6 rows x 2 vectors of sums, two registers each, leave 8

[[gnu::always_inline]] inline void transpose(float32x4_t& a, float32x4_t& b, float32x4_t& c,
                                             float32x4_t& d) {
    const float64x2_t ab_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
    const float64x2_t ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    const float64x2_t cd_even = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
    const float64x2_t cd_odd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    a = vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even));
    b = vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd));
    c = vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even));
    d = vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd));
}

[[gnu::always_inline]] inline void transpose(Floats (&x)[8]) {
    transpose(x[0].low, x[1].low, x[2].low, x[3].low);
    transpose(x[0].high, x[1].high, x[2].high, x[3].high);
    transpose(x[4].low, x[5].low, x[6].low, x[7].low);
    transpose(x[4].high, x[5].high, x[6].high, x[7].high);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const float32x4_t kept = x[i].high;
        x[i].high = x[4 + i].low;
        x[4 + i].low = kept;
    }
}

#else

constexpr int kMaxVecs = 1;

[[gnu::always_inline]] inline void transpose(Floats (&x)[Floats::kSize]) {
    for (int i = 0; i < Floats::kSize; ++i) {
        for (int j = 0; j < i; ++j) {
            const float kept = x[i].v[j];
            x[i].v[j] = x[j].v[i];
            x[j].v[i] = kept;
        }
    }
}

#endif

template <typename T>
inline Floats load_upto(const T* p, int64_t count) {
    return count >= Floats::kSize ? load(p) : load_first(p, count);
}

#if PAGODA_ISA_AVX512
inline void pack_group(const float* const* keys, int64_t dim, Lines& lines, float* out) {
#else
template <typename T>
inline void pack_group(const T* const* keys, int64_t dim, Lines& lines, float* out) {
#endif
    constexpr int kSize = Floats::kSize;
    for (int64_t d = 0; d < dim; d += kSize) {
        lines.fetch(4);
        Floats x[kSize];
#pragma GCC unroll 16
        for (int i = 0; i < kSize; ++i) x[i] = load_upto(keys[i] + d, dim - d);
        transpose(x);
#pragma GCC unroll 16
        for (int i = 0; i < kSize; ++i) x[i].store(out + (d + i) * kTileKeys);
    }
}

// The first `count` keys (rounded up to whole vectors) as out[dim, kTileKeys].
template <typename T>
inline void pack_keys(const T* const* keys, int64_t count, int64_t dim, Lines& lines,
                      float* out) {
    for (int64_t key = 0; key < count; key += Floats::kSize)
        pack_group(keys + key, dim, lines, out + key);
}

// Values as fp32 rows of out[kTileKeys, padded_dim].
template <typename T>
inline void pack_values(const T* const* values, int64_t begin, int64_t end, int64_t dim,
                        int64_t padded_dim, float* out) {
    for (int64_t key = begin; key < end; ++key)
        for (int64_t d = 0; d < dim; d += Floats::kSize)
            load_upto(values[key] + d, dim - d).store(out + key * padded_dim + d);
}

template <int Rows, int Vecs>
inline void score_block(const float* q, int64_t dim, const float* keys, Lines& lines,
                        float* scores) {
    Floats sums[Rows][Vecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v) sums[r][v] = Floats::zero();
    for (int64_t d = 0; d < dim; ++d) {
        lines.fetch(2);
        Floats key[Vecs];
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v)
            key[v] = Floats::load(keys + d * kTileKeys + v * Floats::kSize);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats x = Floats::all(q[r * dim + d]);
#pragma GCC unroll 4
            for (int v = 0; v < Vecs; ++v) sums[r][v] = Floats::fma(x, key[v], sums[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v) sums[r][v].store(scores + r * kTileKeys + v * Floats::kSize);
}

// scores[Rows, kTileKeys] = q[Rows, dim] keys[dim, kTileKeys], of the first `vecs` vectors.
template <int Rows>
inline void score(const float* q, int64_t dim, const float* keys, int64_t vecs, Lines& lines,
                  float* scores) {
    int64_t v = 0;
    for (; v + kMaxVecs <= vecs; v += kMaxVecs)
        score_block<Rows, kMaxVecs>(q, dim, keys + v * Floats::kSize, lines,
                                    scores + v * Floats::kSize);
    if constexpr (kMaxVecs > 1)
        for (; v < vecs; ++v)
            score_block<Rows, 1>(q, dim, keys + v * Floats::kSize, lines,
                                 scores + v * Floats::kSize);
}

// Values as packed above, or as they lie in the cache (dim a multiple of the vector's size).
struct PackedValues {
    const float* data;
    int64_t padded_dim;
    Floats at(int64_t key, int64_t d) const { return Floats::load(data + key * padded_dim + d); }
};

template <typename T>
struct CachedValues {
    const T* const* rows;
    Floats at(int64_t key, int64_t d) const { return load(rows[key] + d); }
};

template <int Rows, int Vecs, typename Values>
inline void weigh_block(const float* weights, const float* factors, Values values, int64_t begin,
                        int64_t end, int64_t d, int64_t stride, Lines& lines, float* out) {
    Floats sums[Rows][Vecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v)
            sums[r][v] =
                Floats::load(out + r * stride + d + v * Floats::kSize) * Floats::all(factors[r]);
    for (int64_t key = begin; key < end; ++key) {
        lines.fetch(2);
        Floats value[Vecs];
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v) value[v] = values.at(key, d + v * Floats::kSize);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats weight = Floats::all(weights[r * kTileKeys + key]);
#pragma GCC unroll 4
            for (int v = 0; v < Vecs; ++v)
                sums[r][v] = Floats::fma(weight, value[v], sums[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v)
            sums[r][v].store(out + r * stride + d + v * Floats::kSize);
}

// out[Rows, stride] = out * factors[Rows] + weights[Rows, begin:end] values[begin:end, dim].
template <int Rows, typename Values>
inline void weigh(const float* weights, const float* factors, Values values, int64_t begin,
                  int64_t end, int64_t dim, int64_t stride, Lines& lines, float* out) {
    constexpr int64_t kWide = kMaxVecs * Floats::kSize;
    int64_t d = 0;
    for (; d + kWide <= dim; d += kWide)
        weigh_block<Rows, kMaxVecs>(weights, factors, values, begin, end, d, stride, lines, out);
    if constexpr (kMaxVecs > 1)
        for (; d < dim; d += Floats::kSize)
            weigh_block<Rows, 1>(weights, factors, values, begin, end, d, stride, lines, out);
    else
        for (; d < dim; d += Floats::kSize)
            weigh_block<Rows, 1>(weights, factors, values, begin, end, d, stride, lines, out);
}

}  // namespace
}  // namespace pagoda
