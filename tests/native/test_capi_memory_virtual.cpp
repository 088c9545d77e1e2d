// Reserved addresses, physical memory, and the one mapped to the other.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "capi_runtime.h"
#include "in_child.h"

namespace {

constexpr size_t kPiece = size_t{2} << 20;

aclrtPhysicalMemProp properties(aclrtMemAttr attr = ACL_HBM_MEM_HUGE,
                                aclrtMemLocationType type = ACL_MEM_LOCATION_TYPE_DEVICE) {
  aclrtPhysicalMemProp prop{};
  prop.memAttr = attr;
  prop.location.type = type;
  return prop;
}

aclrtDrvMemHandle physical(size_t bytes = kPiece, const aclrtPhysicalMemProp& prop = properties()) {
  aclrtDrvMemHandle handle = nullptr;
  CHECK_MESSAGE(aclrtMallocPhysical(&handle, bytes, &prop, 0) == 0, sentence());
  return handle;
}

char* reserve(size_t bytes) {
  void* start = nullptr;
  CHECK_MESSAGE(aclrtReserveMemAddress(&start, bytes, 0, nullptr, 1) == 0, sentence());
  return static_cast<char*>(start);
}

size_t used() {
  aclrtMemUsageInfo usage{};
  size_t count = 0;
  CHECK(aclrtGetMemUsageInfo(0, &usage, 1, &count) == 0);
  return usage.curMemSize;
}

bool can_write(char* start, size_t bytes) { return aclrtMemset(start, bytes, 1, bytes) == 0; }

}  // namespace

TEST_CASE("a reservation is memory where something is mapped, and nowhere else") {
  const Runtime runtime;
  const size_t before = used();
  char* const start = reserve(8 * kPiece);
  CHECK(reinterpret_cast<uintptr_t>(start) % kPiece == 0);
  CHECK(used() == before);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemset", aclrtMemset(start, 8, 1, 8));
  CHECK(sentence().find("to which no memory is mapped") != std::string::npos);

  std::vector<aclrtDrvMemHandle> handles(8);
  for (auto& handle : handles) handle = physical();
  CHECK(used() == before + 8 * kPiece);
  // In an order in which ranges grow at both ends and meet.
  for (const size_t i : {size_t{2}, size_t{3}, size_t{1}, size_t{5}, size_t{4}}) {
    CHECK_MESSAGE(aclrtMapMem(start + i * kPiece, kPiece, 0, handles[i], 0) == 0, sentence());
  }
  CHECK(can_write(start + kPiece, 5 * kPiece));
  CHECK(!can_write(start, 1));
  CHECK(!can_write(start + kPiece, 5 * kPiece + 1));
  CHECK(sentence().find("but its allocation has " + std::to_string(5 * kPiece)) != std::string::npos);
  CHECK(!can_write(start + 6 * kPiece, 1));
  start[3 * kPiece] = 7;
  CHECK(aclrtUnmapMem(start + 3 * kPiece) == 0);
  CHECK(can_write(start + kPiece, 2 * kPiece));
  CHECK(!can_write(start + kPiece, 2 * kPiece + 1));
  CHECK(!can_write(start + 3 * kPiece, 1));
  CHECK(can_write(start + 4 * kPiece, 2 * kPiece));

  // Physical memory keeps its contents, wherever it is mapped.
  CHECK(aclrtMapMem(start + 7 * kPiece, kPiece, 0, handles[3], 0) == 0);
  CHECK(start[7 * kPiece] == 7);
  // It may be mapped twice, and is freed when it is mapped nowhere and its handle has ended.
  CHECK(aclrtMapMem(start + 3 * kPiece, kPiece, 0, handles[3], 0) == 0);
  start[3 * kPiece + 1] = 9;
  CHECK(start[7 * kPiece + 1] == 9);
  CHECK(aclrtFreePhysical(handles[3]) == 0);
  CHECK(used() == before + 8 * kPiece);
  CHECK(aclrtUnmapMem(start + 3 * kPiece) == 0);
  CHECK(start[7 * kPiece + 1] == 9);
  CHECK(aclrtUnmapMem(start + 7 * kPiece) == 0);
  CHECK(used() == before + 7 * kPiece);

  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtReleaseMemAddress", aclrtReleaseMemAddress(start));
  CHECK(sentence().find("4 pieces of memory must be unmapped") != std::string::npos);
  for (const size_t i : {1, 2, 4, 5}) CHECK(aclrtUnmapMem(start + i * kPiece) == 0);
  for (const size_t i : {0, 1, 2, 4, 5, 6, 7}) CHECK(aclrtFreePhysical(handles[i]) == 0);
  CHECK(used() == before);
  CHECK(aclrtReleaseMemAddress(start) == 0);
  // Other memory now, or none.
  unsigned char resident = 0;
  CHECK(mincore(start, 1, &resident) == -1);
}

TEST_CASE("mapped memory holds what operators read and write") {
  const Runtime runtime;
  char* const start = reserve(4 * kPiece);
  aclrtDrvMemHandle handles[] = {physical(), physical()};
  CHECK(aclrtMapMem(start, kPiece, 0, handles[0], 0) == 0);
  CHECK(aclrtMapMem(start + kPiece, kPiece, 0, handles[1], 0) == 0);
  Problem problem;
  REQUIRE(problem.both(nullptr) == 0);
  const uint64_t expected = problem.digest();
  Problem mapped;
  const auto put = [&](char* to) {
    CHECK(aclSetRawTensorAddr(mapped.x, to) == 0);
    std::memcpy(to, problem.x.data(), problem.x.bytes());
  };
  put(start + kPiece - 64);  // across two pieces
  REQUIRE_MESSAGE(mapped.both(nullptr) == 0, sentence());
  CHECK(mapped.digest() == expected);
  // A storage must end in what is mapped, and begin there.
  for (char* wrong : {start + 2 * kPiece - 64, start + 2 * kPiece, start + 3 * kPiece}) {
    CHECK(aclSetRawTensorAddr(mapped.x, wrong) == 0);
    REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnRmsNormGrad", mapped.both(nullptr));
  }
  // Unmapping waits for the work that uses it.
  put(start + kPiece);
  aclrtStream stream = nullptr;
  CHECK(aclrtCreateStream(&stream) == 0);
  const std::vector<char> source(kPiece, 5);
  for (int i = 0; i < 50; ++i) {
    CHECK(aclrtMemcpyAsync(start + kPiece, kPiece, source.data(), kPiece, ACL_MEMCPY_HOST_TO_DEVICE, stream) == 0);
  }
  CHECK(aclrtUnmapMem(start + kPiece) == 0);
  CHECK(aclrtDestroyStream(stream) == 0);
}  // aclFinalize frees the rest

TEST_CASE("what cannot be reserved, made or mapped is refused") {
  const Runtime runtime;
  void* address = &address;
  aclrtDrvMemHandle handle = &address;
  const aclrtPhysicalMemProp good = properties();
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtReserveMemAddress", aclrtReserveMemAddress(nullptr, kPiece, 0, nullptr, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtReserveMemAddress", aclrtReserveMemAddress(&address, 0, 0, nullptr, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtReserveMemAddress", aclrtReserveMemAddress(&address, kPiece, 8, nullptr, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtReserveMemAddress", aclrtReserveMemAddress(&address, kPiece, 0, nullptr, 2));
  for (const size_t size : {~size_t{0}, ~size_t{0} / 2, size_t{1} << 56}) {
    REFUSED(ACL_ERROR_RT_MEMORY_ALLOCATION, "aclrtReserveMemAddress",
            aclrtReserveMemAddress(&address, size, 0, nullptr, 0));
  }
  CHECK(address == &address);
  char* const start = reserve(4 * kPiece);
  // A requested address is given, or refused if it is in use or not aligned.
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtReserveMemAddress",
          aclrtReserveMemAddress(&address, kPiece, 0, start + kPiece, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtReserveMemAddress",
          aclrtReserveMemAddress(&address, kPiece, 0, start + 4096, 0));
  char* const other = reserve(kPiece);
  CHECK(aclrtReleaseMemAddress(other) == 0);
  CHECK(aclrtReserveMemAddress(&address, kPiece, 0, other, 0) == 0);
  CHECK(address == other);
  CHECK(aclrtReleaseMemAddress(other) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtReleaseMemAddress", aclrtReleaseMemAddress(nullptr));
  for (char* wrong : {other, start + kPiece, reinterpret_cast<char*>(&address)}) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtReleaseMemAddress", aclrtReleaseMemAddress(wrong));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtFree", aclrtFree(wrong));
  }
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtFree", aclrtFree(start));

  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMallocPhysical", aclrtMallocPhysical(nullptr, kPiece, &good, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMallocPhysical", aclrtMallocPhysical(&handle, kPiece, nullptr, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMallocPhysical", aclrtMallocPhysical(&handle, 0, &good, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMallocPhysical", aclrtMallocPhysical(&handle, kPiece, &good, 1));
  size_t free = 0, total = 0;
  CHECK(aclrtGetMemInfo(ACL_HBM_MEM, &free, &total) == 0);
  for (const size_t size : {total + 1, ~size_t{0}}) {
    REFUSED(ACL_ERROR_RT_MEMORY_ALLOCATION, "aclrtMallocPhysical", aclrtMallocPhysical(&handle, size, &good, 0));
  }
  const auto refuse = [&](int code, const aclrtPhysicalMemProp& prop) {
    size_t granularity = 0;
    REFUSED(code, "aclrtMallocPhysical", aclrtMallocPhysical(&handle, kPiece, &prop, 0));
    auto copy = prop;
    REFUSED(code, "aclrtMemGetAllocationGranularity",
            aclrtMemGetAllocationGranularity(&copy, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &granularity));
  };
  aclrtPhysicalMemProp bad = good;
  bad.handleType = ACL_MEM_HANDLE_TYPE_POSIX;
  refuse(ACL_ERROR_INVALID_PARAM, bad);
  bad = good, bad.allocationType = static_cast<aclrtMemAllocationType>(1);
  refuse(ACL_ERROR_INVALID_PARAM, bad);
  bad = good, bad.location.id = 1000;
  refuse(ACL_ERROR_INVALID_DEVICE, bad);
  for (const auto type : {ACL_MEM_LOCATION_TYPE_UNREGISTERED, ACL_MEM_LOCATION_TYPE_MANAGED}) {
    bad = good, bad.location.type = type;
    refuse(ACL_ERROR_INVALID_PARAM, bad);
  }
  refuse(ACL_ERROR_FEATURE_UNSUPPORTED, properties(ACL_MEM_HUGE, ACL_MEM_LOCATION_TYPE_HOST_NUMA));
  for (const auto attr : {ACL_DDR_MEM_HUGE, ACL_DDR_MEM_NORMAL, ACL_HBM_MEM, static_cast<aclrtMemAttr>(99)}) {
    refuse(ACL_ERROR_INVALID_PARAM, properties(attr));
  }
  refuse(ACL_ERROR_INVALID_PARAM, properties(ACL_MEM_HUGE1G, ACL_MEM_LOCATION_TYPE_HOST));
  CHECK(handle == &address);

  handle = physical();
  aclrtDrvMemHandle odd = physical(kPiece + 4096), small = physical(4096, properties(ACL_MEM_NORMAL));
  const auto refuse_map = [&](int code, char* to, size_t size, aclrtDrvMemHandle what) {
    REFUSED(code, "aclrtMapMem", aclrtMapMem(to, size, 0, what, 0));
  };
  refuse_map(ACL_ERROR_INVALID_PARAM, nullptr, kPiece, handle);
  refuse_map(ACL_ERROR_INVALID_PARAM, start, kPiece, nullptr);
  refuse_map(ACL_ERROR_INVALID_RESOURCE_HANDLE, start, kPiece, &address);
  refuse_map(ACL_ERROR_INVALID_PARAM, start, 2 * kPiece, handle);
  refuse_map(ACL_ERROR_INVALID_PARAM, start, kPiece + 4096, odd);
  CHECK(sentence().find("multiple of the granularity") != std::string::npos);
  refuse_map(ACL_ERROR_INVALID_PARAM, start + 4096, kPiece, handle);
  refuse_map(ACL_ERROR_INVALID_PARAM, start + 100, 4096, small);
  refuse_map(ACL_ERROR_INVALID_PARAM, other, kPiece, handle);
  refuse_map(ACL_ERROR_INVALID_PARAM, start + 4 * kPiece, kPiece, handle);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMapMem", aclrtMapMem(start, kPiece, 4096, handle, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMapMem", aclrtMapMem(start, kPiece, 0, handle, 1));
  aclrtDrvMemHandle large = physical(2 * kPiece);
  refuse_map(ACL_ERROR_INVALID_PARAM, start + 3 * kPiece, 2 * kPiece, large);  // past the end
  CHECK(aclrtMapMem(start + kPiece, kPiece, 0, handle, 0) == 0);
  for (const size_t at : {size_t{0}, kPiece}) refuse_map(ACL_ERROR_INVALID_PARAM, start + at, 2 * kPiece, large);
  CHECK(sentence().find("is mapped to") != std::string::npos);
  refuse_map(ACL_ERROR_INVALID_PARAM, start + kPiece, 4096, small);
  // One reservation has memory of the device or of the host, not both.
  aclrtDrvMemHandle host = physical(kPiece, properties(ACL_MEM_HUGE, ACL_MEM_LOCATION_TYPE_HOST));
  refuse_map(ACL_ERROR_INVALID_PARAM, start, kPiece, host);
  CHECK(sentence().find("memory of the host") != std::string::npos);

  for (char* wrong : {start, start + 2 * kPiece, start + kPiece + 4096, other, static_cast<char*>(nullptr)}) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtUnmapMem", aclrtUnmapMem(wrong));
  }
  CHECK(aclrtUnmapMem(start + kPiece) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtUnmapMem", aclrtUnmapMem(start + kPiece));
  CHECK(aclrtMapMem(start, kPiece, 0, host, 0) == 0);  // nothing else is there any more
  CHECK(aclrtFreePhysical(handle) == 0);
  for (void* wrong : {handle, static_cast<void*>(&address)}) {
    REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtFreePhysical", aclrtFreePhysical(wrong));
  }
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtFreePhysical", aclrtFreePhysical(nullptr));
  refuse_map(ACL_ERROR_INVALID_RESOURCE_HANDLE, start + kPiece, kPiece, handle);
}

TEST_CASE("granularities") {
  const Runtime runtime;
  const auto granularity = [](aclrtMemAttr attr, aclrtMemLocationType type, aclrtMemGranularityOptions option) {
    aclrtPhysicalMemProp prop = properties(attr, type);
    size_t bytes = 0;
    CHECK(aclrtMemGetAllocationGranularity(&prop, option, &bytes) == 0);
    return bytes;
  };
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  constexpr auto kLeast = ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, kBest = ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED;
  constexpr auto kDevice = ACL_MEM_LOCATION_TYPE_DEVICE, kHost = ACL_MEM_LOCATION_TYPE_HOST;
  CHECK(granularity(ACL_HBM_MEM_HUGE, kDevice, kLeast) == kPiece);
  CHECK(granularity(ACL_HBM_MEM_NORMAL, kDevice, kLeast) == kPiece);
  CHECK(granularity(ACL_MEM_NORMAL, kDevice, kLeast) == page);
  CHECK(granularity(ACL_DDR_MEM_NORMAL, kHost, kLeast) == page);
  CHECK(granularity(ACL_MEM_NORMAL, kHost, kBest) == kPiece);
  CHECK(granularity(ACL_HBM_MEM_HUGE1G, kDevice, kBest) == size_t{1} << 30);
  aclrtPhysicalMemProp prop = properties();
  size_t bytes = 0;
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemGetAllocationGranularity",
          aclrtMemGetAllocationGranularity(&prop, ACL_RT_MEM_ALLOC_GRANULARITY_UNDEF, &bytes));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemGetAllocationGranularity",
          aclrtMemGetAllocationGranularity(&prop, kLeast, nullptr));
  // Pages of a gigabyte are mapped to addresses of one.
  char* const start = reserve(size_t{2} << 30);
  CHECK(reinterpret_cast<uintptr_t>(start) % (size_t{1} << 30) == 0);
  aclrtDrvMemHandle handle = physical(size_t{1} << 30, properties(ACL_HBM_MEM_HUGE1G));
  CHECK(aclrtMapMem(start + (size_t{1} << 30), size_t{1} << 30, 0, handle, 0) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMapMem", aclrtMapMem(start + kPiece, size_t{1} << 30, 0, handle, 0));
}

TEST_CASE("more pieces than a process may at first have files") {
  const Runtime runtime;
  const size_t before = used(), page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  REQUIRE(limit.rlim_max >= 1000);
  limit.rlim_cur = 256;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  std::vector<aclrtDrvMemHandle> handles;
  for (int i = 0; i < 600; ++i) handles.push_back(physical(page, properties(ACL_MEM_NORMAL)));
  char* const start = reserve(handles.size() * page);
  for (size_t i = 0; i < handles.size(); i += 2) CHECK(aclrtMapMem(start + i * page, page, 0, handles[i], 0) == 0);
  for (size_t i = 1; i < handles.size(); i += 2) CHECK(aclrtMapMem(start + i * page, page, 0, handles[i], 0) == 0);
  CHECK(can_write(start, handles.size() * page));
  for (size_t i = 0; i < handles.size(); ++i) CHECK(aclrtUnmapMem(start + i * page) == 0);
  for (auto& handle : handles) CHECK(aclrtFreePhysical(handle) == 0);
  CHECK(used() == before);
  CHECK(aclrtReleaseMemAddress(start) == 0);
}

TEST_CASE("many threads map, look up and unmap beside each other") {
  const Runtime runtime;
  constexpr size_t kThreads = 4;
  char* const start = reserve(kThreads * 2 * kPiece);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const aclrtPhysicalMemProp prop = properties();
      for (int round = 0; round < 100; ++round) {
        char* const mine = start + (2 * t + static_cast<size_t>(round % 2)) * kPiece;
        aclrtDrvMemHandle handle = nullptr;
        wrong += aclrtMallocPhysical(&handle, kPiece, &prop, 0) != 0;
        wrong += aclrtMapMem(mine, kPiece, 0, handle, 0) != 0;
        wrong += aclrtMapMem(mine, kPiece, 0, handle, 0) == 0;
        wrong += aclrtMemset(mine + kPiece - 8, 8, 1, 8) != 0;
        wrong += aclrtFreePhysical(handle) != 0;
        wrong += aclrtUnmapMem(mine) != 0;
        wrong += aclrtMemset(mine + kPiece - 8, 8, 1, 8) == 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(aclrtReleaseMemAddress(start) == 0);
}

TEST_CASE("of several threads that unmap the same memory one succeeds") {
  const Runtime runtime;
  char* const start = reserve(kPiece);
  aclrtDrvMemHandle handle = physical();
  for (int round = 0; round < 100; ++round) {
    CHECK(aclrtMapMem(start, kPiece, 0, handle, 0) == 0);
    std::atomic<int> unmapped{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) threads.emplace_back([&] { unmapped += aclrtUnmapMem(start) == 0; });
    for (auto& thread : threads) thread.join();
    CHECK(unmapped == 1);
  }
}

TEST_CASE("aclFinalize ends mappings, reservations and physical memory") {
  size_t before = 0;
  char* start = nullptr;
  aclrtDrvMemHandle handle = nullptr;
  {
    const Runtime runtime;
    before = used();
    start = reserve(4 * kPiece);
    handle = physical();
    CHECK(aclrtMapMem(start + kPiece, kPiece, 0, handle, 0) == 0);
    CHECK(can_write(start + kPiece, kPiece));
  }
  unsigned char resident = 0;
  CHECK(mincore(start, 1, &resident) == -1);
  CHECK(mincore(start + kPiece, 1, &resident) == -1);
  const Runtime again;
  CHECK(used() == before);
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtFreePhysical", aclrtFreePhysical(handle));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtUnmapMem", aclrtUnmapMem(start + kPiece));
}

TEST_CASE("mappings work in a forked child, whatever other threads were doing" * FORKS_BESIDE_THREADS) {
  const Runtime runtime;
  char* const start = reserve(4 * kPiece);
  aclrtDrvMemHandle handle = physical();
  CHECK(aclrtMapMem(start, kPiece, 0, handle, 0) == 0);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    aclrtDrvMemHandle mine = physical();
    while (!stop) {
      (void)aclrtMapMem(start + kPiece, kPiece, 0, mine, 0);
      (void)aclrtUnmapMem(start + kPiece);
    }
  });
  for (int round = 0; round < 30; ++round) {
    CHECK(in_child([&] {
            const aclrtPhysicalMemProp prop = properties();
            aclrtDrvMemHandle more = nullptr;
            if (aclrtMallocPhysical(&more, kPiece, &prop, 0) != 0) return false;
            if (aclrtMapMem(start + 2 * kPiece, kPiece, 0, more, 0) != 0) return false;
            if (aclrtMemset(start + 2 * kPiece, kPiece, 1, kPiece) != 0) return false;
            return aclrtUnmapMem(start + 2 * kPiece) == 0 && aclrtUnmapMem(start) == 0;
          }) == 0);
  }
  stop = true;
  other.join();
  CHECK(can_write(start, kPiece));  // a child's mappings are its own
}
