// Codewords of the formats of coded.h. Python has them for its references, and hands them over
// before it makes a matrix of such a format.
#pragma once

#include <cstdint>

namespace pagoda {

// A codeword is 8 levels (IQ1, IQ2) or 4 (IQ3), a byte each, found by its index. Of IQ1 a byte is
// 64 + 8 * level, of the others the magnitude that a sign is yet to be given to.
struct Grid {
    static constexpr int kMaxBytes = 2048 * 8;
    alignas(64) uint8_t codewords[kMaxBytes];
    bool is_filled;
};

enum GridName : int { kGridIQ1, kGridIQ2_XXS, kGridIQ2_XS, kGridIQ2_S, kGridIQ3_XXS, kGridIQ3_S };
constexpr int kNumGrids = kGridIQ3_S + 1;

extern Grid grids[kNumGrids];

}  // namespace pagoda
