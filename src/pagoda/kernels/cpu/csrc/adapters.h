// Low-rank adapters: B(A x) added to the rows that have one (arXiv 2106.09685).
#pragma once

#include <algorithm>
#include <cstring>

#include "isa.h"
#include "simd.h"
#include "vector_math.h"

namespace pagoda {
namespace {

// Rows of A that one pass over x multiplies, and outputs of B that one chunk adds to.
constexpr int64_t kAdapterRanks = 8;
constexpr int64_t kAdapterOutputs = 512;
constexpr int64_t kAdapterTokens = 16;

// out[i] = a[i] . x; each sum is the same however many there are at once.
template <int kCount>
inline void adapter_dots(const float* x, const float* a, int64_t columns, float* out) {
    Floats sums[kCount];
    for (Floats& one : sums) one = Floats::zero();
    const int64_t whole = columns - columns % Floats::kSize;
    for (int64_t c = 0; c < whole; c += Floats::kSize) {
        const Floats v = Floats::load(x + c);
        for (int i = 0; i < kCount; ++i)
            sums[i] = Floats::fma(Floats::load(a + i * columns + c), v, sums[i]);
    }
    if (whole < columns) {
        const Floats v = load_first(x + whole, columns - whole);
        for (int i = 0; i < kCount; ++i)
            sums[i] = Floats::fma(load_first(a + i * columns + whole, columns - whole), v, sums[i]);
    }
    for (int i = 0; i < kCount; ++i) out[i] = sum(sums[i]);
}

// y[i] += sum over k of h[k] * b[k, i], for one vector of outputs or `count` of its lanes.
inline void add_outputs(const float* h, const float* b, int64_t stride, int64_t rank, float* y,
                        int64_t count) {
    Floats total = Floats::zero();
    if (count == Floats::kSize) {
        for (int64_t k = 0; k < rank; ++k)
            total = Floats::fma(Floats::load(b + k * stride), Floats::all(h[k]), total);
        (Floats::load(y) + total).store(y);
        return;
    }
    for (int64_t k = 0; k < rank; ++k)
        total = Floats::fma(load_first(b + k * stride, count), Floats::all(h[k]), total);
    float lanes[Floats::kSize];
    (load_first(y, count) + total).store(lanes);
    std::memcpy(y, lanes, static_cast<size_t>(count) * sizeof(float));
}

int64_t add_adapters_scratch_bytes(const AddAdapters& op, int64_t rows) {
    return rows * op.num_shards * op.max_rank * static_cast<int64_t>(sizeof(float));
}

void add_adapters(const AddAdapters& op, int64_t rows, Pool& pool) {
    const auto rank_of = [&](int64_t row) -> int64_t {
        return op.slots[row] < 0 ? 0 : op.ranks[op.slots[row]];
    };
    int64_t most = 0;
    for (int64_t row = 0; row < rows; ++row) most = std::max(most, rank_of(row));
    if (most == 0) return;
    const int64_t width = op.num_shards * op.max_rank;
    const int64_t groups = (most + kAdapterRanks - 1) / kAdapterRanks;
    // Chunks of several rows where there are many: they read A's rows from the cache.
    const int64_t parts = op.num_shards * groups, wanted = 4 * pool.num_threads();
    const int64_t block = std::clamp<int64_t>(rows * parts / wanted, 1, kAdapterTokens);
    const int64_t blocks = (rows + block - 1) / block;
    pool.run(blocks * parts, [&](int64_t chunk) {
        const int64_t shard = chunk % parts / groups, first = chunk % groups * kAdapterRanks;
        const int64_t start = chunk / parts * block, end = std::min(start + block, rows);
        for (int64_t row = start; row < end; ++row) {
            const int64_t last = std::min(first + kAdapterRanks, rank_of(row));
            if (last <= first) continue;
            const int64_t place = shard * op.max_rank + first;
            const float* a = op.a + (op.slots[row] * width + place) * op.columns;
            const float* x = op.x + row * op.ldx;
            float* h = op.scratch + row * width + place;
            if (last - first == kAdapterRanks) {
                adapter_dots<kAdapterRanks>(x, a, op.columns, h);
                continue;
            }
            for (int64_t k = first; k < last; ++k, a += op.columns)
                adapter_dots<1>(x, a, op.columns, h + (k - first));
        }
    });
    int64_t outputs = 0, pieces = 0;
    for (int64_t shard = 0; shard < op.num_shards; ++shard) {
        outputs += op.sizes[shard];
        pieces += (op.sizes[shard] + kAdapterOutputs - 1) / kAdapterOutputs;
    }
    pool.run(blocks * pieces, [&](int64_t chunk) {
        int64_t shard = 0, before = 0, piece = chunk % pieces;
        for (;; before += op.sizes[shard++]) {
            const int64_t count = (op.sizes[shard] + kAdapterOutputs - 1) / kAdapterOutputs;
            if (piece < count) break;
            piece -= count;
        }
        const int64_t from = before + piece * kAdapterOutputs;
        const int64_t to = std::min(from + kAdapterOutputs, before + op.sizes[shard]);
        const int64_t start = chunk / pieces * block, end = std::min(start + block, rows);
        for (int64_t row = start; row < end; ++row) {
            const int64_t rank = rank_of(row);
            if (rank == 0) continue;
            const float* h = op.scratch + row * width + shard * op.max_rank;
            const float* b = op.b + op.slots[row] * op.max_rank * outputs;
            float* out = op.out + row * op.ldo;
            for (int64_t i = from; i < to; i += Floats::kSize)
                add_outputs(h, b + i, outputs, rank, out + i,
                            std::min<int64_t>(Floats::kSize, to - i));
        }
    });
}

}  // namespace
}  // namespace pagoda
