// Matrices packed for the kernels: the checkpoint's bits in another order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pool.h"

namespace pagoda {

// What a kernel sees of a packed matrix.
struct MatrixView {
    const uint8_t* panels;
    int64_t rows;
    int64_t units;        // per panel
    int64_t panel_bytes;
    int storage;          // a Storage
    bool is_mapped = false;  // from a file
};

// The number of the panels' layout (formats.h), which changes whenever their bytes do: files with
// panels outlive a build.
constexpr int kPanelLayout = 1;

// Names of the storage formats that a packed matrix can have.
std::vector<std::string> packed_storages();

// Gives a format of grids.h its codewords: [codewords, 8 or 4] levels, `count` in all. Throws
// std::invalid_argument for a format that has none. No kernel may be running.
void fill_grid(const std::string& storage, const int8_t* levels, int64_t count);

// A matrix [rows, columns] in one storage format (formats.h), whose grid is filled if it has one.
// Memory is zero and not touched until rows are loaded; rows past the last and columns past the
// last stay zero.
class PackedMatrix {
   public:
    // Throws std::invalid_argument for an unknown storage or columns that fill no whole blocks,
    // std::bad_alloc where memory is short.
    PackedMatrix(const std::string& storage, int64_t rows, int64_t columns);
    // Panels that a file holds from `offset` on (memory.h), which `panels()` of such a matrix gave.
    // Throws as the other, and std::system_error.
    PackedMatrix(const std::string& storage, int64_t rows, int64_t columns,
                 const std::string& path, int64_t offset);
    PackedMatrix(const PackedMatrix&) = delete;
    PackedMatrix& operator=(const PackedMatrix&) = delete;

    int64_t rows() const { return view_.rows; }
    int64_t columns() const { return columns_; }
    std::string storage() const;
    int64_t nbytes() const;
    const MatrixView& view() const { return view_; }

    // Rows as they lie in a checkpoint, `row_stride` bytes apart. Where the pool has several nodes,
    // each then has its share of the panels (Pool::first_of) in its own memory. Throws
    // std::invalid_argument for a matrix from a file, std::out_of_range for rows that it lacks.
    void load(int64_t first_row, int64_t num_rows, const uint8_t* source, int64_t row_stride,
              Pool& pool);
    // fp32 [count, columns]: the rows `ids`, which are in range.
    void gather(const int64_t* ids, int64_t count, float* out, Pool& pool) const;

   private:
    // Its sizes; the panels are yet to come.
    void describe(const std::string& storage, int64_t rows);
    // Has each node's panels in the node's memory.
    void place(const Pool& pool);

    std::shared_ptr<uint8_t> memory_;
    bool is_placed_ = false;
    MatrixView view_{};
    int64_t columns_ = 0;
};

}  // namespace pagoda
