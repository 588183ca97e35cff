// Quantized tiles on instructions that add two products of bytes into 16 bits.
//
// Unsigned levels: sums of pairs are added up in 16 bits as long as they fit, then multiplied by
// the activations' 16-bit multiplier into 32 bits. Signed levels and activations in 16 bits each:
// for bytes of both signs no sum of pairs would fit beside another.
#pragma once

#include <type_traits>

#include "tiles.h"

namespace pagoda {
namespace {

constexpr int kHalfGroups = kBlockGroups / 2;

// `total` per token and part; whether the group's sums are the first in it.
template <Format F, int kTokens, int kGroup>
[[gnu::always_inline]] inline void add_group(const uint8_t* block, const Q8Block* x,
                                             Pairs (*run)[kParts], Ints (*total)[kParts]) {
    // Groups of a half whose sums fit 16 bits together.
    constexpr int kFit = 32767 / (F.max_level() * 127 * 2);
    constexpr int kRun = kFit < kHalfGroups ? kFit : kHalfGroups;
    static_assert(kHalfGroups % kRun == 0);
    // Without the offset; before that is taken off, sums may have passed 32 bits and come back.
    static_assert(int64_t{F.max_magnitude()} * 127 * (kBlockColumns / F.groups) *
                      Q8Block::kMaxMultiplier <= INT32_MAX);
    constexpr int kPlace = kGroup % kHalfGroups;
    constexpr bool kFirst = F.groups == 1 ? kGroup < kRun : kPlace < kRun;
    Bytes w[kParts];
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) w[p] = unpack_group<F, kGroup>(block, p);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
        const Bytes q = Bytes::repeated(x[t].q + kGroup * kGroupColumns);
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) {
            const Pairs pairs = Pairs::products(w[p], q);
            if constexpr (kPlace % kRun == 0)
                run[t][p] = pairs;
            else
                run[t][p].add(pairs);
            if constexpr (kPlace % kRun == kRun - 1) {
                const Ints sum = run[t][p].times(Ints::all(x[t].multiplier[kGroup / kHalfGroups]));
                if constexpr (kFirst)
                    total[t][p] = sum;
                else
                    total[t][p].add(sum);
            }
        }
    }
    if constexpr (kPlace + 1 < kHalfGroups) add_group<F, kTokens, kGroup + 1>(block, x, run, total);
}

// The sums of one group of columns that share a scale, in the row's unit.
template <Format F, int kTokens, int kScale>
[[gnu::always_inline]] inline void add_total(const Q8Block* x, const BlockScales* scales,
                                             Ints (*total)[kParts], Floats (*sums)[kParts]) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
        const int32_t minus_sum = F.groups == 1 ? x[t].minus_total : x[t].minus_sum[kScale];
        const float sum = F.groups == 1 ? x[t].total : static_cast<float>(-minus_sum);
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) {
            if constexpr (F.offset > 0) total[t][p].add(start<F>(minus_sum));
            sums[t][p] =
                Floats::fma(total[t][p].floats(), scales[p].scale[kScale], sums[t][p]);
            if constexpr (F.has_minimum())
                sums[t][p] =
                    Floats::fma(scales[p].minimum[kScale], Floats::all(sum), sums[t][p]);
        }
    }
}

template <Format F, int kTokens>
[[gnu::always_inline]] inline void add_block(const uint8_t* block, const Q8Block* x,
                                             const BlockScales* scales, Floats (*sums)[kParts]) {
    Pairs run[kTokens][kParts];
    Ints total[kTokens][kParts];
    add_group<F, kTokens, 0>(block, x, run, total);
    if constexpr (F.groups == 2) add_total<F, kTokens, 0>(x, scales, total, sums);
    add_group<F, kTokens, kHalfGroups>(block, x, run, total);
    add_total<F, kTokens, F.groups - 1>(x, scales, total, sums);
}

template <Format F, int kTokens, int kGroup = 0>
[[gnu::always_inline]] inline void add_words(const uint8_t* block, const WordBlock* x,
                                             Ints (*total)[kParts]) {
    Pairs even[kParts], odd[kParts];
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) {
        const Bytes w = unpack_group<F, kGroup>(block, p);
        even[p] = even_words(w), odd[p] = odd_words(w);
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
        const Ints first = Ints::all(load_int(x[t].q + kGroup * kGroupColumns));
        const Ints second = Ints::all(load_int(x[t].q + kGroup * kGroupColumns + 2));
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) {
            if constexpr (kGroup == 0)
                total[t][p] = even[p].times(first);
            else
                total[t][p].add(even[p].times(first));
            total[t][p].add(odd[p].times(second));
        }
    }
    if constexpr (kGroup + 1 < kBlockGroups) add_words<F, kTokens, kGroup + 1>(block, x, total);
}

template <Format F, int kTokens>
[[gnu::always_inline]] inline void add_block(const uint8_t* block, const WordBlock* x,
                                             const BlockScales* scales, Floats (*sums)[kParts]) {
    static_assert(F.groups == 1 && !F.has_minimum());
    Ints total[kTokens][kParts];
    add_words<F, kTokens>(block, x, total);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p)
            sums[t][p] = Floats::fma(total[t][p].floats(), scales[p].scale[0], sums[t][p]);
}

template <Format F, int kTokens>
void quantized_tile(const TileArgs& args) {
    using Block = std::conditional_t<F.has_signed_levels(), WordBlock, Q8Block>;
    Floats sums[kTokens][kParts];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) sums[t][p] = Floats::zero();
    const Block* x = static_cast<const Block*>(args.activations);
    alignas(64) uint8_t room[kRoomBytes<F>];
    for (int64_t u = 0; u < args.units; ++u) {
        const uint8_t* unit = unit_at<F>(args, u, 0, kParts, room);
        UnitScales unit_scales[kParts];
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) unit_scales[p] = load_unit_scales<F>(unit, p);
        const uint8_t* block = unit + F.header_bytes();
        for (int b = 0; b < F.blocks(); ++b, block += F.block_bytes(), x += kTokens) {
            if (F != kExpanded && args.is_first)
                prefetch(block, F.is_super() ? F.block_bytes() : F.unit_bytes());
            BlockScales scales[kParts];
#pragma GCC unroll 2
            for (int p = 0; p < kParts; ++p)
                scales[p] = load_block_scales<F>(unit_scales[p], block, p);
            add_block<F, kTokens>(block, x, scales, sums);
        }
    }
    x = static_cast<const Block*>(args.activations);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 2
        for (int p = 0; p < kParts; ++p) sums[t][p] = sums[t][p] * Floats::all(x[t].scale);
    store_tile<kTokens>(args, sums);
}

}  // namespace
}  // namespace pagoda
