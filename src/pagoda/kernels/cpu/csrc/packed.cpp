#include "packed.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

#include "coded.h"
#include "formats.h"
#include "half.h"
#include "memory.h"

namespace pagoda {
namespace {

// One row's part of a unit, spread out.
struct RowUnit {
    uint8_t codes[256];
    uint16_t d = 0;
    uint16_t minimum = 0;
    uint8_t scales[16];
    uint8_t minima[8];
};

uint16_t word(const uint8_t* p) {
    uint16_t x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

// `count` codes, where each run of `group` bytes holds first all lowest fields of `bits`, then all
// second ones, and so on; put at bit `shift`.
template <int kBits>
void spread(const uint8_t* source, int count, int group, int shift, uint8_t* codes) {
    constexpr int kFields = 8 / kBits;
    for (int base = 0; base < count; base += group * kFields, source += group)
        for (int field = 0; field < kFields; ++field)
            for (int i = 0; i < group; ++i) {
                const int code = (source[i] >> (field * kBits)) & ((1 << kBits) - 1);
                codes[base + field * group + i] |= static_cast<uint8_t>(code << shift);
            }
}

// Of 12 bytes: eight 6-bit scales and eight 6-bit minima.
void read_scales_and_minima(const uint8_t* p, RowUnit& unit) {
    for (int i = 0; i < 4; ++i) {
        unit.scales[i] = p[i] & 63;
        unit.minima[i] = p[4 + i] & 63;
        unit.scales[4 + i] = static_cast<uint8_t>((p[8 + i] & 15) | ((p[i] >> 2) & 48));
        unit.minima[4 + i] = static_cast<uint8_t>((p[8 + i] >> 4) | ((p[4 + i] >> 2) & 48));
    }
}

void read_q3_scales(const uint8_t* p, RowUnit& unit) {
    for (int i = 0; i < 16; ++i) {
        const int low = (p[i % 8] >> (i / 8 * 4)) & 15, high = (p[8 + i % 4] >> (i / 4 * 2)) & 3;
        unit.scales[i] = static_cast<uint8_t>((low | (high << 4)) - 32);
    }
}

void read_iq4_xs_scales(const uint8_t* p, RowUnit& unit) {
    for (int i = 0; i < 8; ++i) {
        const int low = (p[2 + i / 2] >> (i % 2 * 4)) & 15, high = (word(p) >> (2 * i)) & 3;
        unit.scales[i] = static_cast<uint8_t>((low | (high << 4)) - 32);
    }
}

void read_high_bits(const uint8_t* p, RowUnit& unit) {
    for (int i = 0; i < 32; ++i)
        unit.codes[i] |= static_cast<uint8_t>(((p[i / 8] >> (i % 8)) & 1) << 4);
}

// Reads one unit as it lies in a GGUF (ggml-common.h) and returns how many bytes it took.
template <Storage S>
int read_unit(const uint8_t* p, RowUnit& unit) {
    std::memset(unit.codes, 0, sizeof unit.codes);
    if constexpr (S == Storage::kQ4_0 || S == Storage::kIQ4_NL) {
        unit.d = word(p);
        spread<4>(p + 2, 32, 16, 0, unit.codes);
        return 18;
    } else if constexpr (S == Storage::kQ4_1) {
        unit.d = word(p), unit.minimum = word(p + 2);
        spread<4>(p + 4, 32, 16, 0, unit.codes);
        return 20;
    } else if constexpr (S == Storage::kQ5_0) {
        unit.d = word(p);
        spread<4>(p + 6, 32, 16, 0, unit.codes);
        read_high_bits(p + 2, unit);
        return 22;
    } else if constexpr (S == Storage::kQ5_1) {
        unit.d = word(p), unit.minimum = word(p + 2);
        spread<4>(p + 8, 32, 16, 0, unit.codes);
        read_high_bits(p + 4, unit);
        return 24;
    } else if constexpr (S == Storage::kQ8_0) {
        unit.d = word(p);
        std::memcpy(unit.codes, p + 2, 32);
        return 34;
    } else if constexpr (S == Storage::kMXFP4) {
        unit.d = p[0];
        spread<4>(p + 1, 32, 16, 0, unit.codes);
        return 17;
    } else if constexpr (S == Storage::kQ2_K) {
        std::memcpy(unit.scales, p, 16);
        spread<2>(p + 16, 256, 32, 0, unit.codes);
        unit.d = word(p + 80), unit.minimum = word(p + 82);
        return 84;
    } else if constexpr (S == Storage::kQ3_K) {
        spread<1>(p, 256, 32, 2, unit.codes);
        spread<2>(p + 32, 256, 32, 0, unit.codes);
        read_q3_scales(p + 96, unit);
        unit.d = word(p + 108);
        return 110;
    } else if constexpr (S == Storage::kQ4_K) {
        unit.d = word(p), unit.minimum = word(p + 2);
        read_scales_and_minima(p + 4, unit);
        spread<4>(p + 16, 256, 32, 0, unit.codes);
        return 144;
    } else if constexpr (S == Storage::kQ5_K) {
        unit.d = word(p), unit.minimum = word(p + 2);
        read_scales_and_minima(p + 4, unit);
        spread<1>(p + 16, 256, 32, 4, unit.codes);
        spread<4>(p + 48, 256, 32, 0, unit.codes);
        return 176;
    } else if constexpr (S == Storage::kQ6_K) {
        spread<4>(p, 256, 64, 0, unit.codes);
        spread<2>(p + 128, 256, 32, 4, unit.codes);
        std::memcpy(unit.scales, p + 192, 16);
        unit.d = word(p + 208);
        return 210;
    } else if constexpr (S == Storage::kTQ2_0) {
        spread<2>(p, 256, 32, 0, unit.codes);
        unit.d = word(p + 64);
        return 66;
    } else {
        static_assert(S == Storage::kIQ4_XS);
        unit.d = word(p);
        read_iq4_xs_scales(p + 2, unit);
        spread<4>(p + 8, 256, 16, 0, unit.codes);
        return 136;
    }
}

// `kBits` of each of 32 codes, from bit `kShift` up, to or from one row's lanes of a panel.
template <int kBits, int kShift>
void store_bits(const uint8_t* codes, uint8_t* lanes) {
    for (int v = 0; v < kBits; ++v)
        for (int j = 0; j < kGroupColumns; ++j) {
            int byte = 0;
            for (int f = 0; f < 8 / kBits; ++f) {
                const int code = codes[(v + kBits * f) * kGroupColumns + j] >> kShift;
                byte |= (code & ((1 << kBits) - 1)) << (kBits * f);
            }
            lanes[v * kVectorBytes + j] = static_cast<uint8_t>(byte);
        }
}

template <int kBits, int kShift>
void fetch_bits(const uint8_t* lanes, uint8_t* codes) {
    for (int v = 0; v < kBits; ++v)
        for (int j = 0; j < kGroupColumns; ++j)
            for (int f = 0; f < 8 / kBits; ++f) {
                const int code = (lanes[v * kVectorBytes + j] >> (kBits * f)) & ((1 << kBits) - 1);
                codes[(v + kBits * f) * kGroupColumns + j] |= static_cast<uint8_t>(code << kShift);
            }
}

template <Format F>
void store_unit(const RowUnit& unit, int row, uint8_t* packed) {
    if constexpr (F.scaling == Scaling::kE8M0) {
        packed[row] = static_cast<uint8_t>(unit.d);
    } else {
        std::memcpy(packed + 2 * row, &unit.d, 2);
        if (F.has_minimum()) std::memcpy(packed + 2 * (kPanelRows + row), &unit.minimum, 2);
    }
    uint8_t* block = packed + F.header_bytes();
    for (int b = 0; b < F.blocks(); ++b, block += F.block_bytes()) {
        const uint8_t* codes = unit.codes + b * kBlockColumns;
        uint8_t* lanes = block + row * kGroupColumns;
        store_bits<F.low_bits, 0>(codes, lanes);
        if constexpr (F.high_bits > 0)
            store_bits<F.high_bits, F.low_bits>(codes, lanes + F.low_bytes());
        if constexpr (F.scales_bytes() > 0) {
            uint8_t* scales = block + F.code_bytes() + row;
            for (int g = 0; g < F.groups; ++g)
                scales[g * kPanelRows] = unit.scales[b * F.groups + g];
            if (F.scaling == Scaling::kSuperMinimum) scales[kPanelRows] = unit.minima[b];
        }
    }
}

template <Format F>
void fetch_unit(const uint8_t* packed, int row, RowUnit& unit) {
    std::memset(unit.codes, 0, sizeof unit.codes);
    if constexpr (F.scaling == Scaling::kE8M0) {
        unit.d = packed[row];
    } else {
        unit.d = word(packed + 2 * row);
        if (F.has_minimum()) unit.minimum = word(packed + 2 * (kPanelRows + row));
    }
    const uint8_t* block = packed + F.header_bytes();
    for (int b = 0; b < F.blocks(); ++b, block += F.block_bytes()) {
        uint8_t* codes = unit.codes + b * kBlockColumns;
        const uint8_t* lanes = block + row * kGroupColumns;
        fetch_bits<F.low_bits, 0>(lanes, codes);
        if constexpr (F.high_bits > 0)
            fetch_bits<F.high_bits, F.low_bits>(lanes + F.low_bytes(), codes);
        if constexpr (F.scales_bytes() > 0) {
            const uint8_t* scales = block + F.code_bytes() + row;
            for (int g = 0; g < F.groups; ++g)
                unit.scales[b * F.groups + g] = scales[g * kPanelRows];
            if (F.scaling == Scaling::kSuperMinimum) unit.minima[b] = scales[kPanelRows];
        }
    }
}

template <Format F>
float level(uint8_t code) {
    switch (F.levels) {
        case Levels::kSigned: return static_cast<int8_t>(code);
        case Levels::kIq4: return kIq4Levels[code];
        case Levels::kE2M1: return kE2M1Levels[code];
        default: return static_cast<float>(code - F.offset);
    }
}

struct Line {
    float scale, offset;
};

// The scale and what is added after it, in ggml's order of operations.
template <Format F>
Line line_of(const RowUnit& unit, int group) {
    if constexpr (F.scaling == Scaling::kE8M0) {
        return {e8m0_halved(static_cast<uint8_t>(unit.d)), 0};
    } else {
        const float d = half_to_float(unit.d), minimum = half_to_float(unit.minimum);
        const uint8_t scale = unit.scales[group];
        switch (F.scaling) {
            case Scaling::kSuper: return {d * static_cast<int8_t>(scale), 0};
            case Scaling::kSuperMinimum: return {d * scale, -(minimum * unit.minima[group % 8])};
            case Scaling::kSuperNibbles: return {d * (scale & 15), -(minimum * (scale >> 4))};
            default: return {d, F.has_minimum() ? minimum : 0};
        }
    }
}

template <Format F>
void decode_unit(const RowUnit& unit, float* out) {
    constexpr int kSize = kBlockColumns / F.groups;
    for (int group = 0; group < F.blocks() * F.groups; ++group) {
        const Line line = line_of<F>(unit, group);
        for (int i = group * kSize; i < (group + 1) * kSize; ++i) {
            const float x = line.scale * level<F>(unit.codes[i]);
            out[i] = F.has_minimum() ? x + line.offset : x;
        }
    }
}

template <Storage S, bool kCoded = is_coded(S)>
struct Codec {
    static constexpr Format kFormat = format_of(S);

    static void load_row(const uint8_t* source, int64_t columns, int row, uint8_t* panel) {
        RowUnit unit;
        for (int64_t u = 0; u < columns / kFormat.columns(); ++u) {
            source += read_unit<S>(source, unit);
            store_unit<kFormat>(unit, row, panel + u * kFormat.unit_bytes());
        }
    }
    static void decode_row(const uint8_t* panel, int64_t columns, int row, float* out) {
        RowUnit unit;
        for (int64_t u = 0; u < columns / kFormat.columns(); ++u) {
            fetch_unit<kFormat>(panel + u * kFormat.unit_bytes(), row, unit);
            decode_unit<kFormat>(unit, out + u * kFormat.columns());
        }
    }
};

template <Storage S>
struct Codec<S, true> {
    static void load_row(const uint8_t* source, int64_t columns, int row, uint8_t* panel) {
        for (int64_t u = 0; u < columns / unit_columns(S); ++u, panel += unit_bytes(S))
            for (int i = 0; i < coded_bytes(S); ++i) panel[coded_place<S>(i, row)] = *source++;
    }
    static void decode_row(const uint8_t* panel, int64_t columns, int row, float* out) {
        for (int64_t u = 0; u < columns / unit_columns(S); ++u)
            pagoda::decode_row<S>(panel + u * unit_bytes(S), row, out + u * unit_columns(S));
    }
};

// Bytes from the panel's start of a float's place.
template <int kBytes, bool kPairs>
int64_t place(int64_t column, int row) {
    if (kPairs) return ((column / 2 * kPanelRows + row) * 2 + column % 2) * kBytes;
    return (column * kPanelRows + row) * kBytes;
}

template <int kBytes, bool kPairs, float (*kDecode)(const uint8_t*)>
struct FloatCodec {
    static void load_row(const uint8_t* source, int64_t columns, int row, uint8_t* panel) {
        for (int64_t k = 0; k < columns; ++k)
            std::memcpy(panel + place<kBytes, kPairs>(k, row), source + k * kBytes, kBytes);
    }
    static void decode_row(const uint8_t* panel, int64_t columns, int row, float* out) {
        for (int64_t k = 0; k < columns; ++k)
            out[k] = kDecode(panel + place<kBytes, kPairs>(k, row));
    }
};

float decode_f32(const uint8_t* p) {
    float x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
float decode_f16(const uint8_t* p) { return half_to_float(word(p)); }
float decode_bf16(const uint8_t* p) { return bf16_to_float(word(p)); }

template <>
struct Codec<Storage::kF32, false> : FloatCodec<4, false, decode_f32> {};
template <>
struct Codec<Storage::kF16, false> : FloatCodec<2, false, decode_f16> {};
template <>
struct Codec<Storage::kBF16, false> : FloatCodec<2, true, decode_bf16> {};

struct RowFunctions {
    void (*load)(const uint8_t* source, int64_t columns, int row, uint8_t* panel);
    void (*decode)(const uint8_t* panel, int64_t columns, int row, float* out);
};

template <int... kIndex>
constexpr RowFunctions row_functions(int storage, std::integer_sequence<int, kIndex...>) {
    constexpr RowFunctions kAll[] = {{&Codec<static_cast<Storage>(kIndex)>::load_row,
                                      &Codec<static_cast<Storage>(kIndex)>::decode_row}...};
    return kAll[storage];
}

RowFunctions row_functions(int storage) {
    return row_functions(storage, std::make_integer_sequence<int, kNumStorages>());
}

int storage_named(const std::string& name) {
    for (int i = 0; i < kNumStorages; ++i)
        if (name == kStorageNames[i]) return i;
    throw std::invalid_argument("no packed matrix can hold weights stored as " + name);
}

// The grid of a coded format; null where it has none.
Grid* grid_of(Storage storage) {
    switch (storage) {
        case Storage::kIQ1_S: case Storage::kIQ1_M: return &grids[kGridIQ1];
        case Storage::kIQ2_XXS: return &grids[kGridIQ2_XXS];
        case Storage::kIQ2_XS: return &grids[kGridIQ2_XS];
        case Storage::kIQ2_S: return &grids[kGridIQ2_S];
        case Storage::kIQ3_XXS: return &grids[kGridIQ3_XXS];
        case Storage::kIQ3_S: return &grids[kGridIQ3_S];
        default: return nullptr;
    }
}

}  // namespace

void fill_grid(const std::string& storage, const int8_t* levels, int64_t count) {
    Grid* const grid = grid_of(static_cast<Storage>(storage_named(storage)));
    if (grid == nullptr || count > Grid::kMaxBytes)
        throw std::invalid_argument(storage + " has no grid of " + std::to_string(count) +
                                    " levels");
    for (int64_t i = 0; i < count; ++i)
        grid->codewords[i] = static_cast<uint8_t>(
            grid == &grids[kGridIQ1] ? kLevelOffset + 8 * levels[i] : levels[i]);
    grid->is_filled = true;
}

std::vector<std::string> packed_storages() {
    return {std::begin(kStorageNames), std::end(kStorageNames)};
}

PackedMatrix::PackedMatrix(const std::string& storage, int64_t rows, int64_t columns)
    : columns_(columns) {
    describe(storage, rows);
    if (nbytes() == 0) return;
    memory_ = allocate_weights(static_cast<size_t>(nbytes()));
    view_.panels = memory_.get();
}

PackedMatrix::PackedMatrix(const std::string& storage, int64_t rows, int64_t columns,
                           const std::string& path, int64_t offset)
    : columns_(columns) {
    describe(storage, rows);
    if (nbytes() == 0) return;
    memory_ = map_file(path, offset, nbytes());
    view_.panels = memory_.get();
    view_.is_mapped = true;
}

void PackedMatrix::describe(const std::string& storage, int64_t rows) {
    view_.storage = storage_named(storage);
    const auto kind = static_cast<Storage>(view_.storage);
    const int64_t unit = unit_columns(kind);
    if (rows < 0 || columns_ < 0) throw std::invalid_argument("a matrix has a negative size");
    const Grid* const grid = grid_of(kind);
    if (grid != nullptr && !grid->is_filled)
        throw std::invalid_argument("the grid of " + storage + " is not filled yet");
    if (!is_float(kind) && columns_ % unit != 0)
        throw std::invalid_argument(std::to_string(columns_) + " columns are no whole blocks of " +
                                    storage);
    view_.rows = rows;
    view_.units = (columns_ + unit - 1) / unit;
    view_.panel_bytes = view_.units * unit_bytes(kind);
}

std::string PackedMatrix::storage() const { return kStorageNames[view_.storage]; }

int64_t PackedMatrix::nbytes() const {
    return (view_.rows + kPanelRows - 1) / kPanelRows * view_.panel_bytes;
}

void PackedMatrix::load(int64_t first_row, int64_t num_rows, const uint8_t* source,
                        int64_t row_stride, Pool& pool) {
    if (first_row < 0 || num_rows < 0 || first_row + num_rows > view_.rows)
        throw std::out_of_range("the matrix has no such rows");
    if (view_.is_mapped) throw std::invalid_argument("a mapped matrix has its rows");
    if (!is_placed_) place(pool);
    const auto load_row = row_functions(view_.storage).load;
    const int64_t end = first_row + num_rows, first_panel = first_row / kPanelRows;
    const int64_t panels = num_rows == 0 ? 0 : (end - 1) / kPanelRows - first_panel + 1;
    pool.run(panels, [&](int64_t chunk) {
        const int64_t panel = first_panel + chunk, start = panel * kPanelRows;
        for (int64_t row = std::max(first_row, start); row < std::min(end, start + kPanelRows);
             ++row)
            load_row(source + (row - first_row) * row_stride, columns_,
                     static_cast<int>(row - start), memory_.get() + panel * view_.panel_bytes);
    });
}

void PackedMatrix::place(const Pool& pool) {
    is_placed_ = true;
    if (pool.num_nodes() == 1) return;
    const int64_t panels = nbytes() / std::max(view_.panel_bytes, int64_t{1});
    for (int i = 0; i < pool.num_nodes(); ++i) {
        const int64_t first = pool.first_of(i, panels);
        prefer_memory(memory_.get() + first * view_.panel_bytes,
                      (pool.first_of(i + 1, panels) - first) * view_.panel_bytes,
                      pool.node(i).memory);
    }
}

void PackedMatrix::gather(const int64_t* ids, int64_t count, float* out, Pool& pool) const {
    const auto decode_row = row_functions(view_.storage).decode;
    pool.run(count, [&](int64_t i) {
        decode_row(memory_.get() + ids[i] / kPanelRows * view_.panel_bytes, columns_,
                   static_cast<int>(ids[i] % kPanelRows), out + i * columns_);
    });
}

}  // namespace pagoda
