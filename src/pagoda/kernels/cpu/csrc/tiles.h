// The inner loops: a few tokens times one panel of 16 rows.
#pragma once

#include <bit>

#include "convert.h"
#include "expand.h"
#include "formats.h"
#include "lanes.h"

namespace pagoda {
namespace {

struct TileArgs {
    const uint8_t* panel;
    int64_t units;
    const void* activations;   // the tile's
    const float* bias;         // of the panel's rows, or null
    float* out;                // first token's, first row's
    int64_t ldo;
    int rows;                  // of the panel that exist
    bool is_first;             // of the tiles that read this panel
    Expand expand;             // of a panel in a coded format, not expanded yet; or null
    int64_t unit_bytes;        // then
};

// A unit of the panel as `F` says; halves [first, last) of its rows are expanded into `room` where
// they are not yet.
template <Format F>
[[gnu::always_inline]] inline const uint8_t* unit_at(const TileArgs& args, int64_t unit, int first,
                                                     int last, uint8_t* room) {
    if constexpr (F == kExpanded) {
        if (args.expand != nullptr) {
            args.expand(args.panel + unit * args.unit_bytes, first, last, room);
            return room;
        }
    }
    return args.panel + unit * F.unit_bytes();
}

// Bytes of `room`.
template <Format F>
constexpr int kRoomBytes = F == kExpanded ? F.unit_bytes() : 1;

constexpr int kParts = kPanelRows / kLanes;
// Bytes of one vector that belong to the lanes of one part.
constexpr int kPartBytes = kVectorBytes / kParts;
// How far ahead of the arithmetic weights are fetched: about the memory's latency at its full
// speed.
constexpr int kPrefetchBytes = 4096;

// One token's sums; bias is added last.
inline void store_rows(const TileArgs& args, int part, int token, Floats sums) {
    const int rows = args.rows - part * kLanes;
    float* out = args.out + token * args.ldo + part * kLanes;
    const float* bias = args.bias == nullptr ? nullptr : args.bias + part * kLanes;
    if (rows >= kLanes) {
        (bias == nullptr ? sums : sums + Floats::load(bias)).store(out);
        return;
    }
    float lanes[kLanes];
    sums.store(lanes);
    for (int i = 0; i < rows; ++i) out[i] = bias == nullptr ? lanes[i] : lanes[i] + bias[i];
}

// Inlined like all that takes the inner loop's arrays, and from a copy: sums that were indexed by
// a variable, here or there, would live in memory all the time.
template <int kTokens>
[[gnu::always_inline]] inline void store_part(const TileArgs& args, int part, const Floats* sums) {
    Floats done[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) done[t] = sums[t];
#pragma GCC unroll 1
    for (int t = 0; t < kTokens; ++t) store_rows(args, part, t, done[t]);
}

template <int kTokens>
[[gnu::always_inline]] inline void store_tile(const TileArgs& args, Floats (*sums)[kParts]) {
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) {
        Floats part[kTokens];
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) part[t] = sums[t][p];
        store_part<kTokens>(args, p, part);
    }
}

[[gnu::always_inline]] inline void prefetch(const uint8_t* from, int bytes) {
#pragma GCC unroll 12
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + kPrefetchBytes + i);
}

// Whether a format's bytes go into the dot product as signed ones, and what is to be taken off.
template <Format F>
struct DotRange {
    static constexpr bool kSigned = F.has_signed_levels() && kSignedDot;
    static constexpr int kOffset = F.has_signed_levels() ? (kSignedDot ? 0 : 128) : F.offset;
    static constexpr int kMaxLevel = F.has_signed_levels() ? 255 : F.max_level();
};

// 16 bytes of levels as the dot product takes them.
template <Format F>
struct Table {
    uint8_t bytes[16];
    constexpr Table() : bytes{} {
        for (int i = 0; i < 16; ++i) {
            const int level = F.levels == Levels::kIq4 ? kIq4Levels[i] : kE2M1Levels[i];
            bytes[i] = static_cast<uint8_t>(level + DotRange<F>::kOffset);
        }
    }
};

// What `kBits` of the codes say of one group of columns, put at kShift.
template <int kBits, int kShift, int kGroup>
[[gnu::always_inline]] inline Bytes group_bits(const uint8_t* from) {
    const Bytes packed = Bytes::load(from + kGroup % kBits * kVectorBytes);
    if constexpr (kBits == 8) {
        return packed;
    } else {
        constexpr int kMask = ((1 << kBits) - 1) << kShift;
        return packed.template shifted<kGroup / kBits * kBits - kShift>() & Bytes::all(kMask);
    }
}

// The levels of one group of columns as the products take them.
template <Format F, int kGroup>
[[gnu::always_inline]] inline Bytes unpack_group(const uint8_t* block, int part) {
    const uint8_t* from = block + part * kPartBytes;
    Bytes w = group_bits<F.low_bits, 0, kGroup>(from);
    if constexpr (F.high_bits > 0)
        w = w | group_bits<F.high_bits, F.low_bits, kGroup>(from + F.low_bytes());
    if constexpr (F.levels == Levels::kIq4 || F.levels == Levels::kE2M1) {
        static constexpr Table<F> kTable;
        w = Bytes::look_up(Bytes::table(kTable.bytes), w);
    }
#if PAGODA_ISA_AVX512
    if constexpr (F.levels == Levels::kSigned) w = w ^ Bytes::all(0x80);
#endif
    return w;
}

// Of one block: per group the rows' scales, and what each row adds per unit of activation.
struct BlockScales {
    Floats scale[2];
    Floats minimum[2];
};

struct UnitScales {
    Floats d, minimum;
};

template <Format F>
[[gnu::always_inline]] inline UnitScales load_unit_scales(const uint8_t* unit, int part) {
    UnitScales out{};
    if constexpr (F.scaling == Scaling::kE8M0) {
        out.d = load_e8m0(unit + part * kLanes);
    } else if constexpr (F.scaling != Scaling::kFloat) {
        out.d = load_halves(unit + part * kLanes * 2);
        if constexpr (F.has_minimum())
            out.minimum = load_halves(unit + (kPanelRows + part * kLanes) * 2);
        if constexpr (F.has_minimum() && F.is_super())
            out.minimum = out.minimum * Floats::all(-1);
    }
    return out;
}

template <Format F>
[[gnu::always_inline]] inline BlockScales load_block_scales(const UnitScales& unit, const uint8_t* block, int part) {
    BlockScales out;
    const uint8_t* from = block + F.code_bytes() + part * kLanes;
    if constexpr (!F.is_super() || F.scaling == Scaling::kSuperAlone) {
        out.scale[0] = unit.d;
        out.minimum[0] = unit.minimum;
    } else if constexpr (F.scaling == Scaling::kFloat) {
        const auto* scales = reinterpret_cast<const float*>(block + F.code_bytes()) + part * kLanes;
        out.scale[0] = Floats::load(scales);
        out.scale[1] = Floats::load(scales + kPanelRows);
    } else if constexpr (F.scaling == Scaling::kSuperMinimum) {
        out.scale[0] = unit.d * load_unsigned(from).floats();
        out.minimum[0] = unit.minimum * load_unsigned(from + kPanelRows).floats();
    } else {
#pragma GCC unroll 2
        for (int g = 0; g < F.groups; ++g, from += kPanelRows) {
            if constexpr (F.scaling == Scaling::kSuper) {
                out.scale[g] = unit.d * load_signed(from).floats();
            } else {
                out.scale[g] = unit.d * load_nibbles(from, false).floats();
                out.minimum[g] = unit.minimum * load_nibbles(from, true).floats();
            }
        }
    }
    return out;
}

// The block's offset times -sum(q), with which its dot product starts.
template <Format F>
[[gnu::always_inline]] inline Ints start(int32_t minus_sum) {
    constexpr auto kOffset = static_cast<unsigned>(DotRange<F>::kOffset);
    if constexpr (kOffset == 0) return Ints::zero();
    else return Ints::all(minus_sum).shifted_left<std::countr_zero(kOffset)>();
}

// One part's weights of a column, the second of its pair if kSecond; `from` is the pair's.
template <Storage S, bool kSecond>
[[gnu::always_inline]] inline Floats load_column(const uint8_t* from, int part) {
    if constexpr (S == Storage::kF32) {
        const float* p = reinterpret_cast<const float*>(from) + part * kLanes;
        return Floats::load(p + kSecond * kPanelRows);
    } else if constexpr (S == Storage::kF16) {
        return load_halves(from + (kSecond * kPanelRows + part * kLanes) * 2);
    } else {
        return load_bf16<kSecond>(from + part * kLanes * 4);
    }
}

template <Storage S, int kTokens, bool kSecond>
[[gnu::always_inline]] inline void add_column(const uint8_t* from, const FloatBlock* x, int column,
                                              Floats (*sums)[kParts]) {
    Floats w[kParts];
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) w[p] = load_column<S, kSecond>(from, p);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
        const Floats value = Floats::all(x[t].x[column + kSecond]);
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) sums[t][p] = Floats::fma(w[p], value, sums[t][p]);
    }
}

template <Storage S, int kTokens>
void float_tile(const TileArgs& args) {
    constexpr int kPairBytes = kPanelRows * 2 * (S == Storage::kF32 ? 4 : 2);
    Floats sums[kTokens][kParts];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) sums[t][p] = Floats::zero();
    const FloatBlock* x = static_cast<const FloatBlock*>(args.activations);
    const uint8_t* from = args.panel;
    for (int64_t block = 0; block < args.units; ++block, x += kTokens)
        for (int i = 0; i < kBlockColumns; i += 2, from += kPairBytes) {
            prefetch(from, kPairBytes);
            add_column<S, kTokens, false>(from, x, i, sums);
            add_column<S, kTokens, true>(from, x, i, sums);
        }
    store_tile<kTokens>(args, sums);
}

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)

// Products of bf16 pairs, summed in fp32.
template <int kTokens>
void bf16_tile(const TileArgs& args) {
    Floats sums[kTokens][kParts];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) sums[t][0] = Floats::zero();
    const Bf16Block* x = static_cast<const Bf16Block*>(args.activations);
    const uint8_t* from = args.panel;
    for (int64_t block = 0; block < args.units; ++block, x += kTokens)
        for (int i = 0; i < kBlockColumns; i += 2, from += kVectorBytes) {
            __builtin_prefetch(from + kPrefetchBytes);
            const __m512bh w = (__m512bh)_mm512_loadu_si512(from);
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32(load_int(x[t].x + i));
                sums[t][0].v = _mm512_dpbf16_ps(sums[t][0].v, w, pair);
            }
        }
    store_tile<kTokens>(args, sums);
}

#endif

}  // namespace
}  // namespace pagoda
