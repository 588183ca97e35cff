// Several hidden states of a token (arXiv 2301.13310), and what else only Gemma 3n computes.
#pragma once

#include "activation.h"
#include "isa.h"
#include "norm.h"
#include "vector_math.h"

namespace pagoda {
namespace {

void mix_streams_row(const MixStreams& op, int64_t row) {
    const int64_t whole = op.size - op.size % Floats::kSize, at = row * op.size;
    const float* weights = op.weights + row * op.streams * op.added;
    for (int64_t stream = 0; stream < op.streams; ++stream, weights += op.added) {
        const float* x = op.x[stream] + at;
        float* y = op.y[stream] + at;
        for (int64_t i = 0; i < whole; i += Floats::kSize) {
            Floats sum = Floats::load(x + i);
            for (int64_t j = 0; j < op.added; ++j)
                sum = Floats::fma(Floats::load(op.adds[j] + at + i),
                                  Floats::all(weights[j] + op.plus), sum);
            sum.store(y + i);
        }
        for (int64_t i = whole; i < op.size; ++i) {
            float sum = x[i];
            for (int64_t j = 0; j < op.added; ++j)
                sum += op.adds[j][at + i] * (weights[j] + op.plus);
            y[i] = sum;
        }
    }
}

void mix_streams(const MixStreams& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, op.streams * (2 + op.added) * op.size,
             [&](int64_t row) { mix_streams_row(op, row); });
}

void scale_columns(const ScaleColumns& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 3 * op.size, [&](int64_t row) {
        gate_row(op.x + row * op.size, op.weight, op.y + row * op.size, op.size,
                 [](Floats v) { return v; });
    });
}

void match_rms(const MatchRms& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 4 * op.size, [&](int64_t row) {
        const float* x = op.x + row * op.size;
        const float size = static_cast<float>(op.size);
        const float wanted = sum_of_squares(op.like + row * op.size, op.size) / size;
        const float own = sum_of_squares(x, op.size) / size;
        const Floats factor = Floats::all(std::sqrt(wanted) / std::sqrt(std::max(own, op.least)));
        map_row(x, op.y + row * op.size, op.size, [factor](Floats v) { return v * factor; });
    });
}

void cut_columns(const CutColumns& op, int64_t rows, Pool& pool) {
    run_rows(pool, rows, 4 * op.size, [&](int64_t row) {
        float* x = op.x + row * op.stride;
        const Spread spread = spread_of(x, op.size);
        const Floats cut = Floats::all(spread.mean + op.cut * std::sqrt(spread.variance));
        map_row(x, x, op.size, [cut](Floats v) { return max(v - cut, Floats::zero()); });
    });
}

}  // namespace
}  // namespace pagoda
