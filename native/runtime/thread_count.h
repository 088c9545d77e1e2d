// How many threads a call may use where the program has not chosen. num_threads() in parallel.h is the number.
#pragma once

#include "runtime/status.h"

namespace descend {

// ok, or the sentence that says what is wrong with DESCEND_NUM_THREADS; checked by phase 1.
const Status& num_threads_status();

namespace detail {
struct ThreadDefault {
  int threads = 1;
  Status status;
};
// DESCEND_NUM_THREADS, else OMP_NUM_THREADS capped by, else equal to, the cores that this process may use (affinity and
// cgroup quota); null for a variable that is not set.
ThreadDefault default_threads(const char* descend_num_threads, const char* omp_num_threads, int cores);
}  // namespace detail

}  // namespace descend
