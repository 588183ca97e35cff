#include "pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif
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

// Have this thread run on these CPUs alone, where the system does that.
void bind_to(const std::vector<int>& cpus) {
#if defined(__linux__)
    if (cpus.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu : cpus) CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
#else
    (void)cpus;
#endif
}

}  // namespace

Pool::Pool(std::vector<PoolNode> nodes)
    : nodes_(std::move(nodes)), before_{0}, queues_(new Queue[nodes_.size()]) {
    for (const PoolNode& node : nodes_) before_.push_back(before_.back() + node.threads);
    for (int i = 0; i < num_nodes(); ++i)
        for (int thread = i == 0; thread < node(i).threads; ++thread)
            workers_.emplace_back([this, i] { loop(i); });
}

Pool::~Pool() {
    stopping_.store(true);
    part_.fetch_add(1);
    part_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::run_chunks(int64_t num_chunks, Call call, const void* context) {
    if (num_chunks <= 1 || workers_.empty()) {
        for (int64_t chunk = 0; chunk < num_chunks; ++chunk) call(context, chunk);
        return;
    }
    call_ = call;
    context_ = context;
    pending_.store(static_cast<uint32_t>(num_chunks), std::memory_order_relaxed);
    const uint32_t part = part_.load(std::memory_order_relaxed) + 1;
    int64_t begin = 0;
    for (int i = 0; i < num_nodes(); begin = queues_[i++].end)
        queues_[i].chunks.store((uint64_t{part} << 32) | static_cast<uint32_t>(queues_[i].end - begin),
                                std::memory_order_release);
    part_.store(part, std::memory_order_release);
    part_.notify_all();
    take_chunks(part, current_node());
    uint32_t pending = pending_.load(std::memory_order_acquire);
    while (pending != 0) pending = await_change(pending_, pending);
}

void Pool::take_chunks(uint32_t part, int node) {
    for (int i = 0; i < num_nodes(); ++i) take_from(queues_[(node + i) % num_nodes()], part);
}

void Pool::take_from(Queue& queue, uint32_t part) {
    uint64_t chunks = queue.chunks.load(std::memory_order_acquire);
    for (;;) {
        const uint64_t left = chunks & 0xffffffff;
        if (chunks >> 32 != part || left == 0) return;
        if (!queue.chunks.compare_exchange_weak(chunks, chunks - 1, std::memory_order_acq_rel,
                                                std::memory_order_acquire))
            continue;
        call_(context_, queue.end - static_cast<int64_t>(left));
        if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_all();
        chunks = queue.chunks.load(std::memory_order_acquire);
    }
}

void Pool::loop(int node) {
    bind_to(nodes_[static_cast<size_t>(node)].cpus);
    uint32_t part = 0;
    for (;;) {
        part = await_change(part_, part);
        if (stopping_.load()) return;
        take_chunks(part, node);
    }
}

int Pool::current_node() const {
#if defined(__linux__)
    if (num_nodes() > 1) {
        const int cpu = sched_getcpu();
        for (int i = 0; i < num_nodes(); ++i)
            if (std::find(node(i).cpus.begin(), node(i).cpus.end(), cpu) != node(i).cpus.end())
                return i;
    }
#endif
    return 0;
}

uint8_t* thread_memory(int64_t bytes) {
    static thread_local std::vector<uint8_t> memory;
    constexpr size_t kAlignment = 64;
    const size_t room = static_cast<size_t>(bytes) + kAlignment;
    if (memory.size() < room) memory.resize(room);
    const size_t beyond = reinterpret_cast<uintptr_t>(memory.data()) % kAlignment;
    return memory.data() + (kAlignment - beyond) % kAlignment;
}

}  // namespace pagoda
