// Experts in files, read from a disk as steps choose them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "packed.h"

namespace pagoda {

// Packed matrices that hold the same experts, a part of each one after another.
struct ExpertViews {
    const std::vector<MatrixView>* matrices;
    int64_t first;  // id of the first expert that they hold
    int64_t count;
};

// Asks for experts before their products read them. A thread that finds a page missing waits for
// that one: a disk then has as many things to do at a time as there are threads, which is too few
// to be fast.
class ExpertReader {
   public:
    ExpertReader() = default;
    ~ExpertReader();
    ExpertReader(const ExpertReader&) = delete;
    ExpertReader& operator=(const ExpertReader&) = delete;

    // Called in front of a layer's products. `ids` are what its tokens chose: those that a file
    // holds are asked for. Where they are most of the layer's experts (a prompt's), so are all of
    // `next`, which a later layer reads from files, on a thread of its own. `next` may be empty.
    void ask(const ExpertViews& layer, const int64_t* ids, int64_t num_ids,
             const std::vector<MatrixView>& next);

   private:
    void start(const std::vector<MatrixView>& matrices);
    void loop();

    const uint8_t* asked_ = nullptr;  // of `next`, as long as its layer is yet to come
    std::mutex busy_;
    std::condition_variable changed_;
    std::vector<MatrixView> waiting_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace pagoda
