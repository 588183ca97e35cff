// Low-rank adapters: B(A x) added to the rows that have one (arXiv 2106.09685).
//
// Rows of one slot are multiplied together, a few at a time, so that its numbers are read once for
// them. Each sum is the same whatever else a tile has.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "isa.h"
#include "simd.h"
#include "vector_math.h"

namespace pagoda {
namespace {

// Rows of A, and outputs of B, that a chunk multiplies with the rows of its tiles.
constexpr int64_t kAdapterRanks = 8;
constexpr int64_t kAdapterOutputs = 512;
// Rows of a tile, and tiles of a chunk where there are many.
constexpr int kAdapterRows = 4;
constexpr int64_t kAdapterTiles = 8;
// Looks at whether all of A is done, before who waits lets others run.
constexpr int kLooksAwake = 200;

// Which rows are multiplied together, and the memory of an op.
class AdapterPlan {
   public:
    AdapterPlan(const AddAdapters& op, int64_t rows, uint8_t* scratch) : op_(op) {
        const auto take = [&](int64_t numbers) {
            uint8_t* const from = scratch + bytes_;
            bytes_ += (4 * numbers + 63) / 64 * 64;
            return from;
        };
        order_ = reinterpret_cast<int32_t*>(take(rows));
        tiles_ = reinterpret_cast<int32_t*>(take(rows + 1));
        low_ = reinterpret_cast<float*>(take(rows * width()));
    }

    int64_t bytes() const { return bytes_; }
    int64_t width() const { return op_.num_shards * op_.max_rank; }
    int64_t row(int64_t place) const { return order_[place]; }
    int64_t slot(int64_t place) const { return op_.slots[order_[place]]; }
    int64_t rank(int64_t place) const { return op_.ranks[slot(place)]; }
    // Places [first, end) of a tile have one slot.
    int64_t first(int64_t tile) const { return tiles_[tile]; }
    int64_t end(int64_t tile) const { return tiles_[tile + 1]; }
    // A x of a place's row and a shard.
    float* low(int64_t place, int64_t shard) const {
        return low_ + place * width() + shard * op_.max_rank;
    }

    void sort(int64_t rows) {
        int64_t count = 0;
        for (int64_t row = 0; row < rows; ++row) {
            const int32_t slot = op_.slots[row];
            if (slot < 0 || op_.ranks[slot] == 0) continue;
            order_[count++] = static_cast<int32_t>(row);
            most_rank = std::max<int64_t>(most_rank, op_.ranks[slot]);
        }
        const auto key = [&](int32_t row) { return std::pair(op_.slots[row], row); };
        std::sort(order_, order_ + count, [&](int32_t a, int32_t b) { return key(a) < key(b); });
        for (int64_t place = 0; place < count; ++place)
            if (num_tiles == 0 || place == tiles_[num_tiles - 1] + kAdapterRows ||
                slot(place) != slot(place - 1))
                tiles_[num_tiles++] = static_cast<int32_t>(place);
        tiles_[num_tiles] = static_cast<int32_t>(count);
    }

    int64_t num_tiles = 0;
    int64_t most_rank = 0;

   private:
    const AddAdapters& op_;
    int32_t *order_, *tiles_;
    float* low_;
    int64_t bytes_ = 0;
};

// out[r][i] = a[i] . x[r].
template <int kRows, int kRanks, typename T>
inline void adapter_dots(const float* const* x, const T* a, int64_t columns, float* const* out) {
    Floats sums[kRows][kRanks];
    for (auto& row : sums)
        for (Floats& one : row) one = Floats::zero();
    const auto add = [&](const auto& read, int64_t c) {
        Floats v[kRows];
        for (int r = 0; r < kRows; ++r) v[r] = read(x[r] + c);
        for (int i = 0; i < kRanks; ++i) {
            const Floats part = read(a + i * columns + c);
            for (int r = 0; r < kRows; ++r) sums[r][i] = Floats::fma(part, v[r], sums[r][i]);
        }
    };
    const int64_t whole = columns - columns % Floats::kSize;
    for (int64_t c = 0; c < whole; c += Floats::kSize)
        add([](const auto* p) { return load(p); }, c);
    if (whole < columns)
        add([&](const auto* p) { return load_first(p, columns - whole); }, whole);
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kRanks; ++i) out[r][i] = sum(sums[r][i]);
}

// The same for `count` rows of A, as many at once as registers hold.
template <int kRows, typename T>
inline void adapter_ranks(const float* const* x, const T* a, int64_t columns, int64_t count,
                          float* const* out) {
    constexpr int kAtOnce = kRows > 2 ? 2 : 8 / kRows;
    float* to[kRows];
    int64_t k = 0;
    for (; k < count; k += count - k >= kAtOnce ? kAtOnce : 1) {
        for (int r = 0; r < kRows; ++r) to[r] = out[r] + k;
        if (count - k >= kAtOnce)
            adapter_dots<kRows, kAtOnce>(x, a + k * columns, columns, to);
        else
            adapter_dots<kRows, 1>(x, a + k * columns, columns, to);
    }
}

// y[r][i] += sum over k of h[r][k] * b[k, i], for `kVectors` vectors of outputs.
template <int kRows, int kVectors, typename Read, typename T>
inline void adapter_sums(const float* const* h, const T* b, int64_t stride, int64_t rank,
                         const Read& read, Floats (&sums)[kRows][kVectors]) {
    for (auto& row : sums)
        for (Floats& one : row) one = Floats::zero();
    for (int64_t k = 0; k < rank; ++k) {
        Floats part[kVectors];
        for (int v = 0; v < kVectors; ++v) part[v] = read(b + k * stride + v * Floats::kSize);
        for (int r = 0; r < kRows; ++r) {
            const Floats factor = Floats::all(h[r][k]);
            for (int v = 0; v < kVectors; ++v)
                sums[r][v] = Floats::fma(part[v], factor, sums[r][v]);
        }
    }
}

template <int kRows, int kVectors, typename T>
inline void add_whole(const float* const* h, const T* b, int64_t stride, int64_t rank,
                      float* const* y, int64_t at) {
    Floats sums[kRows][kVectors];
    adapter_sums(h, b + at, stride, rank, [](const T* p) { return load(p); }, sums);
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) {
            float* const to = y[r] + at + v * Floats::kSize;
            (Floats::load(to) + sums[r][v]).store(to);
        }
}

// Outputs [from, to) of all rows.
template <int kRows, typename T>
inline void adapter_outputs(const float* const* h, const T* b, int64_t stride, int64_t rank,
                            float* const* y, int64_t from, int64_t to) {
    constexpr int kAtOnce = kRows > 2 ? 2 : 8 / kRows;
    int64_t i = from;
    for (; i + kAtOnce * Floats::kSize <= to; i += kAtOnce * Floats::kSize)
        add_whole<kRows, kAtOnce>(h, b, stride, rank, y, i);
    for (; i + Floats::kSize <= to; i += Floats::kSize)
        add_whole<kRows, 1>(h, b, stride, rank, y, i);
    if (i == to) return;
    const int64_t count = to - i;
    Floats sums[kRows][1];
    adapter_sums(h, b + i, stride, rank, [&](const T* p) { return load_first(p, count); }, sums);
    for (int r = 0; r < kRows; ++r) {
        float lanes[Floats::kSize];
        (load_first(y[r] + i, count) + sums[r][0]).store(lanes);
        std::memcpy(y[r] + i, lanes, static_cast<size_t>(count) * sizeof(float));
    }
}

// Calls body.template operator()<rows>() for 1 to kAdapterRows.
template <typename Body>
inline void with_rows(int64_t rows, const Body& body) {
    if (rows == 1) return body.template operator()<1>();
    if (rows == 2) return body.template operator()<2>();
    if (rows == 3) return body.template operator()<3>();
    body.template operator()<kAdapterRows>();
}

int64_t add_adapters_scratch_bytes(const AddAdapters& op, int64_t rows) {
    return AdapterPlan(op, rows, nullptr).bytes();
}

template <typename T>
void shrink_tile(const AddAdapters& op, const AdapterPlan& plan, int64_t shard, int64_t first,
                 int64_t tile) {
    const int64_t begin = plan.first(tile), rows = plan.end(tile) - begin;
    const int64_t count = std::min(first + kAdapterRanks, plan.rank(begin)) - first;
    if (count <= 0) return;
    const T* const a = static_cast<const T*>(op.a) +
                       (plan.slot(begin) * plan.width() + shard * op.max_rank + first) * op.columns;
    const float* x[kAdapterRows];
    float* out[kAdapterRows];
    for (int64_t r = 0; r < rows; ++r) {
        x[r] = op.x + plan.row(begin + r) * op.ldx;
        out[r] = plan.low(begin + r, shard) + first;
    }
    with_rows(rows, [&]<int kRows>() { adapter_ranks<kRows>(x, a, op.columns, count, out); });
}

// Outputs [from, to), all of one shard.
template <typename T>
void expand_tile(const AddAdapters& op, const AdapterPlan& plan, int64_t shard, int64_t from,
                 int64_t to, int64_t outputs, int64_t tile) {
    const int64_t begin = plan.first(tile), rows = plan.end(tile) - begin;
    const T* const b = static_cast<const T*>(op.b) + plan.slot(begin) * op.max_rank * outputs;
    const float* h[kAdapterRows];
    float* y[kAdapterRows];
    for (int64_t r = 0; r < rows; ++r) {
        h[r] = plan.low(begin + r, shard);
        y[r] = op.out + plan.row(begin + r) * op.ldo;
    }
    with_rows(rows, [&]<int kRows>() {
        adapter_outputs<kRows>(h, b, outputs, plan.rank(begin), y, from, to);
    });
}

template <typename T>
void add_adapters_as(const AddAdapters& op, const AdapterPlan& plan, Pool& pool) {
    const int64_t groups = (plan.most_rank + kAdapterRanks - 1) / kAdapterRanks;
    const int64_t parts = op.num_shards * groups, wanted = 4 * pool.num_threads();
    const int64_t block = std::clamp<int64_t>(plan.num_tiles * parts / wanted, 1, kAdapterTiles);
    const int64_t blocks = (plan.num_tiles + block - 1) / block;
    const auto each_tile = [&](int64_t index, const auto& body) {
        const int64_t end = std::min((index + 1) * block, plan.num_tiles);
        for (int64_t tile = index * block; tile < end; ++tile) body(tile);
    };
    int64_t outputs = 0, pieces = 0;
    for (int64_t shard = 0; shard < op.num_shards; ++shard) {
        outputs += op.sizes[shard];
        pieces += (op.sizes[shard] + kAdapterOutputs - 1) / kAdapterOutputs;
    }
    const auto shrink = [&](int64_t chunk) {
        const int64_t shard = chunk % parts / groups, first = chunk % groups * kAdapterRanks;
        each_tile(chunk / parts, [&](int64_t tile) {
            shrink_tile<T>(op, plan, shard, first, tile);
        });
    };
    const auto expand = [&](int64_t chunk) {
        int64_t shard = 0, before = 0, piece = chunk % pieces;
        for (;; before += op.sizes[shard++]) {
            const int64_t count = (op.sizes[shard] + kAdapterOutputs - 1) / kAdapterOutputs;
            if (piece < count) break;
            piece -= count;
        }
        const int64_t from = before + piece * kAdapterOutputs;
        const int64_t to = std::min(from + kAdapterOutputs, before + op.sizes[shard]);
        each_tile(chunk / pieces, [&](int64_t tile) {
            expand_tile<T>(op, plan, shard, from, to, outputs, tile);
        });
    };
    // Both in one part of the pool: a part of its own costs as much as a row's sums. Chunks are
    // taken in order, so that who waits here waits for chunks that others are at.
    const int64_t shrinks = blocks * parts;
    std::atomic<int64_t> missing{shrinks};
    pool.run(shrinks + blocks * pieces, [&](int64_t chunk) {
        if (chunk < shrinks) {
            shrink(chunk);
            missing.fetch_sub(1, std::memory_order_release);
            return;
        }
        for (int looks = 0; missing.load(std::memory_order_acquire) != 0; ++looks)
            if (looks > kLooksAwake) std::this_thread::yield();
        expand(chunk - shrinks);
    });
}

void add_adapters(const AddAdapters& op, int64_t rows, Pool& pool) {
    AdapterPlan plan(op, rows, op.scratch);
    plan.sort(rows);
    if (plan.num_tiles == 0) return;
    switch (op.type) {
        case FloatType::kFloat32: return add_adapters_as<float>(op, plan, pool);
        case FloatType::kBFloat16: return add_adapters_as<BFloat16>(op, plan, pool);
        case FloatType::kFloat16: return add_adapters_as<Float16>(op, plan, pool);
    }
}

}  // namespace
}  // namespace pagoda
