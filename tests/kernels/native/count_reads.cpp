// How often a step's experts have each panel of their weights read, counted where panels are
// multiplied. Reads on standard input the number of experts, of experts per token and of tokens, and
// then each token's experts; writes the number of panels that were read once, twice, and so on.
#include <cstdio>
#include <map>
#include <mutex>
#include <vector>

#define PAGODA_ISA generic
#define PAGODA_ISA_GENERIC 1
#include "matmul.h"

namespace pagoda {
namespace {

std::mutex busy;
std::map<const uint8_t*, int> reads;

void counted(const MatMul& op, const MatrixView& matrix, int64_t row_offset, int64_t panel,
             int64_t first, int64_t last, const Prepared& prepared) {
    {
        const std::lock_guard<std::mutex> turn(busy);
        ++reads[matrix.panels + panel * matrix.panel_bytes];
    }
    multiply_panel(op, matrix, row_offset, panel, first, last, prepared);
}

}  // namespace
}  // namespace pagoda

#define multiply_panel counted
#include "experts.h"

using namespace pagoda;

int main() {
    constexpr int64_t kHidden = 32, kSize = 48;
    long long count, top_k, rows;
    if (std::scanf("%lld %lld %lld", &count, &top_k, &rows) != 3) return 1;
    std::vector<int64_t> ids(static_cast<size_t>(rows * top_k));
    for (int64_t& id : ids) {
        long long read;
        if (std::scanf("%lld", &read) != 1) return 1;
        id = read;
    }
    const auto view = [](std::vector<uint8_t>& panels, int64_t count, int64_t rows,
                         int64_t columns) {
        const Storage storage = Storage::kF32;
        const int64_t units = columns / unit_columns(storage);
        const int64_t bytes = units * unit_bytes(storage);
        panels.resize(static_cast<size_t>(count * rows / kPanelRows * bytes));
        return MatrixView{panels.data(), count * rows, units, bytes, static_cast<int>(storage)};
    };
    std::vector<uint8_t> memory[3];
    const MatrixView views[] = {view(memory[0], count, kSize, kHidden),
                                view(memory[1], count, kSize, kHidden),
                                view(memory[2], count, kHidden, kSize)};
    std::vector<float> x(static_cast<size_t>(rows * kHidden)), out(x.size());
    const std::vector<float> weights(ids.size(), 1.0f);
    Experts op{x.data(), ids.data(), weights.data(), top_k, 0, count,
               {views, 2, kSize, kHidden, nullptr}, {views + 2, 1, kHidden, kSize, nullptr},
               0, 0, false, out.data(), nullptr};
    std::vector<uint8_t> scratch(static_cast<size_t>(experts_scratch_bytes(op, rows)) + 64);
    op.scratch = reinterpret_cast<uint8_t*>(
        (reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
    Pool pool(3);
    experts(op, rows, pool);
    std::map<int, int> panels;
    for (const auto& [panel, times] : reads) ++panels[times];
    for (const auto& [times, found] : panels) std::printf("%d %d\n", times, found);
}
