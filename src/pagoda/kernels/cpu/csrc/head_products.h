// Products of each head's part of a row with a matrix of the head's own.
#pragma once

#include <algorithm>

#include "experts.h"

namespace pagoda {
namespace {

// Whole tiles: a task has a head's part of so many tokens.
constexpr int64_t kHeadTokens = 64 / kMaxTile * kMaxTile;
// Each takes some tasks, one after the other, and has memory for one.
constexpr int64_t kRunsPerThread = 4;

// Head h's product with tokens from `first` on, of which activations are converted to `scratch`.
inline MatMul product_of(const HeadProducts& op, int64_t h, int64_t first, const MatrixView* view,
                         uint8_t* scratch) {
    const int64_t width = op.kept + op.matrices.rows;
    const int64_t ldo = op.heads * width + op.num_behind;
    return {op.x + first * op.ldx + h * op.head_x + op.kept, op.ldx, op.matrices.columns, view, 1,
            nullptr, op.out + first * ldo + h * width + op.kept, ldo, scratch};
}

inline int64_t head_task_bytes(const HeadProducts& op, int64_t rows) {
    const MatMul product = product_of(op, 0, 0, op.matrices.parts, nullptr);
    return aligned(matmul_scratch_bytes(product, std::min(rows, kHeadTokens)));
}

int64_t head_products_scratch_bytes(const HeadProducts& op, int64_t rows, int threads) {
    return kRunsPerThread * threads * head_task_bytes(op, rows);
}

void head_products(const HeadProducts& op, int64_t rows, Pool& pool) {
    const int64_t width = op.kept + op.matrices.rows;
    const int64_t ldo = op.heads * width + op.num_behind;
    const int64_t segments = (rows + kHeadTokens - 1) / kHeadTokens;
    const int64_t tasks = op.heads * segments, bytes = head_task_bytes(op, rows);
    const int64_t runs = std::min(kRunsPerThread * pool.num_threads(), tasks);
    pool.run(runs, [&](int64_t run) {
        const TileScope scope;
        const int64_t end = (run + 1) * tasks / runs;
        for (int64_t task = run * tasks / runs; task < end; ++task) {
            const int64_t h = task / segments, first = task % segments * kHeadTokens;
            const int64_t count = std::min(kHeadTokens, rows - first);
            const MatrixView view = matrix_of(op.matrices, h, 0);
            const MatMul product = product_of(op, h, first, &view, op.scratch + run * bytes);
            const Prepared prepared = lay_out(product, count);
            convert_rows(product, 0, count, prepared);
            for (int64_t panel = 0; panel < num_panels(view); ++panel)
                multiply_panel(product, view, 0, panel, 0, count, prepared);
            for (int64_t row = 0; row < count && op.kept > 0; ++row)
                std::copy_n(product.x + row * op.ldx - op.kept, op.kept,
                            product.out + row * ldo - op.kept);
        }
    });
    if (op.num_behind == 0) return;
    run_rows(pool, rows, op.num_behind, [&](int64_t row) {
        std::copy_n(op.behind + row * op.ld_behind, op.num_behind,
                    op.out + (row + 1) * ldo - op.num_behind);
    });
}

}  // namespace
}  // namespace pagoda
