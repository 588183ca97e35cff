// What products.cpp has of one instruction set, in a namespace of the set's name.
#pragma once

#include "isa.h"

namespace pagoda::PAGODA_ISA {

void matmul(const MatMul& op, int64_t rows, Pool& pool);
int64_t matmul_scratch_bytes(const MatMul& op, int64_t rows);
void experts(const Experts& op, int64_t rows, Pool& pool);
int64_t experts_scratch_bytes(const Experts& op, int64_t rows);
void add_adapters(const AddAdapters& op, int64_t rows, Pool& pool);
int64_t add_adapters_scratch_bytes(const AddAdapters& op, int64_t rows);
void route(const Route& op, int64_t rows, Pool& pool);
void head_products(const HeadProducts& op, int64_t rows, Pool& pool);
int64_t head_products_scratch_bytes(const HeadProducts& op, int64_t rows, int threads);
void probe_read(const uint8_t* data, int64_t bytes, Pool& pool);
int64_t probe_floats(int64_t steps, Pool& pool);
int64_t probe_dots(int64_t steps, Pool& pool);

}  // namespace pagoda::PAGODA_ISA
