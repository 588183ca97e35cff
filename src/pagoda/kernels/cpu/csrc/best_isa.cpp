// Prints the best instruction set that this CPU runs; CMakeLists.txt asks for it.
#include <cstdio>

#include "cpu_sets.h"

int main() {
    const pagoda::Cpu cpu;
#define PAGODA_PRINT(isa) \
    if (cpu.isa) return std::fputs(#isa, stdout) < 0;
    PAGODA_ISAS(PAGODA_PRINT)
}
