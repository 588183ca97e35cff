// Quantized tiles on instructions that add four products of bytes into 32 bits (or on code that
// imitates them).
#pragma once

#include "tiles.h"

namespace pagoda {
namespace {

template <Format F, int kGroup = 0>
[[gnu::always_inline]] inline void unpack(const uint8_t* block, int part, Bytes* w) {
    w[kGroup] = unpack_group<F, kGroup>(block, part);
    if constexpr (kGroup + 1 < kBlockGroups) unpack<F, kGroup + 1>(block, part, w);
}

template <Format F>
[[gnu::always_inline]] inline Floats add_block(Floats sums, const Bytes* w,
                                               const BlockScales& scales, const Q8Block& x) {
    using Range = DotRange<F>;
    constexpr int kGroups = kBlockGroups / 2;
    const Floats first =
        dot<Range::kMaxLevel, Range::kSigned, kGroups>(w, x.q, start<F>(x.minus_sum[0])).floats();
    const Floats second = dot<Range::kMaxLevel, Range::kSigned, kGroups>(
                              w + kGroups, x.q + Q8Block::kHalf, start<F>(x.minus_sum[1]))
                              .floats();
    const Floats x_scales[2] = {Floats::all(x.scale[0]), Floats::all(x.scale[1])};
    if constexpr (F.groups == 1) {
        const Floats both = Floats::fma(second, x_scales[1], first * x_scales[0]);
        sums = Floats::fma(both, scales.scale[0], sums);
        if constexpr (F.has_minimum())
            sums = Floats::fma(scales.minimum[0], Floats::all(x.sum), sums);
    } else {
        sums = Floats::fma(first, scales.scale[0] * x_scales[0], sums);
        sums = Floats::fma(second, scales.scale[1] * x_scales[1], sums);
        if constexpr (F.has_minimum()) {
            sums = Floats::fma(scales.minimum[0], Floats::all(half_sum(x, 0)), sums);
            sums = Floats::fma(scales.minimum[1], Floats::all(half_sum(x, 1)), sums);
        }
    }
    return sums;
}

template <Format F, int kTokens>
void quantized_part(const TileArgs& args, int part) {
    Floats sums[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) sums[t] = Floats::zero();
    const Q8Block* x = static_cast<const Q8Block*>(args.activations);
    constexpr int kHalves = 2 / kParts;  // of a panel, in a part
    alignas(64) uint8_t room[kRoomBytes<F>];
    for (int64_t u = 0; u < args.units; ++u) {
        const uint8_t* unit = unit_at<F>(args, u, part * kHalves, (part + 1) * kHalves, room);
        const UnitScales unit_scales = load_unit_scales<F>(unit, part);
        const uint8_t* block = unit + F.header_bytes();
        for (int b = 0; b < F.blocks(); ++b, block += F.block_bytes(), x += kTokens) {
            if (F != kExpanded) prefetch(block, F.is_super() ? F.block_bytes() : F.unit_bytes());
            Bytes w[kBlockGroups];
            unpack<F>(block, part, w);
            const BlockScales scales = load_block_scales<F>(unit_scales, block, part);
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) sums[t] = add_block<F>(sums[t], w, scales, x[t]);
        }
    }
    store_part<kTokens>(args, part, sums);
}

template <Format F, int kTokens>
void quantized_tile(const TileArgs& args) {
    for (int part = 0; part < kParts; ++part) quantized_part<F, kTokens>(args, part);
}

}  // namespace
}  // namespace pagoda
