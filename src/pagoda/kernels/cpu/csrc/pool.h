// A pool of threads for steps of many short parallel parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace pagoda {

// Calls `body(chunk)` for each chunk of a part on all threads, the caller's included. Chunks are
// handed out one by one, so that a thread that is not scheduled delays one chunk and not the part.
// One caller at a time.
class Pool {
   public:
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

    template <typename Body>
    void run(int64_t num_chunks, const Body& body) {
        if (num_chunks <= 1 || workers_.empty()) {
            for (int64_t chunk = 0; chunk < num_chunks; ++chunk) body(chunk);
            return;
        }
        run_parallel(static_cast<uint32_t>(num_chunks), [](const void* context, int64_t chunk) {
            (*static_cast<const Body*>(context))(chunk);
        }, &body);
    }

   private:
    using Call = void (*)(const void* context, int64_t chunk);

    void run_parallel(uint32_t num_chunks, Call call, const void* context);
    void take_chunks(uint32_t part);
    void loop();

    // Which part it is (upper half) and how many of its chunks are still to be taken (lower). A
    // thread reads what a part is only after it has taken a chunk of it: until that chunk is done
    // the caller cannot go on to the next part.
    alignas(64) std::atomic<uint64_t> chunks_{0};
    alignas(64) std::atomic<uint32_t> pending_{0};
    alignas(64) std::atomic<uint32_t> part_{0};
    Call call_ = nullptr;
    const void* context_ = nullptr;
    uint32_t num_chunks_ = 0;
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> workers_;
};

}  // namespace pagoda
