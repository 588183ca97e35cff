// What one input asks for: choices from its bytes first, then from a generator that they seed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace fuzz {

class Input {
   public:
    Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {
        for (const uint8_t* p = data; p < end_; ++p) state_ = (state_ ^ *p) * 0x100000001B3u;
    }

    uint64_t bits() {
        state_ += 0x9E3779B97F4A7C15u;
        uint64_t x = state_;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
    }

    // From `least` to `most`, both included.
    int64_t number(int64_t least, int64_t most) {
        const uint64_t from = at_ < end_ ? *at_++ : bits() >> 8;
        return least + static_cast<int64_t>(from % static_cast<uint64_t>(most - least + 1));
    }
    bool flag() { return number(0, 1) != 0; }
    template <typename T, size_t kCount>
    T one_of(const T (&values)[kCount]) {
        return values[number(0, kCount - 1)];
    }

    // Numbers as models make them and as they should not: one input has one to three of the kinds.
    void choose_floats() { kinds_ = static_cast<uint32_t>(number(0, 255)); }
    float real() {
        constexpr float kInf = __builtin_inff();
        static constexpr float kOdd[] = {0.0f, -0.0f, 1e-45f, -1e-39f, 3.4e38f, -3.4e38f,
                                         kInf, -kInf, __builtin_nanf(""), 65504.0f, 1e-8f, 127.5f};
        const uint64_t x = bits();
        const float plain = static_cast<float>(static_cast<int64_t>(x >> 40) - (1 << 23)) * 0x1p-22f;
        switch (kinds_ % 8) {
            case 0: case 1: case 2: return plain;
            case 3: return kOdd[x % 12];
            case 4: return x % 16 == 0 ? kOdd[x / 16 % 12] : plain;
            case 5: return plain * 1e30f;
            case 6: return plain * 1e-38f;
            default: return 0.0f;
        }
    }

   private:
    const uint8_t* at_;
    const uint8_t* end_;
    uint64_t state_ = 0xCBF29CE484222325u;
    uint32_t kinds_ = 0;
};

// Exactly so many elements at the end of an allocation, so that ASan sees the first read or write
// beyond them. They begin at any address that is a multiple of their own size.
template <typename T>
class Buffer {
   public:
    Buffer(Input& in, int64_t count, bool odd_address = true)
        : gap_(odd_address ? static_cast<size_t>(in.bits() % 16) : 0),
          memory_(new T[gap_ + static_cast<size_t>(count)]()),
          count_(static_cast<size_t>(count)) {}

    T* data() const { return memory_.get() + gap_; }
    T& operator[](int64_t i) const { return data()[i]; }
    int64_t size() const { return static_cast<int64_t>(count_); }

    Buffer& with_reals(Input& in) {
        for (int64_t i = 0; i < size(); ++i) data()[i] = static_cast<T>(in.real());
        return *this;
    }
    Buffer& with_bytes(Input& in) {
        auto* bytes = reinterpret_cast<uint8_t*>(data());
        for (size_t i = 0; i < count_ * sizeof(T); ++i) bytes[i] = static_cast<uint8_t>(in.bits());
        return *this;
    }

   private:
    size_t gap_;
    std::unique_ptr<T[]> memory_;
    size_t count_;
};

inline void fail(const char* what) {
    std::fprintf(stderr, "FOUND: %s\n", what);
    std::abort();
}

inline void expect(bool holds, const char* what) {
    if (!holds) fail(what);
}

// Bit by bit; one NaN is like another.
inline void expect_equal(const float* a, const float* b, int64_t count, const char* what) {
    for (int64_t i = 0; i < count; ++i)
        if (std::memcmp(a + i, b + i, 4) != 0 && (a[i] == a[i] || b[i] == b[i])) fail(what);
}

}  // namespace fuzz
