// What this process may use of the machine it runs on.
#pragma once

#include <cstddef>
#include <string>

namespace descend {

// The number of cores in the affinity mask, limited by the cgroup's CPU quota (rounded up). At least 1.
int usable_cores();

// The size of physical memory, limited by the cgroup's limit. 0 if unknown.
size_t usable_memory();

// How much memory can be allocated before the system must swap, limited by what is left below the cgroup's limit.
size_t available_memory();

// The resident memory of this process.
size_t resident_memory();

// The core that this thread runs on; -1 if unknown.
int current_core();

// Keeps this thread off a core from now on, if it may use any other. The core of the previous call is allowed again.
void avoid_core(int core);

namespace detail {

struct CgroupLimits {
  double cores = 0;        // 0: no limit
  size_t memory = 0;       // 0: no limit
  size_t memory_left = 0;  // below the limit; 0: no limit
};
// Reads <root>/proc/self/cgroup, <root>/proc/self/mountinfo and what they point to; root is "" but for tests.
CgroupLimits cgroup_limits(const std::string& root);

}  // namespace detail
}  // namespace descend
