// Storage formats of packed matrices and how each is laid out.
//
// A matrix is cut into panels of 16 rows, a panel into units along its columns: one block of 32
// columns, or for K-quants 8 blocks that share the super-scales in the unit's header. The unit of
// a quantized format is
//     header  per row d (fp16 as in the file; a byte for E8M0), then per row the minimum if any
//     blocks  each: low bits, high bits, then per group the rows' sub-scales (and sub-minima)
// where b bits of 16 x 32 codes are b vectors of 64 bytes: dword r belongs to row r, its byte j to
// column 4g + j, and bits [b f, b f + b) of vector v to the group of columns g = v + b f. So one
// vector holds what a dot product of four bytes per lane wants, after one shift and one mask.
// Coded formats (coded.h) have a form of their own, and are expanded to this one for products.
// Floats lie [column][row]; BF16 in pairs of columns, [column / 2][row][2].
#pragma once

#include <cstdint>

namespace pagoda {
namespace {

constexpr int kPanelRows = 16;
constexpr int kBlockColumns = 32;
constexpr int kGroupColumns = 4;
constexpr int kBlockGroups = kBlockColumns / kGroupColumns;
// Bytes of one vector: four codes of each row.
constexpr int kVectorBytes = kPanelRows * kGroupColumns;

enum class Storage : int {
    kF32, kF16, kBF16,
    kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0,
    kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K,
    kIQ4_NL, kIQ4_XS, kMXFP4, kTQ2_0,
    kTQ1_0, kIQ1_S, kIQ1_M, kIQ2_XXS, kIQ2_XS, kIQ2_S, kIQ3_XXS, kIQ3_S,
};
constexpr int kNumStorages = static_cast<int>(Storage::kIQ3_S) + 1;
constexpr const char* kStorageNames[kNumStorages] = {
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ2_0",
    "TQ1_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
};

// What number a code stands for.
enum class Levels {
    kOffset,  // code - offset
    kSigned,  // a signed byte
    kIq4,     // kIq4Levels[code]
    kE2M1,    // kE2M1Levels[code]
};
constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
// Doubled to be whole, the scales being halved instead.
constexpr int8_t kE2M1Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// How a level becomes a weight.
enum class Scaling {
    kHalf,          // d * level
    kHalfMinimum,   // d * level + minimum
    kE8M0,          // 2^(d - 128) * level
    kSuper,         // d * scale * level; the scale a signed byte
    kSuperMinimum,  // d * scale * level - dmin * minimum; unsigned bytes
    kSuperNibbles,  // the same; scale and minimum are a byte's halves
    kSuperAlone,    // d * level
    kFloat,         // scale * level; the scale fp32, in the block
};

// What is added to levels of coded formats, at most 62 of either sign, to make them unsigned.
constexpr int kLevelOffset = 64;

struct Format {
    int low_bits;
    int high_bits;
    Levels levels;
    int offset;       // a power of two; 0 is none
    Scaling scaling;
    int groups = 1;   // scales per 32 columns

    bool operator==(const Format&) const = default;
    constexpr bool is_super() const { return scaling >= Scaling::kSuper; }
    constexpr bool has_minimum() const {
        return scaling == Scaling::kHalfMinimum || scaling == Scaling::kSuperMinimum ||
               scaling == Scaling::kSuperNibbles;
    }
    constexpr int blocks() const { return is_super() ? 8 : 1; }
    constexpr int columns() const { return blocks() * kBlockColumns; }
    constexpr int header_bytes() const {
        if (scaling == Scaling::kFloat) return 0;
        return scaling == Scaling::kE8M0 ? kPanelRows : (has_minimum() ? 4 : 2) * kPanelRows;
    }
    constexpr int low_bytes() const { return low_bits * kVectorBytes; }
    constexpr int code_bytes() const { return (low_bits + high_bits) * kVectorBytes; }
    constexpr int scales_bytes() const {
        if (!is_super() || scaling == Scaling::kSuperAlone) return 0;
        if (scaling == Scaling::kFloat) return groups * kPanelRows * 4;
        return groups * kPanelRows * (scaling == Scaling::kSuperMinimum ? 2 : 1);
    }
    constexpr int block_bytes() const { return code_bytes() + scales_bytes(); }
    constexpr int unit_bytes() const { return header_bytes() + blocks() * block_bytes(); }
    // The largest unsigned level, for the range of sums.
    constexpr int max_level() const {
        if (scaling == Scaling::kFloat) return 2 * kLevelOffset - 2;
        return levels == Levels::kE2M1 ? 28 : (1 << (low_bits + high_bits)) - 1;
    }
    // The largest magnitude without the offset.
    constexpr int max_magnitude() const {
        return max_level() - offset < offset ? offset : max_level() - offset;
    }
    constexpr bool has_signed_levels() const {
        return levels == Levels::kSigned || levels == Levels::kIq4;
    }
};

constexpr bool is_float(Storage storage) { return storage <= Storage::kBF16; }
constexpr bool is_coded(Storage storage) { return storage >= Storage::kTQ1_0; }

// What products see of coded formats.
constexpr Format kExpanded = {8, 0, Levels::kOffset, kLevelOffset, Scaling::kFloat, 2};

constexpr Format format_of(Storage storage) {
    switch (storage) {
        case Storage::kQ4_0: return {4, 0, Levels::kOffset, 8, Scaling::kHalf};
        case Storage::kQ4_1: return {4, 0, Levels::kOffset, 0, Scaling::kHalfMinimum};
        case Storage::kQ5_0: return {4, 1, Levels::kOffset, 16, Scaling::kHalf};
        case Storage::kQ5_1: return {4, 1, Levels::kOffset, 0, Scaling::kHalfMinimum};
        case Storage::kQ8_0: return {8, 0, Levels::kSigned, 0, Scaling::kHalf};
        case Storage::kQ2_K: return {2, 0, Levels::kOffset, 0, Scaling::kSuperNibbles, 2};
        case Storage::kQ3_K: return {2, 1, Levels::kOffset, 4, Scaling::kSuper, 2};
        case Storage::kQ4_K: return {4, 0, Levels::kOffset, 0, Scaling::kSuperMinimum};
        case Storage::kQ5_K: return {4, 1, Levels::kOffset, 0, Scaling::kSuperMinimum};
        case Storage::kQ6_K: return {4, 2, Levels::kOffset, 32, Scaling::kSuper, 2};
        case Storage::kIQ4_NL: return {4, 0, Levels::kIq4, 0, Scaling::kHalf};
        case Storage::kIQ4_XS: return {4, 0, Levels::kIq4, 0, Scaling::kSuper};
        case Storage::kMXFP4: return {4, 0, Levels::kE2M1, 16, Scaling::kE8M0};
        case Storage::kTQ2_0: return {2, 0, Levels::kOffset, 1, Scaling::kSuperAlone};
        default: return is_coded(storage) ? kExpanded : Format{};
    }
}

constexpr int unit_columns(Storage storage) {
    return is_float(storage) ? kBlockColumns : format_of(storage).columns();
}

// Bytes of a coded format's block of 256 columns.
constexpr int coded_bytes(Storage storage) {
    switch (storage) {
        case Storage::kTQ1_0: return 54;
        case Storage::kIQ1_S: return 50;
        case Storage::kIQ1_M: return 56;
        case Storage::kIQ2_XXS: return 66;
        case Storage::kIQ2_XS: return 74;
        case Storage::kIQ2_S: return 82;
        case Storage::kIQ3_XXS: return 98;
        default: return 110;
    }
}

constexpr int unit_bytes(Storage storage) {
    if (is_coded(storage)) return kPanelRows * coded_bytes(storage);
    if (is_float(storage))
        return kPanelRows * kBlockColumns * (storage == Storage::kF32 ? 4 : 2);
    return format_of(storage).unit_bytes();
}

}  // namespace
}  // namespace pagoda
