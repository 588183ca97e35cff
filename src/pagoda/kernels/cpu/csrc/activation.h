// Activations, gated and plain.
#pragma once

#include "isa.h"
#include "vector_math.h"

namespace pagoda {
namespace {

inline Floats silu(Floats x) {
    return x / (Floats::all(1.0f) + exp(Floats::zero() - x));
}

inline Floats sigmoid(Floats x) {
    return Floats::all(1.0f) / (Floats::all(1.0f) + exp(Floats::zero() - x));
}

// y = x * function(gate).
template <typename Function>
inline void gate_row(const float* x, const float* gate, float* y, int64_t size,
                     Function function) {
    const int64_t whole = size - size % Floats::kSize;
    for (int64_t i = 0; i < whole; i += Floats::kSize)
        (function(Floats::load(gate + i)) * Floats::load(x + i)).store(y + i);
    if (whole == size) return;
    const int64_t rest = size - whole;
    float lanes[Floats::kSize];
    (function(load_first(gate + whole, rest)) * load_first(x + whole, rest)).store(lanes);
    for (int64_t i = 0; i < rest; ++i) y[whole + i] = lanes[i];
}

constexpr float kTailStep = 0x1.33bb9ep-2f;  // 0.425 / sqrt 2
constexpr float kTail[8] = {
    0x1.313594p-5f, -0x1.4daef8p-3f, 0x1.b7f874p-3f, -0x1.faceap-5f,
    0x1.107318p-3f, 0x1.941d6cp-4f, 0x1.f06ccep-4f, 0x1.eac924p-4f,
};
constexpr float kSqrt2OverPi = 0x1.988454p-1f;
constexpr float kCubic = 0.044715f;

// The part of a normal distribution beyond `x` standard deviations, for x >= 0: with
// t = 1 / (1 + 0.425 x / sqrt 2), t times a polynomial in t times exp(-x^2 / 2). The polynomial
// (Lawson's iteration, relative error 6.1e-8 up to x = 11) is that of erfcx(x / sqrt 2) / t / 2.
inline Floats normal_tail(Floats x) {
    const Floats t = Floats::all(1.0f) / Floats::fma(x, Floats::all(kTailStep), Floats::all(1.0f));
    Floats y = Floats::all(kTail[0]);
    for (int i = 1; i < 8; ++i) y = Floats::fma(y, t, Floats::all(kTail[i]));
    return y * t * exp(x * x * Floats::all(-0.5f));
}

inline Floats gelu(Floats x) {
    const Floats size = max(x, Floats::zero() - x);
    return max(x, Floats::zero()) - size * normal_tail(size);
}

// 1 + tanh(u) is 2 / (1 + exp(-2 u)).
inline Floats gelu_tanh(Floats x) {
    const Floats cubic = Floats::fma(x * x * x, Floats::all(kCubic), x);
    return x / (Floats::all(1.0f) + exp(cubic * Floats::all(-2.0f * kSqrt2OverPi)));
}

template <typename Function>
inline void map_row(const float* x, float* y, int64_t size, Function function) {
    const int64_t whole = size - size % Floats::kSize;
    for (int64_t i = 0; i < whole; i += Floats::kSize) function(Floats::load(x + i)).store(y + i);
    if (whole == size) return;
    float lanes[Floats::kSize];
    function(load_first(x + whole, size - whole)).store(lanes);
    for (int64_t i = whole; i < size; ++i) y[i] = lanes[i - whole];
}

inline void gelu(const Gelu& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 2 * op.size, [&](int64_t row) {
        const float* x = op.x + row * op.size;
        float* y = op.y + row * op.size;
        if (op.tanh) map_row(x, y, op.size, [](Floats v) { return gelu_tanh(v); });
        else map_row(x, y, op.size, [](Floats v) { return gelu(v); });
    });
}

inline void scale(const Scale& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 2 * op.size, [&](int64_t row) {
        const Floats factor = Floats::all(op.factor);
        map_row(op.x + row * op.size, op.y + row * op.size, op.size,
                [factor](Floats v) { return v * factor; });
    });
}

// cap - 2 cap / (1 + exp(2 x / cap)).
inline void soft_cap(const SoftCap& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 2 * op.size, [&](int64_t row) {
        const Floats cap = Floats::all(op.cap), twice = Floats::all(2.0f * op.cap);
        const Floats inverse = Floats::all(2.0f / op.cap), one = Floats::all(1.0f);
        map_row(op.x + row * op.size, op.y + row * op.size, op.size,
                [=](Floats v) { return cap - twice / (one + exp(v * inverse)); });
    });
}

inline void activate_and_mul(const ActivateAndMul& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 3 * op.size, [&](int64_t row) {
        const float* gate = op.gate + row * op.gate_stride;
        const float* x = op.x + row * op.x_stride;
        float* y = op.y + row * op.size;
        switch (op.activation) {
            case Activation::kSilu:
                return gate_row(x, gate, y, op.size, [](Floats v) { return silu(v); });
            case Activation::kGeluTanh:
                return gate_row(x, gate, y, op.size, [](Floats v) { return gelu_tanh(v); });
            case Activation::kRelu:
                return gate_row(x, gate, y, op.size, [](Floats v) {
                    return max(Floats::zero(), v);  // NaN stays NaN
                });
            case Activation::kIdentity:
                return gate_row(x, gate, y, op.size, [](Floats v) { return v; });
        }
    });
}

inline void sigmoid_mul(const SigmoidMul& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 3 * op.size, [&](int64_t row) {
        gate_row(op.x + row * op.size, op.gate + row * op.gate_stride, op.y + row * op.size,
                 op.size, [](Floats v) { return sigmoid(v); });
    });
}

inline void add_gated(const AddGated& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 3 * op.size, [&](int64_t row) {
        const float* x = op.x + row * op.size;
        const float* added = op.added + row * op.size;
        float* y = op.y + row * op.size;
        Floats factor = Floats::all(1.0f);
        if (op.gate != nullptr) factor = sigmoid(Floats::all(op.gate[row * op.gate_stride]));
        const int64_t whole = op.size - op.size % Floats::kSize, rest = op.size - whole;
        for (int64_t i = 0; i < whole; i += Floats::kSize)
            Floats::fma(Floats::load(added + i), factor, Floats::load(x + i)).store(y + i);
        if (rest == 0) return;
        float lanes[Floats::kSize];
        Floats::fma(load_first(added + whole, rest), factor, load_first(x + whole, rest))
            .store(lanes);
        for (int64_t i = 0; i < rest; ++i) y[whole + i] = lanes[i];
    });
}

}  // namespace
}  // namespace pagoda
