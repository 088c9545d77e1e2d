// What a fuzzer's input decides, and how a fuzzer says what is wrong.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

#include "acl/acl.h"

namespace fuzz {

// Whether no other thread makes calls: those that change the whole process are made only then.
inline bool is_alone = true;

// Choices, read from the input. At its end every choice is the first one.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

  bool left() const { return next_ != end_; }
  int64_t below(int64_t count) {
    if (count <= 1) return 0;
    return static_cast<int64_t>(take(count <= 256 ? 1 : count <= 65536 ? 2 : 4) % static_cast<uint64_t>(count));
  }
  bool one_in(int64_t count) { return below(count) == 1; }
  uint32_t number() { return static_cast<uint32_t>(take(4)); }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }
  // Numbers at which sizes overflow and signs change.
  int64_t hostile() {
    return pick<int64_t>({-1,
                          0,
                          1,
                          2,
                          3,
                          15,
                          17,
                          4096,
                          4097,
                          INT32_MAX,
                          int64_t{1} << 31,
                          int64_t{1} << 32,
                          int64_t{1} << 58,
                          int64_t{1} << 59,
                          (int64_t{1} << 61) + 1,
                          int64_t{1} << 62,
                          INT64_MAX,
                          INT64_MAX - 1,
                          INT64_MIN,
                          INT64_MIN + 1,
                          -2,
                          -4096,
                          -(int64_t{1} << 32)});
  }

 private:
  const uint8_t *next_, *end_;

  uint64_t take(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | (left() ? *next_++ : 0);
    return value;
  }
};

// The calls whose statuses were compared, in all inputs.
inline std::atomic<uint64_t> calls_checked{0};

[[noreturn]] inline void fault(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\nThe last sentence: %s\n", what.c_str(), aclGetRecentErrMsg());
  std::abort();
}

// The statuses that a call may return: a few, in no order. It allocates nothing, since there is one for each call.
class Codes {
 public:
  Codes(std::initializer_list<int> codes) {
    for (int code : codes) insert(code);
  }
  void insert(int code) {
    if (has(code)) return;
    if (count_ == kMost) fault("the model allows too many statuses");
    codes_[count_++] = code;
  }
  void insert(const Codes& others) {
    for (int code : others) insert(code);
  }
  bool has(int code) const {
    for (int one : *this) {
      if (one == code) return true;
    }
    return false;
  }
  bool is_only(int code) const { return count_ == 1 && codes_[0] == code; }
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  const int* begin() const { return codes_; }
  const int* end() const { return codes_ + count_; }

 private:
  static constexpr size_t kMost = 12;
  int codes_[kMost] = {};
  size_t count_ = 0;
};

inline Codes only_if(bool fine, int code) { return {fine ? 0 : code}; }

// Checks a status, and that a refusal comes with a sentence. `detail` is added to the name of the function.
inline void expect(const char* who, int status, const Codes& allowed, const char* detail = "") {
  calls_checked.fetch_add(1, std::memory_order_relaxed);
  if (!allowed.has(status)) {
    std::string list;
    for (int code : allowed) list += (list.empty() ? "" : " or ") + std::to_string(code);
    fault(std::string(who) + detail + " returned " + std::to_string(status) + ", but must return " + list);
  }
  const std::string_view sentence = status == 0 ? "" : aclGetRecentErrMsg();
  if (status != 0 && (sentence.size() < 20 || sentence.back() != '.')) {
    fault(std::string(who) + detail + " gave no sentence");
  }
}

}  // namespace fuzz
