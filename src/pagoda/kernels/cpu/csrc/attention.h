// Attention over the paged KV cache, prefill and decode in one: softmax on the way (arXiv
// 1805.02867), heads that share a KV head together (arXiv 2305.13245).
//
// A query's keys are taken in tiles of kTileKeys, and the sums of each kSplitKeys are merged in
// order, always: which rows share a tile, and which thread does what, changes no bit.
#pragma once

#include <type_traits>

#include "isa.h"
#include "q4_tile.h"

namespace pagoda {
namespace {

constexpr float kHidden = -__builtin_inff();

inline int64_t first_visible(const PagedAttention& op, int64_t position) {
    if (op.chunked) return position - position % op.window;
    return op.window > 0 && position >= op.window ? position - op.window + 1 : 0;
}

// Consecutive queries of one request, and one KV head.
struct QueryTile {
    int64_t req;
    int64_t kv_head;
    int64_t row;       // of the first query
    int64_t tokens;
    int64_t position;  // of the first query
    int64_t begin;     // the keys that any of them sees
    int64_t end;
    const int32_t* chosen;  // where these lie, if not where the request's do
};

// Behind the last key that a query of a tile sees.
inline int64_t end_of_sight(const PagedAttention& op, const QueryTile& tile, int64_t token) {
    return op.sees_until != nullptr ? op.sees_until[tile.row + token] : tile.position + token + 1;
}

struct Range {
    int64_t begin;
    int64_t end;
};

// Which request works how: fills the shares, and hands out scratch for partial results.
class AttentionPlan {
   public:
    AttentionPlan(const PagedAttention& op, int64_t rows, int64_t threads)
        : op_(op),
          layout_(op.heads, op.cache, op.max_reqs, threads),
          group_(op.heads / op.cache.kv_heads),
          memory_(static_cast<char*>(op.scratch)) {
        next_ = reinterpret_cast<int64_t*>(memory_);
        counters_ = reinterpret_cast<int32_t*>(memory_ + 64);
        shares_ = reinterpret_cast<AttentionShare*>(memory_ + layout_.shares);
        *next_ = 0;
        while (num_shares_ < op.max_reqs && op.query_start[num_shares_] < rows) {
            total_ += add_share(threads);
        }
        const int64_t largest = total_ / (kPartsPerThread * threads) + 1;
        for (int64_t i = 0; i < num_shares_; ++i) finish_share(shares_[i], largest, threads);
    }

    int64_t num_items() const { return num_items_; }
    int64_t num_reqs() const { return num_shares_; }
    int64_t take() const { return __atomic_fetch_add(next_, 1, __ATOMIC_RELAXED); }
    char* worker(int64_t index) const {
        return memory_ + layout_.workers + index * layout_.worker_bytes;
    }
    const AttentionLayout& layout() const { return layout_; }

    // Items of longer contexts first within a request: the last ones to be taken are short.
    const AttentionShare& locate(int64_t item, QueryTile* tile, int64_t* part) const {
        int64_t low = 0, high = num_shares_ - 1;
        while (low < high) {
            const int64_t middle = (low + high + 1) / 2;
            if (shares_[middle].first_item <= item) low = middle;
            else high = middle - 1;
        }
        const AttentionShare& share = shares_[low];
        const int64_t place = (item - share.first_item) / share.parts;
        *part = (item - share.first_item) % share.parts;
        *tile = query_tile(share, place);
        return share;
    }

    int32_t* counter(const AttentionShare& share, const QueryTile& tile) const {
        return counters_ + share.first_counter + place_of(share, tile);
    }

    // Where the sums of one split go: values [rows, padded_dim], then maxima and sums [rows].
    float* partial(const AttentionShare& share, const QueryTile& tile, int64_t split) const {
        const int64_t index =
            place_of(share, tile) * share.num_splits + split - share.first_split;
        return reinterpret_cast<float*>(memory_ + layout_.partials) + share.partial +
               index * layout_.partial_floats(share.tile_tokens * group_);
    }

   private:
    int64_t tokens(int64_t req) const { return op_.query_start[req + 1] - op_.query_start[req]; }
    bool chooses(int64_t kv_len) const { return op_.chosen != nullptr && kv_len > op_.num_chosen; }
    int64_t num_tiles(const AttentionShare& share) const {
        return (tokens(share.req) + share.tile_tokens - 1) / share.tile_tokens;
    }

    int64_t item_cost(const AttentionShare& share) const {
        // Reading and unpacking a key costs about what using it for four rows does.
        return share.num_splits * (share.tile_tokens * group_ + 4);
    }

    // Appends the next request's share as if it were not split; returns its cost.
    int64_t add_share(int64_t threads) {
        AttentionShare& share = shares_[num_shares_];
        share = {num_shares_++, 1, 0, 1, 1, 0, 0, 0, 0};
        const int64_t count = tokens(share.req), kv_len = op_.kv_lens[share.req];
        if (count <= 0) return 0;
        int64_t most = group_ < kTileRows && !chooses(kv_len) ? kTileRows / group_ : 1;
        const bool few = count * op_.cache.kv_heads < 4 * threads * most;
        if (few && most > 1) most /= 2;
        const int64_t tiles = (count + most - 1) / most;
        share.tile_tokens = (count + tiles - 1) / tiles;
        share.first_split = first_visible(op_, kv_len - count) / kSplitKeys;
        const int64_t seen = chooses(kv_len) ? op_.num_chosen : kv_len;
        share.num_splits = (seen - 1) / kSplitKeys + 1 - share.first_split;
        return item_cost(share) * num_tiles(share) * op_.cache.kv_heads;
    }

    // Splits the request where one tile would take too long, and numbers its items.
    void finish_share(AttentionShare& share, int64_t largest, int64_t threads) {
        const int64_t places = num_tiles(share) * op_.cache.kv_heads;
        const int64_t cost = item_cost(share);
        if (threads > 1 && cost > largest && share.num_splits > 1) {
            const int64_t floats =
                places * share.num_splits * layout_.partial_floats(share.tile_tokens * group_);
            const int64_t room = (op_.scratch_bytes - layout_.partials) / 4;
            const bool counted = num_counters_ + places <= kPartsPerThread * threads;
            if (counted && num_floats_ + floats <= room) {
                const int64_t per_part = share.num_splits * largest / cost;
                share.splits_per_part = per_part > 1 ? per_part : 1;
                share.parts =
                    (share.num_splits + share.splits_per_part - 1) / share.splits_per_part;
                share.partial = num_floats_;
                share.first_counter = num_counters_;
                for (int64_t i = 0; i < places; ++i)
                    counters_[num_counters_ + i] = static_cast<int32_t>(share.parts);
                num_floats_ += floats;
                num_counters_ += places;
            }
        }
        share.first_item = num_items_;
        num_items_ += places * share.parts;
    }

    QueryTile query_tile(const AttentionShare& share, int64_t place) const {
        const int64_t last = num_tiles(share) - 1;
        const int64_t first = (last - place / op_.cache.kv_heads) * share.tile_tokens;
        const int64_t count = tokens(share.req);
        QueryTile tile;
        tile.req = share.req;
        tile.kv_head = place % op_.cache.kv_heads;
        tile.row = op_.query_start[share.req] + first;
        tile.tokens = first + share.tile_tokens < count ? share.tile_tokens : count - first;
        tile.position = op_.kv_lens[share.req] - count + first;
        tile.chosen = nullptr;
        if (op_.chosen != nullptr && tile.position >= op_.num_chosen) {
            // One query, which is as if it stood behind just these keys.
            tile.chosen = op_.chosen + tile.row * op_.num_chosen;
            tile.position = op_.num_chosen - 1;
        }
        tile.begin = first_visible(op_, tile.position);
        tile.end = op_.both_ways ? op_.kv_lens[share.req]
                                 : end_of_sight(op_, tile, tile.tokens - 1);
        return tile;
    }

    int64_t place_of(const AttentionShare& share, const QueryTile& tile) const {
        const int64_t first = (tile.row - op_.query_start[share.req]) / share.tile_tokens;
        return (num_tiles(share) - 1 - first) * op_.cache.kv_heads + tile.kv_head;
    }

    const PagedAttention& op_;
    AttentionLayout layout_;
    int64_t group_;
    char* memory_;
    int64_t* next_;
    int32_t* counters_;
    AttentionShare* shares_;
    int64_t num_shares_ = 0;
    int64_t num_items_ = 0;
    int64_t num_counters_ = 0;
    int64_t num_floats_ = 0;
    int64_t total_ = 0;
};

// One thread's memory, and the work on one query tile at a time. A row is a query's head.
template <typename T>
class AttentionWorker {
   public:
    AttentionWorker(const PagedAttention& op, const AttentionPlan& plan, int64_t index)
        : op_(op),
          plan_(plan),
          dim_(op.cache.dim),
          padded_(plan.layout().padded_dim),
          group_(op.heads / op.cache.kv_heads),
          whole_vectors_(op.cache.block_size % Floats::kSize == 0),
          latent_(op.cache.v == op.cache.k),
          whole_rows_(!latent_ && op.cache.dim % ((kQ4 ? 2 : 1) * Floats::kSize) == 0) {
        char* memory = plan.worker(index);
        const int64_t rows = plan.layout().rows;
        const auto floats = [&](int64_t count) {
            float* out = reinterpret_cast<float*>(memory);
            memory += round_up(count * 4, 64);
            return out;
        };
        q_ = floats(rows * padded_);
        values_ = floats(rows * padded_);
        merged_ = floats(rows * padded_);
        keys_ = floats(kTileKeys * padded_);
        packed_ = floats(kTileKeys * padded_);
        weights_ = floats(kBlockRows * kTileKeys);
        scaled_ = floats(kBlockRows * kTileKeys);
        k_scales_ = floats(kTileKeys);
        v_scales_ = floats(kTileKeys);
        top_ = floats(rows);
        sums_ = floats(rows * Floats::kSize);
        merged_top_ = floats(rows);
        total_ = floats(rows);
        merged_total_ = floats(rows);
    }

    // Works on the items that it takes from the plan, until there are none: one ahead, so that the
    // next one's first keys are on their way, unless another thread would go without.
    void work(bool ahead) {
        for (Job job = take(); job.share != nullptr;) {
            Job next = {};
            if (ahead) next = take();
            attend(job, next);
            job = ahead ? next : take();
        }
    }

   private:
    static constexpr bool kScaled = std::is_same_v<T, Int8>;  // one scale for each key and value
    static constexpr bool kQ4 = std::is_same_v<T, Q4_0>;

    // Where the keys and values of a tile lie.
    struct Tile {
        Piece pieces[kTileKeys];
        int64_t num_pieces;
    };

    // A query tile and a range of its splits, which may be empty.
    struct Job {
        const AttentionShare* share;  // null: none
        QueryTile tile;
        int64_t begin;
        int64_t end;
    };

    Job take() {
        Job job = {};
        const int64_t item = plan_.take();
        if (item >= plan_.num_items()) return job;
        int64_t part;
        job.share = &plan_.locate(item, &job.tile, &part);
        const int64_t first = job.tile.begin / kSplitKeys;
        const int64_t last = (job.tile.end - 1) / kSplitKeys;
        job.begin = job.share->first_split + part * job.share->splits_per_part;
        job.end = job.begin + job.share->splits_per_part;
        if (job.share->parts == 1 || job.begin < first) job.begin = first;
        if (job.share->parts == 1 || job.end > last + 1) job.end = last + 1;
        return job;
    }

    void attend(const Job& job, const Job& next) {
        tile_ = job.tile;
        load_queries();
        const bool whole = job.share->parts == 1;
        for (int64_t split = job.begin; split < job.end; ++split) {
            attend_split(job, split, next);
            if (!whole) save(plan_.partial(*job.share, tile_, split));
            else if (split == job.begin) begin_merge();
            else merge(top_, total_, values_);
        }
        if (whole) return write_out();
        // Whoever is last has all partial results before it, and merges them in order.
        if (__atomic_sub_fetch(plan_.counter(*job.share, tile_), 1, __ATOMIC_ACQ_REL) != 0) return;
        clear(merged_top_, merged_total_, merged_);
        const int64_t first = tile_.begin / kSplitKeys, last = (tile_.end - 1) / kSplitKeys;
        for (int64_t split = first; split <= last; ++split) {
            const float* partial = plan_.partial(*job.share, tile_, split);
            const float* top = partial + num_rows() * padded_;
            merge(top, top + num_rows(), partial);
        }
        write_out();
    }

    int64_t num_rows() const { return tile_.tokens * group_; }
    bool in_vectors(const QueryTile& tile) const { return whole_vectors_ && tile.chosen == nullptr; }

    // Scaled for powers of two.
    void load_queries() {
        const float scale = op_.scale * kLog2E;
        for (int64_t token = 0; token < tile_.tokens; ++token) {
            const float* from = op_.q + (tile_.row + token) * op_.q_stride +
                                tile_.kv_head * group_ * dim_;
            float* to = q_ + token * group_ * dim_;
            for (int64_t i = 0; i < group_ * dim_; ++i) to[i] = from[i] * scale;
        }
        if constexpr (kQ4)
            if (in_vectors(tile_)) scale_q4_queries(q_, num_rows(), dim_);
    }

    void clear(float* top, float* total, float* values) {
        for (int64_t r = 0; r < num_rows(); ++r) top[r] = kHidden;
        for (int64_t r = 0; r < num_rows(); ++r) total[r] = 0;
        for (int64_t i = 0; i < num_rows() * padded_; ++i) values[i] = 0;
    }

    static int64_t first_key(const Job& job, int64_t split) {
        const int64_t begin = split * kSplitKeys;
        return (job.tile.begin > begin ? job.tile.begin : begin) / kTileKeys * kTileKeys;
    }

    // The softmax sums of one split: top_, total_, values_.
    void attend_split(const Job& job, int64_t split, const Job& next) {
        clear(top_, total_, values_);
        for (int64_t i = 0; i < num_rows() * Floats::kSize; ++i) sums_[i] = 0;
        const int64_t end = (split + 1) * kSplitKeys;
        const int64_t stop = tile_.end < end ? tile_.end : end;
        int64_t at = first_key(job, split);
        if (!located_) locate(tile_, at, current_);
        for (; at < stop; at += kTileKeys) {
            locate_after(job, at, next);
            attend_tile(at);
            Tile* const used = current_;
            current_ = following_;
            following_ = used;
        }
        for (int64_t r = 0; r < num_rows(); ++r)
            total_[r] = sum(Floats::load(sums_ + r * Floats::kSize));
    }

    // Finds the tile that comes after the one at `at`: it lies in other blocks, which the hardware
    // cannot foresee.
    void locate_after(const Job& job, int64_t at, const Job& next) {
        const int64_t after = at + kTileKeys;
        const bool more = after < tile_.end && after < job.end * kSplitKeys;
        located_ = more || (next.share != nullptr && next.begin < next.end);
        following_->num_pieces = 0;
        if (more) locate(tile_, after, following_);
        else if (located_) locate(next.tile, first_key(next, next.begin), following_);
    }

    // Where vectors of keys do not cross blocks, whole ones are located: what else lies in them is
    // hidden later.
    void locate(const QueryTile& tile, int64_t at, Tile* out) const {
        const KvCache& cache = op_.cache;
        int64_t begin = tile.begin > at ? tile.begin - at : 0;
        int64_t end = tile.end - at < kTileKeys ? tile.end - at : kTileKeys;
        if (in_vectors(tile)) {
            begin = begin / Floats::kSize * Floats::kSize;
            end = round_up(end, Floats::kSize);
        }
        const int64_t bytes = sizeof(T);
        const int64_t row_bytes = value_stride<T>(dim_) * bytes;
        const int64_t head_bytes = cache.block_size * row_size<T>(dim_) * bytes;
        const int32_t* blocks = op_.block_table + tile.req * op_.table_stride;
        Piece* piece = out->pieces;
        for (int64_t i = begin; i < end; ++piece) {
            int64_t block, offset, count = 1;
            if (tile.chosen != nullptr) {
                block = tile.chosen[at + i] / cache.block_size;
                offset = tile.chosen[at + i] % cache.block_size;
            } else {
                block = blocks[(at + i) / cache.block_size];
                offset = (at + i) % cache.block_size;
                const int64_t rest = cache.block_size - offset;
                count = rest < end - i ? rest : end - i;
            }
            const int64_t place = block * cache.block_bytes + tile.kv_head * head_bytes;
            const char* keys = static_cast<const char*>(cache.k) + place;
            const char* values = static_cast<const char*>(cache.v) + place;
            const int64_t values_bytes =
                count == cache.block_size ? head_bytes : count * row_bytes;
            *piece = {keys, values, offset, i, count, {},
                      {values + offset * row_bytes, values_bytes, 0, 1}};
            if (latent_) piece->value_bytes = {keys, 0, 0, 1};  // which are there already
            // In small blocks a cache line holds keys that are not asked for anyway.
            if (cache.block_size * bytes <= 64) piece->key_bytes = {keys, head_bytes, 0, 1};
            else
                piece->key_bytes = {keys + offset * bytes, count * bytes,
                                    cache.block_size * bytes, key_vectors<T>(dim_)};
            i += count;
        }
        out->num_pieces = piece - out->pieces;
    }

    // The keys of a tile from `at` on that a query sees, counted from `at`; may be empty.
    Range visible(int64_t token, int64_t at) const {
        const int64_t position = tile_.position + token;
        const int64_t begin = first_visible(op_, position) - at;
        const int64_t end = (op_.both_ways ? tile_.end : end_of_sight(op_, tile_, token)) - at;
        return {begin > 0 ? begin : 0, end < kTileKeys ? end : kTileKeys};
    }

    void attend_tile(int64_t at) {
        const int64_t begin = tile_.begin > at ? tile_.begin - at : 0;
        const int64_t end = tile_.end - at < kTileKeys ? tile_.end - at : kTileKeys;
        const int64_t blocks = (num_rows() + kBlockRows - 1) / kBlockRows;
        const int64_t step = (num_rows() + blocks - 1) / blocks;
        const Piece* pieces = current_->pieces;
        Lines values(pieces, current_->num_pieces, &Piece::value_bytes);
        Lines keys(following_->pieces, following_->num_pieces, &Piece::key_bytes);
        read_pieces();
        unpack(begin, end, values);
        for (int64_t row = 0; row < num_rows(); row += step) {
            const int64_t count = row + step < num_rows() ? step : num_rows() - row;
            const Range first = visible(row / group_, at);
            const Range last = visible((row + count - 1) / group_, at);
            const Range seen = {first.begin, last.end};
            if (seen.begin < seen.end) attend_rows(at, row, count, seen, values, keys);
        }
    }

    // Brings what is not read as it lies to fp32; it is located from `begin` to `end`.
    void unpack(int64_t begin, int64_t end, Lines& lines) {
        const Piece* pieces = current_->pieces;
        const int64_t count = current_->num_pieces, block_size = op_.cache.block_size;
        if constexpr (kQ4) {
            if (!in_vectors(tile_)) pack_q4_keys(pieces, count, block_size, dim_, keys_);
            if (latent_) turn_q4_keys(pieces, count, block_size, dim_, padded_, packed_);
            else if (!whole_rows_)
                pack_q4_values(pieces, count, block_size, dim_, padded_, packed_);
        } else {
            if (!in_vectors(tile_))
                pack_keys<T>(pieces, count, block_size, dim_, lines, keys_);
            if (latent_) turn_keys<T>(pieces, count, block_size, dim_, padded_, packed_);
            else if (!whole_rows_)
                pack_values(value_rows_, begin, end, dim_, padded_, packed_);
        }
    }

    // Where each vector of keys and each value lies, and their scales.
    void read_pieces() {
        constexpr int64_t kSize = Floats::kSize;
        const int64_t block_size = op_.cache.block_size;
        for (int64_t p = 0; p < current_->num_pieces; ++p) {
            const Piece& piece = current_->pieces[p];
            const T* keys = reinterpret_cast<const T*>(piece.keys);
            const T* values = reinterpret_cast<const T*>(piece.value_bytes.begin);
            const int64_t end = piece.first + piece.count;
            if (in_vectors(tile_))
                for (int64_t i = piece.first; i < end; i += kSize) {
                    const int64_t offset = piece.offset + i - piece.first;
                    key_vectors_[i / kSize] = keys + offset;
                    if constexpr (kQ4)
                        key_scales_[i / kSize] = scales_of(piece.keys, dim_, block_size, offset);
                }
            for (int64_t i = piece.first; i < end; ++i, values += value_stride<T>(dim_))
                value_rows_[i] = values;
            if constexpr (kScaled) {
                const T* scales = keys + dim_ * block_size;
                std::memcpy(k_scales_ + piece.first, scales + piece.offset * sizeof(float),
                            piece.count * sizeof(float));
                for (int64_t i = piece.first; i < end; ++i)
                    v_scales_[i] = latent_ ? k_scales_[i] : row_scale(value_rows_[i], dim_);
            }
        }
    }

    void attend_rows(int64_t at, int64_t row, int64_t count, Range seen, Lines& values,
                     Lines& keys) {
        switch (count) {
            case 1: return attend_block<1>(at, row, seen, values, keys);
            case 2: return attend_block<2>(at, row, seen, values, keys);
            case 3: return attend_block<3>(at, row, seen, values, keys);
            case 4: return attend_block<4>(at, row, seen, values, keys);
            case 5: return attend_block<5>(at, row, seen, values, keys);
            case 6: return attend_block<6>(at, row, seen, values, keys);
        }
    }

    // Fetches this tile's values and the next one's keys.
    template <int Count>
    void attend_block(int64_t at, int64_t row, Range seen, Lines& next_values, Lines& next_keys) {
        const int64_t begin = seen.begin / Floats::kSize;
        const int64_t vecs = (seen.end + Floats::kSize - 1) / Floats::kSize;
        const auto score_keys = [&](auto keys) {
            score<Count>(q_ + row * dim_, dim_, keys, begin, vecs, next_values, weights_);
        };
        // Widened on the way even for many rows: conversions are not what the loops wait for.
        if (!in_vectors(tile_)) score_keys(PackedKeys{keys_});
        else if constexpr (kQ4)
            score_keys(Q4Keys{key_vectors_, key_scales_, op_.cache.block_size});
        else score_keys(CachedKeys<T>{key_vectors_, op_.cache.block_size});
        if constexpr (kScaled) multiply(k_scales_, Count, vecs);
        if (op_.cap > 0) cap_scores(Count, vecs);
        // In two passes: the maxima of all rows overlap, which one after the other would wait.
        float tops[Count], factors[Count];
        for (int r = 0; r < Count; ++r) {
            const Range own = visible((row + r) / group_, at);
            tops[r] = highest(own, vecs, weights_ + r * kTileKeys);
        }
        for (int r = 0; r < Count; ++r)
            factors[r] = exponentiate(row + r, tops[r], vecs, weights_ + r * kTileKeys);
        if constexpr (kScaled) multiply(v_scales_, Count, vecs);
        const auto weigh_values = [&](auto values) {
            weigh<Count>(weights_, factors, values, seen.begin, seen.end, 0, dim_, padded_,
                         next_keys, values_ + row * padded_);
        };
        if (!whole_rows_) weigh_values(PackedValues{packed_, padded_});
        else if constexpr (kQ4)
            weigh_q4<Count>(weights_, factors, value_rows_, current_->pieces,
                            current_->num_pieces, seen.begin, seen.end, op_.cache.block_size, dim_,
                            padded_, next_keys, scaled_, values_ + row * padded_);
        else weigh_values(CachedValues<T>{value_rows_});
    }

    // Multiplies the first `count` rows of weights_ by the keys' scales.
    void multiply(const float* scales, int count, int64_t vecs) {
        for (int64_t v = 0; v < vecs; ++v) {
            const Floats scale = Floats::load(scales + v * Floats::kSize);
            for (int r = 0; r < count; ++r) {
                float* weights = weights_ + r * kTileKeys + v * Floats::kSize;
                (Floats::load(weights) * scale).store(weights);
            }
        }
    }

    // Caps the first `count` rows of weights_, which are scores for powers of two: with the cap c
    // brought to these too, c - 2 c / (1 + e^(2 x / c)).
    void cap_scores(int count, int64_t vecs) {
        const float top = op_.cap * kLog2E;
        const Floats cap = Floats::all(top), twice = Floats::all(2 * top);
        const Floats inverse = Floats::all(2 / top), one = Floats::all(1.0f);
        for (int r = 0; r < count; ++r)
            for (int64_t v = 0; v < vecs; ++v) {
                float* scores = weights_ + r * kTileKeys + v * Floats::kSize;
                const Floats grown = exp(Floats::load(scores) * inverse);
                (cap - twice / (one + grown)).store(scores);
            }
    }

    // Hides the scores of keys that a row does not see; returns the highest of the others.
    static float highest(Range own, int64_t vecs, float* scores) {
        constexpr int64_t kSize = Floats::kSize;
        for (int64_t i = 0; i < own.begin && i < vecs * kSize; ++i) scores[i] = kHidden;
        for (int64_t i = own.end > 0 ? own.end : 0; i < vecs * kSize; ++i) scores[i] = kHidden;
        Floats most = Floats::load(scores);
        for (int64_t v = 1; v < vecs; ++v) most = max(most, Floats::load(scores + v * kSize));
        return max(most);
    }

    // Scores to weights; returns what the sums before them are to be multiplied by.
    float exponentiate(int64_t row, float tile_top, int64_t vecs, float* scores) {
        constexpr int64_t kSize = Floats::kSize;
        const float before = top_[row], top = before > tile_top ? before : tile_top;
        top_[row] = top;
        const float base = top == kHidden ? 0.0f : top;
        const Floats factor = exp2(Floats::all(before - base));
        Floats sum = Floats::load(sums_ + row * kSize) * factor;
        for (int64_t v = 0; v < vecs; ++v) {
            const Floats weight = exp2(Floats::load(scores + v * kSize) - Floats::all(base));
            weight.store(scores + v * kSize);
            sum = sum + weight;
        }
        sum.store(sums_ + row * kSize);
        return first(factor);
    }

    void save(float* partial) const {
        float* top = partial + num_rows() * padded_;
        for (int64_t i = 0; i < num_rows() * padded_; ++i) partial[i] = values_[i];
        for (int64_t r = 0; r < num_rows(); ++r) {
            top[r] = top_[r];
            top[num_rows() + r] = total_[r];
        }
    }

    // As `merge` into nothing would.
    void begin_merge() {
        swap(top_, merged_top_);
        swap(total_, merged_total_);
        swap(values_, merged_);
    }

    static void swap(float*& a, float*& b) {
        float* const kept = a;
        a = b;
        b = kept;
    }

    // Adds the sums of one more split.
    void merge(const float* top, const float* total, const float* values) {
        for (int64_t r = 0; r < num_rows(); ++r) {
            const float before = merged_top_[r], most = before > top[r] ? before : top[r];
            const float base = most == kHidden ? 0.0f : most;
            const Floats kept = exp2(Floats::all(before - base));
            const Floats added = exp2(Floats::all(top[r] - base));
            merged_top_[r] = most;
            merged_total_[r] = merged_total_[r] * first(kept) + total[r] * first(added);
            float* out = merged_ + r * padded_;
            const float* in = values + r * padded_;
            for (int64_t i = 0; i < padded_; i += Floats::kSize)
                Floats::fma(Floats::load(in + i), added, Floats::load(out + i) * kept)
                    .store(out + i);
        }
    }

    void write_out() const {
        for (int64_t r = 0; r < num_rows(); ++r) {
            const int64_t token = tile_.row + r / group_;
            const int64_t head = tile_.kv_head * group_ + r % group_;
            float* out = op_.out + (token * op_.heads + head) * dim_;
            const float factor = share(r, op_.sinks == nullptr ? nullptr : op_.sinks + head);
            for (int64_t i = 0; i < dim_; ++i) out[i] = merged_[r * padded_ + i] * factor;
        }
    }

    // What a row's merged values are to be multiplied by; its sink takes a share and adds no value.
    float share(int64_t row, const float* sink) const {
        if (sink == nullptr) return 1.0f / merged_total_[row];
        const float logit = *sink * kLog2E, top = merged_top_[row];
        const float most = top > logit ? top : logit;
        const float kept = first(exp2(Floats::all(top - most)));
        const float added = first(exp2(Floats::all(logit - most)));
        return kept / (merged_total_[row] * kept + added);
    }

    const PagedAttention& op_;
    const AttentionPlan& plan_;
    const int64_t dim_, padded_, group_;
    QueryTile tile_;
    float *q_, *values_, *merged_, *keys_, *packed_, *weights_, *scaled_, *k_scales_, *v_scales_;
    float *top_, *sums_, *total_, *merged_top_, *merged_total_;
    const bool whole_vectors_;  // no vector of keys crosses blocks
    const bool latent_;      // values are the keys
    const bool whole_rows_;  // a value is a row of its own, a whole number of vectors
    bool located_ = false;   // current_ is the next tile to be worked on
    Tile tiles_[2];
    Tile *current_ = &tiles_[0], *following_ = &tiles_[1];
    const T* key_vectors_[kTileKeys / Floats::kSize];
    const Float16* key_scales_[kTileKeys / Floats::kSize];  // in q4_0, of their first blocks
    const T* value_rows_[kTileKeys];
};

template <typename T>
void paged_attention_as(const PagedAttention& op, const AttentionPlan& plan, Pool& pool) {
    const int64_t threads = pool.num_threads(), items = plan.num_items();
    const bool ahead = threads == 1 || items >= 4 * threads;
    pool.run(threads < items ? threads : items, [&](int64_t index) {
        AttentionWorker<T> worker(op, plan, index);
        worker.work(ahead);
    });
}

void paged_attention(const PagedAttention& op, int64_t rows, Pool& pool) {
    const AttentionPlan plan(op, rows, pool.num_threads());
    const int64_t size = op.heads * op.cache.dim;
    const int64_t used = op.query_start[plan.num_reqs()];
    for (int64_t i = used * size; i < rows * size; ++i) op.out[i] = 0;
    switch (op.cache.type) {
        case CacheType::kFloat32: return paged_attention_as<float>(op, plan, pool);
        case CacheType::kBFloat16: return paged_attention_as<BFloat16>(op, plan, pool);
        case CacheType::kFloat16: return paged_attention_as<Float16>(op, plan, pool);
        case CacheType::kInt8: return paged_attention_as<Int8>(op, plan, pool);
        case CacheType::kQ4_0: return paged_attention_as<Q4_0>(op, plan, pool);
    }
}

}  // namespace
}  // namespace pagoda
