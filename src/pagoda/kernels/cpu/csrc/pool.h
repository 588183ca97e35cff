// A pool of threads for steps of many short parallel parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace pagoda {

constexpr int kMaxNodes = 16;

// Threads beside a memory of their own, on a machine that has several.
struct PoolNode {
    int memory;             // its number in Linux
    std::vector<int> cpus;  // its threads run on these; empty: on any
    int threads;
};

// Calls `body(chunk)` for each chunk of a part on all threads, the caller's included. Chunks are
// handed out one by one, so that a thread that is not scheduled delays one chunk and not the part.
// Where there are several nodes, each has chunks of its own: its threads take these first, and
// then what others have left. One caller at a time.
class Pool {
   public:
    explicit Pool(int num_threads) : Pool(std::vector<PoolNode>{{0, {}, num_threads}}) {}
    // 1 to kMaxNodes, and one thread at least in each. The caller counts as one of the first.
    explicit Pool(std::vector<PoolNode> nodes);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return before_.back(); }
    int num_nodes() const { return static_cast<int>(nodes_.size()); }
    const PoolNode& node(int index) const { return nodes_[static_cast<size_t>(index)]; }

    // Of `count` equal things a node has those from here on, up to where the next one's begin.
    int64_t first_of(int node, int64_t count) const {
        return count * before_[static_cast<size_t>(node)] / num_threads();
    }

    template <typename Body>
    void run(int64_t num_chunks, const Body& body) {
        run(num_chunks, [&](int node) { return first_of(node, num_chunks); }, body);
    }

    // `first_chunk(node)` is where a node's chunks begin; they rise from 0, and those of the last
    // node end with `num_chunks`.
    template <typename FirstChunk, typename Body>
    void run(int64_t num_chunks, const FirstChunk& first_chunk, const Body& body) {
        for (int i = 0; i < num_nodes(); ++i)
            queues_[i].end = i + 1 < num_nodes() ? first_chunk(i + 1) : num_chunks;
        // One call, be there threads or not: each one here is a copy of a kernel to compile.
        run_chunks(num_chunks, [](const void* context, int64_t chunk) {
            (*static_cast<const Body*>(context))(chunk);
        }, &body);
    }

   private:
    using Call = void (*)(const void* context, int64_t chunk);

    // Which part it is (upper half) and how many of its chunks are still to be taken (lower). A
    // thread reads what a part is only after it has taken a chunk of it: until that chunk is done
    // the caller cannot go on to the next part.
    struct alignas(64) Queue {
        std::atomic<uint64_t> chunks{0};
        int64_t end = 0;  // behind the last chunk
    };

    void run_chunks(int64_t num_chunks, Call call, const void* context);
    void take_chunks(uint32_t part, int node);
    void take_from(Queue& queue, uint32_t part);
    void loop(int node);
    // That of the CPU which this thread is on.
    int current_node() const;

    std::vector<PoolNode> nodes_;
    std::vector<int> before_;  // threads of the nodes before each, and of all
    std::unique_ptr<Queue[]> queues_;
    alignas(64) std::atomic<uint32_t> pending_{0};
    alignas(64) std::atomic<uint32_t> part_{0};
    Call call_ = nullptr;
    const void* context_ = nullptr;
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> workers_;
};

// So many bytes, aligned to 64, that are the calling thread's until it asks again.
uint8_t* thread_memory(int64_t bytes);

}  // namespace pagoda
