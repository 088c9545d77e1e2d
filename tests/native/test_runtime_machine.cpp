#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/handover.h"
#include "runtime/machine.h"
#include "runtime/status.h"
#include "runtime/thread_count.h"

using namespace descend;

TEST_CASE("the default number of threads") {
  Status status;
  const auto threads = [&](const char* descend, const char* omp, int cores) {
    return detail::default_threads(descend, omp, cores, &status);
  };
  CHECK(threads(nullptr, nullptr, 8) == 8);
  CHECK(threads(nullptr, "4", 8) == 4);
  CHECK(threads(nullptr, " 4 ", 8) == 4);
  CHECK(threads(nullptr, "4,2", 8) == 4);
  CHECK(threads(nullptr, "16", 8) == 8);
  for (const char* bad : {"", "0", "-2", "many", "4x", "4;2", "3.5", ","}) CHECK(threads(nullptr, bad, 8) == 8);
  CHECK(threads("3", "4", 8) == 3);
  CHECK(threads("64", "4", 2) == 64);
  CHECK(threads("", "4", 8) == 4);
  CHECK(status.ok());
  for (const char* bad : {"0", "-1", "4,2", "four", "1025", "99999999999999999999", " "}) {
    status = {};
    CHECK(threads(bad, "4", 8) == 4);
    CHECK(status.code == Code::kRuntimeError);
    CHECK(status.sentence.find("DESCEND_NUM_THREADS") == 0);
  }
  set_num_threads(100000);
  CHECK(num_threads() == kMaxThreads);
  set_num_threads(-5);
  CHECK(num_threads() >= 1);
  set_num_threads(0);
  CHECK(num_threads() >= 1);
  CHECK(num_threads_status().ok());
}

TEST_CASE("cgroup limits") {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("descend-cgroup-" + std::to_string(getpid()));
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  const auto limits = [&] { return detail::cgroup_limits(root.string()); };

  CHECK(limits().cores == 0);  // nothing there at all
  write(
      "proc/self/mountinfo",
      "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n22 1 8:1 / / rw - ext4 x rw\n");
  write("proc/self/cgroup", "0::/outer/inner\n");
  CHECK(limits().cores == 0);
  write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  CHECK(limits().cores == 0);
  CHECK(limits().memory == 0);
  write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/outer/memory.max", "1073741824\n");
  CHECK(limits().cores == doctest::Approx(1.5));
  CHECK(limits().memory == size_t{1} << 30);
  CHECK(limits().memory_left == size_t{1} << 30);
  write("sys/fs/cgroup/outer/memory.current", "1000000000\n");
  CHECK(limits().memory_left == 73741824);
  write("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 300000000\nactive_file 5\n");
  CHECK(limits().memory_left == 373741824);
  write("sys/fs/cgroup/outer/memory.current", "1373741824\n");
  CHECK(limits().memory_left == 1);  // 0 is no limit
  write("sys/fs/cgroup/outer/inner/cpu.max", "50000 100000\n");
  CHECK(limits().cores == doctest::Approx(0.5));

  fs::remove_all(root);
  write("proc/self/mountinfo",
        "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 31 0:30 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  write("proc/self/cgroup", "5:cpuacct,cpu:/docker/abc\n4:memory:/docker/abc\n3:cpuset:/\nnonsense\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(limits().cores == 0);
  CHECK(limits().memory == 0);
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
  CHECK(limits().cores == doctest::Approx(2.5));
  CHECK(limits().memory_left == 0);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500\n");
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 200\n");
  CHECK(limits().memory_left == 700);
  fs::remove_all(root);

  CHECK(usable_cores() >= 1);
  CHECK(usable_memory() > 0);
}

TEST_CASE("a cache line comes from one processor to another") {
  const double way = handover_seconds(0.01);
  CHECK((way == 0 || (way > 1e-9 && way < 10e-6)));  // 0: others were at work
  if (usable_cores() < 2) CHECK(way == 0);
}
