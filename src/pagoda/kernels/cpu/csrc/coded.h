// Formats whose weights are codewords of a grid (IQ1 to IQ3) or digits of a number (TQ1_0).
//
// Too dense to lie in any order that products like better, their blocks of 256 columns stay as the
// file has them: a unit is the blocks of 16 rows, [byte][row], and of TQ1_0 [byte / 4][row][4].
// Products take it expanded (expand.h). Here is what each byte means (ggml-common.h), written once
// for the bytes of 16 rows and for those of one.
#pragma once

#include <cstring>

#include "formats.h"
#include "grids.h"
#include "half.h"

namespace pagoda {
namespace {

// A byte of each of a panel's rows.
typedef uint8_t RowBytes __attribute__((vector_size(kPanelRows)));

// Where TQ1_0 has its digits: runs of bytes, of which each has a digit of a column in each of
// several groups of as many columns.
struct DigitRun {
    int byte, bytes, digits, column;
};
constexpr DigitRun kDigitRuns[] = {{0, 32, 5, 0}, {32, 16, 5, 160}, {48, 4, 4, 240}};
constexpr int kDigitBytes = 52;

// Where in a unit a byte of a row lies.
template <Storage S>
constexpr int coded_place(int byte, int row) {
    if (S == Storage::kTQ1_0 && byte < kDigitBytes)
        return byte / kGroupColumns * kVectorBytes + row * kGroupColumns + byte % kGroupColumns;
    return byte * kPanelRows + row;
}

// The bytes of a unit: all rows' or one row's.
struct PanelRows {
    const uint8_t* unit;
    RowBytes operator()(int byte) const {
        RowBytes out;
        std::memcpy(&out, unit + byte * kPanelRows, sizeof out);
        return out;
    }
};
template <Storage S>
struct OneRow {
    const uint8_t* unit;
    int row;
    uint8_t operator()(int byte) const { return unit[coded_place<S>(byte, row)]; }
};

// What 32 columns say. `signs` is a bit per column; of IQ1 the bits of a byte are alike and say
// what is added to a level, an eighth or its opposite.
template <typename V>
struct GridBlock {
    V low[8], high[8];  // of each index: the lowest eight bits, and those above
    V signs[4];         // of eight columns each
    V scale[2];         // of 16 columns each
};

// Seven signs, and the eighth that makes the number of minuses even.
template <typename V>
[[gnu::always_inline]] inline V with_eighth(V seven) {
    V odd = V(seven ^ (seven >> 4));
    odd = V(odd ^ (odd >> 2));
    odd = V(odd ^ (odd >> 1));
    return V(seven | (odd << 7));
}

// Four bytes: seven signs for each of four groups of columns, then a scale of four bits.
template <typename Rows, typename V>
[[gnu::always_inline]] inline void read_signs_and_scale(const Rows& at, int byte,
                                                        GridBlock<V>& out) {
    const V a = at(byte), b = at(byte + 1), c = at(byte + 2), d = at(byte + 3);
    out.signs[0] = with_eighth(V(a & 127));
    out.signs[1] = with_eighth(V(((a >> 7) | (b << 1)) & 127));
    out.signs[2] = with_eighth(V(((b >> 6) | (c << 2)) & 127));
    out.signs[3] = with_eighth(V(((c >> 5) | (d << 3)) & 127));
    out.scale[0] = out.scale[1] = V((d >> 4) * 2 + 1);
}

// Scales of four bits for 16 columns each.
template <typename V>
[[gnu::always_inline]] inline void read_two_scales(V both, GridBlock<V>& out) {
    out.scale[0] = V((both & 15) * 2 + 1);
    out.scale[1] = V((both >> 4) * 2 + 1);
}

// The field of three bits at `place` of the twelve that two bytes begin with.
template <typename V>
[[gnu::always_inline]] inline V three_bits(V low, V high, int place) {
    switch (place) {
        case 0: return V(low & 7);
        case 1: return V((low >> 3) & 7);
        case 2: return V(((low >> 6) | (high << 2)) & 7);
        default: return V((high >> 1) & 7);
    }
}

// By format: how many columns an index stands for, whether it has more than eight bits, the grid,
// what a scale is times, and `read`, what a block of 32 columns says.
struct GridCode {
    int width;
    bool is_wide;
    GridName grid;
    float unit;
};

template <Storage S>
struct Code;

template <>
struct Code<Storage::kIQ1_S> {
    static constexpr GridCode kGrid = {8, true, kGridIQ1, 0.125f};
    template <typename Rows, typename V>
    static void read(const Rows& at, int block, GridBlock<V>& out) {
        const V low = at(34 + 2 * block), high = at(35 + 2 * block);
        for (int k = 0; k < 4; ++k) {
            out.low[k] = at(2 + 4 * block + k);
            out.high[k] = three_bits(low, high, k);
            out.signs[k] = V(0 - (high >> 7));
        }
        out.scale[0] = out.scale[1] = V(((high >> 4) & 7) * 2 + 1);
    }
};

template <>
struct Code<Storage::kIQ1_M> {
    static constexpr GridCode kGrid = {8, true, kGridIQ1, 0.125f};
    template <typename Rows, typename V>
    static void read(const Rows& at, int block, GridBlock<V>& out) {
        for (int k = 0; k < 4; ++k) {
            const V pair = at(32 + 2 * block + k / 2), high = k % 2 ? V(pair >> 4) : V(pair & 15);
            out.low[k] = at(4 * block + k);
            out.high[k] = V(high & 7);
            out.signs[k] = V(0 - (high >> 3));
        }
        const V low = at(48 + block / 2 * 2), high = at(49 + block / 2 * 2);
        const int first = block % 2 * 2;
        out.scale[0] = V(three_bits(low, high, first) * 2 + 1);
        out.scale[1] = V(three_bits(low, high, first + 1) * 2 + 1);
    }
};

template <>
struct Code<Storage::kIQ2_XXS> {
    static constexpr GridCode kGrid = {8, false, kGridIQ2_XXS, 0.125f};
    template <typename Rows, typename V>
    static void read(const Rows& at, int block, GridBlock<V>& out) {
        for (int k = 0; k < 4; ++k) out.low[k] = at(2 + 8 * block + k);
        read_signs_and_scale(at, 6 + 8 * block, out);
    }
};

template <>
struct Code<Storage::kIQ2_XS> {
    static constexpr GridCode kGrid = {8, true, kGridIQ2_XS, 0.125f};
    template <typename Rows, typename V>
    static void read(const Rows& at, int block, GridBlock<V>& out) {
        for (int k = 0; k < 4; ++k) {
            const V high = at(3 + 8 * block + 2 * k);
            out.low[k] = at(2 + 8 * block + 2 * k);
            out.high[k] = V(high & 1);
            out.signs[k] = with_eighth(V(high >> 1));
        }
        read_two_scales(at(66 + block), out);
    }
};

template <>
struct Code<Storage::kIQ2_S> {
    static constexpr GridCode kGrid = {8, true, kGridIQ2_S, 0.125f};
    template <typename Rows, typename V>
    static void read(const Rows& at, int block, GridBlock<V>& out) {
        const V high = at(66 + block);
        for (int k = 0; k < 4; ++k) {
            out.low[k] = at(2 + 4 * block + k);
            out.high[k] = V((high >> (2 * k)) & 3);
            out.signs[k] = at(34 + 4 * block + k);
        }
        read_two_scales(at(74 + block), out);
    }
};

template <>
struct Code<Storage::kIQ3_XXS> {
    static constexpr GridCode kGrid = {4, false, kGridIQ3_XXS, 0.25f};
    template <typename Rows, typename V>
    static void read(const Rows& at, int block, GridBlock<V>& out) {
        for (int k = 0; k < 8; ++k) out.low[k] = at(2 + 8 * block + k);
        read_signs_and_scale(at, 66 + 4 * block, out);
    }
};

template <>
struct Code<Storage::kIQ3_S> {
    static constexpr GridCode kGrid = {4, true, kGridIQ3_S, 1.0f};
    template <typename Rows, typename V>
    static void read(const Rows& at, int block, GridBlock<V>& out) {
        const V high = at(66 + block), scales = at(106 + block / 2);
        for (int k = 0; k < 8; ++k) {
            out.low[k] = at(2 + 8 * block + k);
            out.high[k] = V((high >> k) & 1);
        }
        for (int k = 0; k < 4; ++k) out.signs[k] = at(74 + 4 * block + k);
        out.scale[0] = out.scale[1] = V((block % 2 ? V(scales >> 4) : V(scales & 15)) * 2 + 1);
    }
};

// The two bytes of the fp16 number that a unit's weights share.
template <Storage S, typename Rows, typename V>
[[gnu::always_inline]] inline void read_half(const Rows& at, V& low, V& high) {
    if constexpr (S == Storage::kIQ1_M) {  // spread over the highest bits of four words
        low = V((at(49) >> 4) | (at(51) & 0xf0));
        high = V((at(53) >> 4) | (at(55) & 0xf0));
    } else {
        constexpr int kPlace = S == Storage::kTQ1_0 ? kDigitBytes : 0;
        low = at(kPlace), high = at(kPlace + 1);
    }
}

// One row of 256 columns, in ggml's order of operations.
template <Storage S>
void decode_row(const uint8_t* unit, int row, float* out) {
    const OneRow<S> at{unit, row};
    uint8_t low, high;
    read_half<S>(at, low, high);
    const float d = half_to_float(static_cast<uint16_t>(low | high << 8));
    if constexpr (S == Storage::kTQ1_0) {
        for (const DigitRun& run : kDigitRuns)
            for (int i = 0; i < run.bytes; ++i) {
                auto x = at(run.byte + i);
                for (int n = 0; n < run.digits; ++n, x = static_cast<uint8_t>(3 * x))
                    out[run.column + n * run.bytes + i] = d * static_cast<float>((3 * x >> 8) - 1);
            }
    } else {
        using F = Code<S>;
        constexpr int kWidth = F::kGrid.width;
        for (int block = 0; block < 8; ++block) {
            GridBlock<uint8_t> fields{};
            F::read(at, block, fields);
            for (int i = 0; i < kBlockColumns; ++i, ++out) {
                const int k = i / kWidth, index = fields.low[k] | fields.high[k] << 8;
                const int x = grids[F::kGrid.grid].codewords[index * kWidth + i % kWidth];
                const bool minus = fields.signs[i / 8] >> (i % 8) & 1;
                const float scale = d * F::kGrid.unit * fields.scale[i / 16];
                if constexpr (F::kGrid.grid == kGridIQ1)
                    *out = scale * static_cast<float>(x - kLevelOffset + (minus ? -1 : 1));
                else
                    *out = scale * static_cast<float>(minus ? -x : x);
            }
        }
    }
}

}  // namespace
}  // namespace pagoda
