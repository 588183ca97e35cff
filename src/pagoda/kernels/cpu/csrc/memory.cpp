#include "memory.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace pagoda {
namespace {

constexpr size_t kHugePage = 2 << 20;
// Addresses, not memory: what no matrix fills is never touched.
constexpr size_t kRegion = size_t{64} << 20;
// Linux reads this much of what one call asks for, unless a disk is set to less. Of a longer range
// it may leave out the rest.
constexpr size_t kReadAhead = 128 << 10;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

class OpenFile {
   public:
    explicit OpenFile(const std::string& path) : handle(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (handle < 0) throw std::system_error(errno, std::generic_category(), path);
    }
    ~OpenFile() { close(handle); }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    const int handle;
};

class Region {
   public:
    explicit Region(size_t bytes) : size_(bytes + kHugePage) {
        void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        memory_ = static_cast<uint8_t*>(memory);
        use_huge_pages(memory_, static_cast<int64_t>(size_));
        next_ = reinterpret_cast<uint8_t*>(
            round_up(reinterpret_cast<uintptr_t>(memory_), kHugePage));
    }
    ~Region() { munmap(memory_, size_); }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    // Null where there is no room.
    uint8_t* take(size_t bytes) {
        if (bytes > static_cast<size_t>(memory_ + size_ - next_)) return nullptr;
        uint8_t* const taken = next_;
        next_ += std::min(round_up(bytes, 64), static_cast<size_t>(memory_ + size_ - next_));
        return taken;
    }

   private:
    size_t size_;
    uint8_t* memory_;
    uint8_t* next_;
};

// Gives the system the whole pages of what nobody reads any more.
void drop(uint8_t* data, size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = round_up(reinterpret_cast<uintptr_t>(data), page);
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

bool use_huge_pages(void* data, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t begin = round_up(reinterpret_cast<uintptr_t>(data), kHugePage);
    const uintptr_t end =
        (reinterpret_cast<uintptr_t>(data) + static_cast<size_t>(bytes)) / kHugePage * kHugePage;
    return begin < end && madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) == 0;
#else
    (void)data;
    (void)bytes;
    return false;
#endif
}

bool prefer_memory(void* data, int64_t bytes, int memory) {
#if defined(__linux__) && defined(SYS_mbind)
    constexpr int kPreferred = 1, kBits = 64;  // MPOL_PREFERRED
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = round_up(reinterpret_cast<uintptr_t>(data), page);
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<size_t>(bytes)) / page * page;
    if (begin >= end || memory < 0 || memory >= kBits) return false;
    const unsigned long mask = 1UL << memory;
    // The kernel counts one bit less than it is told.
    return syscall(SYS_mbind, begin, end - begin, kPreferred, &mask, kBits + 1, 0) == 0;
#else
    (void)data;
    (void)bytes;
    (void)memory;
    return false;
#endif
}

bool drop_from_caches(const void* data, int64_t bytes) {
    constexpr int64_t kLine = 64;
    const char* const begin = static_cast<const char*>(data);
#if defined(__x86_64__)
    for (int64_t i = 0; i < bytes; i += kLine) _mm_clflush(begin + i);
    _mm_mfence();
    return true;
#elif defined(__aarch64__) && defined(__linux__)
    for (int64_t i = 0; i < bytes; i += kLine)
        asm volatile("dc civac, %0" ::"r"(begin + i) : "memory");
    asm volatile("dsb ish" ::: "memory");
    return true;
#else
    (void)begin;
    (void)bytes;
    return false;
#endif
}

std::shared_ptr<uint8_t> map_file(const std::string& path, int64_t offset, int64_t bytes) {
    const OpenFile file(path);
    struct stat about;
    if (fstat(file.handle, &about) != 0)
        throw std::system_error(errno, std::generic_category(), path);
    if (offset < 0 || bytes < 0 || about.st_size < offset + bytes)
        throw std::system_error(std::make_error_code(std::errc::invalid_seek), path);
    const size_t size = static_cast<size_t>(bytes);
    void* const memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.handle, offset);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path);
    return {static_cast<uint8_t*>(memory), [size](uint8_t* mapped) { munmap(mapped, size); }};
}

void read_ahead(const void* data, int64_t bytes) {
#if defined(MADV_WILLNEED)
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t first = reinterpret_cast<uintptr_t>(data);
    const uintptr_t end = first + static_cast<uintptr_t>(bytes);
    for (uintptr_t at = first / page * page; at < end; at += kReadAhead)
        madvise(reinterpret_cast<void*>(at), std::min<size_t>(kReadAhead, end - at), MADV_WILLNEED);
#else
    (void)data;
    (void)bytes;
#endif
}

std::shared_ptr<uint8_t> allocate_weights(size_t bytes) {
    static std::mutex busy;
    static std::weak_ptr<Region> current;
    const std::lock_guard<std::mutex> turn(busy);
    std::shared_ptr<Region> region = current.lock();
    uint8_t* memory = region == nullptr ? nullptr : region->take(bytes);
    if (memory == nullptr) {
        region = std::make_shared<Region>(std::max(bytes, kRegion));
        memory = region->take(bytes);
        current = region;
    }
    return {memory, [bytes, region = std::move(region)](uint8_t* piece) { drop(piece, bytes); }};
}

}  // namespace pagoda
