// A step of a model, recorded op by op and replayed with one call.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pool.h"

namespace pagoda {

// Ops with their arguments, which stay valid as long as the memory they name. What changes between
// replays is how many rows there are: a step has several such counts (its tokens, the rows that
// are sampled), and each op goes by one of them.
class Program {
   public:
    using Op = std::function<void(int64_t rows, uint8_t* scratch, Pool&)>;

    // `max_rows` by count.
    explicit Program(std::vector<int64_t> max_rows) : max_rows_(std::move(max_rows)) {}

    int64_t num_ops() const { return static_cast<int64_t>(ops_.size()); }
    int64_t scratch_bytes() const { return scratch_bytes_; }
    int64_t max_rows(int count) const { return max_rows_.at(static_cast<size_t>(count)); }

    void add(const char* name, int count, Op op, int64_t scratch_bytes) {
        ops_.push_back({name, count, std::move(op)});
        if (scratch_bytes > scratch_bytes_) scratch_bytes_ = scratch_bytes;
    }

    void check(const std::vector<int64_t>& rows) const {
        if (rows.size() != max_rows_.size()) throw std::invalid_argument("one number per count");
        for (size_t i = 0; i < rows.size(); ++i)
            if (rows[i] < 0 || rows[i] > max_rows_[i])
                throw std::invalid_argument("the step has more rows than the program was made for");
    }

    // Ops without rows are left out. `scratch` has `scratch_bytes()`, aligned to 64.
    void run(const std::vector<int64_t>& rows, uint8_t* scratch, Pool& pool) const {
        for (const Step& step : ops_)
            if (rows[static_cast<size_t>(step.count)] > 0)
                step.op(rows[static_cast<size_t>(step.count)], scratch, pool);
    }

    // As `run`; the name of each op and the seconds that it took.
    std::vector<std::pair<std::string, double>> profile(const std::vector<int64_t>& rows,
                                                        uint8_t* scratch, Pool& pool) const {
        std::vector<std::pair<std::string, double>> times;
        for (const Step& step : ops_) {
            const auto begun = std::chrono::steady_clock::now();
            if (rows[static_cast<size_t>(step.count)] > 0)
                step.op(rows[static_cast<size_t>(step.count)], scratch, pool);
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
            times.emplace_back(step.name, took.count());
        }
        return times;
    }

   private:
    struct Step {
        const char* name;
        int count;
        Op op;
    };

    std::vector<int64_t> max_rows_;
    std::vector<Step> ops_;
    int64_t scratch_bytes_ = 0;
};

}  // namespace pagoda
