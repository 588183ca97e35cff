// Panels times 16 tokens at once, on AMX: registers of 16 rows x 64 bytes and their products.
#pragma once

#include "tiles.h"

namespace pagoda {
namespace {

#ifdef __AMX_TILE__

constexpr int kAmxRows = 16;
// Weights of a block of columns.
constexpr int kPairsBytes = 2 * kPanelRows * kBlockColumns;
// What `bf16_tile` may read behind the last activations.
constexpr int kReadBeyond = (kAmxRows - 1) * static_cast<int>(sizeof(Bf16Block));

// Which register holds what: macros, for GCC wants digits there. Of A a row is a token's 32 columns,
// of B two columns of a panel's 16 rows, of C a token's sums.
#define PAGODA_TILE_A 0
#define PAGODA_TILE_B 1
#define PAGODA_TILE_C0 2
#define PAGODA_TILE_C1 3
#define PAGODA_TILE_C2 4
#define PAGODA_TILE_C3 5

struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    constexpr TileShapes() {
        for (int tile = 0; tile <= PAGODA_TILE_C3; ++tile)
            rows[tile] = kAmxRows, row_bytes[tile] = 64;
    }
};
constexpr TileShapes kTileShapes;

thread_local bool has_tiles = false;

// Before a kernel uses them.
inline void need_tiles() {
    if (has_tiles) return;
    _tile_loadconfig(&kTileShapes);
    has_tiles = true;
}

// One in each chunk of work: threads that wait should not have 8 KiB of state to be saved.
struct TileScope {
    ~TileScope() {
        if (has_tiles) _tile_release();
        has_tiles = false;
    }
};

// Products of bf16 pairs, summed in fp32; the same for a token whatever its neighbours are. With
// fewer tokens than rows what follows them is read as more of them, and left out of the result.
template <int kTokens>
void bf16_tile(const TileArgs& args) {
    static_assert(kTokens <= kAmxRows);
    need_tiles();
    _tile_zero(PAGODA_TILE_C0);
    const Bf16Block* x = static_cast<const Bf16Block*>(args.activations);
    const uint8_t* from = args.panel;
    for (int64_t block = 0; block < args.units; ++block, x += kTokens, from += kPairsBytes) {
        prefetch(from, kPairsBytes);
        _tile_loadd(PAGODA_TILE_A, x, sizeof(Bf16Block));
        _tile_loadd(PAGODA_TILE_B, from, kVectorBytes);
        _tile_dpbf16ps(PAGODA_TILE_C0, PAGODA_TILE_A, PAGODA_TILE_B);
    }
    alignas(64) float sums[kAmxRows][kPanelRows];
    _tile_stored(PAGODA_TILE_C0, sums, sizeof sums[0]);
    for (int t = 0; t < kTokens; ++t) store_rows(args, 0, t, Floats::load(sums[t]));
}

// Four tiles of 16 tokens that follow each other: the weights come to the registers once.
inline void bf16_four_tiles(const TileArgs& args) {
    need_tiles();
    _tile_zero(PAGODA_TILE_C0);
    _tile_zero(PAGODA_TILE_C1);
    _tile_zero(PAGODA_TILE_C2);
    _tile_zero(PAGODA_TILE_C3);
    const Bf16Block* x = static_cast<const Bf16Block*>(args.activations);
    const int64_t tile = args.units * kAmxRows;
    const uint8_t* from = args.panel;
    for (int64_t block = 0; block < args.units; ++block, x += kAmxRows, from += kPairsBytes) {
        if (args.is_first) prefetch(from, kPairsBytes);
        _tile_loadd(PAGODA_TILE_B, from, kVectorBytes);
        _tile_loadd(PAGODA_TILE_A, x, sizeof(Bf16Block));
        _tile_dpbf16ps(PAGODA_TILE_C0, PAGODA_TILE_A, PAGODA_TILE_B);
        _tile_loadd(PAGODA_TILE_A, x + tile, sizeof(Bf16Block));
        _tile_dpbf16ps(PAGODA_TILE_C1, PAGODA_TILE_A, PAGODA_TILE_B);
        _tile_loadd(PAGODA_TILE_A, x + 2 * tile, sizeof(Bf16Block));
        _tile_dpbf16ps(PAGODA_TILE_C2, PAGODA_TILE_A, PAGODA_TILE_B);
        _tile_loadd(PAGODA_TILE_A, x + 3 * tile, sizeof(Bf16Block));
        _tile_dpbf16ps(PAGODA_TILE_C3, PAGODA_TILE_A, PAGODA_TILE_B);
    }
    alignas(64) float sums[4 * kAmxRows][kPanelRows];
    _tile_stored(PAGODA_TILE_C0, sums, sizeof sums[0]);
    _tile_stored(PAGODA_TILE_C1, sums + kAmxRows, sizeof sums[0]);
    _tile_stored(PAGODA_TILE_C2, sums + 2 * kAmxRows, sizeof sums[0]);
    _tile_stored(PAGODA_TILE_C3, sums + 3 * kAmxRows, sizeof sums[0]);
    for (int t = 0; t < 4 * kAmxRows; ++t) store_rows(args, 0, t, Floats::load(sums[t]));
}

#else

constexpr int kReadBeyond = 0;

struct TileScope {
    ~TileScope() {}
};

#endif

}  // namespace
}  // namespace pagoda
