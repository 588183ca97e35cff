// The inner loops of attention: scores of a few rows, sums of values.
//
// One lane is one key (scores) or one dimension (values), so every sum is a chain in one order.
#pragma once

#include "attention_scratch.h"
#include "int8_row.h"
#include "vector_math.h"

namespace pagoda {
namespace {

// Rows of bytes, `stride` apart.
struct Stretch {
    const char* begin;
    int64_t row_bytes;
    int64_t stride;
    int64_t rows;
};

// Keys of a tile that lie in one block, and their values.
struct Piece {
    const char* keys;    // the block's [dim, block_size]
    const char* values;  // and [block_size, dim]
    int64_t offset;      // of the first key in its block
    int64_t first;       // its number in the tile
    int64_t count;
    Stretch key_bytes;
    Stretch value_bytes;
};

// Cache lines that will be needed next, asked for a few at a time between sums: all at once they
// would fill the queue of misses, and the loads that are needed now would wait behind them.
class Lines {
   public:
    Lines(const Piece* pieces, int64_t count, const Stretch Piece::* what)
        : next_(pieces), end_(pieces + count), what_(what) {}

    // As many as `bytes` take up. Always inlined: a call would have the caller store its sums.
    [[gnu::always_inline]] void fetch(int64_t bytes) {
#pragma GCC unroll 1
        for (; bytes > 0; bytes -= 64) {
            if (at_ >= stop_) {
                if (rows_ == 0) {
                    if (next_ == end_) return;
                    const Stretch& found = next_++->*what_;
                    row_ = found.begin;
                    row_bytes_ = found.row_bytes;
                    stride_ = found.stride;
                    rows_ = found.rows;
                }
                at_ = row_;
                stop_ = row_ + row_bytes_;
                row_ += stride_;
                --rows_;
            }
            __builtin_prefetch(at_);
            at_ += 64;
        }
    }

   private:
    const char* at_ = nullptr;
    const char* stop_ = nullptr;
    const char* row_ = nullptr;
    int64_t row_bytes_ = 0, stride_ = 0, rows_ = 0;
    const Piece* next_;
    const Piece* end_;
    const Stretch Piece::* what_;
};

// Dimensions or keys between two looks at `Lines`.
constexpr int64_t kSteps = 8;

// How many vectors are worked on at once: enough chains of sums to hide their latency, and not
// more than registers hold.
constexpr int num_vecs([[maybe_unused]] int rows) {
#if PAGODA_ISA_AVX512
    return 4;  // 6 rows x 4 vectors of sums leave 8 registers
#elif PAGODA_ISA_AVX2
    // 6 rows x 2 leave 4 registers, for 2 vectors and a factor. 3 rows x 4 would need 5, for 3
    // factors and 2 vectors, and sums would go to memory at each step.
    return rows == 1 ? 8 : rows == 2 ? 4 : rows == 3 ? 3 : 2;
#elif PAGODA_ISA_NEON
    return rows == 1 ? 8 : rows <= 3 ? 4 : 2;  // 24 sums leave 8
#else
    return 1;
#endif
}

// How many at once of those that are left over; each number is one more copy of the code.
constexpr int fewer_vecs(int vecs) { return (vecs + 1) / 2; }

template <typename T>
inline Floats load_upto(const T* p, int64_t count) {
    return count >= Floats::kSize ? load(p) : load_first(p, count);
}

// The keys of all pieces as fp32, out[dim, kTileKeys].
template <typename T>
inline void pack_keys(const Piece* pieces, int64_t num_pieces, int64_t block_size, int64_t dim,
                      Lines& lines, float* out) {
    for (int64_t d = 0; d < dim; ++d, out += kTileKeys) {
        lines.fetch(kTileKeys * sizeof(T));
        for (const Piece* piece = pieces; piece < pieces + num_pieces; ++piece) {
            const T* keys =
                reinterpret_cast<const T*>(piece->keys) + d * block_size + piece->offset;
            float* to = out + piece->first;
            int64_t i = 0;
            for (; i + Floats::kSize <= piece->count; i += Floats::kSize)
                load(keys + i).store(to + i);
            for (; i < piece->count; ++i) to[i] = widen(keys[i]);
        }
    }
}

// Values as fp32 rows of out[kTileKeys, padded_dim].
template <typename T>
inline void pack_values(const T* const* values, int64_t begin, int64_t end, int64_t dim,
                        int64_t padded_dim, float* out) {
    for (int64_t key = begin; key < end; ++key)
        for (int64_t d = 0; d < dim; d += Floats::kSize)
            load_upto(values[key] + d, dim - d).store(out + key * padded_dim + d);
}

// All pieces' keys as fp32 rows of out[kTileKeys, padded_dim]: where values are the keys.
template <typename T>
inline void turn_keys(const Piece* pieces, int64_t num_pieces, int64_t block_size, int64_t dim,
                      int64_t padded_dim, float* out) {
    constexpr int64_t kStrip = 16;  // dimensions whose cache lines are used up before the next ones
    for (const Piece* piece = pieces; piece < pieces + num_pieces; ++piece) {
        const T* keys = reinterpret_cast<const T*>(piece->keys) + piece->offset;
        float* rows = out + piece->first * padded_dim;
        for (int64_t strip = 0; strip < padded_dim; strip += kStrip)
            for (int64_t i = 0; i < piece->count; ++i)
                for (int64_t d = strip; d < strip + kStrip; ++d)
                    rows[i * padded_dim + d] = d < dim ? widen(keys[d * block_size + i]) : 0.0f;
    }
}

// Vectors of keys as packed above, or as they lie in the cache.
struct PackedKeys {
    using Element = float;
    const float* data;
    const float* vector(int64_t vec) const { return data + vec * Floats::kSize; }
    int64_t stride() const { return kTileKeys; }
};

template <typename T>
struct CachedKeys {
    using Element = T;
    const T* const* vectors;
    int64_t block_size;
    const T* vector(int64_t vec) const { return vectors[vec]; }
    int64_t stride() const { return block_size; }
};

// Adds x(Rows) times each of Vecs vectors to the sums, in the order that needs fewer registers.
// Vectors come in pairs, two(v) those of v and v + 1; what is left of an odd number is one(v).
template <int Rows, int Vecs, typename X, typename One, typename Two>
[[gnu::always_inline]] inline void add_products(const X& x, const One& one, const Two& two,
                                                Floats (&sums)[Rows][Vecs]) {
    constexpr int kPaired = Vecs / 2 * 2;
    if constexpr (Rows < Vecs) {
        Floats kept[Rows];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) kept[r] = x(r);
#pragma GCC unroll 8
        for (int v = 0; v < kPaired; v += 2) {
            const FloatPair pair = two(v);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r)
                sums[r][v] = Floats::fma(kept[r], pair.first, sums[r][v]);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r)
                sums[r][v + 1] = Floats::fma(kept[r], pair.second, sums[r][v + 1]);
        }
        if constexpr (kPaired < Vecs) {
            const Floats last = one(kPaired);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r)
                sums[r][kPaired] = Floats::fma(kept[r], last, sums[r][kPaired]);
        }
    } else {
        Floats kept[Vecs];
#pragma GCC unroll 8
        for (int v = 0; v < kPaired; v += 2) {
            const FloatPair pair = two(v);
            kept[v] = pair.first;
            kept[v + 1] = pair.second;
        }
        if constexpr (kPaired < Vecs) kept[kPaired] = one(kPaired);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats factor = x(r);
#pragma GCC unroll 8
            for (int v = 0; v < Vecs; ++v) sums[r][v] = Floats::fma(factor, kept[v], sums[r][v]);
        }
    }
}

// Stores the sums of a row, the pairs in the order in which their elements lie in memory.
template <typename Pairs, int Vecs>
[[gnu::always_inline]] inline void store_sums(const Floats (&sums)[Vecs], float* out) {
#pragma GCC unroll 8
    for (int v = 0; v + 2 <= Vecs; v += 2) {
        const FloatPair pair = Pairs::in_order({sums[v], sums[v + 1]});
        pair.first.store(out + v * Floats::kSize);
        pair.second.store(out + (v + 1) * Floats::kSize);
    }
    if constexpr (Vecs % 2 != 0) sums[Vecs - 1].store(out + (Vecs - 1) * Floats::kSize);
}

template <int Rows, int Vecs, typename Keys>
[[gnu::noinline]] void score_block(const float* q, int64_t dim, Keys keys, int64_t vec, Lines& lines,
                        float* scores) {
    using Pairs = WidenedPairs<typename Keys::Element>;
    Floats sums[Rows][Vecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; ++v) sums[r][v] = Floats::zero();
    const typename Keys::Element* from[Vecs];
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; ++v) from[v] = keys.vector(vec + v);
    const int64_t stride = keys.stride();
    for (int64_t d = 0; d < dim;) {
        lines.fetch(kSteps * Vecs * Floats::kSize * sizeof(typename Keys::Element));
        for (const int64_t stop = d + kSteps < dim ? d + kSteps : dim; d < stop; ++d)
            add_products(
                [&](int r) { return Floats::all(q[r * dim + d]); },
                [&](int v) { return load(from[v] + d * stride); },
                [&](int v) { return Pairs::of(from[v] + d * stride, from[v + 1] + d * stride); },
                sums);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
        store_sums<Pairs>(sums[r], scores + r * kTileKeys + vec * Floats::kSize);
}

// scores[Rows, kTileKeys] = q[Rows, dim] keys, of the vectors from `vec` to `end`.
template <int Rows, int Vecs = num_vecs(Rows), typename Keys>
inline void score(const float* q, int64_t dim, Keys keys, int64_t vec, int64_t end, Lines& lines,
                  float* scores) {
    for (; vec + Vecs <= end; vec += Vecs)
        score_block<Rows, Vecs>(q, dim, keys, vec, lines, scores);
    if constexpr (Vecs > 1)
        if (vec < end) score<Rows, fewer_vecs(Vecs)>(q, dim, keys, vec, end, lines, scores);
}

// Values as packed above, or as they lie in the cache (dim a multiple of the vector's size).
struct PackedValues {
    using Element = float;
    const float* data;
    int64_t padded_dim;
    const float* row(int64_t key) const { return data + key * padded_dim; }
};

template <typename T>
struct CachedValues {
    using Element = T;
    const T* const* rows;
    const T* row(int64_t key) const { return rows[key]; }
};

template <int Rows, int Vecs, typename Values>
[[gnu::noinline]] void weigh_block(const float* weights, const float* factors, Values values, int64_t begin,
                        int64_t end, int64_t d, int64_t stride, Lines& lines, float* out) {
    using Pairs = WidenedPairs<typename Values::Element>;
    Floats sums[Rows][Vecs];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < Vecs; ++v)
            sums[r][v] =
                Floats::load(out + r * stride + d + v * Floats::kSize) * Floats::all(factors[r]);
#pragma GCC unroll 8
        for (int v = 0; v + 2 <= Vecs; v += 2) {
            const FloatPair pair = Pairs::apart({sums[r][v], sums[r][v + 1]});
            sums[r][v] = pair.first;
            sums[r][v + 1] = pair.second;
        }
    }
    for (int64_t key = begin; key < end;) {
        lines.fetch(kSteps * Vecs * Floats::kSize * sizeof(typename Values::Element));
        for (const int64_t stop = key + kSteps < end ? key + kSteps : end; key < stop; ++key) {
            const typename Values::Element* value = values.row(key) + d;
            add_products([&](int r) { return Floats::all(weights[r * kTileKeys + key]); },
                         [&](int v) { return load(value + v * Floats::kSize); },
                         [&](int v) { return Pairs::neighbours(value + v * Floats::kSize); }, sums);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) store_sums<Pairs>(sums[r], out + r * stride + d);
}

// out[Rows, stride] = out * factors[Rows] + weights[Rows, begin:end] values[begin:end, dim], from
// dimension `d` on.
template <int Rows, int Vecs = num_vecs(Rows), typename Values>
inline void weigh(const float* weights, const float* factors, Values values, int64_t begin,
                  int64_t end, int64_t d, int64_t dim, int64_t stride, Lines& lines, float* out) {
    constexpr int64_t kSize = Floats::kSize;
    for (; d + Vecs * kSize < dim + kSize; d += Vecs * kSize)
        weigh_block<Rows, Vecs>(weights, factors, values, begin, end, d, stride, lines, out);
    if constexpr (Vecs > 1)
        if (d < dim)
            weigh<Rows, fewer_vecs(Vecs)>(weights, factors, values, begin, end, d, dim, stride, lines,
                                  out);
}

}  // namespace
}  // namespace pagoda
