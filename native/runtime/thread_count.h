// How many threads one call may use, the caller's included.
#pragma once

namespace descend {

struct Status;

// What set_num_threads chose, else DESCEND_NUM_THREADS, else OMP_NUM_THREADS capped by, else equal to, the cores that
// this process may use (affinity and cgroup quota). At most kMaxThreads.
int num_threads();
void set_num_threads(int count);  // count >= 1, more than there are cores is fine; 0 returns to the default
inline constexpr int kMaxThreads = 1024;

// ok, or the sentence that says what is wrong with DESCEND_NUM_THREADS; checked by phase 1.
const Status& num_threads_status();

namespace detail {
// The default as a function of what it depends on; null for a variable that is not set. The status, which is ok before,
// says what is wrong.
int default_threads(const char* descend_num_threads, const char* omp_num_threads, int cores, Status* status);
}  // namespace detail

}  // namespace descend
