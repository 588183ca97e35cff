// Which keys each query sees in sparse attention: those whose index scores are the highest
// (DeepSeek V3.2).
//
// One lane is one key, and a score is a chain over dimensions and then over heads: what else is
// computed beside it changes no bit.
#pragma once

#include <algorithm>
#include <functional>

#include "attention_scratch.h"
#include "isa.h"
#include "vector_math.h"

namespace pagoda {
namespace {

constexpr int64_t kChunkKeys = 512;  // that one thread scores
constexpr int kIndexHeads = 4;       // that read a vector of keys together
constexpr int64_t kMaxScores = 4 << 20;

// A query that chooses, and how many keys it chooses from.
struct Chooser {
    int64_t row;
    int64_t req;
    int64_t keys;
};

struct ChooseLayout {
    int64_t rows;  // that are worked on together
    int64_t scores, tiles, tile_bytes, bytes;

    ChooseLayout(const ChooseKeys& op, int64_t max_rows, int64_t threads) {
        const int64_t most = std::max<int64_t>(1, kMaxScores / std::max<int64_t>(op.max_kv_len, 1));
        rows = std::min(std::max<int64_t>(max_rows, 1), most);
        scores = round_up(rows * int64_t{sizeof(Chooser)}, 64);
        tile_bytes = round_up(kTileKeys * op.cache.dim * 4, 64);
        // A row's scores, and a copy that is put in order.
        tiles = scores + round_up(2 * rows * op.max_kv_len * 4, 64);
        bytes = tiles + threads * tile_bytes;
    }
};

int64_t choose_keys_scratch(const ChooseKeys& op, int64_t rows, int64_t threads) {
    return ChooseLayout(op, rows, threads).bytes;
}

// A tile of keys from position `at` on as fp32 [dim, kTileKeys].
template <typename T>
inline void load_index_keys(const ChooseKeys& op, const int32_t* blocks, int64_t at, int64_t count,
                            float* out) {
    const KvCache& cache = op.cache;
    for (int64_t i = 0; i < count;) {
        const int64_t block = blocks[(at + i) / cache.block_size];
        const int64_t offset = (at + i) % cache.block_size;
        const int64_t run = std::min(cache.block_size - offset, count - i);
        const T* keys = reinterpret_cast<const T*>(static_cast<const char*>(cache.k) +
                                                   block * cache.block_bytes) + offset;
        for (int64_t d = 0; d < cache.dim; ++d)
            for (int64_t j = 0; j < run; ++j)
                out[d * kTileKeys + i + j] = widen(keys[d * cache.block_size + j]);
        i += run;
    }
    for (int64_t d = 0; d < cache.dim; ++d)
        for (int64_t i = count; i < kTileKeys; ++i) out[d * kTileKeys + i] = 0;
}

// Adds what `Heads` heads say of a vector of keys.
template <int Heads>
inline Floats add_heads(const ChooseKeys& op, const float* q, const float* weights,
                        const float* keys, Floats score) {
    Floats sums[Heads];
    for (int h = 0; h < Heads; ++h) sums[h] = Floats::zero();
    const int64_t dim = op.cache.dim;
    for (int64_t d = 0; d < dim; ++d) {
        const Floats key = Floats::load(keys + d * kTileKeys);
        for (int h = 0; h < Heads; ++h)
            sums[h] = Floats::fma(Floats::all(q[h * dim + d]), key, sums[h]);
    }
    for (int h = 0; h < Heads; ++h)
        score = Floats::fma(Floats::all(weights[h]), max(sums[h], Floats::zero()), score);
    return score;
}

template <typename T>
void score_keys(const ChooseKeys& op, const Chooser& chooser, int64_t begin, float* tile,
                float* scores) {
    const int32_t* blocks = op.block_table + chooser.req * op.table_stride;
    const float* q = op.q + chooser.row * op.q_stride;
    const float* weights = op.weights + chooser.row * op.weights_stride;
    const int64_t end = std::min(begin + kChunkKeys, chooser.keys), dim = op.cache.dim;
    for (int64_t at = begin; at < end; at += kTileKeys) {
        const int64_t count = std::min(kTileKeys, end - at);
        load_index_keys<T>(op, blocks, at, count, tile);
        float found[kTileKeys];
        for (int64_t i = 0; i < kTileKeys; i += Floats::kSize) {
            Floats score = Floats::zero();
            int64_t h = 0;
            for (; h + kIndexHeads <= op.heads; h += kIndexHeads)
                score = add_heads<kIndexHeads>(op, q + h * dim, weights + h, tile + i, score);
            for (; h < op.heads; ++h)
                score = add_heads<1>(op, q + h * dim, weights + h, tile + i, score);
            score.store(found + i);
        }
        // An order needs numbers.
        for (int64_t i = 0; i < count; ++i)
            scores[at + i] = found[i] == found[i] ? found[i] : -__builtin_inff();
    }
}

inline void choose(const ChooseKeys& op, const Chooser& chooser, const float* scores,
                   float* ordered) {
    std::copy_n(scores, chooser.keys, ordered);
    std::nth_element(ordered, ordered + op.num_chosen - 1, ordered + chooser.keys,
                     [](float a, float b) { return a > b; });
    const float least = ordered[op.num_chosen - 1];
    int64_t equals = op.num_chosen;
    for (int64_t i = 0; i < chooser.keys; ++i) equals -= scores[i] > least;
    const int32_t* blocks = op.block_table + chooser.req * op.table_stride;
    int32_t* out = op.chosen + chooser.row * op.num_chosen;
    const int64_t size = op.cache.block_size;
    for (int64_t i = 0; i < chooser.keys; ++i) {
        if (!(scores[i] > least) && !(scores[i] == least && equals-- > 0)) continue;
        *out++ = static_cast<int32_t>(blocks[i / size] * size + i % size);
    }
}

template <typename T>
void choose_keys_as(const ChooseKeys& op, int64_t rows, Pool& pool) {
    const ChooseLayout layout(op, rows, pool.num_threads());
    Chooser* choosers = reinterpret_cast<Chooser*>(op.scratch);
    float* scores = reinterpret_cast<float*>(op.scratch + layout.scores);
    float* ordered = scores + layout.rows * op.max_kv_len;
    int64_t req = 0, row = 0;
    while (row < rows && req < op.max_reqs) {
        int64_t count = 0, most = 0;
        while (count < layout.rows && row < rows && req < op.max_reqs) {
            if (row >= op.query_start[req + 1]) {
                ++req;
                continue;
            }
            const int64_t keys = op.kv_lens[req] - op.query_start[req + 1] + row + 1;
            if (keys > op.num_chosen) {
                choosers[count++] = {row, req, keys};
                most = std::max(most, keys);
            }
            ++row;
        }
        if (count == 0) return;
        const int64_t chunks = (most + kChunkKeys - 1) / kChunkKeys, tasks = count * chunks;
        const int64_t runs = std::min<int64_t>(pool.num_threads(), tasks);
        pool.run(runs, [&](int64_t run) {
            float* tile = reinterpret_cast<float*>(op.scratch + layout.tiles +
                                                   run * layout.tile_bytes);
            for (int64_t task = run; task < tasks; task += runs) {
                const int64_t begin = task / count * kChunkKeys, i = task % count;
                if (begin < choosers[i].keys)
                    score_keys<T>(op, choosers[i], begin, tile, scores + i * op.max_kv_len);
            }
        });
        pool.run(count, [&](int64_t i) {
            choose(op, choosers[i], scores + i * op.max_kv_len, ordered + i * op.max_kv_len);
        });
    }
}

void choose_keys(const ChooseKeys& op, int64_t rows, Pool& pool) {
    switch (op.cache.type) {
        case CacheType::kFloat32: return choose_keys_as<float>(op, rows, pool);
        case CacheType::kBFloat16: return choose_keys_as<BFloat16>(op, rows, pool);
        case CacheType::kFloat16: return choose_keys_as<Float16>(op, rows, pool);
        case CacheType::kInt8:
        case CacheType::kQ4_0: return;  // an index key shares its row, and so its scales
    }
}

}  // namespace
}  // namespace pagoda
