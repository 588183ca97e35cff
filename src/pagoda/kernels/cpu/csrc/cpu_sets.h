// The instruction sets that kernels are written for, and which of them this CPU runs.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace pagoda {

// All sets of the architecture, best first. CMakeLists.txt compiles each, or some.
#if defined(__x86_64__)
#define PAGODA_ISAS(each) each(amx) each(avx512) each(avx512vnni) each(avxvnni) each(avx2) each(generic)
#elif defined(__aarch64__)
#define PAGODA_ISAS(each) each(neondot) each(neon) each(generic)
#else
#define PAGODA_ISAS(each) each(generic)
#endif

namespace {

#if defined(__x86_64__)

// What CPUID says and the operating system saves. The compiler's __builtin_cpu_supports would do,
// but not every linker can put it into a shared library.
struct Cpu {
    static constexpr bool generic = true;
    bool avx2 = false;
    bool avxvnni = false;
    bool avx512vnni = false;
    bool avx512 = false;
    bool amx = false;

    Cpu() {
        unsigned a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d)) return;
        const bool saves_state = c >> 27 & 1;  // OSXSAVE
        const bool fma_f16c = (c >> 12 & 1) && (c >> 29 & 1);
        if (!saves_state || !fma_f16c || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        const uint64_t saved = xcr0();
        avx2 = (b >> 5 & 1) && (saved & 0x6) == 0x6;
        // F, DQ, BW, VL; then VNNI. BF16 and AVX-VNNI are in the next leaf.
        const bool base = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);
        const bool vnni = c >> 11 & 1;
        avx512vnni = avx2 && base && vnni && (saved & 0xe6) == 0xe6;
        const bool tiles = (d >> 22 & 1) && (d >> 24 & 1);  // AMX-BF16 and AMX-TILE
        const bool has_next_leaf = a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d);
        avx512 = avx512vnni && has_next_leaf && (a >> 5 & 1);
        amx = avx512 && tiles && (saved & 0x60000) == 0x60000 && may_use_tiles();
        avxvnni = avx2 && has_next_leaf && (a >> 4 & 1);
    }

    // Linux saves their 8 KiB only for a process that has asked for it.
    static bool may_use_tiles() {
#if defined(__linux__)
        constexpr long kRequestPermission = 0x1023, kTileData = 18;
        return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
        return false;
#endif
    }

    static uint64_t xcr0() {
        uint32_t low, high;
        asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return uint64_t{high} << 32 | low;
    }
};

#elif defined(__aarch64__)

struct Cpu {
    static constexpr bool generic = true;
    static constexpr bool neon = true;  // part of the architecture
#if defined(__APPLE__)
    static constexpr bool neondot = true;  // since the first of these CPUs, the M1
#elif defined(__linux__)
    const bool neondot = getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
#else
    static constexpr bool neondot = false;
#endif
};

#else

struct Cpu {
    static constexpr bool generic = true;
};

#endif

}  // namespace
}  // namespace pagoda
