// Large memory: where it comes from, and what the system can be told about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace pagoda {

// Asks for huge pages behind the whole ones in [data, data + bytes), which must not have been
// written to yet to profit at once. False where the system has none. One layer's attention over
// 4096 scattered tokens: 142 us with them, 189 us without.
bool use_huge_pages(void* data, int64_t bytes);

// The whole pages in [data, data + bytes), which must not have been written to yet, are to come from
// the memory of this number, as long as that has room. False where the system cannot do that.
bool prefer_memory(void* data, int64_t bytes, int memory);

// Reading [data, data + bytes) next will come from memory and from no cache. False where a process
// cannot ask for that.
bool drop_from_caches(const void* data, int64_t bytes);

// Bytes of a file, mapped for reading, from `offset` on, which is a whole number of pages. They are
// in memory as long as the system has room for them. Throws std::system_error, also for a file that
// ends before.
std::shared_ptr<uint8_t> map_file(const std::string& path, int64_t offset, int64_t bytes);

// Has a mapped file's bytes [data, data + bytes) read from its disk, and does not wait for them.
void read_ahead(const void* data, int64_t bytes);

// Zeros, not touched yet, aligned to 64 bytes. Consecutive pieces lie side by side in regions of
// huge pages: a small model's matrices are each smaller than one, and a step reads all of them.
// A piece gives its pages back when it goes, a region its addresses when its last piece does. Throws
// std::bad_alloc.
std::shared_ptr<uint8_t> allocate_weights(size_t bytes);

}  // namespace pagoda
