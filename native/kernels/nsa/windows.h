// Windows over the tokens of packed sequences: `width` tokens each, one every `stride` tokens, none across two
// sequences.
#pragma once

#include <algorithm>
#include <cstdint>

namespace descend::kernels {

struct Sequence {
  int64_t token;   // the first
  int64_t tokens;  // at least 1
  int64_t window;  // the first, where there is one
  int64_t windows;
};

struct Windows {
  int64_t width;
  int64_t stride;
  const Sequence* sequences;  // one after the other from token 0; tokens beyond the last belong to none
  int64_t count;

  // The sequence that has the token, or `count`.
  int64_t find_token(int64_t token) const {
    const auto* found = std::partition_point(sequences, sequences + count,
                                             [&](const Sequence& s) { return s.token + s.tokens <= token; });
    return found - sequences;
  }
  int64_t find_window(int64_t window) const {
    const auto* found = std::partition_point(sequences, sequences + count,
                                             [&](const Sequence& s) { return s.window + s.windows <= window; });
    return found - sequences;
  }
};

// Tokens [begin, end) of a sequence and the windows among [from, to) that cover all of them: calls
// f(begin, end, oldest, newest) for one stretch after the other, which no window begins or ends within; where none
// covers it, newest is below oldest. Tokens and windows count from the beginning of the sequence. A stretch never
// leaves its block of `stride` tokens, and ends where a window would, whether or not there is one.
template <class F>
void for_each_stretch(const Windows& windows, int64_t begin, int64_t end, int64_t from, int64_t to, F f) {
  const int64_t stride = windows.stride;
  const int64_t whole = windows.width / stride, cut = windows.width % stride;
  int64_t block = begin / stride;
  while (begin < end) {
    const int64_t newest = std::min(block, to - 1);
    const auto up_to = [&](int64_t stop, int64_t oldest) {
      stop = std::min(stop, end);
      if (begin >= stop) return;
      f(begin, stop, std::max(oldest, from), newest);
      begin = stop;
    };
    up_to(block * stride + cut, block - whole);
    up_to((block + 1) * stride, block - whole + 1);
    ++block;
  }
}

}  // namespace descend::kernels
