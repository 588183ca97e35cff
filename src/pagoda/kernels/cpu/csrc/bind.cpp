// The Python face of the kernels: pointers and sizes in, nothing of torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "attention_scratch.h"
#include "formats.h"
#include "isa.h"
#include "memory.h"
#include "packed.h"
#include "pool.h"
#include "program.h"
#include "streamed.h"

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

// A, B and ranks of the adapters beside one of the experts' layers.
using AdapterTensors = std::tuple<uintptr_t, uintptr_t, uintptr_t>;
// Each token's slot; the numbers' type and largest rank; what stands beside up and down.
using ExpertAdapters = std::tuple<uintptr_t, FloatType, int64_t, AdapterTensors, AdapterTensors>;

// `sizes` has the rows of each part.
AddAdapters beside(const ExpertMatrices& experts, const int64_t* sizes, FloatType type,
                   int64_t max_rank, const AdapterTensors& tensors) {
    const auto& [a, b, ranks] = tensors;
    AddAdapters op = {};
    op.ldo = experts.num_parts * experts.rows;
    op.columns = experts.columns;
    op.a = pointer<const void>(a);
    op.b = pointer<const void>(b);
    op.type = type;
    op.max_rank = max_rank;
    op.ranks = pointer<const int32_t>(ranks);
    op.sizes = sizes;
    op.num_shards = experts.num_parts;
    return op;
}

// The kernels of one instruction set on a pool of threads. Calls of several threads take turns.
class Native {
   public:
    // `nodes` are memory, CPUs and threads of each.
    Native(const std::vector<std::tuple<int, std::vector<int>, int>>& nodes,
           const std::string& isa)
        : kernels_(choose_kernels(isa.c_str())) {
        if (kernels_ == nullptr) throw nb::value_error("no such instruction set");
        if (nodes.empty() || nodes.size() > kMaxNodes)
            throw nb::value_error("a pool has 1 to 16 nodes");
        std::vector<PoolNode> checked;
        for (const auto& [memory, cpus, threads] : nodes) {
            if (threads < 1) throw nb::value_error("at least one thread is needed");
            checked.push_back({memory, cpus, threads});
        }
        pool_ = std::make_unique<Pool>(std::move(checked));
    }
    Native(int num_threads, const std::string& isa) : Native({{0, {}, num_threads}}, isa) {}

    std::string isa() const { return kernels_->name; }
    int num_threads() const { return pool_->num_threads(); }
    int num_nodes() const { return pool_->num_nodes(); }

    void rms_norm(uintptr_t x, uintptr_t residual, uintptr_t weight, uintptr_t y, int64_t rows,
                  int64_t size, float eps, uintptr_t added, float scale) {
        compute("rms_norm", kernels_->rms_norm,
                RmsNorm{pointer<const float>(x), pointer<float>(residual),
                        pointer<const float>(weight), pointer<float>(y), size, size, eps,
                        pointer<const float>(added), scale},
                rows);
    }

    // In place: columns of wider rows, which lie `stride` apart.
    void norm_columns(uintptr_t x, int64_t rows, int64_t stride, uintptr_t weight, int64_t size,
                      float eps) {
        compute("norm_columns", kernels_->rms_norm,
                RmsNorm{pointer<const float>(x), nullptr, pointer<const float>(weight),
                        pointer<float>(x), size, stride, eps},
                rows);
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
        float* to = pointer<float>(out);
        compute("gather", [&matrix, rows, to](int64_t count, uint8_t*, Pool& pool) {
            matrix.gather(rows, count, to, pool);
        }, count);
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
        // A recorded product outlives this call, and with it the views.
        const auto kept = std::make_shared<const std::vector<MatrixView>>(std::move(views));
        op.matrices = kept->data();
        const Kernels* kernels = kernels_;
        compute("matmul", [op, kept, kernels](int64_t rows, uint8_t* scratch, Pool& pool) {
            MatMul step = op;
            step.scratch = scratch;
            kernels->matmul(step, rows, pool);
        }, tokens, [&op, kernels](int64_t rows) {
            return kernels->matmul_scratch_bytes(op, rows);
        });
    }

    void route(uintptr_t logits, int64_t rows, int64_t stride, int64_t experts, int64_t top_k,
               Scoring scoring, bool renormalize, uintptr_t ids, uintptr_t weights,
               uintptr_t scales, uintptr_t correction, int64_t groups, int64_t top_groups,
               int64_t group_best) {
        compute("route", kernels_->route,
                Route{pointer<const float>(logits), stride, experts, top_k, scoring, renormalize,
                      pointer<int64_t>(ids), pointer<float>(weights), pointer<const float>(scales),
                      pointer<const float>(correction), groups, top_groups, group_best},
                rows);
    }

    // `up` are gate and up, or one that is both, `down` one matrix; `sizes` the rows of a part of
    // each. `next` are those of a later layer that a file holds.
    void experts(uintptr_t x, int64_t rows, uintptr_t ids, uintptr_t weights, int64_t top_k,
                 int64_t first, int64_t count, const std::vector<const PackedMatrix*>& up,
                 uintptr_t up_bias, const PackedMatrix& down, uintptr_t down_bias,
                 std::pair<int64_t, int64_t> sizes, Activation activation, float alpha,
                 float limit, bool weighs_inputs, const std::vector<const PackedMatrix*>& next,
                 uintptr_t out, const std::optional<ExpertAdapters>& adapters) {
        if (up.empty() || up.size() > 2 || up.front()->columns() != up.back()->columns() ||
            down.columns() != sizes.first)
            throw nb::value_error("the experts' matrices do not fit together");
        // A recorded op outlives this call, and with it the views.
        std::vector<MatrixView> matrices;
        for (const PackedMatrix* matrix : up) matrices.push_back(matrix->view());
        matrices.push_back(down.view());
        const auto views = std::make_shared<const std::vector<MatrixView>>(std::move(matrices));
        const int num_up = static_cast<int>(up.size());
        Experts op{pointer<const float>(x), pointer<const int64_t>(ids),
                         pointer<const float>(weights), top_k, first, count,
                         {views->data(), num_up, sizes.first, up[0]->columns(),
                          pointer<const float>(up_bias)},
                         {views->data() + num_up, 1, sizes.second, down.columns(),
                          pointer<const float>(down_bias)},
                         alpha, limit, weighs_inputs, pointer<float>(out), nullptr, activation};
        const auto parts = std::make_shared<const std::vector<int64_t>>(num_up, sizes.first);
        const auto whole = std::make_shared<const int64_t>(sizes.second);
        if (adapters) {
            const auto& [slots, type, max_rank, of_up, of_down] = *adapters;
            op.slots = pointer<const int32_t>(slots);
            op.up_adapters = beside(op.up, parts->data(), type, max_rank, of_up);
            op.down_adapters = beside(op.down, whole.get(), type, max_rank, of_down);
        }
        std::vector<MatrixView> next_views;
        for (const PackedMatrix* matrix : next) next_views.push_back(matrix->view());
        const bool reads = !next_views.empty() || down.view().is_mapped;
        const Kernels* kernels = kernels_;
        ExpertReader* const reader = &reader_;
        compute("experts", [op, views, parts, whole, next_views, reads, kernels, reader](
                               int64_t rows, uint8_t* scratch, Pool& pool) {
            if (reads)
                reader->ask({views.get(), op.first, op.count}, op.ids, rows * op.top_k,
                            next_views);
            Experts step = op;
            step.scratch = scratch;
            kernels->experts(step, rows, pool);
        }, rows, [&op, kernels](int64_t rows) {
            return kernels->experts_scratch_bytes(op, rows);
        });
    }

    // `matrix` holds those of all heads, `matrix_rows` each.
    void head_products(uintptr_t x, int64_t rows, int64_t ldx, int64_t head_x, int64_t kept,
                       int64_t heads, const PackedMatrix& matrix, int64_t matrix_rows,
                       uintptr_t behind, int64_t ld_behind, int64_t num_behind, uintptr_t out) {
        // A recorded op outlives this call, and with it the view.
        const auto view = std::make_shared<const MatrixView>(matrix.view());
        const HeadProducts op{pointer<const float>(x), ldx, head_x, kept, heads,
                              {view.get(), 1, matrix_rows, matrix.columns(), nullptr},
                              pointer<const float>(behind), ld_behind, num_behind,
                              pointer<float>(out), nullptr};
        const Kernels* kernels = kernels_;
        const int threads = num_threads();
        compute("head_products", [op, view, kernels](int64_t rows, uint8_t* scratch, Pool& pool) {
            HeadProducts step = op;
            step.scratch = scratch;
            kernels->head_products(step, rows, pool);
        }, rows, [&op, kernels, threads](int64_t rows) {
            return kernels->head_products_scratch_bytes(op, rows, threads);
        });
    }

    void add_adapters(uintptr_t out, int64_t ldo, uintptr_t x, int64_t ldx, int64_t rows,
                      int64_t columns, uintptr_t a, uintptr_t b, FloatType type, int64_t max_rank,
                      uintptr_t ranks, uintptr_t slots, const std::vector<int64_t>& sizes) {
        // A recorded op outlives this call, and with it the sizes.
        const auto kept = std::make_shared<const std::vector<int64_t>>(sizes);
        const AddAdapters op{pointer<float>(out), ldo, pointer<const float>(x), ldx, columns,
                             pointer<const void>(a), pointer<const void>(b), type, max_rank,
                             pointer<const int32_t>(ranks), pointer<const int32_t>(slots),
                             kept->data(), static_cast<int64_t>(kept->size()), nullptr};
        const Kernels* kernels = kernels_;
        compute("add_adapters", [op, kept, kernels](int64_t rows, uint8_t* scratch, Pool& pool) {
            AddAdapters step = op;
            step.scratch = scratch;
            kernels->add_adapters(step, rows, pool);
        }, rows, [&op, kernels](int64_t rows) {
            return kernels->add_adapters_scratch_bytes(op, rows);
        });
    }

    void rotary_store(uintptr_t qkv, int64_t rows, int64_t stride, int64_t heads,
                      const KvCache& cache, uintptr_t slots, uintptr_t positions,
                      uintptr_t cos_sin, int64_t rotary_dim, uintptr_t q_norm, uintptr_t k_norm,
                      float eps, uintptr_t q_scales, bool norm_values, bool values_are_keys) {
        compute(
            "rotary_store", kernels_->rotary_store,
            RotaryStore{pointer<float>(qkv), stride, heads, cache, pointer<const int64_t>(slots),
             pointer<const int64_t>(positions), pointer<const float>(cos_sin), rotary_dim,
             pointer<const float>(q_norm), pointer<const float>(k_norm), eps,
             pointer<const float>(q_scales), norm_values, values_are_keys},
            rows);
    }

    void rotary(uintptr_t x, int64_t rows, int64_t stride, int64_t head_stride, int64_t heads,
                uintptr_t positions, uintptr_t cos_sin, int64_t rotary_dim) {
        compute("rotary", kernels_->rotary,
                Rotary{pointer<float>(x), stride, head_stride, heads,
                       pointer<const int64_t>(positions), pointer<const float>(cos_sin),
                       rotary_dim},
                rows);
    }

    // `max_kv_len` is the longest context that `block_table` has room for.
    void paged_attention(uintptr_t q, int64_t rows, int64_t q_stride, int64_t heads,
                         const KvCache& cache, uintptr_t block_table, int64_t table_stride,
                         uintptr_t query_start, uintptr_t kv_lens, int64_t max_reqs,
                         int64_t max_kv_len, float scale, int64_t window, bool chunked,
                         uintptr_t sinks, uintptr_t out, bool both_ways, uintptr_t sees_until,
                         float cap, uintptr_t chosen, int64_t num_chosen) {
        const int64_t bytes =
            paged_attention_scratch(heads, cache, max_reqs, max_kv_len, num_threads());
        const PagedAttention op{
            pointer<const float>(q), q_stride, heads, cache, pointer<const int32_t>(block_table),
            table_stride, pointer<const int32_t>(query_start), pointer<const int32_t>(kv_lens),
            max_reqs, scale, window, chunked, pointer<const float>(sinks), both_ways,
            pointer<float>(out), nullptr, bytes, pointer<const int32_t>(sees_until), cap,
            pointer<const int32_t>(chosen), num_chosen};
        const Kernels* kernels = kernels_;
        compute("paged_attention", [op, kernels](int64_t rows, uint8_t* scratch, Pool& pool) {
            PagedAttention step = op;
            step.scratch = scratch;
            kernels->paged_attention(step, rows, pool);
        }, rows, [bytes](int64_t) { return bytes; });
    }

    void patch_attention(uintptr_t q, int64_t q_stride, int64_t q_head_stride, uintptr_t k,
                         uintptr_t v, int64_t rows, int64_t heads, int64_t dim,
                         uintptr_t query_start, int64_t runs, float scale, uintptr_t out) {
        const int64_t bytes = kernels_->patch_attention_scratch(runs, dim, num_threads());
        const PatchAttention op{
            pointer<const float>(q), q_stride, q_head_stride, pointer<const float>(k),
            pointer<const float>(v), heads, dim, pointer<const int32_t>(query_start), runs,
            scale, pointer<float>(out), nullptr};
        const Kernels* kernels = kernels_;
        compute("patch_attention", [op, kernels](int64_t rows, uint8_t* scratch, Pool& pool) {
            PatchAttention step = op;
            step.scratch = reinterpret_cast<char*>(scratch);
            kernels->patch_attention(step, rows, pool);
        }, rows, [bytes](int64_t) { return bytes; });
    }

    // `max_kv_len` as above.
    void choose_keys(uintptr_t q, int64_t rows, int64_t q_stride, uintptr_t weights,
                     int64_t weights_stride, int64_t heads, const KvCache& cache,
                     uintptr_t block_table, int64_t table_stride, uintptr_t query_start,
                     uintptr_t kv_lens, int64_t max_reqs, int64_t max_kv_len, int64_t num_chosen,
                     uintptr_t chosen) {
        if (cache.type == CacheType::kInt8 || cache.type == CacheType::kQ4_0)
            throw nb::value_error("index keys are not kept in int8 or q4_0");
        const ChooseKeys op{
            pointer<const float>(q), q_stride, pointer<const float>(weights), weights_stride, heads,
            cache, pointer<const int32_t>(block_table), table_stride,
            pointer<const int32_t>(query_start), pointer<const int32_t>(kv_lens), max_reqs,
            max_kv_len, num_chosen, pointer<int32_t>(chosen), nullptr};
        const Kernels* kernels = kernels_;
        const int threads = num_threads();
        compute("choose_keys", [op, kernels](int64_t rows, uint8_t* scratch, Pool& pool) {
            ChooseKeys step = op;
            step.scratch = reinterpret_cast<char*>(scratch);
            kernels->choose_keys(step, rows, pool);
        }, rows, [op, kernels, threads](int64_t rows) {
            return kernels->choose_keys_scratch(op, rows, threads);
        });
    }

    void activate_and_mul(uintptr_t gate, int64_t gate_stride, uintptr_t x, int64_t x_stride,
                          uintptr_t y, int64_t rows, int64_t size, Activation activation) {
        compute("activate_and_mul", kernels_->activate_and_mul,
                ActivateAndMul{pointer<const float>(gate), gate_stride, pointer<const float>(x),
                               x_stride, pointer<float>(y), size, activation},
                rows);
    }

    void sigmoid_mul(uintptr_t x, uintptr_t gate, int64_t gate_stride, uintptr_t y, int64_t rows,
                     int64_t size) {
        compute("sigmoid_mul", kernels_->sigmoid_mul,
                SigmoidMul{pointer<const float>(x), pointer<const float>(gate), gate_stride,
                           pointer<float>(y), size},
                rows);
    }

    void add_gated(uintptr_t x, uintptr_t added, uintptr_t gate, int64_t gate_stride, uintptr_t y,
                   int64_t rows, int64_t size) {
        compute("add_gated", kernels_->add_gated,
                AddGated{pointer<const float>(x), pointer<const float>(added),
                         pointer<const float>(gate), gate_stride, pointer<float>(y), size},
                rows);
    }

    void gated_rms_norm(uintptr_t x, uintptr_t gate, int64_t gate_stride, uintptr_t weight,
                        uintptr_t y, int64_t rows, int64_t heads, int64_t size, float eps) {
        compute("gated_rms_norm", kernels_->gated_rms_norm,
                GatedRmsNorm{pointer<const float>(x), pointer<const float>(gate), gate_stride,
                             pointer<const float>(weight), pointer<float>(y), heads, size, eps},
                rows);
    }

    void causal_conv(uintptr_t x, int64_t rows, int64_t stride, uintptr_t weight, int64_t width,
                     int64_t channels, uintptr_t state, int64_t slot_stride,
                     const StateSlots& slots, uintptr_t y, uintptr_t bias, bool silu) {
        compute("causal_conv", kernels_->causal_conv,
                CausalConv{pointer<const float>(x), stride, pointer<const float>(weight), width,
                           channels, pointer<float>(state), slot_stride, slots, pointer<float>(y),
                           pointer<const float>(bias), silu},
                rows);
    }

    void gated_delta_rule(uintptr_t qkv, int64_t rows, int64_t key_heads, uintptr_t strength,
                          uintptr_t decay, int64_t gate_stride, uintptr_t rate, uintptr_t bias,
                          bool tiled, uintptr_t state, int64_t value_heads, int64_t key_dim,
                          int64_t value_dim, int64_t slot_stride, const StateSlots& slots,
                          uintptr_t out) {
        const GatedDeltaRule op{
            pointer<float>(qkv), pointer<const float>(strength), pointer<const float>(decay),
            gate_stride, pointer<const float>(rate), pointer<const float>(bias), key_heads,
            value_heads, key_dim, value_dim, tiled, pointer<float>(state), slot_stride, slots,
            pointer<float>(out), nullptr};
        const Kernels* kernels = kernels_;
        compute("gated_delta_rule", [op, kernels](int64_t rows, uint8_t* scratch, Pool& pool) {
            GatedDeltaRule step = op;
            step.scratch = reinterpret_cast<float*>(scratch);
            kernels->gated_delta_rule(step, rows, pool);
        }, rows, [value_heads](int64_t rows) {
            return rows * value_heads * 2 * int64_t{sizeof(float)};
        });
    }

    void state_space(uintptr_t xbc, int64_t rows, int64_t groups, uintptr_t decay,
                     int64_t decay_stride, uintptr_t rate, uintptr_t bias, uintptr_t skip,
                     uintptr_t state, int64_t heads, int64_t state_size, int64_t head_dim,
                     int64_t slot_stride, const StateSlots& slots, uintptr_t out) {
        compute("state_space", kernels_->state_space,
                StateSpace{pointer<const float>(xbc), pointer<const float>(decay), decay_stride,
                           pointer<const float>(rate), pointer<const float>(bias),
                           pointer<const float>(skip), groups, heads, state_size, head_dim,
                           pointer<float>(state), slot_stride, slots, pointer<float>(out)},
                rows);
    }

    void gelu(uintptr_t x, uintptr_t y, int64_t rows, int64_t size, bool tanh) {
        compute("gelu", kernels_->gelu,
                Gelu{pointer<const float>(x), pointer<float>(y), size, tanh}, rows);
    }

    void scale(uintptr_t x, uintptr_t y, int64_t rows, int64_t size, float factor) {
        compute("scale", kernels_->scale,
                Scale{pointer<const float>(x), pointer<float>(y), size, factor}, rows);
    }

    void soft_cap(uintptr_t x, uintptr_t y, int64_t rows, int64_t size, float cap) {
        compute("soft_cap", kernels_->soft_cap,
                SoftCap{pointer<const float>(x), pointer<float>(y), size, cap}, rows);
    }

    void layer_norm(uintptr_t x, uintptr_t residual, uintptr_t weight, uintptr_t bias, uintptr_t y,
                    int64_t rows, int64_t size, float eps) {
        compute("layer_norm", kernels_->layer_norm,
                LayerNorm{pointer<const float>(x), pointer<const float>(residual),
                          pointer<const float>(weight), pointer<const float>(bias),
                          pointer<float>(y), size, eps},
                rows);
    }

    // `x`, `adds` and `y`: addresses, one for each stream.
    void mix_streams(uintptr_t weights, const std::vector<uintptr_t>& x,
                     const std::vector<uintptr_t>& adds, const std::vector<uintptr_t>& y,
                     int64_t rows, int64_t size, float plus) {
        MixStreams op{};
        op.weights = pointer<const float>(weights);
        op.streams = static_cast<int64_t>(x.size()), op.added = static_cast<int64_t>(adds.size());
        op.size = size, op.plus = plus;
        for (size_t i = 0; i < x.size(); ++i)
            op.x[i] = pointer<const float>(x[i]), op.y[i] = pointer<float>(y[i]);
        for (size_t i = 0; i < adds.size(); ++i) op.adds[i] = pointer<const float>(adds[i]);
        compute("mix_streams", kernels_->mix_streams, op, rows);
    }

    void scale_columns(uintptr_t x, uintptr_t weight, uintptr_t y, int64_t rows, int64_t size) {
        compute("scale_columns", kernels_->scale_columns,
                ScaleColumns{pointer<const float>(x), pointer<const float>(weight),
                             pointer<float>(y), size},
                rows);
    }

    void match_rms(uintptr_t x, uintptr_t like, uintptr_t y, int64_t rows, int64_t size,
                   float least) {
        compute("match_rms", kernels_->match_rms,
                MatchRms{pointer<const float>(x), pointer<const float>(like), pointer<float>(y),
                         size, least},
                rows);
    }

    void cut_columns(uintptr_t x, int64_t rows, int64_t stride, int64_t size, float cut) {
        compute("cut_columns", kernels_->cut_columns,
                CutColumns{pointer<float>(x), stride, size, cut}, rows);
    }

    void embed_rows(uintptr_t ids, uintptr_t table, FloatType type, uintptr_t y, int64_t rows,
                    int64_t size) {
        compute("embed_rows", kernels_->embed_rows,
                EmbedRows{pointer<const int64_t>(ids), pointer<const void>(table), type,
                          pointer<float>(y), size},
                rows);
    }

    void argmax(uintptr_t logits, int64_t rows, int64_t size, uintptr_t values, uintptr_t ids) {
        compute("argmax", kernels_->argmax,
                ArgMax{pointer<const float>(logits), size, pointer<float>(values),
                       pointer<int64_t>(ids)},
                rows);
    }

    void top_k(uintptr_t logits, int64_t rows, int64_t size, int64_t count, uintptr_t values,
               uintptr_t ids) {
        compute("top_k", kernels_->top_k,
                TopK{pointer<const float>(logits), size, count, pointer<float>(values),
                     pointer<int64_t>(ids)},
                rows);
    }

    void draw(uintptr_t logits, int64_t rows, int64_t size, uintptr_t top, uintptr_t temperature,
              uintptr_t top_k, uintptr_t top_p, uintptr_t min_p, uintptr_t seed,
              uintptr_t position, uintptr_t tokens) {
        compute("draw", kernels_->draw,
                Draw{pointer<const float>(logits), size, pointer<const float>(top),
                     pointer<const float>(temperature), pointer<const int32_t>(top_k),
                     pointer<const double>(top_p), pointer<const float>(min_p),
                     pointer<const uint64_t>(seed), pointer<const int64_t>(position),
                     pointer<int64_t>(tokens)},
                rows);
    }

    void mask_logits(uintptr_t logits, int64_t size, uintptr_t index, int64_t rows,
                     uintptr_t masks, int64_t words) {
        compute("mask_logits", kernels_->mask_logits,
                MaskLogits{pointer<float>(logits), size, pointer<const int64_t>(index),
                           pointer<const uint32_t>(masks), words},
                rows);
    }

    // From now on ops are computed and also added to `program`, by its row count `count`; ops with
    // other than `rows` rows are an error. Null ends it.
    void record(Program* program, int count, int64_t rows) {
        Turn turn(busy_);
        program_ = program;
        count_ = count;
        recorded_rows_ = rows;
    }

    // Computes what was recorded, for so many rows of each count.
    void replay(const Program& program, const std::vector<int64_t>& rows) {
        program.check(rows);
        Turn turn(busy_);
        program.run(rows, scratch_.at_least(program.scratch_bytes()), *pool_);
    }

    std::vector<std::pair<std::string, double>> profile(const Program& program,
                                                        const std::vector<int64_t>& rows) {
        program.check(rows);
        Turn turn(busy_);
        return program.profile(rows, scratch_.at_least(program.scratch_bytes()), *pool_);
    }

    void probe_read(uintptr_t data, int64_t bytes) {
        Turn turn(busy_);
        kernels_->probe_read(pointer<const uint8_t>(data), bytes, *pool_);
    }

    int64_t probe_floats(int64_t steps) {
        Turn turn(busy_);
        return kernels_->probe_floats(steps, *pool_);
    }

    int64_t probe_dots(int64_t steps) {
        Turn turn(busy_);
        return kernels_->probe_dots(steps, *pool_);
    }

    // Which CPU each chunk of a part ran on, where a chunk takes so long; -1 where none is known.
    std::vector<int> probe_cpus(int64_t chunks, double seconds) {
        Turn turn(busy_);
        std::vector<int> found(static_cast<size_t>(chunks), -1);
        pool_->run(chunks, [&](int64_t chunk) {
            const std::chrono::duration<double> pause(seconds);
            const auto end = std::chrono::steady_clock::now() + pause;
            while (std::chrono::steady_clock::now() < end) continue;
#if defined(__linux__)
            found[static_cast<size_t>(chunk)] = sched_getcpu();
#endif
        });
        return found;
    }

   private:
    template <typename Op>
    void compute(const char* name, void (*kernel)(const Op&, int64_t, Pool&), const Op& op,
                 int64_t rows) {
        compute(name, [kernel, op](int64_t count, uint8_t*, Pool& pool) {
            kernel(op, count, pool);
        }, rows);
    }

    template <typename Op>
    void compute(const char* name, const Op& op, int64_t rows) {
        compute(name, op, rows, [](int64_t) { return int64_t{0}; });
    }

    // `op(rows, scratch, pool)`; `scratch_bytes(rows)` is what it works in.
    template <typename Op, typename ScratchBytes>
    void compute(const char* name, const Op& op, int64_t rows, const ScratchBytes& scratch_bytes) {
        Turn turn(busy_);
        if (program_ != nullptr) {
            if (rows != recorded_rows_)
                throw std::invalid_argument("an op of this step has rows of its own number");
            program_->add(name, count_, op, scratch_bytes(program_->max_rows(count_)));
        }
        op(rows, scratch_.at_least(scratch_bytes(rows)), *pool_);
    }

    const Kernels* kernels_;
    std::unique_ptr<Pool> pool_;
    std::mutex busy_;
    Scratch scratch_;
    ExpertReader reader_;
    Program* program_ = nullptr;
    int count_ = 0;
    int64_t recorded_rows_ = 0;
};

}  // namespace

NB_MODULE(_native, module) {
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::system_error& error) {
            errno = error.code().value();
            PyErr_SetFromErrno(PyExc_OSError);
        }
    });
    nb::enum_<FloatType>(module, "FloatType")
        .value("float32", FloatType::kFloat32)
        .value("bfloat16", FloatType::kBFloat16)
        .value("float16", FloatType::kFloat16);
    nb::enum_<CacheType>(module, "CacheType")
        .value("float32", CacheType::kFloat32)
        .value("bfloat16", CacheType::kBFloat16)
        .value("float16", CacheType::kFloat16)
        .value("int8", CacheType::kInt8)
        .value("q4_0", CacheType::kQ4_0);
    nb::enum_<Activation>(module, "Activation")
        .value("silu", Activation::kSilu)
        .value("gelu_tanh", Activation::kGeluTanh)
        .value("relu", Activation::kRelu)
        .value("identity", Activation::kIdentity);
    nb::enum_<Scoring>(module, "Scoring")
        .value("softmax", Scoring::kSoftmax)
        .value("topk_softmax", Scoring::kTopKSoftmax)
        .value("sigmoid", Scoring::kSigmoid);
    nb::class_<KvCache>(module, "KvCache")
        .def("__init__", [](KvCache* self, uintptr_t k, uintptr_t v, CacheType type,
                            int64_t block_bytes, int64_t kv_heads, int64_t block_size,
                            int64_t dim) {
            new (self) KvCache{pointer<void>(k), pointer<void>(v), type, block_bytes,
                               kv_heads, block_size, dim};
        });
    nb::class_<StateSlots>(module, "StateSlots")
        .def("__init__", [](StateSlots* self, uintptr_t read, uintptr_t write,
                            uintptr_t query_start, uintptr_t kv_lens, int64_t max_reqs) {
            new (self) StateSlots{pointer<const int32_t>(read), pointer<const int32_t>(write),
                                  pointer<const int32_t>(query_start),
                                  pointer<const int32_t>(kv_lens), max_reqs};
        });
    module.attr("MAX_KEY_DIM") = kMaxKeyDim;
    module.attr("VALUE_DIM_UNIT") = kValueDimUnit;
    module.attr("MAX_STREAMS") = kMaxStreams;
    module.attr("MAX_TOP_K") = kMaxTopK;
    module.attr("MAX_GROUPS") = kMaxGroups;
    module.attr("PANEL_ROWS") = kPanelRows;
    module.attr("PANEL_LAYOUT") = kPanelLayout;
    nb::list isas;
    for (const Kernels* kernels : runnable_kernels()) isas.append(kernels->name);
    module.attr("INSTRUCTION_SETS") = isas;
    module.attr("MISSING_INSTRUCTION_SET") = missing_isa();
    module.def("fill_grid", [](const std::string& storage, uintptr_t levels, int64_t count) {
        fill_grid(storage, pointer<const int8_t>(levels), count);
    });
    module.def("use_huge_pages", [](uintptr_t data, int64_t bytes) {
        return use_huge_pages(pointer<void>(data), bytes);
    });
    module.def("drop_from_caches", [](uintptr_t data, int64_t bytes) {
        return drop_from_caches(pointer<const void>(data), bytes);
    });
    nb::class_<Program>(module, "Program")
        .def(nb::init<std::vector<int64_t>>(), nb::arg("max_rows"))
        .def_prop_ro("num_ops", &Program::num_ops);
    nb::class_<Native>(module, "Native")
        .def(nb::init<int, const std::string&>(), nb::arg("num_threads"), nb::arg("isa") = "")
        .def(nb::init<const std::vector<std::tuple<int, std::vector<int>, int>>&,
                      const std::string&>(),
             nb::arg("nodes"), nb::arg("isa") = "")
        .def_prop_ro("isa", &Native::isa)
        .def_prop_ro("num_threads", &Native::num_threads)
        .def_prop_ro("num_nodes", &Native::num_nodes)
        .def("record", &Native::record, nb::arg("program").none(), nb::arg("count") = 0,
             nb::arg("rows") = 0)
        .def("replay", &Native::replay, nb::arg("program"), nb::arg("rows"))
        .def("profile", &Native::profile, nb::arg("program"), nb::arg("rows"))
        .def("rms_norm", &Native::rms_norm)
        .def("norm_columns", &Native::norm_columns)
        .def("load", &Native::load, nb::arg("matrix"), nb::arg("first_row"), nb::arg("num_rows"),
             nb::arg("address"), nb::arg("row_stride"))
        .def("gather", &Native::gather, nb::arg("matrix"), nb::arg("ids"), nb::arg("count"),
             nb::arg("out"))
        .def("matmul", &Native::matmul, nb::arg("x"), nb::arg("ldx"), nb::arg("tokens"),
             nb::arg("matrices"), nb::arg("out"), nb::arg("ldo"), nb::arg("bias") = 0)
        .def("route", &Native::route)
        .def("experts", &Native::experts)
        .def("head_products", &Native::head_products)
        .def("add_adapters", &Native::add_adapters)
        .def("rotary_store", &Native::rotary_store)
        .def("rotary", &Native::rotary)
        .def("paged_attention", &Native::paged_attention)
        .def("patch_attention", &Native::patch_attention)
        .def("choose_keys", &Native::choose_keys)
        .def("activate_and_mul", &Native::activate_and_mul)
        .def("sigmoid_mul", &Native::sigmoid_mul)
        .def("add_gated", &Native::add_gated)
        .def("gated_rms_norm", &Native::gated_rms_norm)
        .def("causal_conv", &Native::causal_conv)
        .def("gated_delta_rule", &Native::gated_delta_rule)
        .def("state_space", &Native::state_space)
        .def("gelu", &Native::gelu)
        .def("scale", &Native::scale)
        .def("soft_cap", &Native::soft_cap)
        .def("layer_norm", &Native::layer_norm)
        .def("mix_streams", &Native::mix_streams)
        .def("scale_columns", &Native::scale_columns)
        .def("match_rms", &Native::match_rms)
        .def("cut_columns", &Native::cut_columns)
        .def("embed_rows", &Native::embed_rows)
        .def("argmax", &Native::argmax)
        .def("top_k", &Native::top_k)
        .def("draw", &Native::draw)
        .def("mask_logits", &Native::mask_logits)
        .def("probe_read", &Native::probe_read)
        .def("probe_floats", &Native::probe_floats)
        .def("probe_dots", &Native::probe_dots)
        .def("probe_cpus", &Native::probe_cpus);
    nb::class_<PackedMatrix>(module, "PackedMatrix")
        .def(nb::init<const std::string&, int64_t, int64_t>(), nb::arg("storage"),
             nb::arg("rows"), nb::arg("columns"))
        .def(nb::init<const std::string&, int64_t, int64_t, const std::string&, int64_t>(),
             nb::arg("storage"), nb::arg("rows"), nb::arg("columns"), nb::arg("path"),
             nb::arg("offset"))
        // Its bytes, as a file that is mapped has them.
        .def_prop_ro("panels", [](const PackedMatrix& matrix) {
            const uint8_t* panels = matrix.view().panels;
            return nb::steal(PyMemoryView_FromMemory(
                const_cast<char*>(reinterpret_cast<const char*>(panels)), matrix.nbytes(),
                PyBUF_READ));
        }, nb::keep_alive<0, 1>())
        .def_prop_ro("storage", &PackedMatrix::storage)
        .def_prop_ro("rows", &PackedMatrix::rows)
        .def_prop_ro("columns", &PackedMatrix::columns)
        .def_prop_ro("nbytes", &PackedMatrix::nbytes);
    nb::list names;
    for (const std::string& name : packed_storages()) names.append(name);
    module.attr("PACKED_STORAGES") = names;
}
