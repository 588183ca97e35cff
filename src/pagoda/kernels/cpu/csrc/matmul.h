// Products of activations with packed matrices.
//
// One accumulation order per element of the result: block by block along the columns, whatever
// the number of tokens, tiles, chunks or threads.
#pragma once

#include "expand.h"
#include "isa.h"
#include "lanes.h"
#if PAGODA_BYTE_PAIRS
#include "pair_tiles.h"
#else
#include "dot_tiles.h"
#endif
#include "amx_tiles.h"

namespace pagoda {
namespace {

// What activations are converted to for a storage format; the third depends on the instructions.
enum class Kind : int { kQ8, kFloat, kShort };
constexpr int kNumKinds = 3;
#if PAGODA_BYTE_PAIRS
using ShortBlock = WordBlock;
#else
using ShortBlock = Bf16Block;
#endif
constexpr int64_t kKindBytes[kNumKinds] = {sizeof(Q8Block), sizeof(FloatBlock),
                                           sizeof(ShortBlock)};

constexpr Kind kind_of(Storage storage) {
#ifdef __AVX512BF16__
    if (storage == Storage::kBF16) return Kind::kShort;
#elif PAGODA_BYTE_PAIRS
    if (format_of(storage).has_signed_levels()) return Kind::kShort;
#endif
    return is_float(storage) ? Kind::kFloat : Kind::kQ8;
}

using TileFunction = void (*)(const TileArgs&);

template <Storage S, int kTokens>
constexpr TileFunction tile_function() {
#ifdef __AVX512BF16__
    if constexpr (S == Storage::kBF16) return &bf16_tile<kTokens>;
    else
#endif
    if constexpr (is_float(S)) return &float_tile<S, kTokens>;
    else return &quantized_tile<format_of(S), kTokens>;
}

// By storage format and number of tokens; empty where there is no such tile.
struct TileTable {
    TileFunction functions[kNumStorages][kMaxTile + 1] = {};

    template <int kIndex, int kTokens>
    constexpr void fill() {
        if constexpr (kAllTileSizes || (kTokens & (kTokens - 1)) == 0)
            functions[kIndex][kTokens] = tile_function<static_cast<Storage>(kIndex), kTokens>();
        if constexpr (kTokens < kMaxTile)
            fill<kIndex, kTokens + 1>();
        else if constexpr (kIndex + 1 < kNumStorages)
            fill<kIndex + 1, 1>();
    }
    constexpr TileTable() { fill<0, 1>(); }
};
constexpr TileTable kTileTable;

inline int64_t num_blocks(const MatMul& op) {
    return (op.columns + kBlockColumns - 1) / kBlockColumns;
}

struct Prepared {
    uint8_t* of[kNumKinds] = {};   // null where no matrix wants it
    int64_t bytes = 0;
};

inline int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Where in the scratch memory each kind of activations lies.
inline Prepared lay_out(const MatMul& op, int64_t tokens) {
    Prepared out;
    bool wanted[kNumKinds] = {};
    for (int m = 0; m < op.num_matrices; ++m)
        wanted[static_cast<int>(kind_of(static_cast<Storage>(op.matrices[m].storage)))] = true;
    for (int kind = 0; kind < kNumKinds; ++kind) {
        if (!wanted[kind]) continue;
        out.of[kind] = op.scratch + out.bytes;
        out.bytes += aligned(tokens * num_blocks(op) * kKindBytes[kind]);
    }
    if (wanted[static_cast<int>(Kind::kShort)]) out.bytes += kReadBeyond;  // it is the last
    return out;
}

int64_t matmul_scratch_bytes(const MatMul& op, int64_t tokens) {
    return lay_out(op, tokens).bytes;
}

template <typename Block>
void convert_some(const MatMul& op, int64_t token, int size, int64_t first, int64_t last,
                  uint8_t* to) {
    if (to == nullptr) return;
    Block* tile = reinterpret_cast<Block*>(to) + token * num_blocks(op);
    convert_tile(op.x + token * op.ldx, op.ldx, op.columns, size, first, last, tile);
}

// Blocks of one token that are converted in the time it takes to hand out a chunk.
constexpr int64_t kMinConversions = 128;

void convert_activations(const MatMul& op, int64_t tokens, const Prepared& to, Pool& pool) {
    const int64_t blocks = num_blocks(op);
    const int64_t tiles = (tokens + kMaxTile - 1) / kMaxTile;
    const int64_t tile_tokens = tokens < kMaxTile ? tokens : kMaxTile;
    int64_t parts = tile_tokens * blocks / kMinConversions;
    if (parts > pool.num_threads()) parts = pool.num_threads();
    if (parts < 1 || tiles > 1) parts = 1;
    pool.run(tiles * parts, [&](int64_t chunk) {
        const int64_t part = chunk % parts;
        const int64_t first = part * blocks / parts, last = (part + 1) * blocks / parts;
        const int64_t start = chunk / parts * kMaxTile;
        const int64_t end = start + kMaxTile < tokens ? start + kMaxTile : tokens;
        for (int64_t token = start; token < end;) {
            const int size = tile_size(end - token);
            convert_some<Q8Block>(op, token, size, first, last, to.of[0]);
            convert_some<FloatBlock>(op, token, size, first, last, to.of[1]);
#if defined(__AVX512BF16__) || PAGODA_BYTE_PAIRS
            convert_some<ShortBlock>(op, token, size, first, last, to.of[2]);
#endif
            token += size;
        }
    });
}

// A coded format's panel as products take it, until the thread expands another.
inline const uint8_t* expanded(const uint8_t* panel, int64_t units, Storage storage) {
    uint8_t* const out = thread_memory(units * kExpanded.unit_bytes());
    const Expand expand = kExpandTable.functions[static_cast<int>(storage)];
    for (int64_t u = 0; u < units; ++u)
        expand(panel + u * unit_bytes(storage), 0, 2, out + u * kExpanded.unit_bytes());
    return out;
}

// One matrix's panel times tokens [first, last).
void multiply_panel(const MatMul& op, const MatrixView& matrix, int64_t row_offset, int64_t panel,
                    int64_t first, int64_t last, const Prepared& prepared) {
    const auto storage = static_cast<Storage>(matrix.storage);
    const int kind = static_cast<int>(kind_of(storage));
    const int64_t row = panel * kPanelRows, left = matrix.rows - row;
    TileArgs args;
    args.panel = matrix.panels + panel * matrix.panel_bytes;
    args.units = matrix.units;
    args.expand = nullptr;
    if (is_coded(storage)) {
        // Once for all tiles; a single one has each unit at hand when it needs it.
        args.unit_bytes = unit_bytes(storage);
        if (tile_size(last - first) < last - first)
            args.panel = expanded(args.panel, args.units, storage);
        else
            args.expand = kExpandTable.functions[matrix.storage];
    }
    args.bias = op.bias == nullptr ? nullptr : op.bias + row_offset + row;
    args.ldo = op.ldo;
    args.rows = static_cast<int>(left < kPanelRows ? left : kPanelRows);
    for (int64_t token = first; token < last;) {
        const int size = tile_size(last - token);
        args.activations = prepared.of[kind] + token * num_blocks(op) * kKindBytes[kind];
        args.out = op.out + token * op.ldo + row_offset + row;
        args.is_first = token == first;
#ifdef __AMX_BF16__
        if (kind == static_cast<int>(Kind::kShort) && last - token >= 4 * kMaxTile) {
            bf16_four_tiles(args);
            token += 4 * kMaxTile;
            continue;
        }
#endif
        kTileTable.functions[matrix.storage][size](args);
        token += size;
    }
}

inline int64_t num_panels(const MatrixView& matrix) {
    return (matrix.rows + kPanelRows - 1) / kPanelRows;
}

// Panels [first, last) of those that a node has of all matrices, counted through.
void multiply_panels(const MatMul& op, const Pool& pool, int node, int64_t first, int64_t last,
                     int64_t first_token, int64_t last_token, const Prepared& prepared) {
    int64_t before = 0, row_offset = 0;
    for (int m = 0; m < op.num_matrices; ++m) {
        const MatrixView& matrix = op.matrices[m];
        const int64_t begin = pool.first_of(node, num_panels(matrix));
        const int64_t panels = pool.first_of(node + 1, num_panels(matrix)) - begin;
        int64_t panel = first > before ? first - before : 0;
        for (; panel < panels && before + panel < last; ++panel)
            multiply_panel(op, matrix, row_offset, begin + panel, first_token, last_token,
                           prepared);
        before += panels;
        row_offset += matrix.rows;
    }
}

// Work on a node's panels in chunks of panels and tokens: each thread gets one large piece and then
// small ones, so that memory is read in long runs and yet all threads end together.
struct Chunks {
    int64_t panels, large, num_large, small, per_segment, segments;

    Chunks() = default;
    Chunks(const MatMul& op, int64_t tokens, const Pool& pool, int node) : panels(0) {
        for (int m = 0; m < op.num_matrices; ++m) {
            const int64_t all = num_panels(op.matrices[m]);
            panels += pool.first_of(node + 1, all) - pool.first_of(node, all);
        }
        const int threads = pool.node(node).threads;
        segments = (tokens + kSegmentTokens - 1) / kSegmentTokens;
        num_large = threads;
        large = pool.num_threads() == 1 ? panels : panels * 5 / 8 / threads;
        const int64_t rest = panels - large * num_large;
        small = rest / (4 * threads);
        if (small < 1) small = 1;
        per_segment = num_large + (rest + small - 1) / small;
    }
    int64_t count() const { return per_segment * segments; }
    int64_t start(int64_t chunk) const {
        const int64_t begin = chunk <= num_large
                                  ? chunk * large
                                  : num_large * large + (chunk - num_large) * small;
        return begin < panels ? begin : panels;
    }
    // Whole tiles of at most 256 tokens: their activations fit a core's cache with a panel of
    // weights, 256 x 48 bytes per 32 columns.
    static constexpr int64_t kSegmentTokens = 256 / kMaxTile * kMaxTile;
};

void matmul(const MatMul& op, int64_t tokens, Pool& pool) {
    if (tokens == 0) return;
    const Prepared prepared = lay_out(op, tokens);
    convert_activations(op, tokens, prepared, pool);
    Chunks of_node[kMaxNodes];
    int64_t begins[kMaxNodes + 1] = {0};
    for (int node = 0; node < pool.num_nodes(); ++node) {
        of_node[node] = Chunks(op, tokens, pool, node);
        begins[node + 1] = begins[node] + of_node[node].count();
    }
    const auto begin = [&](int node) { return begins[node]; };
    pool.run(begins[pool.num_nodes()], begin, [&](int64_t index) {
        const TileScope scope;
        int node = 0;
        while (index >= begins[node + 1]) ++node;
        const Chunks& chunks = of_node[node];
        const int64_t chunk = index - begins[node], piece = chunk % chunks.per_segment;
        const int64_t first = chunk / chunks.per_segment * Chunks::kSegmentTokens;
        const int64_t last = first + Chunks::kSegmentTokens;
        multiply_panels(op, pool, node, chunks.start(piece), chunks.start(piece + 1), first,
                        last < tokens ? last : tokens, prepared);
    });
}

}  // namespace
}  // namespace pagoda
