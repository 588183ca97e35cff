// Products with weights of one instruction set; compiled once per set with PAGODA_ISA its name.
#include "products.h"

#include "head_products.h"
#include "probes.h"

namespace pagoda::PAGODA_ISA {

void matmul(const MatMul& op, int64_t rows, Pool& pool) { pagoda::matmul(op, rows, pool); }
int64_t matmul_scratch_bytes(const MatMul& op, int64_t rows) {
    return pagoda::matmul_scratch_bytes(op, rows);
}
void experts(const Experts& op, int64_t rows, Pool& pool) { pagoda::experts(op, rows, pool); }
int64_t experts_scratch_bytes(const Experts& op, int64_t rows) {
    return pagoda::experts_scratch_bytes(op, rows);
}
void add_adapters(const AddAdapters& op, int64_t rows, Pool& pool) {
    pagoda::add_adapters(op, rows, pool);
}
int64_t add_adapters_scratch_bytes(const AddAdapters& op, int64_t rows) {
    return pagoda::add_adapters_scratch_bytes(op, rows);
}
void route(const Route& op, int64_t rows, Pool& pool) { pagoda::route(op, rows, pool); }
void head_products(const HeadProducts& op, int64_t rows, Pool& pool) {
    pagoda::head_products(op, rows, pool);
}
int64_t head_products_scratch_bytes(const HeadProducts& op, int64_t rows, int threads) {
    return pagoda::head_products_scratch_bytes(op, rows, threads);
}
void probe_read(const uint8_t* data, int64_t bytes, Pool& pool) {
    pagoda::probe_read(data, bytes, pool);
}
int64_t probe_floats(int64_t steps, Pool& pool) { return pagoda::probe_floats(steps, pool); }
int64_t probe_dots(int64_t steps, Pool& pool) { return pagoda::probe_dots(steps, pool); }

}  // namespace pagoda::PAGODA_ISA
