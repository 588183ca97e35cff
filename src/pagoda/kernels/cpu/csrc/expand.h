// Units of coded formats (coded.h) as products take them: levels as bytes with an offset, in the
// order of formats.h, and a scale for each row and 16 columns.
#pragma once

#include "coded.h"
#include "lanes.h"

namespace pagoda {
namespace {

// Expands halves [first, last) of a unit's 16 rows into `out`, a unit of kExpanded.
using Expand = void (*)(const uint8_t* unit, int first_half, int last_half, uint8_t* out);

constexpr int kHalfRows = kPanelRows / 2;
// Four columns of half a panel's rows.
typedef uint8_t HalfBytes __attribute__((vector_size(kHalfRows * kGroupColumns)));

inline void store(const HalfBytes& x, uint8_t* to) { std::memcpy(to, &x, sizeof x); }

// Of bytes, four times the same four.
inline HalfBytes repeated_four(uint32_t four) {
    HalfBytes out;
    for (int i = 0; i < kHalfRows; ++i)
        std::memcpy(reinterpret_cast<uint8_t*>(&out) + 4 * i, &four, 4);
    return out;
}

#if PAGODA_ISA_AVX2 || PAGODA_ISA_AVX512

// Each byte of eight rows, four times.
inline HalfBytes repeated_rows(const uint8_t* rows) {
    const __m256i places = _mm256_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404,
                                             0x05050505, 0x06060606, 0x07070707);
    const __m128i own = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows));
    return (HalfBytes)_mm256_shuffle_epi8(_mm256_broadcastq_epi64(own), places);
}

// Words of a low and a high byte per row.
inline void join(const RowBytes& low, const RowBytes& high, uint16_t* words) {
    auto* const to = reinterpret_cast<__m128i*>(words);
    _mm_storeu_si128(to, _mm_unpacklo_epi8((__m128i)low, (__m128i)high));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi8((__m128i)low, (__m128i)high));
}

// Codewords of eight rows. Loads one by one: gathers are slower on many CPUs.
template <typename Index>
inline void fetch_eight(const uint8_t* grid, const Index* index, HalfBytes& first,
                        HalfBytes& second) {
    const auto pair = [&](int row) {
        const auto* words = reinterpret_cast<const double*>(grid);
        return _mm_loadh_pd(_mm_load_sd(words + index[row]), words + index[row + 1]);
    };
    const __m256 even = (__m256)_mm256_set_m128d(pair(4), pair(0));
    const __m256 odd = (__m256)_mm256_set_m128d(pair(6), pair(2));
    first = (HalfBytes)_mm256_shuffle_ps(even, odd, 0x88);
    second = (HalfBytes)_mm256_shuffle_ps(even, odd, 0xdd);
}

template <typename Index>
inline HalfBytes fetch_four(const uint8_t* grid, const Index* index) {
    const auto word = [&](int row) { return load_int(grid + 4 * index[row]); };
    return (HalfBytes)_mm256_setr_epi32(word(0), word(1), word(2), word(3), word(4), word(5),
                                        word(6), word(7));
}

#else

inline HalfBytes repeated_rows(const uint8_t* rows) {
    HalfBytes out;
    for (int i = 0; i < kHalfRows * kGroupColumns; ++i) out[i] = rows[i / kGroupColumns];
    return out;
}

inline void join(const RowBytes& low, const RowBytes& high, uint16_t* words) {
    for (int i = 0; i < kPanelRows; ++i) words[i] = static_cast<uint16_t>(low[i] | high[i] << 8);
}

template <typename Index>
inline HalfBytes fetch_four(const uint8_t* grid, const Index* index, int stride = 4) {
    HalfBytes out;
    for (int i = 0; i < kHalfRows; ++i)
        std::memcpy(reinterpret_cast<uint8_t*>(&out) + 4 * i, grid + stride * index[i], 4);
    return out;
}

template <typename Index>
inline void fetch_eight(const uint8_t* grid, const Index* index, HalfBytes& first,
                        HalfBytes& second) {
    first = fetch_four(grid, index, 8);
    second = fetch_four(grid + 4, index, 8);
}

#endif

// Levels of four columns, with the offset; `bits` picks the columns' signs.
template <GridName kGrid>
[[gnu::always_inline]] inline HalfBytes signed_levels(const HalfBytes& codeword,
                                                      const HalfBytes& signs,
                                                      const HalfBytes& bits) {
    const HalfBytes minus = (HalfBytes)((signs & bits) == bits);
    if constexpr (kGrid == kGridIQ1) return codeword + (minus | 1);
    return (codeword ^ minus) + (kLevelOffset - minus);
}

// d of each row times `unit`.
template <Storage S>
inline void load_d(const PanelRows& at, float unit, float* d) {
    RowBytes low, high;
    read_half<S>(at, low, high);
    alignas(32) uint16_t halves[kPanelRows];
    join(low, high, halves);
    const auto* from = reinterpret_cast<const uint8_t*>(halves);
    for (int p = 0; p < kPanelRows; p += kLanes)
        (load_halves(from + 2 * p) * Floats::all(unit)).store(d + p);
}

// d times each row's scales, behind the levels of `block`.
inline void store_scales(const float* d, const RowBytes* scale, uint8_t* block) {
    auto* to = reinterpret_cast<float*>(block + kExpanded.code_bytes());
    for (int g = 0; g < kExpanded.groups; ++g, to += kPanelRows) {
        const auto* own = reinterpret_cast<const uint8_t*>(scale + g);
        for (int p = 0; p < kPanelRows; p += kLanes)
            (Floats::load(d + p) * load_unsigned(own + p).floats()).store(to + p);
    }
}

// A unit's bytes on their way into the cache.
inline void prefetch_unit(const uint8_t* unit, int bytes) {
    constexpr int kAhead = 4096;
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(unit + kAhead + i);
}

// A unit's fields apart. All are read before any is used: what is still on its way to memory is
// handed on late where a load wants less than was stored.
template <Storage S>
struct UnitFields {
    static constexpr int kIndices = kBlockColumns / Code<S>::kGrid.width;
    alignas(32) uint16_t index[Code<S>::kGrid.is_wide ? 8 * kIndices : 1][kPanelRows];
    alignas(32) uint8_t signs[8 * 4][kPanelRows];
};

// Levels of half a unit's rows. Indices of one byte are eight bytes from block to block.
template <Storage S, typename Index>
inline void expand_codewords(const UnitFields<S>& fields, const Index (*index)[kPanelRows],
                             int half, uint8_t* out) {
    constexpr GridCode kGrid = Code<S>::kGrid;
    const uint8_t* const grid = grids[kGrid.grid].codewords;
    const HalfBytes low_bits = repeated_four(0x08040201), high_bits = repeated_four(0x80402010);
    constexpr int kStride = kGrid.is_wide ? UnitFields<S>::kIndices : 8;
    const int first_row = half * kHalfRows;
    for (int block = 0; block < kExpanded.blocks(); ++block, out += kExpanded.block_bytes()) {
        const auto own = [&](int k) { return index[kStride * block + k] + first_row; };
        uint8_t* to = out + first_row * kGroupColumns;
        for (int k = 0; k < 4; ++k, to += 2 * kVectorBytes) {
            HalfBytes first, second;
            if constexpr (kGrid.width == 8) {
                fetch_eight(grid, own(k), first, second);
            } else {
                first = fetch_four(grid, own(2 * k));
                second = fetch_four(grid, own(2 * k + 1));
            }
            const HalfBytes signs = repeated_rows(fields.signs[4 * block + k] + first_row);
            store(signed_levels<kGrid.grid>(first, signs, low_bits), to);
            store(signed_levels<kGrid.grid>(second, signs, high_bits), to + kVectorBytes);
        }
    }
}

template <Storage S>
void expand_grid(const uint8_t* unit, int first_half, int last_half, uint8_t* out) {
    using Fields = UnitFields<S>;
    constexpr bool kWide = Code<S>::kGrid.is_wide;
    prefetch_unit(unit, unit_bytes(S));
    const PanelRows at{unit};
    alignas(64) float d[kPanelRows];
    load_d<S>(at, Code<S>::kGrid.unit, d);
    Fields fields;
    for (int block = 0; block < kExpanded.blocks(); ++block) {
        GridBlock<RowBytes> own;
        Code<S>::read(at, block, own);
        if constexpr (kWide)
            for (int k = 0; k < Fields::kIndices; ++k)
                join(own.low[k], own.high[k], fields.index[block * Fields::kIndices + k]);
        std::memcpy(fields.signs[4 * block], own.signs, sizeof own.signs);
        store_scales(d, own.scale, out + block * kExpanded.block_bytes());
    }
    for (int half = first_half; half < last_half; ++half)
        if constexpr (kWide) {
            expand_codewords(fields, fields.index, half, out);
        } else {  // they follow d, a byte each
            const auto* bytes = reinterpret_cast<const uint8_t (*)[kPanelRows]>(unit);
            expand_codewords(fields, bytes + 2, half, out);
        }
}

// The digits of 32 bytes, each at a place of its own: the highest is what 3 * x passes a byte by.
template <int kDigits>
inline void expand_digits(HalfBytes x, uint8_t* out, const int (&places)[kDigits]) {
    for (int n = 0; n < kDigits; ++n, x = x + x + x) {
        const HalfBytes minus = (HalfBytes)(x > 85) + (HalfBytes)(x > 170);
        store(HalfBytes{} + uint8_t{kLevelOffset - 1} - minus, out + places[n]);
    }
}

void expand_tq1_0(const uint8_t* unit, int first_half, int last_half, uint8_t* out) {
    prefetch_unit(unit, unit_bytes(Storage::kTQ1_0));
    constexpr int kHalfBytes = kHalfRows * kGroupColumns;
    for (int half = first_half; half < last_half; ++half) {
        const uint8_t* from = unit + half * kHalfBytes;
        uint8_t* const to = out + half * kHalfBytes;
        const auto place = [](int column) {
            return column / kBlockColumns * kExpanded.block_bytes() +
                   column % kBlockColumns / kGroupColumns * kVectorBytes;
        };
        const auto next = [&from] {
            HalfBytes x;
            std::memcpy(&x, from, sizeof x);
            from += kVectorBytes;
            return x;
        };
        for (int c = 0; c < 32; c += kGroupColumns)
            expand_digits<5>(next(), to + place(c),
                             {place(0), place(32), place(64), place(96), place(128)});
        for (int c = 0; c < 16; c += kGroupColumns)
            expand_digits<5>(next(), to + place(c),
                             {place(160), place(176), place(192), place(208), place(224)});
        expand_digits<4>(next(), to, {place(240), place(244), place(248), place(252)});
    }
    alignas(64) float d[kPanelRows];
    load_d<Storage::kTQ1_0>(PanelRows{unit}, 1.0f, d);
    for (int block = 0; block < kExpanded.blocks(); ++block, out += kExpanded.block_bytes())
        for (int g = 0; g < 2; ++g)
            std::memcpy(out + kExpanded.code_bytes() + g * sizeof d, d, sizeof d);
}

// By storage format; null where there is nothing to expand.
struct ExpandTable {
    Expand functions[kNumStorages] = {};

    template <Storage S>
    constexpr void fill() {
        functions[static_cast<int>(S)] = &expand_grid<S>;
    }
    constexpr ExpandTable() {
        functions[static_cast<int>(Storage::kTQ1_0)] = &expand_tq1_0;
        fill<Storage::kIQ1_S>(), fill<Storage::kIQ1_M>();
        fill<Storage::kIQ2_XXS>(), fill<Storage::kIQ2_XS>(), fill<Storage::kIQ2_S>();
        fill<Storage::kIQ3_XXS>(), fill<Storage::kIQ3_S>();
    }
};
constexpr ExpandTable kExpandTable;

}  // namespace
}  // namespace pagoda
