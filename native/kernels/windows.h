// Windows over the tokens of packed sequences: `width` tokens each, one every `stride` tokens, none across two
// sequences.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

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

// Neighbouring tokens that the same windows cover. Numbers count from the beginning of the sequence.
struct TokenRun {
  int64_t end;    // token
  int64_t first;  // window
  int64_t last;   // window; below `first` where none covers the tokens

  // The longest run from `token` on among the windows [from, to).
  TokenRun(const Windows& w, int64_t token, int64_t from, int64_t to) {
    const int64_t step = token / w.stride;
    last = std::min(step, to - 1);
    first = std::max(from, token < w.width ? 0 : (token - w.width) / w.stride + 1);
    end = step < to - 1 ? (step + 1) * w.stride : std::numeric_limits<int64_t>::max();
    if (first <= last) end = std::min(end, first * w.stride + w.width);
  }
};

}  // namespace descend::kernels
