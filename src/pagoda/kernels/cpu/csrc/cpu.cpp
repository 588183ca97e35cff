#include <cstring>

#include "cpu_sets.h"
#include "isa.h"

namespace pagoda {

// Weak: null where a set was not compiled.
#define PAGODA_DECLARE(isa) [[gnu::weak]] extern const Kernels kernels_##isa;
PAGODA_ISAS(PAGODA_DECLARE)

namespace {

struct Candidate {
    const char* name;
    const Kernels* kernels;
    bool runs;
};

const std::vector<Candidate>& candidates() {
    static const Cpu cpu;
#define PAGODA_CANDIDATE(isa) {#isa, &kernels_##isa, cpu.isa},
    static const std::vector<Candidate> all = {PAGODA_ISAS(PAGODA_CANDIDATE)};
    return all;
}

}  // namespace

const std::vector<const Kernels*>& runnable_kernels() {
    static const std::vector<const Kernels*> found = [] {
        std::vector<const Kernels*> out;
        for (const Candidate& candidate : candidates())
            if (candidate.runs && candidate.kernels) out.push_back(candidate.kernels);
        return out;
    }();
    return found;
}

const char* missing_isa() {
    for (const Candidate& candidate : candidates())
        if (candidate.runs) return candidate.kernels ? "" : candidate.name;
    return "";
}

const Kernels* choose_kernels(const char* limit) {
    bool reached = limit[0] == '\0';
    for (const Candidate& candidate : candidates()) {
        reached = reached || std::strcmp(candidate.name, limit) == 0;
        if (reached && candidate.runs && candidate.kernels) return candidate.kernels;
    }
    return nullptr;
}

}  // namespace pagoda
