// Attributes of pointers, registered host memory, batches of copies.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "capi_runtime.h"

namespace {

constexpr size_t kMany = size_t{8} << 20;  // not copied on the caller's thread

const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

char* allocated(size_t bytes) {
  void* memory = nullptr;
  CHECK(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
  return static_cast<char*>(memory);
}

char* allocated_host(size_t bytes) {
  void* memory = nullptr;
  CHECK(aclrtMallocHost(&memory, bytes) == 0);
  return static_cast<char*>(memory);
}

aclrtMemLocationType type_of(const void* address) {
  aclrtPtrAttributes attributes{};
  std::memset(static_cast<void*>(&attributes), 0xFF, sizeof attributes);
  CHECK(aclrtPointerGetAttributes(address, &attributes) == 0);
  CHECK(attributes.location.id == 0);
  CHECK(attributes.pageSize == page);
  for (const uint32_t rsv : attributes.rsv) CHECK(rsv == 0);
  return attributes.location.type;
}

struct Pages {
  explicit Pages(size_t count)
      : bytes(count * page),
        start(static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(static_cast<void*>(start) != MAP_FAILED);
  }
  ~Pages() { munmap(start, bytes); }
  size_t bytes;
  char* start;
};

// A stream with work ahead of all else, until it is let go.
struct HeldStream {
  HeldStream() : source(kMany * 8, 1), target(allocated(kMany * 8)) {
    CHECK(aclrtCreateStream(&stream) == 0);
    for (int i = 0; i < 20; ++i) {
      CHECK(aclrtMemcpyAsync(target, kMany * 8, source.data(), kMany * 8, ACL_MEMCPY_HOST_TO_DEVICE, stream) == 0);
    }
  }
  ~HeldStream() { CHECK(aclrtDestroyStream(stream) == 0); }
  bool busy() const {
    aclrtStreamStatus status{};
    CHECK(aclrtStreamQuery(stream, &status) == 0);
    return status != ACL_STREAM_STATUS_COMPLETE;
  }
  std::vector<char> source;
  char* target;
  aclrtStream stream = nullptr;
};

}  // namespace

TEST_CASE("where memory lies") {
  const Runtime runtime;
  char* const device = allocated(1000);
  char* const host = allocated_host(1000);
  char local = 0;
  CHECK(type_of(device) == ACL_MEM_LOCATION_TYPE_DEVICE);
  CHECK(type_of(device + 999) == ACL_MEM_LOCATION_TYPE_DEVICE);
  CHECK(type_of(host + 500) == ACL_MEM_LOCATION_TYPE_HOST);
  CHECK(type_of(&local) == ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  void* reserved = nullptr;
  CHECK(aclrtReserveMemAddress(&reserved, 1 << 21, 0, nullptr, 0) == 0);
  CHECK(type_of(reserved) == ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  for (const auto type : {ACL_MEM_LOCATION_TYPE_HOST, ACL_MEM_LOCATION_TYPE_DEVICE}) {
    aclrtPhysicalMemProp prop{};
    prop.memAttr = ACL_HBM_MEM_HUGE;
    prop.location.type = type;
    aclrtDrvMemHandle handle = nullptr;
    CHECK(aclrtMallocPhysical(&handle, 1 << 21, &prop, 0) == 0);
    CHECK(aclrtMapMem(reserved, 1 << 21, 0, handle, 0) == 0);
    CHECK(type_of(static_cast<char*>(reserved) + 1000) == type);
    CHECK(aclrtUnmapMem(reserved) == 0);
  }
  CHECK(aclrtFreeHost(host) == 0);
  CHECK(type_of(host) == ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  aclrtPtrAttributes attributes{};
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtPointerGetAttributes", aclrtPointerGetAttributes(nullptr, &attributes));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtPointerGetAttributes", aclrtPointerGetAttributes(device, nullptr));
}

TEST_CASE("host memory is registered, found and forgotten") {
  const Runtime runtime;
  const Pages pages(4);
  void* device = nullptr;
  CHECK(aclrtHostRegister(pages.start + page, 2 * page, ACL_HOST_REGISTER_MAPPED, &device) == 0);
  CHECK(device == pages.start + page);
  CHECK(type_of(pages.start + page) == ACL_MEM_LOCATION_TYPE_HOST);
  CHECK(type_of(pages.start + 3 * page - 1) == ACL_MEM_LOCATION_TYPE_HOST);
  CHECK(type_of(pages.start + page - 1) == ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  CHECK(type_of(pages.start + 3 * page) == ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  void* again = nullptr;
  CHECK(aclrtHostGetDevicePointer(pages.start + page + 5, &again, 0) == 0);
  CHECK(again == pages.start + page + 5);
  // Registering sets no bounds: the memory may continue behind the registered part.
  CHECK(aclrtMemset(pages.start + page, 3 * page, 1, 3 * page) == 0);

  const auto refuse = [](int code, void* start, uint64_t size, uint32_t flag) {
    REFUSED(code, "aclrtHostRegisterV2", aclrtHostRegisterV2(start, size, flag));
  };
  for (const size_t at : {size_t{0}, page, 2 * page}) {
    refuse(ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED, pages.start + at, 2 * page, ACL_HOST_REG_MAPPED);
  }
  CHECK(aclrtHostRegisterV2(pages.start, page, ACL_HOST_REG_PINNED) == 0);
  CHECK(type_of(pages.start) == ACL_MEM_LOCATION_TYPE_HOST);
  REFUSED(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, "aclrtHostGetDevicePointer",
          aclrtHostGetDevicePointer(pages.start, &again, 0));
  for (void* wrong : {pages.start + page + 1, pages.start + 2 * page, pages.start + 3 * page}) {
    REFUSED(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, "aclrtHostUnregister", aclrtHostUnregister(wrong));
  }
  CHECK(aclrtHostUnregister(pages.start + page) == 0);
  CHECK(type_of(pages.start + page) == ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  REFUSED(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, "aclrtHostUnregister", aclrtHostUnregister(pages.start + page));
  CHECK(aclrtHostRegisterV2(pages.start + page, 20, ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED) == 0);  // any bytes

  char* const host = allocated_host(2 * page);
  CHECK(aclrtHostRegisterV2(host, page, ACL_HOST_REG_MAPPED) == 0);
  CHECK(aclrtFreeHost(host) == 0);  // which forgets it
  REFUSED(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, "aclrtHostUnregister", aclrtHostUnregister(host));
}

TEST_CASE("what cannot be registered is refused") {
  const Runtime runtime;
  const Pages pages(2);
  void* device = nullptr;
  const auto refuse = [&](int code, void* start, uint64_t size, uint32_t flag = ACL_HOST_REG_MAPPED) {
    REFUSED(code, "aclrtHostRegisterV2", aclrtHostRegisterV2(start, size, flag));
    if (flag == ACL_HOST_REG_MAPPED) {
      REFUSED(code, "aclrtHostRegister", aclrtHostRegister(start, size, ACL_HOST_REGISTER_MAPPED, &device));
    }
  };
  refuse(ACL_ERROR_INVALID_PARAM, nullptr, page);
  refuse(ACL_ERROR_INVALID_PARAM, pages.start, 0);
  refuse(ACL_ERROR_INVALID_PARAM, pages.start, ~uint64_t{0});
  refuse(ACL_ERROR_INVALID_PARAM, reinterpret_cast<void*>(page), page);
  {
    const Pages gone(3);
    munmap(gone.start + page, page);
    refuse(ACL_ERROR_INVALID_PARAM, gone.start, 3 * page);
  }
  char* const memory = allocated(page);
  refuse(ACL_ERROR_INVALID_PARAM, memory, page);
  char* const host = allocated_host(page);
  refuse(ACL_ERROR_INVALID_PARAM, host, page + 1);
  refuse(ACL_ERROR_INVALID_PARAM, host, page, ACL_HOST_REG_PINNED);  // it is already
  refuse(ACL_ERROR_INVALID_PARAM, pages.start, page, 0);
  refuse(ACL_ERROR_INVALID_PARAM, pages.start, page, 1);
  refuse(ACL_ERROR_FEATURE_UNSUPPORTED, pages.start, page, ACL_HOST_REG_IOMEMORY);
  refuse(ACL_ERROR_FEATURE_UNSUPPORTED, pages.start, page, ACL_HOST_REG_MAPPED | ACL_HOST_REG_READONLY);
  for (const auto type : {ACL_HOST_REGISTER_IOMEMORY, ACL_HOST_REGISTER_READONLY}) {
    REFUSED(ACL_ERROR_FEATURE_UNSUPPORTED, "aclrtHostRegister", aclrtHostRegister(pages.start, page, type, &device));
  }
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtHostRegister",
          aclrtHostRegister(pages.start, page, static_cast<aclrtHostRegisterType>(1), &device));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtHostRegister",
          aclrtHostRegister(pages.start, page, ACL_HOST_REGISTER_MAPPED, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtHostUnregister", aclrtHostUnregister(nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtHostGetDevicePointer", aclrtHostGetDevicePointer(nullptr, &device, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtHostGetDevicePointer", aclrtHostGetDevicePointer(host, nullptr, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtHostGetDevicePointer", aclrtHostGetDevicePointer(host, &device, 1));
  CHECK(device == nullptr);
}

TEST_CASE("host memory by a configuration") {
  const Runtime runtime;
  aclrtMallocAttribute attributes[2]{};
  aclrtMallocConfig config{attributes, 2};
  attributes[0].attr = ACL_RT_MEM_ATTR_VA_FLAG, attributes[0].value.vaFlag = 1;
  attributes[1].attr = ACL_RT_MEM_ATTR_MODULE_ID, attributes[1].value.moduleId = 33;
  void* memory = nullptr;
  CHECK(aclrtMallocHostWithCfg(&memory, 100, &config) == 0);
  CHECK(type_of(memory) == ACL_MEM_LOCATION_TYPE_HOST);
  void* device = nullptr;
  CHECK(aclrtHostRegister(memory, 100, ACL_HOST_REGISTER_MAPPED, &device) == 0);
  CHECK(device == memory);
  attributes[1].attr = ACL_RT_MEM_ATTR_DEVICE_ID, attributes[1].value.deviceId = 0;
  CHECK(aclrtMallocHostWithCfg(&memory, 100, &config) == 0);
  CHECK(aclrtMallocHostWithCfg(&memory, 100, nullptr) == 0);
  const auto refuse = [&](int code, void** out, uint64_t size, aclrtMallocConfig* cfg) {
    REFUSED(code, "aclrtMallocHostWithCfg", aclrtMallocHostWithCfg(out, size, cfg));
  };
  refuse(ACL_ERROR_INVALID_PARAM, nullptr, 100, &config);
  refuse(ACL_ERROR_INVALID_PARAM, &memory, 0, &config);
  refuse(ACL_ERROR_BAD_ALLOC, &memory, ~uint64_t{0}, &config);
  attributes[1].value.deviceId = 1;
  refuse(ACL_ERROR_INVALID_PARAM, &memory, 100, &config);
  attributes[1].attr = static_cast<aclrtMallocAttrType>(9);
  refuse(ACL_ERROR_INVALID_PARAM, &memory, 100, &config);
  attributes[0].value.vaFlag = 2;
  refuse(ACL_ERROR_INVALID_PARAM, &memory, 100, &config);
  config.attrs = nullptr;
  refuse(ACL_ERROR_INVALID_PARAM, &memory, 100, &config);
}

TEST_CASE("a device's memory is counted, and no more than it has is given") {
  const Runtime runtime;
  const auto look = [] {
    struct {
      size_t free = 0, total = 0, used = 0, peak = 0;
    } now;
    aclrtMemUsageInfo usage{};
    size_t count = 0;
    CHECK(aclrtGetMemInfo(ACL_HBM_MEM, &now.free, &now.total) == 0);
    CHECK(aclrtGetMemUsageInfo(0, &usage, 1, &count) == 0);
    CHECK(count == 1);
    CHECK(std::string(usage.name) == "APP");
    now.used = usage.curMemSize, now.peak = usage.memPeakSize;
    return now;
  };
  const auto before = look();
  CHECK(before.free > 0);
  CHECK(before.free + before.used <= before.total);
  const size_t much = before.free / 4;  // of which no page is touched
  char* const memory = allocated(much);
  const auto during = look();
  CHECK(during.total == before.total);
  CHECK(during.used == before.used + much);
  CHECK(during.peak >= during.used);
  CHECK(during.free < before.free);
  CHECK(during.free + much / 2 < before.free);  // others on the machine may have freed some
  CHECK(allocated_host(much) != nullptr);       // which is no device's
  CHECK(look().used == during.used);
  CHECK(aclrtFree(memory) == 0);
  const auto after = look();
  CHECK(after.used == before.used);
  CHECK(after.peak == during.peak);
  void* pointer = nullptr;
  REFUSED(ACL_ERROR_BAD_ALLOC, "aclrtMalloc", aclrtMalloc(&pointer, before.total + 1, ACL_MEM_MALLOC_HUGE_FIRST));
  REFUSED(ACL_ERROR_RT_MEMORY_ALLOCATION, "aclrtMallocAlign32",
          aclrtMallocAlign32(&pointer, before.total + 1, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(look().used == before.used);

  aclrtMemUsageInfo usage{};
  size_t count = 0;
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtGetMemUsageInfo", aclrtGetMemUsageInfo(1000, &usage, 1, &count));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetMemUsageInfo", aclrtGetMemUsageInfo(0, nullptr, 1, &count));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetMemUsageInfo", aclrtGetMemUsageInfo(0, &usage, 0, &count));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetMemUsageInfo", aclrtGetMemUsageInfo(0, &usage, 1, nullptr));
}

TEST_CASE("no errors of memory are known, and none is repaired") {
  const Runtime runtime;
  aclrtMemUceInfo errors[4]{};
  size_t count = 7;
  CHECK(aclrtGetMemUceInfo(0, errors, 4, &count) == 0);
  CHECK(count == 0);
  errors[0].addr = errors, errors[0].len = 64;
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemUceRepair", aclrtMemUceRepair(0, errors, 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemUceRepair", aclrtMemUceRepair(0, nullptr, 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemUceRepair", aclrtMemUceRepair(0, errors, 0));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtMemUceRepair", aclrtMemUceRepair(-1, errors, 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetMemUceInfo", aclrtGetMemUceInfo(0, nullptr, 4, &count));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetMemUceInfo", aclrtGetMemUceInfo(0, errors, 0, &count));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetMemUceInfo", aclrtGetMemUceInfo(0, errors, 129, &count));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtGetMemUceInfo", aclrtGetMemUceInfo(0, errors, 4, nullptr));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtGetMemUceInfo", aclrtGetMemUceInfo(1000, errors, 4, &count));
}

namespace {

// Copies from host to device, ready to be made or to be spoilt.
struct Batch {
  static constexpr size_t kCount = 4, kBytes = 100;

  Batch() {
    for (size_t i = 0; i < kCount; ++i) {
      sources[i].assign(kBytes, static_cast<char>(i + 1));
      srcs[i] = sources[i].data();
      dsts[i] = allocated(kBytes);
    }
    for (auto& attr : attrs)
      attr.srcLoc.type = ACL_MEM_LOCATION_TYPE_HOST, attr.dstLoc.type = ACL_MEM_LOCATION_TYPE_DEVICE;
  }

  int copy() {
    fail = 77;
    return aclrtMemcpyBatch(dsts, maxs, srcs, sizes, kCount, attrs, indexes, count, &fail);
  }
  int copy_async(aclrtStream stream) {
    fail = 77;
    return aclrtMemcpyBatchAsync(dsts, maxs, srcs, sizes, kCount, attrs, indexes, count, &fail, stream);
  }
  // That it is refused in both forms, with nothing copied.
  void refuse(size_t index) {
    CAPTURE(index);
    for (void* dst : dsts) std::memset(dst, 0, kBytes);
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpyBatch", copy());
    CHECK(fail == index);
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpyBatchAsync", copy_async(nullptr));
    CHECK(fail == index);
    CHECK(aclrtSynchronizeStream(nullptr) == 0);
    for (void* dst : dsts) CHECK(static_cast<char*>(dst)[0] == 0);
  }
  bool copied() const {
    for (size_t i = 0; i < kCount; ++i) {
      if (std::memcmp(dsts[i], sources[i].data(), kBytes) != 0) return false;
    }
    return true;
  }

  std::vector<char> sources[kCount];
  void* dsts[kCount];
  void* srcs[kCount];
  size_t sizes[kCount] = {kBytes, kBytes, kBytes, kBytes}, maxs[kCount] = {kBytes, kBytes, kBytes, kBytes};
  size_t indexes[2] = {0, 2}, count = 2, fail = 0;
  aclrtMemcpyBatchAttr attrs[2]{};
};

}  // namespace

TEST_CASE("a batch of copies is made whole, or not at all") {
  const Runtime runtime;
  Batch batch;
  CHECK_MESSAGE(batch.copy() == 0, sentence());
  CHECK(batch.fail == SIZE_MAX);
  CHECK(batch.copied());
  for (auto& source : batch.sources) source.assign(Batch::kBytes, 9);
  CHECK(batch.copy_async(nullptr) == 0);
  CHECK(batch.copied());  // with no synchronise: nobody registered the sources
  // Back again.
  Batch back;
  std::swap(back.dsts, back.srcs);
  for (auto& attr : back.attrs) std::swap(attr.srcLoc, attr.dstLoc);
  for (void* src : back.srcs) std::memset(src, 5, Batch::kBytes);
  CHECK(back.copy() == 0);
  CHECK(back.sources[3] == std::vector<char>(Batch::kBytes, 5));

  const auto spoilt = [](size_t index, const auto& spoil) {
    Batch bad;
    spoil(bad);
    bad.refuse(index);
  };
  char* const elsewhere = allocated_host(Batch::kBytes);
  spoilt(3, [](Batch& b) { b.maxs[3] = 99; });
  spoilt(1, [](Batch& b) { b.sizes[1] = b.maxs[1] = Batch::kBytes + 1; });  // past the allocation
  spoilt(0, [](Batch& b) { b.srcs[0] = nullptr; });
  spoilt(2, [](Batch& b) { b.attrs[1].srcLoc.type = ACL_MEM_LOCATION_TYPE_DEVICE; });
  spoilt(2, [](Batch& b) { b.attrs[1].dstLoc.id = 1; });
  spoilt(0, [](Batch& b) { b.attrs[0].dstLoc.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED; });
  spoilt(1, [&](Batch& b) { b.srcs[1] = b.dsts[0]; });
  // From host to host, where attrs says so, too; and one the other way.
  spoilt(2, [&](Batch& b) {
    b.attrs[1].dstLoc.type = ACL_MEM_LOCATION_TYPE_HOST;
    b.dsts[2] = elsewhere;
  });
  spoilt(2, [](Batch& b) {
    std::swap(b.attrs[1].srcLoc, b.attrs[1].dstLoc);
    std::swap(b.srcs[2], b.dsts[2]), std::swap(b.srcs[3], b.dsts[3]);
    std::memset(b.srcs[2], 0, Batch::kBytes);
  });
  spoilt(SIZE_MAX, [](Batch& b) { b.indexes[0] = 1; });
  spoilt(SIZE_MAX, [](Batch& b) { b.indexes[1] = 0; });
  spoilt(SIZE_MAX, [](Batch& b) { b.indexes[1] = Batch::kCount; });
  spoilt(SIZE_MAX, [](Batch& b) { b.count = 0; });
  spoilt(SIZE_MAX, [](Batch& b) { b.count = Batch::kCount + 1; });
  spoilt(SIZE_MAX, [](Batch& b) { b.attrs[1].rsv[15] = 1; });

  Batch& b = batch;
  size_t fail = 0;
  const auto refuse = [&](void** dsts, size_t* maxs, void** srcs, size_t* sizes, size_t count,
                          aclrtMemcpyBatchAttr* attrs, size_t* indexes, size_t* index) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpyBatch",
            aclrtMemcpyBatch(dsts, maxs, srcs, sizes, count, attrs, indexes, 1, index));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpyBatchAsync",
            aclrtMemcpyBatchAsync(dsts, maxs, srcs, sizes, count, attrs, indexes, 1, index, nullptr));
  };
  refuse(nullptr, b.maxs, b.srcs, b.sizes, 1, b.attrs, b.indexes, &fail);
  refuse(b.dsts, nullptr, b.srcs, b.sizes, 1, b.attrs, b.indexes, &fail);
  refuse(b.dsts, b.maxs, nullptr, b.sizes, 1, b.attrs, b.indexes, &fail);
  refuse(b.dsts, b.maxs, b.srcs, nullptr, 1, b.attrs, b.indexes, &fail);
  refuse(b.dsts, b.maxs, b.srcs, b.sizes, 0, b.attrs, b.indexes, &fail);
  refuse(b.dsts, b.maxs, b.srcs, b.sizes, 1, nullptr, b.indexes, &fail);
  refuse(b.dsts, b.maxs, b.srcs, b.sizes, 1, b.attrs, nullptr, &fail);
  refuse(b.dsts, b.maxs, b.srcs, b.sizes, 1, b.attrs, b.indexes, nullptr);
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtMemcpyBatchAsync", b.copy_async(&fail));
}

TEST_CASE("copies return at once where the runtime knows the host's memory, and are done where it does not") {
  const Runtime runtime;
  char* const host = allocated_host(kMany);
  char* const target = allocated(kMany);
  const auto memory = std::make_unique<char[]>(kMany);
  std::memset(host, 3, kMany), std::memset(memory.get(), 4, kMany);
  const auto copy = [&](const void* source, aclrtStream stream) {
    return aclrtMemcpyAsyncWithCondition(target, kMany, source, kMany, ACL_MEMCPY_HOST_TO_DEVICE, stream);
  };
  const auto batch = [&](void* source, aclrtStream stream) {
    void* dst = target;
    size_t bytes = kMany, index = 0, fail = 0;
    aclrtMemcpyBatchAttr attr{};
    attr.dstLoc.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    return aclrtMemcpyBatchAsync(&dst, &bytes, &source, &bytes, 1, &attr, &index, 1, &fail, stream);
  };
  for (const bool in_batch : {false, true}) {
    CAPTURE(in_batch);
    std::memset(target, 0, kMany);
    HeldStream held;
    CHECK((in_batch ? batch(host, held.stream) : copy(host, held.stream)) == 0);
    CHECK(held.busy());
    CHECK((in_batch ? batch(memory.get(), held.stream) : copy(memory.get(), held.stream)) == 0);
    CHECK(target[kMany - 1] == 4);
  }
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpyAsyncWithCondition",
          aclrtMemcpyAsyncWithCondition(target, 4, host, 5, ACL_MEMCPY_HOST_TO_DEVICE, nullptr));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemcpyAsyncWithCondition",
          aclrtMemcpyAsyncWithCondition(target, kMany + 1, host, kMany + 1, ACL_MEMCPY_HOST_TO_DEVICE, nullptr));
  int foreign = 0;
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtMemcpyAsyncWithCondition", copy(host, &foreign));
}

TEST_CASE("memory is prefetched, and nothing else is done with caches") {
  const Runtime runtime;
  char* const memory = allocated(1000);
  CHECK(aclrtCmoAsync(memory, 1000, ACL_RT_CMO_TYPE_PREFETCH, nullptr) == 0);
  CHECK(aclrtSynchronizeStream(nullptr) == 0);
  const auto refuse = [](int code, void* src, size_t size, int type, aclrtStream stream = nullptr) {
    REFUSED(code, "aclrtCmoAsync", aclrtCmoAsync(src, size, static_cast<aclrtCmoType>(type), stream));
  };
  for (const int type : {ACL_RT_CMO_TYPE_WRITEBACK, ACL_RT_CMO_TYPE_INVALID, ACL_RT_CMO_TYPE_FLUSH}) {
    refuse(ACL_ERROR_FEATURE_UNSUPPORTED, memory, 1000, type);
  }
  refuse(ACL_ERROR_INVALID_PARAM, memory, 1000, 9);
  refuse(ACL_ERROR_INVALID_PARAM, memory, 1001, ACL_RT_CMO_TYPE_PREFETCH);
  refuse(ACL_ERROR_INVALID_PARAM, memory, 0, ACL_RT_CMO_TYPE_PREFETCH);
  refuse(ACL_ERROR_INVALID_PARAM, nullptr, 8, ACL_RT_CMO_TYPE_PREFETCH);
  refuse(ACL_ERROR_INVALID_RESOURCE_HANDLE, memory, 8, ACL_RT_CMO_TYPE_PREFETCH, memory);
}
