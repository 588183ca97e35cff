// Attention of pictures' patches to each other: softmax on the way (arXiv 1805.02867).
//
// One lane is one query, so that keys and values are read as they lie and nothing is summed across
// lanes. A query's sums are chains over its run's keys in their order, in tiles that count from
// the run's first key: what else is computed beside it changes no bit.
#pragma once

#include "attention_scratch.h"
#include "isa.h"
#include "vector_math.h"

namespace pagoda {
namespace {

// Vectors of queries that are worked on at once, and keys (or dimensions) times those: with AVX2
// their 12 sums leave 4 registers, for the queries and a key.
constexpr int kQueryVecs = 3;
#if PAGODA_ISA_AVX512
constexpr int kOuterRows = 8;
#else
constexpr int kOuterRows = 4;
#endif
constexpr int64_t kQueries = kQueryVecs * Floats::kSize;
// Keys between two looks at the highest score, and queries that read a tile of keys while a core's
// cache has it.
constexpr int64_t kPatchKeys = 128;
constexpr int64_t kPatchRows = 96 / kQueries * kQueries;

// What a thread works in.
struct PatchMemory {
    float* queries;  // for each kQueries of an item [dim, vectors], scaled for powers of two
    float* sums;     // likewise, of values
    float* states;   // and their highest score and sum of weights, [2, vectors]
    float* weights;  // [kPatchKeys, vectors], of one kQueries
    static int64_t floats(int64_t dim) {
        return 2 * kPatchRows * (dim + 1) + kPatchKeys * kQueries;
    }
    PatchMemory(float* memory, int64_t dim)
        : queries(memory),
          sums(queries + kPatchRows * dim),
          states(sums + kPatchRows * dim),
          weights(states + 2 * kPatchRows) {}
};

inline int64_t patch_worker_bytes(int64_t dim) {
    return round_up(PatchMemory::floats(dim) * int64_t{sizeof(float)}, 64);
}

int64_t patch_attention_scratch(int64_t runs, int64_t dim, int64_t threads) {
    return 64 + round_up((runs + 1) * int64_t{sizeof(int64_t)}, 64) +
           threads * patch_worker_bytes(dim);
}

// sums += rows[i, at] * packed[at, :] over `count` places, whose numbers in a row lie `step` apart.
template <int Rows, int Vecs>
[[gnu::always_inline]] inline void add_outer(const float* const* rows, int64_t step,
                                             const float* packed, int64_t count,
                                             Floats (&sums)[Rows][Vecs]) {
    for (int64_t at = 0; at < count; ++at, packed += Vecs * Floats::kSize) {
        Floats x[Vecs];
#pragma GCC unroll 3
        for (int v = 0; v < Vecs; ++v) x[v] = Floats::load(packed + v * Floats::kSize);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats factor = Floats::all(rows[r][at * step]);
#pragma GCC unroll 3
            for (int v = 0; v < Vecs; ++v) sums[r][v] = Floats::fma(factor, x[v], sums[r][v]);
        }
    }
}

// scores[count, vectors] = keys[count, dim] queries[dim, vectors]; `top` becomes the highest.
template <int Rows, int Vecs>
[[gnu::noinline]] void score_keys(const float* keys, int64_t stride, const float* queries,
                                  int64_t dim, int64_t count, float* scores, Floats* top) {
    Floats most[Vecs];
#pragma GCC unroll 3
    for (int v = 0; v < Vecs; ++v) most[v] = top[v];
    for (int64_t key = 0; key + Rows <= count; key += Rows, keys += Rows * stride) {
        Floats sums[Rows][Vecs];
        const float* rows[Rows];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            rows[r] = keys + r * stride;
#pragma GCC unroll 3
            for (int v = 0; v < Vecs; ++v) sums[r][v] = Floats::zero();
        }
        add_outer<Rows, Vecs>(rows, 1, queries, dim, sums);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 3
            for (int v = 0; v < Vecs; ++v, scores += Floats::kSize) {
                sums[r][v].store(scores);
                most[v] = max(most[v], sums[r][v]);
            }
    }
#pragma GCC unroll 3
    for (int v = 0; v < Vecs; ++v) top[v] = most[v];
    const int64_t rest = count % Rows;
    if constexpr (Rows > 1)
        if (rest > 0) score_keys<1, Vecs>(keys, stride, queries, dim, rest, scores, top);
}

// Scores to weights, whose sum is returned in `total`.
template <int Vecs>
[[gnu::noinline]] void exponentiate(float* scores, int64_t count, const Floats* top,
                                    Floats* total) {
    Floats base[Vecs], sums[Vecs];
#pragma GCC unroll 3
    for (int v = 0; v < Vecs; ++v) base[v] = top[v], sums[v] = Floats::zero();
    for (int64_t key = 0; key < count; ++key)
#pragma GCC unroll 3
        for (int v = 0; v < Vecs; ++v, scores += Floats::kSize) {
            const Floats weight = exp2_of_negative(Floats::load(scores) - base[v]);
            weight.store(scores);
            sums[v] = sums[v] + weight;
        }
#pragma GCC unroll 3
    for (int v = 0; v < Vecs; ++v) total[v] = sums[v];
}

// sums[dim, vectors] = sums * factors + values[count, dim] weights[count, vectors].
template <int Rows, int Vecs>
[[gnu::noinline]] void weigh_values(const float* values, int64_t stride, const float* weights,
                                    int64_t dim, int64_t count, const Floats* factors,
                                    float* sums) {
    for (int64_t d = 0; d + Rows <= dim; d += Rows, values += Rows) {
        Floats parts[Rows][Vecs];
        const float* columns[Rows];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            columns[r] = values + r;
#pragma GCC unroll 3
            for (int v = 0; v < Vecs; ++v)
                parts[r][v] = Floats::load(sums + (r * Vecs + v) * Floats::kSize) * factors[v];
        }
        add_outer<Rows, Vecs>(columns, stride, weights, count, parts);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 3
            for (int v = 0; v < Vecs; ++v, sums += Floats::kSize) parts[r][v].store(sums);
    }
    const int64_t rest = dim % Rows;
    if constexpr (Rows > 1)
        if (rest > 0) weigh_values<1, Vecs>(values, stride, weights, rest, count, factors, sums);
}

// One tile of a head's keys and values, and one kQueries of its queries at most.
template <int Vecs>
void attend_keys(const float* keys, const float* values, int64_t dim, int64_t count,
                 const float* queries, float* sums, float* state, float* weights) {
    constexpr int64_t kSize = Floats::kSize;
    Floats before[Vecs], top[Vecs], total[Vecs], factors[Vecs];
    for (int v = 0; v < Vecs; ++v) before[v] = top[v] = Floats::load(state + v * kSize);
    score_keys<kOuterRows, Vecs>(keys, dim, queries, dim, count, weights, top);
    exponentiate<Vecs>(weights, count, top, total);
    for (int v = 0; v < Vecs; ++v) {
        factors[v] = exp2(before[v] - top[v]);
        top[v].store(state + v * kSize);
        float* const whole = state + (Vecs + v) * kSize;
        Floats::fma(Floats::load(whole), factors[v], total[v]).store(whole);
    }
    weigh_values<kOuterRows, Vecs>(values, dim, weights, dim, count, factors, sums);
}

// Rows [first, first + rows) of one run and head.
class PatchItem {
   public:
    // k and v: the head's.
    PatchItem(const PatchAttention& op, const PatchMemory& memory, int64_t head,
                const float* k, const float* v, int64_t first, int64_t rows)
        : op_(op), memory_(memory), head_(head), k_(k), v_(v), first_(first), rows_(rows) {}

    void attend(int64_t begin, int64_t end) {
        for (int64_t row = 0; row < rows_; row += kQueries) load(row);
        for (int64_t at = begin; at < end; at += kPatchKeys) {
            const int64_t count = end - at < kPatchKeys ? end - at : kPatchKeys;
            for (int64_t row = 0; row < rows_; row += kQueries) {
                switch (num_vecs(row)) {
                    case 1: attend_rows<1>(row, at, count); break;
                    case 2: attend_rows<2>(row, at, count); break;
                    default: attend_rows<3>(row, at, count); break;
                }
            }
        }
        for (int64_t row = 0; row < rows_; row += kQueries) store(row);
    }

   private:
    static_assert(kQueryVecs == 3);

    int64_t num_rows(int64_t row) const {
        return rows_ - row < kQueries ? rows_ - row : kQueries;
    }
    int64_t num_vecs(int64_t row) const {
        return (num_rows(row) + Floats::kSize - 1) / Floats::kSize;
    }

    // Lanes without a query compute what the last one does.
    void load(int64_t row) {
        const int64_t lanes = num_vecs(row) * Floats::kSize, last = num_rows(row) - 1;
        float* const to = memory_.queries + row * op_.dim;
        const float scale = op_.scale * kLog2E;
        for (int64_t i = 0; i < lanes; ++i) {
            const float* from = op_.q + (first_ + row + (i < last ? i : last)) * op_.q_stride +
                                head_ * op_.q_head_stride;
            for (int64_t d = 0; d < op_.dim; ++d) to[d * lanes + i] = from[d] * scale;
        }
        float* const sums = memory_.sums + row * op_.dim;
        for (int64_t i = 0; i < op_.dim * lanes; ++i) sums[i] = 0;
        float* const state = memory_.states + 2 * row;
        for (int64_t i = 0; i < lanes; ++i) state[i] = -__builtin_inff();
        for (int64_t i = 0; i < lanes; ++i) state[lanes + i] = 0;
    }

    template <int Vecs>
    void attend_rows(int64_t row, int64_t at, int64_t count) {
        attend_keys<Vecs>(k_ + at * op_.dim, v_ + at * op_.dim, op_.dim, count,
                          memory_.queries + row * op_.dim, memory_.sums + row * op_.dim,
                          memory_.states + 2 * row, memory_.weights);
    }

    void store(int64_t row) const {
        const int64_t lanes = num_vecs(row) * Floats::kSize;
        const float* const sums = memory_.sums + row * op_.dim;
        const float* const total = memory_.states + 2 * row + lanes;
        for (int64_t i = 0; i < num_rows(row); ++i) {
            float* to = op_.out + ((first_ + row + i) * op_.heads + head_) * op_.dim;
            const float factor = 1.0f / total[i];
            for (int64_t d = 0; d < op_.dim; ++d) to[d] = sums[d * lanes + i] * factor;
        }
    }

    const PatchAttention& op_;
    const PatchMemory& memory_;
    const int64_t head_;
    const float *k_, *v_;
    const int64_t first_, rows_;
};

void patch_attention(const PatchAttention& op, int64_t rows, Pool& pool) {
    // A head has as many items as its runs have kPatchRows, and `begins` is where each run's begin.
    int64_t* const next = reinterpret_cast<int64_t*>(op.scratch);
    int64_t* const begins = next + 8;
    char* const workers = op.scratch + 64 + round_up((op.runs + 1) * int64_t{sizeof(int64_t)}, 64);
    *next = begins[0] = 0;
    for (int64_t i = 0; i < op.runs; ++i) {
        const int64_t count = op.query_start[i + 1] - op.query_start[i];
        begins[i + 1] = begins[i] + (count + kPatchRows - 1) / kPatchRows;
    }
    const int64_t per_head = begins[op.runs], items = op.heads * per_head;
    const int64_t threads = pool.num_threads() < items ? pool.num_threads() : items;
    pool.run(threads, [&](int64_t index) {
        char* const own = workers + index * patch_worker_bytes(op.dim);
        const PatchMemory memory(reinterpret_cast<float*>(own), op.dim);
        int64_t item;
        while ((item = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < items) {
            const int64_t place = item % per_head;
            int64_t run = 0, above = op.runs;  // the last run that begins at or before `place`
            while (above - run > 1) {
                const int64_t middle = (run + above) / 2;
                (begins[middle] <= place ? run : above) = middle;
            }
            const int64_t begin = op.query_start[run], end = op.query_start[run + 1];
            const int64_t first = begin + (place - begins[run]) * kPatchRows;
            const int64_t count = end - first < kPatchRows ? end - first : kPatchRows;
            const int64_t head = item / per_head, of_head = head * rows * op.dim;
            PatchItem(op, memory, head, op.k + of_head, op.v + of_head, first, count)
                .attend(begin, end);
        }
    });
}

}  // namespace
}  // namespace pagoda
