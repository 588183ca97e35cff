#include <cstring>

#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace pagoda {
namespace {

#if defined(__x86_64__)

// What CPUID says and the operating system saves. The compiler's __builtin_cpu_supports would do,
// but not every linker can put it into a shared library.
struct Cpu {
    bool avx2 = false;
    bool avx512 = false;

    Cpu() {
        unsigned a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d)) return;
        const bool saves_state = c >> 27 & 1;  // OSXSAVE
        const bool fma_f16c = (c >> 12 & 1) && (c >> 29 & 1);
        if (!saves_state || !fma_f16c || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        const uint64_t saved = xcr0();
        avx2 = (b >> 5 & 1) && (saved & 0x6) == 0x6;
        // F, DQ, BW, VL; then VNNI, and BF16 of the next leaf.
        const bool base = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);
        const bool vnni = c >> 11 & 1;
        if (!avx2 || !base || !vnni || (saved & 0xe6) != 0xe6) return;
        avx512 = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
    }

    static uint64_t xcr0() {
        uint32_t low, high;
        asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return uint64_t{high} << 32 | low;
    }
};

#endif

struct Candidate {
    const Kernels* kernels;
    bool runs;
};

}  // namespace

const Kernels* choose_kernels(const char* limit) {
#if defined(__x86_64__)
    static const Cpu cpu;
#endif
    const Candidate candidates[] = {  // best first
#if PAGODA_HAS_AVX512
        {&kernels_avx512, cpu.avx512},
#endif
#if PAGODA_HAS_AVX2
        {&kernels_avx2, cpu.avx2},
#endif
        {&kernels_generic, true},
    };
    bool reached = limit[0] == '\0';
    for (const auto& candidate : candidates) {
        reached = reached || std::strcmp(candidate.kernels->name, limit) == 0;
        if (reached && candidate.runs) return candidate.kernels;
    }
    return nullptr;
}

}  // namespace pagoda
