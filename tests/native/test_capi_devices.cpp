// Several devices: how many there are, which one a thread works on, and what each has of its own.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "capi_runtime.h"
#include "in_child.h"

namespace {

constexpr size_t kBlock = size_t{8} << 20;  // large enough for the stream's thread

int32_t device_now() {
  int32_t device = -1;
  CHECK(aclrtGetDevice(&device) == 0);
  return device;
}

aclrtContext context_now() {
  aclrtContext context = nullptr;
  CHECK(aclrtGetCurrentContext(&context) == 0);
  return context;
}

bool idle(aclrtStream stream) {
  aclrtStreamStatus status;
  CHECK(aclrtStreamQuery(stream, &status) == 0);
  return status == ACL_STREAM_STATUS_COMPLETE;
}

void keep_busy(aclrtStream stream, std::vector<char>& memory) {
  memory.resize(kBlock);
  for (int i = 0; i < 500; ++i) CHECK(aclrtMemsetAsync(memory.data(), kBlock, i, kBlock, stream) == 0);
}

// Sets it in a child: a process keeps a valid setting for good.
int count_with(const char* devices, const char* visible, uint32_t expected) {
  return in_child([=] {
    devices == nullptr ? unsetenv("DESCEND_DEVICES") : setenv("DESCEND_DEVICES", devices, 1);
    visible == nullptr ? unsetenv("ASCEND_RT_VISIBLE_DEVICES") : setenv("ASCEND_RT_VISIBLE_DEVICES", visible, 1);
    uint32_t count = 99;
    return aclrtGetDeviceCount(&count) == 0 && count == expected &&
           aclrtSetDevice(static_cast<int32_t>(expected) - 1) == 0 &&
           aclrtSetDevice(static_cast<int32_t>(expected)) == ACL_ERROR_INVALID_DEVICE;
  });
}

int refused_with(const char* devices, const char* visible, int status, const char* word) {
  return in_child([=] {
    setenv("DESCEND_DEVICES", devices, 1);
    visible == nullptr ? unsetenv("ASCEND_RT_VISIBLE_DEVICES") : setenv("ASCEND_RT_VISIBLE_DEVICES", visible, 1);
    uint32_t count = 99;
    const bool refused = aclrtGetDeviceCount(&count) == status && count == 99 &&
                         sentence().find(word) != std::string::npos && aclrtSetDevice(0) == status;
    unsetenv("ASCEND_RT_VISIBLE_DEVICES");
    setenv("DESCEND_DEVICES", "2", 1);  // once the variable is right, it works
    return refused && aclrtSetDevice(1) == 0;
  });
}

}  // namespace

TEST_CASE("how many devices there are" * FORKS) {  // before any other case has asked
  CHECK(count_with(nullptr, nullptr, 1) == 0);
  CHECK(count_with("", nullptr, 1) == 0);
  CHECK(count_with("3", nullptr, 3) == 0);
  CHECK(count_with("64", nullptr, 64) == 0);
  CHECK(count_with("8", "2", 1) == 0);
  CHECK(count_with("8", "0,3,7", 3) == 0);
  CHECK(count_with("2", "0,1,2,3", 2) == 0);  // up to the first that there is not, as CANN reads it
  CHECK(count_with("4", "1,x,3", 1) == 0);
  for (const char* wrong : {"0", "-1", "65", "two", "2 ", "1.5", "99999999999999999999"}) {
    CHECK(refused_with(wrong, nullptr, ACL_ERROR_INVALID_PARAM, "DESCEND_DEVICES is \"") == 0);
  }
  for (const char* wrong : {"", "4", "x", "2,1", "1,1", "-1", " 0"}) {
    CHECK(refused_with("4", wrong, ACL_ERROR_RT_NO_DEVICE, "ASCEND_RT_VISIBLE_DEVICES is \"") == 0);
  }
}

TEST_CASE("without aclInit") {
  REQUIRE(setenv("DESCEND_DEVICES", "4", 1) == 0);
  int32_t device = -1;
  uint32_t count = 0;
  REFUSED(ACL_ERROR_RT_CONTEXT_NULL, "aclrtGetDevice", aclrtGetDevice(&device));
  CHECK(device == -1);
  CHECK(aclrtGetDeviceCount(&count) == 0);
  CHECK(count == 4);
  aclrtContext context = nullptr;
  REFUSED(ACL_ERROR_UNINITIALIZE, "aclrtGetCurrentContext", aclrtGetCurrentContext(&context));
  CHECK(aclrtSetDevice(3) == 0);
  CHECK(device_now() == 3);
  CHECK(context_now() != nullptr);
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtSetDevice", aclrtSetDevice(4));
  CHECK(device_now() == 3);
  CHECK(aclInit(nullptr) == 0);
  CHECK(device_now() == 3);
  CHECK(aclrtResetDevice(3) == 0);
  REFUSED(ACL_ERROR_RT_CONTEXT_NULL, "aclrtGetDevice", aclrtGetDevice(&device));
  CHECK(aclrtSetDevice(1) == 0);
  CHECK(aclFinalize() == 0);
  REFUSED(ACL_ERROR_RT_CONTEXT_NULL, "aclrtGetDevice", aclrtGetDevice(&device));
  CHECK(aclrtGetDeviceCount(&count) == 0);
}

TEST_CASE("each thread has its device and its context") {
  const Runtime runtime;
  CHECK(device_now() == 0);
  const aclrtContext zero = context_now();
  CHECK(aclrtSetDevice(2) == 0);
  const aclrtContext two = context_now();
  CHECK(two != zero);
  std::thread([&] {
    int32_t device = -1;
    REFUSED(ACL_ERROR_RT_CONTEXT_NULL, "aclrtGetDevice", aclrtGetDevice(&device));
    CHECK(context_now() == zero);  // all other functions work on device 0
    CHECK(aclrtSetDevice(2) == 0);
    CHECK(context_now() == two);  // threads share the default one
    CHECK(aclrtSetDevice(1) == 0);
    CHECK(device_now() == 1);
  }).join();
  CHECK(device_now() == 2);

  aclrtContext made = nullptr;
  CHECK(aclrtCreateContext(&made, 3) == 0);
  CHECK(device_now() == 3);
  CHECK(aclrtSetCurrentContext(zero) == 0);
  CHECK(device_now() == 0);
  std::thread([&] {
    CHECK(aclrtSetCurrentContext(made) == 0);
    CHECK(device_now() == 3);
  }).join();
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtDestroyContext", aclrtDestroyContext(zero));
  CHECK(aclrtSetCurrentContext(made) == 0);
  CHECK(aclrtDestroyContext(made) == 0);
  int32_t device = -1;  // nobody has set device 3, so that it has no default context to fall back on
  REFUSED(ACL_ERROR_RT_CONTEXT_NULL, "aclrtGetDevice", aclrtGetDevice(&device));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtCreateContext", aclrtCreateContext(&made, 4));
}

TEST_CASE("a device is reset when each of its uses is answered") {
  const Runtime runtime;
  aclrtStream own = nullptr, other = nullptr;
  std::vector<char> memory(kBlock);
  CHECK(aclrtSetDevice(1) == 0);
  CHECK(aclrtSetDevice(1) == 0);
  const aclrtContext context = context_now();
  CHECK(aclrtCreateStream(&own) == 0);
  CHECK(aclrtMemsetAsync(memory.data(), kBlock, 7, kBlock, own) == 0);
  CHECK(aclrtResetDevice(1) == 0);
  CHECK(memory == std::vector<char>(kBlock, 7));  // it waits for the work
  CHECK(context_now() == context);
  CHECK(idle(own));
  aclrtContext made = nullptr;
  CHECK(aclrtCreateContext(&made, 1) == 0);
  CHECK(aclrtCreateStream(&other) == 0);
  CHECK(aclrtMemsetAsync(memory.data(), kBlock, 9, kBlock, own) == 0);
  CHECK(aclrtResetDevice(1) == 0);
  CHECK(memory == std::vector<char>(kBlock, 9));
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtSynchronizeStream", aclrtSynchronizeStream(own));
  REFUSED(ACL_ERROR_INVALID_RESOURCE_HANDLE, "aclrtSetCurrentContext", aclrtSetCurrentContext(context));
  CHECK(aclrtSynchronizeStream(other) == 0);  // of a context that the program made
  CHECK(device_now() == 1);
  REFUSED(ACL_ERROR_RT_CONTEXT_RELEASE_ERROR, "aclrtResetDevice", aclrtResetDevice(1));
  REFUSED(ACL_ERROR_RT_CONTEXT_RELEASE_ERROR, "aclrtResetDeviceForce", aclrtResetDeviceForce(1));
  for (int i = 0; i < 3; ++i) CHECK(aclrtSetDevice(1) == 0);
  CHECK(context_now() != context);
  CHECK(aclrtResetDeviceForce(1) == 0);
  REFUSED(ACL_ERROR_RT_CONTEXT_RELEASE_ERROR, "aclrtResetDevice", aclrtResetDevice(1));
  // Device 0 is not affected.
  CHECK(aclrtSetDevice(0) == 0);
  CHECK(aclrtSynchronizeStream(nullptr) == 0);
}

TEST_CASE("each device has its streams and a default stream") {
  const Runtime runtime;
  std::vector<char> busy, quiet(64);
  aclrtStream zero = nullptr, one = nullptr;
  CHECK(aclrtCreateStream(&zero) == 0);
  CHECK(aclrtSetDevice(1) == 0);
  CHECK(aclrtCreateStream(&one) == 0);
  for (const aclrtStream occupied : {one, aclrtStream{nullptr}}) {
    CHECK(aclrtSetDevice(1) == 0);
    keep_busy(occupied, busy);
    CHECK(aclrtSynchronizeDeviceWithTimeout(1) == ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    CHECK(aclrtSetDevice(0) == 0);
    CHECK(aclrtSynchronizeDevice() == 0);  // returns while the other device is at work
    CHECK(aclrtSynchronizeDeviceWithTimeout(1) == 0);
    CHECK(idle(nullptr));
    CHECK(aclrtMemsetAsync(quiet.data(), 64, 1, 64, nullptr) == 0);
    CHECK(aclrtSynchronizeStream(nullptr) == 0);
    if (occupied == nullptr) continue;
    CHECK_FALSE(idle(occupied));
    CHECK(aclrtDestroyStreamForce(occupied) == 0);
  }
  // A stream is used from any thread, whatever its device.
  std::thread([&] { CHECK(aclrtMemsetAsync(quiet.data(), 64, 5, 64, zero) == 0); }).join();
  aclrtEvent event = nullptr;
  CHECK(aclrtSetDevice(1) == 0);
  CHECK_FALSE(idle(nullptr));
  CHECK(aclrtCreateEvent(&event) == 0);
  CHECK(aclrtSetDevice(0) == 0);
  // And waits for what another device does.
  CHECK(aclrtSetDevice(2) == 0);
  CHECK(aclrtCreateStream(&one) == 0);
  std::vector<char> source(kBlock, 1), target(kBlock);
  CHECK(aclrtMemsetAsync(source.data(), kBlock, 6, kBlock, one) == 0);
  CHECK(aclrtRecordEvent(event, one) == 0);
  CHECK(aclrtStreamWaitEvent(zero, event) == 0);
  CHECK(aclrtMemcpyAsync(target.data(), kBlock, source.data(), kBlock, ACL_MEMCPY_DEVICE_TO_DEVICE, zero) == 0);
  CHECK(aclrtSynchronizeStream(zero) == 0);
  CHECK(target == std::vector<char>(kBlock, 6));
  CHECK(aclrtSetDevice(1) == 0);
  CHECK(aclrtSynchronizeDevice() == 0);
  CHECK(idle(nullptr));
}

TEST_CASE("peers") {
  const Runtime runtime;
  int32_t answer = -1;
  CHECK(aclrtDeviceCanAccessPeer(&answer, 0, 3) == 0);
  CHECK(answer == 1);
  const auto status = [](int32_t device, int32_t peer) {
    int32_t found = -1;
    CHECK(aclrtDevicePeerAccessStatus(device, peer, &found) == 0);
    return found;
  };
  CHECK(status(0, 1) == 0);
  CHECK(aclrtDeviceEnablePeerAccess(1, 0) == 0);
  CHECK(aclrtDeviceEnablePeerAccess(1, 0) == 0);
  CHECK(status(0, 1) == 1);
  CHECK(status(1, 0) == 0);  // one way
  CHECK(aclrtDeviceDisablePeerAccess(1) == 0);
  CHECK(status(0, 1) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtDeviceEnablePeerAccess", aclrtDeviceEnablePeerAccess(1, 2));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtDeviceEnablePeerAccess", aclrtDeviceEnablePeerAccess(0, 0));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtDeviceEnablePeerAccess", aclrtDeviceEnablePeerAccess(4, 0));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtDeviceDisablePeerAccess", aclrtDeviceDisablePeerAccess(-1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtDeviceCanAccessPeer", aclrtDeviceCanAccessPeer(nullptr, 0, 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtDeviceCanAccessPeer", aclrtDeviceCanAccessPeer(&answer, 2, 2));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtDeviceCanAccessPeer", aclrtDeviceCanAccessPeer(&answer, 4, 0));
  REFUSED(ACL_ERROR_INVALID_DEVICE, "aclrtDevicePeerAccessStatus", aclrtDevicePeerAccessStatus(0, -1, &answer));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtDevicePeerAccessStatus", aclrtDevicePeerAccessStatus(0, 1, nullptr));
}

TEST_CASE("a forked child keeps its device" * FORKS) {
  const Runtime runtime;
  CHECK(aclrtSetDevice(2) == 0);
  aclrtStream stream = nullptr;
  CHECK(aclrtCreateStream(&stream) == 0);
  CHECK(in_child([&] {
          int32_t device = -1;
          char host[64];
          return aclrtGetDevice(&device) == 0 && device == 2 && aclrtMemsetAsync(host, 64, 1, 64, stream) == 0 &&
                 aclrtSynchronizeDevice() == 0 && aclrtSetDevice(1) == 0 && aclrtResetDevice(2) == 0 &&
                 aclrtFree(nullptr) != 0;
        }) == 0);
  CHECK(device_now() == 2);
}

TEST_CASE("each device counts its own memory, a share of the machine's, and copies reach all") {
  REQUIRE(setenv("DESCEND_DEVICES", "4", 1) == 0);
  const Runtime runtime;
  const auto used = [](int32_t device) {
    aclrtMemUsageInfo usage{};
    size_t count = 0;
    CHECK(aclrtGetMemUsageInfo(device, &usage, 1, &count) == 0);
    return usage.curMemSize;
  };
  std::vector<size_t> before;
  for (int32_t device = 0; device < 4; ++device) before.push_back(used(device));
  std::vector<void*> memory(4);
  size_t total = 0;
  for (int32_t device = 0; device < 4; ++device) {
    CHECK(aclrtSetDevice(device) == 0);
    const size_t bytes = kBlock * static_cast<size_t>(device + 1);
    auto& here = memory[static_cast<size_t>(device)];
    CHECK(aclrtMalloc(&here, bytes, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
    CHECK(aclrtMemset(here, bytes, device + 1, bytes) == 0);
    aclrtPtrAttributes attributes{};
    CHECK(aclrtPointerGetAttributes(here, &attributes) == 0);
    CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_DEVICE);
    CHECK(attributes.location.id == static_cast<uint32_t>(device));
    size_t free = 0, share = 0;
    CHECK(aclrtGetMemInfo(ACL_HBM_MEM, &free, &share) == 0);
    CHECK((total == 0 || total == share));
    total = share;
    CHECK(free <= share - bytes);
    // This device has a share of the machine's memory.
    void* more = nullptr;
    REFUSED(ACL_ERROR_BAD_ALLOC, "aclrtMalloc", aclrtMalloc(&more, share - bytes + 1, ACL_MEM_MALLOC_HUGE_FIRST));
  }
  for (size_t device = 0; device < 4; ++device) {
    CHECK(used(static_cast<int32_t>(device)) == before[device] + kBlock * (device + 1));
  }
  CHECK(aclrtMemcpy(memory[0], kBlock, memory[3], kBlock, ACL_MEMCPY_DEVICE_TO_DEVICE) == 0);
  CHECK(static_cast<char*>(memory[0])[kBlock - 1] == 4);
  // Physical memory is of the device that its properties name, whichever is current.
  aclrtPhysicalMemProp prop{};
  prop.memAttr = ACL_HBM_MEM_HUGE;
  prop.location = {2, ACL_MEM_LOCATION_TYPE_DEVICE};
  aclrtDrvMemHandle handle = nullptr, other = nullptr;
  void* start = nullptr;
  CHECK(aclrtMallocPhysical(&handle, kBlock, &prop, 0) == 0);
  CHECK(used(2) == before[2] + 4 * kBlock);
  CHECK(aclrtReserveMemAddress(&start, 2 * kBlock, 0, nullptr, 0) == 0);
  CHECK(aclrtMapMem(start, kBlock, 0, handle, 0) == 0);
  aclrtPtrAttributes attributes{};
  CHECK(aclrtPointerGetAttributes(start, &attributes) == 0);
  CHECK(attributes.location.id == 2);
  prop.location.id = 1;
  CHECK(aclrtMallocPhysical(&other, kBlock, &prop, 0) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMapMem", aclrtMapMem(static_cast<char*>(start) + kBlock, kBlock, 0, other, 0));
  CHECK(sentence().find("memory of device 1 cannot be mapped there") != std::string::npos);
  CHECK(aclrtMemcpyAsync(start, kBlock, memory[1], kBlock, ACL_MEMCPY_INTER_DEVICE_TO_DEVICE, nullptr) == 0);
  CHECK(aclrtSynchronizeStream(nullptr) == 0);
  CHECK(static_cast<char*>(start)[kBlock - 1] == 2);
  for (void* here : memory) CHECK(aclrtFree(here) == 0);
  CHECK(used(3) == before[3]);
}
