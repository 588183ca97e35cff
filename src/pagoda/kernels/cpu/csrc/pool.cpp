#include "pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pagoda {
namespace {

// Longer than the pause between two parts of a step, shorter than anyone would notice in an idle
// process.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesPerLook = 64;

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Returns once `value` is no longer `old`: spins first, then sleeps.
uint32_t await_change(const std::atomic<uint32_t>& value, uint32_t old) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < kPausesPerLook; ++i) {
            const uint32_t now = value.load(std::memory_order_acquire);
            if (now != old) return now;
            pause();
        }
        // Whoever is awaited may be waiting for this very core.
        std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < end);
    uint32_t now = value.load(std::memory_order_acquire);
    while (now == old) {
        value.wait(old, std::memory_order_acquire);
        now = value.load(std::memory_order_acquire);
    }
    return now;
}

}  // namespace

Pool::Pool(int num_threads) {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { loop(); });
}

Pool::~Pool() {
    stopping_.store(true);
    part_.fetch_add(1);
    part_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::run_parallel(uint32_t num_chunks, Call call, const void* context) {
    call_ = call;
    context_ = context;
    num_chunks_ = num_chunks;
    pending_.store(num_chunks, std::memory_order_relaxed);
    const uint32_t part = part_.load(std::memory_order_relaxed) + 1;
    chunks_.store((uint64_t{part} << 32) | num_chunks, std::memory_order_release);
    part_.store(part, std::memory_order_release);
    part_.notify_all();
    take_chunks(part);
    uint32_t pending = pending_.load(std::memory_order_acquire);
    while (pending != 0) pending = await_change(pending_, pending);
}

void Pool::take_chunks(uint32_t part) {
    uint64_t chunks = chunks_.load(std::memory_order_acquire);
    for (;;) {
        if (chunks >> 32 != part || (chunks & 0xffffffff) == 0) return;
        if (!chunks_.compare_exchange_weak(chunks, chunks - 1, std::memory_order_acq_rel,
                                           std::memory_order_acquire))
            continue;
        call_(context_, num_chunks_ - (chunks & 0xffffffff));
        if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_all();
        chunks = chunks_.load(std::memory_order_acquire);
    }
}

void Pool::loop() {
    uint32_t part = 0;
    for (;;) {
        part = await_change(part_, part);
        if (stopping_.load()) return;
        take_chunks(part);
    }
}

}  // namespace pagoda
