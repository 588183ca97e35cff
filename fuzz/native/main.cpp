// For compilers without libFuzzer: `driver SEED COUNT [FILE...]` takes the files, then COUNT random
// inputs; an input that fails is the last one named.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::vector<uint8_t> current;

// ASan, UBSan and failed checks all end in `abort`.
void tell(int) {
    std::fprintf(stderr, "INPUT: ");
    for (const uint8_t byte : current) std::fprintf(stderr, "%02x", byte);
    std::fprintf(stderr, "\n");
}

void run(std::vector<uint8_t> data) {
    current = std::move(data);
    LLVMFuzzerTestOneInput(current.data(), current.size());
}

}  // namespace

extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }

int main(int argc, char** argv) {
    if (argc < 3) return std::fprintf(stderr, "usage: %s SEED COUNT [FILE...]\n", argv[0]), 2;
    std::signal(SIGABRT, tell);
    std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
    const unsigned long long count = std::strtoull(argv[2], nullptr, 10);
    for (int i = 3; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        run({std::istreambuf_iterator<char>(file), {}});
    }
    for (unsigned long long i = 0; i < count; ++i) {
        std::vector<uint8_t> data(random() % 48);
        for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
        run(std::move(data));
    }
    std::printf("executions: %llu\n", count + static_cast<unsigned long long>(argc - 3));
    return 0;
}
