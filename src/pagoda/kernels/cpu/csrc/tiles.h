// The inner loops: a few tokens times one panel of 16 rows.
#pragma once

#include "convert.h"
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
};

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
[[gnu::always_inline]] inline void store_tile(const TileArgs& args, int part, const Floats* sums) {
    Floats done[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) done[t] = sums[t];
#pragma GCC unroll 1
    for (int t = 0; t < kTokens; ++t) store_rows(args, part, t, done[t]);
}

[[gnu::always_inline]] inline void prefetch(const uint8_t* from, int bytes) {
#pragma GCC unroll 12
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + kPrefetchBytes + i);
}

// What `kBits` of the codes say of groups of columns from kGroup on; put at kShift, or'ed into w.
template <int kBits, int kShift, int kGroup = 0>
[[gnu::always_inline]] inline void unpack_bits(const uint8_t* from, Bytes* w) {
    constexpr int kMask = ((1 << kBits) - 1) << kShift;
    const Bytes packed = Bytes::load(from + kGroup % kBits * kVectorBytes);
    if constexpr (kBits == 8) {
        w[kGroup] = packed;
    } else {
        const Bytes moved = packed.template shifted<kGroup / kBits * kBits - kShift>();
        const Bytes bits = moved & Bytes::all(kMask);
        w[kGroup] = kShift == 0 ? bits : w[kGroup] | bits;
    }
    if constexpr (kGroup + 1 < kBlockGroups) unpack_bits<kBits, kShift, kGroup + 1>(from, w);
}

// Whether a format's bytes go into the dot product as signed ones, and what is to be taken off.
template <Format F>
struct DotRange {
    static constexpr bool kSigned = F.has_signed_levels() && kSignedDot;
    static constexpr int kOffsetBits =
        F.has_signed_levels() ? (kSignedDot ? 0 : 7) : F.offset_bits;
    static constexpr int kMaxLevel = F.has_signed_levels() ? 255 : F.max_level();
};

// 16 bytes of levels as the dot product takes them.
template <Format F>
struct Table {
    uint8_t bytes[16];
    constexpr Table() : bytes{} {
        for (int i = 0; i < 16; ++i) {
            const int level = F.levels == Levels::kIq4 ? kIq4Levels[i] : kE2M1Levels[i];
            const int offset = DotRange<F>::kOffsetBits == 0 ? 0 : 1 << DotRange<F>::kOffsetBits;
            bytes[i] = static_cast<uint8_t>(level + offset);
        }
    }
};

template <Format F>
[[gnu::always_inline]] inline void unpack(const uint8_t* block, int part, Bytes* w) {
    const uint8_t* from = block + part * kPartBytes;
    unpack_bits<F.low_bits, 0>(from, w);
    if constexpr (F.high_bits > 0) unpack_bits<F.high_bits, F.low_bits>(from + F.low_bytes(), w);
    if constexpr (F.levels == Levels::kIq4 || F.levels == Levels::kE2M1) {
        static constexpr Table<F> kTable;
        const Bytes table = Bytes::table(kTable.bytes);
#pragma GCC unroll 8
        for (int g = 0; g < kBlockGroups; ++g) w[g] = Bytes::look_up(table, w[g]);
    }
#if PAGODA_ISA_AVX512
    if constexpr (F.levels == Levels::kSigned)
#pragma GCC unroll 8
        for (int g = 0; g < kBlockGroups; ++g) w[g] = w[g] ^ Bytes::all(0x80);
#endif
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
    UnitScales out;
    if constexpr (F.scaling == Scaling::kE8M0) {
        out.d = load_e8m0(unit + part * kLanes);
    } else {
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
    if constexpr (!F.is_super()) {
        out.scale[0] = unit.d;
        out.minimum[0] = unit.minimum;
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
    constexpr int kBits = DotRange<F>::kOffsetBits;
    return kBits == 0 ? Ints::zero() : Ints::all(minus_sum).shifted_left<kBits>();
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
    const uint8_t* unit = args.panel;
    for (int64_t u = 0; u < args.units; ++u, unit += F.unit_bytes()) {
        const UnitScales unit_scales = load_unit_scales<F>(unit, part);
        const uint8_t* block = unit + F.header_bytes();
        for (int b = 0; b < F.blocks(); ++b, block += F.block_bytes(), x += kTokens) {
            prefetch(block, F.is_super() ? F.block_bytes() : F.unit_bytes());
            Bytes w[kBlockGroups];
            unpack<F>(block, part, w);
            const BlockScales scales = load_block_scales<F>(unit_scales, block, part);
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) sums[t] = add_block<F>(sums[t], w, scales, x[t]);
        }
    }
    store_tile<kTokens>(args, part, sums);
}

template <Format F, int kTokens>
void quantized_tile(const TileArgs& args) {
    for (int part = 0; part < kParts; ++part) quantized_part<F, kTokens>(args, part);
}

// Two neighbouring columns of the lanes' rows; `from` is the first one's (for BF16 the pair's).
struct FloatPair {
    Floats first, second;
};

template <Storage S>
FloatPair load_pair(const uint8_t* from) {
    if constexpr (S == Storage::kF32) {
        const float* p = reinterpret_cast<const float*>(from);
        return {Floats::load(p), Floats::load(p + kPanelRows)};
    } else {
        static_assert(S == Storage::kF16);
        return {load_halves(from), load_halves(from + 2 * kPanelRows)};
    }
}

#if PAGODA_ISA_AVX2
template <>
FloatPair load_pair<Storage::kBF16>(const uint8_t* from) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))},
            {_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)))}};
}
#elif PAGODA_ISA_AVX512
#ifndef __AVX512BF16__
template <>
FloatPair load_pair<Storage::kBF16>(const uint8_t* from) {
    const __m512i pairs = _mm512_loadu_si512(from);
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
            {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))}};
}
#endif
#elif PAGODA_ISA_NEON
template <>
FloatPair load_pair<Storage::kBF16>(const uint8_t* from) {
    const uint32x4_t low = vreinterpretq_u32_u8(vld1q_u8(from));
    const uint32x4_t high = vreinterpretq_u32_u8(vld1q_u8(from + 16));
    const uint32x4_t second = vdupq_n_u32(0xffff0000);
    return {{vreinterpretq_f32_u32(vshlq_n_u32(low, 16)),
             vreinterpretq_f32_u32(vshlq_n_u32(high, 16))},
            {vreinterpretq_f32_u32(vandq_u32(low, second)),
             vreinterpretq_f32_u32(vandq_u32(high, second))}};
}
#else
template <>
FloatPair load_pair<Storage::kBF16>(const uint8_t* from) {
    FloatPair out;
    for (int i = 0; i < kLanes; ++i) {
        const uint32_t pair = static_cast<uint32_t>(load_int(from + 4 * i));
        out.first.v[i] = std::bit_cast<float>(pair << 16);
        out.second.v[i] = std::bit_cast<float>(pair & 0xffff0000u);
    }
    return out;
}
#endif

template <Storage S, int kTokens>
void float_part(const TileArgs& args, int part) {
    constexpr int kPairBytes = kPanelRows * 2 * (S == Storage::kF32 ? 4 : 2);
    constexpr int kLaneBytes = S == Storage::kF16 ? 2 : 4;
    Floats sums[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) sums[t] = Floats::zero();
    const FloatBlock* x = static_cast<const FloatBlock*>(args.activations);
    const uint8_t* from = args.panel + part * kLanes * kLaneBytes;
    for (int64_t block = 0; block < args.units; ++block, x += kTokens)
        for (int i = 0; i < kBlockColumns; i += 2, from += kPairBytes) {
            prefetch(from, kPairBytes);
            const FloatPair w = load_pair<S>(from);
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) {
                sums[t] = Floats::fma(w.first, Floats::all(x[t].x[i]), sums[t]);
                sums[t] = Floats::fma(w.second, Floats::all(x[t].x[i + 1]), sums[t]);
            }
        }
    store_tile<kTokens>(args, part, sums);
}

template <Storage S, int kTokens>
void float_tile(const TileArgs& args) {
    for (int part = 0; part < kParts; ++part) float_part<S, kTokens>(args, part);
}

#ifdef __AVX512BF16__

// Products of bf16 pairs, summed in fp32.
template <int kTokens>
void bf16_tile(const TileArgs& args) {
    Floats sums[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) sums[t] = Floats::zero();
    const Bf16Block* x = static_cast<const Bf16Block*>(args.activations);
    const uint8_t* from = args.panel;
    for (int64_t block = 0; block < args.units; ++block, x += kTokens)
        for (int i = 0; i < kBlockColumns; i += 2, from += kVectorBytes) {
            __builtin_prefetch(from + kPrefetchBytes);
            const __m512bh w = (__m512bh)_mm512_loadu_si512(from);
#pragma GCC unroll 16
            for (int t = 0; t < kTokens; ++t) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32(load_int(x[t].x + i));
                sums[t].v = _mm512_dpbf16_ps(sums[t].v, w, pair);
            }
        }
    store_tile<kTokens>(args, 0, sums);
}

#endif

}  // namespace
}  // namespace pagoda
