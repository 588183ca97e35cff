#include "streamed.h"

#include <algorithm>

#include "formats.h"
#include "memory.h"

namespace pagoda {
namespace {

int64_t nbytes(const MatrixView& matrix) {
    return (matrix.rows + kPanelRows - 1) / kPanelRows * matrix.panel_bytes;
}

}  // namespace

ExpertReader::~ExpertReader() {
    {
        const std::lock_guard<std::mutex> turn(busy_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void ExpertReader::ask(const ExpertViews& layer, const int64_t* ids, int64_t num_ids,
                       const std::vector<MatrixView>& next) {
    std::vector<bool> is_chosen(static_cast<size_t>(layer.count));
    for (int64_t i = 0; i < num_ids; ++i) {
        const int64_t expert = ids[i] - layer.first;
        if (expert >= 0 && expert < layer.count) is_chosen[static_cast<size_t>(expert)] = true;
    }
    if (layer.matrices->front().is_mapped) {
        asked_ = nullptr;
        for (int64_t e = 0; e < layer.count; ++e)
            if (is_chosen[static_cast<size_t>(e)])
                for (const MatrixView& matrix : *layer.matrices) {
                    const int64_t each = nbytes(matrix) / layer.count;
                    read_ahead(matrix.panels + e * each, each);
                }
    }
    const int64_t chosen = std::count(is_chosen.begin(), is_chosen.end(), true);
    if (next.empty() || asked_ == next.front().panels || 4 * chosen < 3 * layer.count) return;
    asked_ = next.front().panels;
    start(next);
}

void ExpertReader::start(const std::vector<MatrixView>& matrices) {
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
    {
        const std::lock_guard<std::mutex> turn(busy_);
        waiting_ = matrices;
    }
    changed_.notify_all();
}

void ExpertReader::loop() {
    for (;;) {
        std::vector<MatrixView> matrices;
        {
            std::unique_lock<std::mutex> turn(busy_);
            changed_.wait(turn, [this] { return stopping_ || !waiting_.empty(); });
            if (stopping_) return;
            matrices.swap(waiting_);
        }
        for (const MatrixView& matrix : matrices) read_ahead(matrix.panels, nbytes(matrix));
    }
}

}  // namespace pagoda
