#include "runtime/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <sched.h>
#endif

namespace descend {
namespace {

// Whether a comma-separated list has this name.
bool lists(const std::string& list, const std::string& name) {
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) {
    if (item == name) return true;
  }
  return false;
}

// A number in a file, or 0: for "max", "-1", a file that is missing.
double number_in(const std::string& path) {
  double number = 0;
  std::ifstream(path) >> number;
  return std::max(number, 0.0);
}

double cores_v2(const std::string& folder) {
  std::ifstream in(folder + "/cpu.max");
  double quota = 0, period = 0;
  return in >> quota >> period && quota > 0 && period > 0 ? quota / period : 0;
}

double cores_v1(const std::string& folder) {
  const double quota = number_in(folder + "/cpu.cfs_quota_us");
  const double period = number_in(folder + "/cpu.cfs_period_us");
  return quota > 0 && period > 0 ? quota / period : 0;
}

double memory_v2(const std::string& folder) { return number_in(folder + "/memory.max"); }
double memory_v1(const std::string& folder) { return number_in(folder + "/memory.limit_in_bytes"); }

// From a file of names and numbers, the number after a name; 0 if the name is missing.
double number_after(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  std::string word;
  for (double number = 0; in >> word;) {
    if (word != name) continue;
    return in >> number ? number : 0;
  }
  return 0;
}

// What is left below a limit. Page cache that the kernel can drop counts as left. At least 1, since 0 means no limit.
double left_of(double limit, double used, double droppable) {
  return limit > 0 ? std::max(limit - std::max(used - droppable, 0.0), 1.0) : 0;
}
double memory_left_v2(const std::string& folder) {
  return left_of(memory_v2(folder), number_in(folder + "/memory.current"),
                 number_after(folder + "/memory.stat", "inactive_file"));
}
double memory_left_v1(const std::string& folder) {
  return left_of(memory_v1(folder), number_in(folder + "/memory.usage_in_bytes"),
                 number_after(folder + "/memory.stat", "total_inactive_file"));
}

struct Mount {
  std::string root, point, type, options;
};

std::vector<Mount> cgroup_mounts(const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream in(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    // id parent major:minor root point options [optional fields] - type source super-options
    std::istringstream fields(line);
    Mount mount;
    std::string word;
    fields >> word >> word >> word >> mount.root >> mount.point;
    while (fields >> word && word != "-") {
    }
    fields >> mount.type >> word >> mount.options;
    if (mount.type == "cgroup" || mount.type == "cgroup2") mounts.push_back(std::move(mount));
  }
  return mounts;
}

// The lowest limit of the process's group and the groups above it, up to the mount point. 0 if none is set.
double least(const std::string& root, const Mount& mount, std::string path, double (*read)(const std::string&)) {
  // In a container the mount shows only the part of the tree below mount.root.
  if (mount.root != "/" && path.compare(0, mount.root.size(), mount.root) == 0) path.erase(0, mount.root.size());
  double result = 0;
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    const double limit = read(root + mount.point + path);
    if (limit > 0 && (result == 0 || limit < result)) result = limit;
    if (path.empty()) return result;
    path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

void hold_down(double& value, double limit) {
  if (limit > 0 && (value == 0 || limit < value)) value = limit;
}

}  // namespace

namespace detail {

CgroupLimits cgroup_limits(const std::string& root) {
  const std::vector<Mount> mounts = cgroup_mounts(root);
  double cores = 0, memory = 0, memory_left = 0;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    // hierarchy:controllers:path, where version 2 has no controllers
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    for (const Mount& mount : mounts) {
      if (controllers.empty() && mount.type == "cgroup2") {
        hold_down(cores, least(root, mount, path, cores_v2));
        hold_down(memory, least(root, mount, path, memory_v2));
        hold_down(memory_left, least(root, mount, path, memory_left_v2));
      } else if (mount.type == "cgroup") {
        if (lists(controllers, "cpu") && lists(mount.options, "cpu")) {
          hold_down(cores, least(root, mount, path, cores_v1));
        }
        if (lists(controllers, "memory") && lists(mount.options, "memory")) {
          hold_down(memory, least(root, mount, path, memory_v1));
          hold_down(memory_left, least(root, mount, path, memory_left_v1));
        }
      }
    }
  }
  CgroupLimits limits;
  limits.cores = cores;
  // Version 1 writes "none" as 2^63.
  if (memory > 0 && memory < 0x1p62) limits.memory = static_cast<size_t>(memory);
  if (memory_left > 0 && memory_left < 0x1p61) limits.memory_left = static_cast<size_t>(memory_left);
  return limits;
}

}  // namespace detail

int usable_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  // The kernel refuses a mask smaller than its own.
  for (int bits = 1024; bits <= (1 << 20); bits *= 2) {
    cpu_set_t* set = CPU_ALLOC(bits);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(bits);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    if (known) cores = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    if (known) break;
  }
  const double quota = detail::cgroup_limits("").cores;
  if (quota > 0 && quota < cores) cores = static_cast<int>(std::ceil(quota));
#endif
  return std::max(cores, 1);
}

size_t usable_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  size_t bytes = pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : 0;
#if defined(__linux__)
  const size_t limit = detail::cgroup_limits("").memory;
  if (limit > 0 && (bytes == 0 || limit < bytes)) bytes = limit;
#endif
  return bytes;
}

size_t available_memory() {
#if defined(__linux__)
  size_t bytes = static_cast<size_t>(number_after("/proc/meminfo", "MemAvailable:")) * 1024;
  const size_t left = detail::cgroup_limits("").memory_left;
  if (left > 0 && (bytes == 0 || left < bytes)) bytes = left;
  return bytes;
#else
  return usable_memory();
#endif
}

size_t resident_memory() {
  size_t pages = 0;
#if defined(__linux__)
  std::ifstream in("/proc/self/statm");
  in >> pages >> pages;  // the size of the address space, then the resident size
#endif
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

int current_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

void avoid_core([[maybe_unused]] int core) {
#if defined(__linux__)
  thread_local cpu_set_t allowed, narrowed;
  cpu_set_t now;
  if (sched_getaffinity(0, sizeof now, &now) != 0) return;
  if (!CPU_EQUAL(&now, &narrowed)) allowed = now;  // else it is the mask that the last call set
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<size_t>(core), &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0) narrowed = others;
#endif
}

}  // namespace descend
