// The Python face of the kernels: pointers and sizes in, nothing of torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "attention_scratch.h"
#include "isa.h"
#include "memory.h"
#include "packed.h"
#include "pool.h"

namespace nb = nanobind;

namespace {

using namespace pagoda;

template <typename T>
T* pointer(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

// Memory that kernels share between steps; grows, and is aligned for every vector.
class Scratch {
   public:
    uint8_t* at_least(int64_t bytes) {
        if (bytes > size_) {
            const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
            memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, rounded)));
            size_ = memory_ == nullptr ? 0 : bytes;
            if (memory_ == nullptr) throw std::bad_alloc();
        }
        return memory_.get();
    }

   private:
    struct Free {
        void operator()(uint8_t* memory) const { std::free(memory); }
    };
    std::unique_ptr<uint8_t, Free> memory_;
    int64_t size_ = 0;
};

// A call's turn on the pool and the scratch memory. The GIL goes first: whoever waits for its turn
// must not keep it from the thread that has it.
class Turn {
   public:
    explicit Turn(std::mutex& busy) : turn_(busy) {}

   private:
    nb::gil_scoped_release unlocked_;
    std::lock_guard<std::mutex> turn_;
};

// The kernels of one instruction set on a pool of threads. Calls of several threads take turns.
class Native {
   public:
    Native(int num_threads, const std::string& isa) : kernels_(choose_kernels(isa.c_str())) {
        if (kernels_ == nullptr) throw nb::value_error("no such instruction set");
        if (num_threads < 1) throw nb::value_error("at least one thread is needed");
        pool_ = std::make_unique<Pool>(num_threads);
    }

    std::string isa() const { return kernels_->name; }
    int num_threads() const { return pool_->num_threads(); }

    void rms_norm(uintptr_t x, uintptr_t residual, uintptr_t weight, uintptr_t y, int64_t rows,
                  int64_t size, float eps) {
        Turn turn(busy_);
        kernels_->rms_norm({pointer<const float>(x), pointer<float>(residual),
                            pointer<const float>(weight), pointer<float>(y), size, eps},
                           rows, *pool_);
    }

    void load(PackedMatrix& matrix, int64_t first_row, int64_t num_rows, uintptr_t address,
              int64_t row_stride) {
        Turn turn(busy_);
        matrix.load(first_row, num_rows, pointer<const uint8_t>(address), row_stride, *pool_);
    }

    void gather(const PackedMatrix& matrix, uintptr_t ids, int64_t count, uintptr_t out) {
        const int64_t* rows = pointer<const int64_t>(ids);
        for (int64_t i = 0; i < count; ++i)
            if (rows[i] < 0 || rows[i] >= matrix.rows())
                throw nb::index_error("a row's index is outside the matrix");
        Turn turn(busy_);
        matrix.gather(rows, count, pointer<float>(out), *pool_);
    }

    void matmul(uintptr_t x, int64_t ldx, int64_t tokens,
                const std::vector<const PackedMatrix*>& matrices, uintptr_t out, int64_t ldo,
                uintptr_t bias) {
        if (matrices.empty()) throw nb::value_error("a product needs a matrix");
        std::vector<MatrixView> views;
        for (const PackedMatrix* matrix : matrices) {
            if (matrix->columns() != matrices[0]->columns())
                throw nb::value_error("matrices of one product have the same columns");
            views.push_back(matrix->view());
        }
        MatMul op{pointer<const float>(x), ldx, matrices[0]->columns(), views.data(),
                  static_cast<int>(views.size()), pointer<const float>(bias),
                  pointer<float>(out), ldo, nullptr};
        Turn turn(busy_);
        op.scratch = scratch_.at_least(kernels_->matmul_scratch_bytes(op, tokens));
        kernels_->matmul(op, tokens, *pool_);
    }

    void rotary_store(uintptr_t qkv, int64_t rows, int64_t stride, int64_t heads,
                      const KvCache& cache, uintptr_t slots, uintptr_t positions,
                      uintptr_t cos_sin, int64_t rotary_dim, uintptr_t q_norm, uintptr_t k_norm,
                      float eps) {
        Turn turn(busy_);
        kernels_->rotary_store(
            {pointer<float>(qkv), stride, heads, cache, pointer<const int64_t>(slots),
             pointer<const int64_t>(positions), pointer<const float>(cos_sin), rotary_dim,
             pointer<const float>(q_norm), pointer<const float>(k_norm), eps},
            rows, *pool_);
    }

    int64_t attention_scratch(int64_t heads, const KvCache& cache, int64_t max_reqs,
                              int64_t max_kv_len) const {
        return paged_attention_scratch(heads, cache, max_reqs, max_kv_len, num_threads());
    }

    void paged_attention(uintptr_t q, int64_t rows, int64_t q_stride, int64_t heads,
                         const KvCache& cache, uintptr_t block_table, int64_t table_stride,
                         uintptr_t query_start, uintptr_t kv_lens, int64_t max_reqs, float scale,
                         int64_t window, uintptr_t out, uintptr_t scratch,
                         int64_t scratch_bytes) {
        if (scratch_bytes < paged_attention_min_scratch(heads, cache, max_reqs, num_threads()))
            throw nb::value_error("paged_attention's scratch is smaller than attention_scratch()");
        Turn turn(busy_);
        kernels_->paged_attention(
            {pointer<const float>(q), q_stride, heads, cache, pointer<const int32_t>(block_table),
             table_stride, pointer<const int32_t>(query_start), pointer<const int32_t>(kv_lens),
             max_reqs, scale, window, pointer<float>(out), pointer<void>(scratch), scratch_bytes},
            rows, *pool_);
    }

    void silu_and_mul(uintptr_t x, uintptr_t y, int64_t rows, int64_t size) {
        Turn turn(busy_);
        kernels_->silu_and_mul({pointer<const float>(x), pointer<float>(y), size}, rows, *pool_);
    }

    void embed_rows(uintptr_t ids, uintptr_t table, FloatType type, uintptr_t y, int64_t rows,
                    int64_t size) {
        Turn turn(busy_);
        kernels_->embed_rows({pointer<const int64_t>(ids), pointer<const void>(table), type,
                              pointer<float>(y), size},
                             rows, *pool_);
    }

    void argmax(uintptr_t logits, int64_t rows, int64_t size, uintptr_t values, uintptr_t ids) {
        Turn turn(busy_);
        kernels_->argmax({pointer<const float>(logits), size, pointer<float>(values),
                          pointer<int64_t>(ids)},
                         rows, *pool_);
    }

    void top_k(uintptr_t logits, int64_t rows, int64_t size, int64_t count, uintptr_t values,
               uintptr_t ids) {
        Turn turn(busy_);
        kernels_->top_k({pointer<const float>(logits), size, count, pointer<float>(values),
                         pointer<int64_t>(ids)},
                        rows, *pool_);
    }

   private:
    const Kernels* kernels_;
    std::unique_ptr<Pool> pool_;
    std::mutex busy_;
    Scratch scratch_;
};

}  // namespace

NB_MODULE(_native, module) {
    nb::enum_<FloatType>(module, "FloatType")
        .value("float32", FloatType::kFloat32)
        .value("bfloat16", FloatType::kBFloat16)
        .value("float16", FloatType::kFloat16);
    nb::class_<KvCache>(module, "KvCache")
        .def("__init__", [](KvCache* self, uintptr_t k, uintptr_t v, FloatType type,
                            int64_t kv_heads, int64_t block_size, int64_t dim) {
            new (self) KvCache{pointer<void>(k), pointer<void>(v), type, kv_heads, block_size, dim};
        });
    module.attr("MAX_TOP_K") = kMaxTopK;
    nb::list isas;
    for (const Kernels* kernels : runnable_kernels()) isas.append(kernels->name);
    module.attr("INSTRUCTION_SETS") = isas;
    module.def("use_huge_pages", [](uintptr_t data, int64_t bytes) {
        return use_huge_pages(pointer<void>(data), bytes);
    });
    nb::class_<Native>(module, "Native")
        .def(nb::init<int, const std::string&>(), nb::arg("num_threads"), nb::arg("isa") = "")
        .def_prop_ro("isa", &Native::isa)
        .def_prop_ro("num_threads", &Native::num_threads)
        .def("rms_norm", &Native::rms_norm)
        .def("load", &Native::load, nb::arg("matrix"), nb::arg("first_row"), nb::arg("num_rows"),
             nb::arg("address"), nb::arg("row_stride"))
        .def("gather", &Native::gather, nb::arg("matrix"), nb::arg("ids"), nb::arg("count"),
             nb::arg("out"))
        .def("matmul", &Native::matmul, nb::arg("x"), nb::arg("ldx"), nb::arg("tokens"),
             nb::arg("matrices"), nb::arg("out"), nb::arg("ldo"), nb::arg("bias") = 0)
        .def("rotary_store", &Native::rotary_store)
        .def("attention_scratch", &Native::attention_scratch)
        .def("paged_attention", &Native::paged_attention)
        .def("silu_and_mul", &Native::silu_and_mul)
        .def("embed_rows", &Native::embed_rows)
        .def("argmax", &Native::argmax)
        .def("top_k", &Native::top_k);
    nb::class_<PackedMatrix>(module, "PackedMatrix")
        .def(nb::init<const std::string&, int64_t, int64_t>(), nb::arg("storage"),
             nb::arg("rows"), nb::arg("columns"))
        .def_prop_ro("storage", &PackedMatrix::storage)
        .def_prop_ro("rows", &PackedMatrix::rows)
        .def_prop_ro("columns", &PackedMatrix::columns)
        .def_prop_ro("nbytes", &PackedMatrix::nbytes);
    nb::list names;
    for (const std::string& name : packed_storages()) names.append(name);
    module.attr("PACKED_STORAGES") = names;
}
