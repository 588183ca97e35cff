// Scalar conversions of short floats.
#pragma once

#include <bit>
#include <cstdint>

namespace pagoda {
namespace {

inline float half_to_float(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    // Times 2^112 moves the exponent's bias, subnormal numbers included.
    const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline float bf16_to_float(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// Half of 2^(exponent - 127); the two lowest exponents give subnormal numbers.
inline float e8m0_halved(uint8_t exponent) {
    return std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent
                                             : (exponent - 1u) << 23);
}

}  // namespace
}  // namespace pagoda
