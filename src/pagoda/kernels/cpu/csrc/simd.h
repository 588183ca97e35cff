// fp32 vectors of the instruction set that this file is compiled for.
//
// Everything here has internal linkage: the same names are compiled once per instruction set, and
// the linker must not merge them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if PAGODA_ISA_AVX512 || PAGODA_ISA_AVX2
#include <immintrin.h>
#elif PAGODA_ISA_NEON
#include <arm_neon.h>
#endif

namespace pagoda {
namespace {

#if PAGODA_ISA_AVX512

struct Floats {
    static constexpr int kSize = 16;
    __m512 v;
    static Floats zero() { return {_mm512_setzero_ps()}; }
    static Floats all(float x) { return {_mm512_set1_ps(x)}; }
    static Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    Floats operator+(Floats o) const { return {_mm512_add_ps(v, o.v)}; }
    Floats operator*(Floats o) const { return {_mm512_mul_ps(v, o.v)}; }
    static Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
};

#elif PAGODA_ISA_AVX2

struct Floats {
    static constexpr int kSize = 8;
    __m256 v;
    static Floats zero() { return {_mm256_setzero_ps()}; }
    static Floats all(float x) { return {_mm256_set1_ps(x)}; }
    static Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
    Floats operator+(Floats o) const { return {_mm256_add_ps(v, o.v)}; }
    Floats operator*(Floats o) const { return {_mm256_mul_ps(v, o.v)}; }
    static Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
};

#elif PAGODA_ISA_NEON

// Two registers: what is the same for all lanes is then loaded half as often, and two chains of
// sums run side by side.
struct Floats {
    static constexpr int kSize = 8;
    float32x4_t low, high;
    static Floats zero() { return all(0); }
    static Floats all(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
    static Floats load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
    void store(float* p) const {
        vst1q_f32(p, low);
        vst1q_f32(p + 4, high);
    }
    Floats operator+(Floats o) const { return {vaddq_f32(low, o.low), vaddq_f32(high, o.high)}; }
    Floats operator*(Floats o) const { return {vmulq_f32(low, o.low), vmulq_f32(high, o.high)}; }
    static Floats fma(Floats a, Floats b, Floats c) {
        return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
    }
};

#else

// Vectors of GCC and Clang, which become whatever the target has.
typedef float FloatVector __attribute__((vector_size(32)));

struct Floats {
    static constexpr int kSize = 8;
    FloatVector v;
    static Floats zero() { return {FloatVector{}}; }
    static Floats all(float x) { return {x - FloatVector{}}; }
    static Floats load(const float* p) {
        Floats out;
        std::memcpy(&out.v, p, sizeof out.v);
        return out;
    }
    void store(float* p) const { std::memcpy(p, &v, sizeof v); }
    Floats operator+(Floats o) const { return {v + o.v}; }
    Floats operator*(Floats o) const { return {v * o.v}; }
    static Floats fma(Floats a, Floats b, Floats c) { return {c.v + a.v * b.v}; }
};

#endif

// In one fixed order: halves are added until one number is left.
inline float sum(Floats x) {
    float lanes[Floats::kSize];
    x.store(lanes);
    for (int width = Floats::kSize / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

}  // namespace
}  // namespace pagoda
