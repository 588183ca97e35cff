// The memory that paged attention works in, laid out for any instruction set.
#pragma once

#include "model_ops.h"

namespace pagoda {
namespace {

// Keys that are scored together, and keys whose softmax is summed up on its own before the sums
// are merged in order. Both count from position 0 of a request, whatever the batch: so the order
// of a query's sums never changes.
constexpr int64_t kTileKeys = 64;
constexpr int64_t kSplitKeys = 256;
// Rows (queries x heads that share a KV head) per tile: as often is a tile of K and V used. A
// whole number of register blocks; half as many where there would be few tiles for all threads.
constexpr int64_t kTileRows = 120;
constexpr int64_t kBlockRows = 6;
// No part that one thread does alone is larger than the work of all threads by this.
constexpr int64_t kPartsPerThread = 8;
constexpr int64_t kMaxPartialBytes = 32 << 20;

constexpr int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// What one request asks for.
struct AttentionShare {
    int64_t req;
    int64_t tile_tokens;
    int64_t first_item;       // its work items are numbered from here
    int64_t parts;            // per query tile and KV head
    int64_t splits_per_part;
    int64_t first_split;
    int64_t num_splits;
    int64_t first_counter;    // one counter of unfinished parts per query tile and KV head
    int64_t partial;          // float offset of its first partial result
};

struct AttentionLayout {
    int64_t rows;        // of a tile, at most
    int64_t padded_dim;
    int64_t shares, workers, worker_bytes, partials;  // byte offsets, and bytes per worker

    AttentionLayout(int64_t heads, const KvCache& cache, int64_t max_reqs, int64_t threads) {
        const int64_t group = heads / cache.kv_heads;
        rows = group > kTileRows ? group : kTileRows;
        padded_dim = round_up(cache.dim, 32);
        const int64_t floats = 3 * rows * padded_dim + 2 * kTileKeys * padded_dim +
                               (2 * kBlockRows + 2) * kTileKeys + rows * (16 + 4);
        worker_bytes = round_up(floats * 4, 64) + 64 * 16;
        shares = 64 + round_up(kPartsPerThread * threads * 4, 64);
        workers = shares + round_up(max_reqs * int64_t{sizeof(AttentionShare)}, 64);
        partials = workers + threads * worker_bytes;
    }

    int64_t partial_floats(int64_t tile_rows) const { return tile_rows * (padded_dim + 2); }
};

// Bytes of `PagedAttention::scratch` (aligned to 64) that let the work be shared evenly up to
// contexts of `max_kv_len`; longer ones take more rounds.
inline int64_t paged_attention_scratch(int64_t heads, const KvCache& cache, int64_t max_reqs,
                                       int64_t max_kv_len, int64_t threads) {
    const AttentionLayout layout(heads, cache, max_reqs, threads);
    const int64_t group = heads / cache.kv_heads;
    const int64_t splits = (max_kv_len + kSplitKeys - 1) / kSplitKeys;
    const int64_t rows = kPartsPerThread * threads * (group > 16 ? group : 16);
    const int64_t bytes = layout.partial_floats(rows) * splits * 4;
    return layout.partials + (bytes < kMaxPartialBytes ? bytes : kMaxPartialBytes);
}

}  // namespace
}  // namespace pagoda
