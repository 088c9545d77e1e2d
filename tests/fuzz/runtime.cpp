#include "runtime.h"

#include <algorithm>
#include <cstring>

#include "aclnn/acl_meta.h"
#include "by_name.h"
#include "descend.h"
#include "make_call.h"
#include "operators.h"
#include "peer.h"

namespace fuzz {
namespace {

constexpr int kStale = 200005, kInvalid = 100000, kNoDevice = 200002;
int foreign;  // its address is a handle of nothing

}  // namespace

// An object, alive or not; a foreign address; or null, which is no object.
Runtime::Object& Runtime::pick(std::vector<Object>& objects) {
  static thread_local Object other;
  const int64_t i = bytes_.below(static_cast<int64_t>(objects.size()) + 2);
  if (i < static_cast<int64_t>(objects.size())) return objects[i];
  other = {};
  other.handle = i == static_cast<int64_t>(objects.size()) ? nullptr : &foreign;
  return other;
}

// Null is a stream, too: the default one.
Runtime::Object Runtime::pick_stream() {
  Object stream = pick(streams_);
  if (stream.handle == nullptr) stream.alive = true;
  return stream;
}

Runtime::Block* Runtime::pick_block() {
  return blocks_.empty() ? nullptr : blocks_[bytes_.below(static_cast<int64_t>(blocks_.size()))].get();
}

// Waits for all work. Here every block must hold what the model holds.
void Runtime::settle() {
  expect("aclrtSynchronizeDevice", aclrtSynchronizeDevice(), {0});
  for (const Object& stream : streams_) {
    if (!stream.alive || stream.device == device_) continue;
    expect("aclrtSynchronizeStream", aclrtSynchronizeStream(stream.handle), {0});
  }
  if (calls_ != calls_expected_) fault("host functions ran another number of times");
  for (const auto& block : blocks_) {
    if (std::memcmp(block->data, block->contents.data(), block->contents.size()) != 0)
      fault("memory holds other bytes");
  }
}

void Runtime::make(std::vector<Object>& objects, const char* who, const std::function<int(void**)>& create) {
  if (objects.size() >= 16) return;
  Object made;
  expect(who, create(&made.handle), {0});
  made.alive = true;
  made.device = device_, made.in_default = context_ == nullptr;
  for (const Object& object : objects) {
    if (object.handle == made.handle) fault(std::string(who) + " gave the handle of another object");
  }
  objects.push_back(made);
}

void Runtime::destroy(std::vector<Object>& objects, const char* who, const std::function<int(void*)>& end) {
  Object& object = pick(objects);
  const bool fine = object.alive || object.handle == nullptr;
  expect(who, end(object.handle), only_if(fine, kStale));
  object.alive = false;
}

void Runtime::step() {
  const int64_t kind = bytes_.below(256);
  if (kind >= 240) return rarer_step(kind - 240);
  switch (kind % 24) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: {
      const Object stream = pick_stream();
      Call call = kind < 120 ? make_call(bytes_) : make_call_of_table(bytes_);
      return call_operator(bytes_, std::move(call), stream.handle, stream.alive);
    }
    case 5:
    case 6:
      return streams();
    case 7:
    case 8:
      return events();
    case 9:
      return event_times();
    case 10:
      return contexts();
    case 11:
    case 12:
      return allocate();
    case 13:
      return release();
    case 14:
      return fill();
    case 15:
    case 16:
      return copy();
    case 17:
      return copy_rows();
    case 18:
      return reserve();
    case 19:
      return map();
    case 20:
      return functions();
    case 21:
      return numbers();
    case 22:
      return descriptions();
    default:
      if (!is_alone) return;
      return bytes_.one_in(8) ? finish_and_begin() : settings();
  }
}

void Runtime::rarer_step(int64_t kind) {
  switch (kind) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: {
      const Object stream = pick_stream();
      return call_by_name(bytes_, stream.handle, stream.alive);
    }
    case 5:
    case 6:
    case 7:
      return devices();
    case 8:
    case 9:
    case 10:
      return share_memory();
    case 11:
      return share_handles();
    case 12:
      return share_events();
    case 13:
      return collectives();
    case 14:
      return profiling();
    default: {
      const Object stream = pick_stream();
      for (int64_t i = bytes_.below(3); i >= 0; --i) {
        call_operator(bytes_, make_call_of_table(bytes_), stream.handle, stream.alive);
      }
    }
  }
}

void Runtime::streams() {
  switch (bytes_.below(6)) {
    case 0:
      return make(streams_, "aclrtCreateStream", aclrtCreateStream);
    case 1: {
      const auto flags = bytes_.pick<uint32_t>({0, 1, 2, 3, 4, 0x80000000U});
      const auto priority = bytes_.pick<uint32_t>({0, 1, 7});
      aclrtStream none = nullptr;
      if (flags > 3) {
        return expect("aclrtCreateStreamWithConfig", aclrtCreateStreamWithConfig(&none, priority, flags), {kInvalid});
      }
      return make(streams_, "aclrtCreateStreamWithConfig",
                  [&](void** stream) { return aclrtCreateStreamWithConfig(stream, priority, flags); });
    }
    case 2:
      settle();
      return destroy(streams_, "aclrtDestroyStream", bytes_.one_in(2) ? aclrtDestroyStreamForce : aclrtDestroyStream);
    case 3: {
      const Object stream = pick_stream();
      return expect("aclrtSynchronizeStream", aclrtSynchronizeStream(stream.handle), only_if(stream.alive, kStale));
    }
    case 4: {
      const Object stream = pick_stream();
      const auto timeout = bytes_.pick<int32_t>({-1, 10000, INT32_MAX, -2, INT32_MIN});
      Codes expected = only_if(stream.alive, kStale);
      if (timeout < -1) expected = stream.alive ? Codes{kInvalid} : Codes{kInvalid, kStale};
      return expect("aclrtSynchronizeStreamWithTimeout", aclrtSynchronizeStreamWithTimeout(stream.handle, timeout),
                    expected);
    }
    default: {
      const Object stream = pick_stream();
      aclrtStreamStatus status{};
      int32_t id = 0;
      expect("aclrtStreamQuery", aclrtStreamQuery(stream.handle, &status), only_if(stream.alive, kStale));
      expect("aclrtStreamGetId", aclrtStreamGetId(stream.handle, &id), only_if(stream.alive, kStale));
    }
  }
}

void Runtime::events() {
  const int64_t what = bytes_.below(7);
  if (what == 0) {
    if (events_.size() >= 16) return;
    const auto flag = bytes_.pick<uint32_t>({ACL_EVENT_TIME_LINE, ACL_EVENT_SYNC, ACL_EVENT_CAPTURE_STREAM_PROGRESS});
    make(events_, "aclrtCreateEventWithFlag", [&](void** event) { return aclrtCreateEventWithFlag(event, flag); });
    events_.back().timed = flag == ACL_EVENT_TIME_LINE;
    return;
  }
  if (what == 1) return destroy(events_, "aclrtDestroyEvent", aclrtDestroyEvent);
  Object& event = pick(events_);
  const Object stream = pick_stream();
  const bool null = event.handle == nullptr;
  const auto needs = [&](bool fine) { return fine ? Codes{0} : null ? Codes{kStale, kInvalid} : Codes{kStale}; };
  const bool both = event.alive && stream.alive;
  switch (what) {
    case 2:
    case 3:
      expect("aclrtRecordEvent", aclrtRecordEvent(event.handle, stream.handle), needs(both));
      if (both) event.recorded = true;
      return;
    case 4:
      return expect("aclrtStreamWaitEvent", aclrtStreamWaitEvent(stream.handle, event.handle), needs(both));
    case 5:
      expect("aclrtResetEvent", aclrtResetEvent(event.handle, stream.handle), needs(both));
      if (both) event.recorded = false;
      return;
    default: {
      aclrtEventRecordedStatus status{};
      expect("aclrtSynchronizeEvent", aclrtSynchronizeEvent(event.handle), needs(event.alive));
      expect("aclrtQueryEventStatus", aclrtQueryEventStatus(event.handle, &status), needs(event.alive));
      const auto wanted = event.recorded ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
      if (event.recorded && event.alive && status != wanted) fault("an event that was waited for is not complete");
    }
  }
}

void Runtime::event_times() {
  settle();
  const Object begin = pick(events_), end = pick(events_);
  float milliseconds = 0;
  Codes expected{0};
  if (!begin.alive || !end.alive) {
    expected = {kStale, kInvalid};
  } else if (!begin.recorded || !end.recorded || !begin.timed || !end.timed) {
    expected = {kInvalid};
  }
  expect("aclrtEventElapsedTime", aclrtEventElapsedTime(&milliseconds, begin.handle, end.handle), expected);
}

void Runtime::contexts() {
  settle();  // the work on the default stream of this device, too
  const auto device = bytes_.pick<int32_t>({0, 0, is_alone ? 1 : 0, -1, INT32_MAX});
  const bool exists = device >= 0 && device < kDevices;
  switch (bytes_.below(4)) {
    case 0: {
      if (!exists) {
        void* none = nullptr;
        return expect("aclrtCreateContext", aclrtCreateContext(&none, device), {kNoDevice});
      }
      const size_t before = contexts_.size();
      make(contexts_, "aclrtCreateContext", [&](void** context) { return aclrtCreateContext(context, device); });
      if (contexts_.size() == before) return;
      contexts_.back().device = device_ = device;
      context_ = contexts_.back().handle;
      return;
    }
    case 1: {
      const Object& context = pick(contexts_);
      const int code = context.handle == nullptr ? kInvalid : kStale;
      const int status = aclrtSetCurrentContext(context.handle);
      expect("aclrtSetCurrentContext", status, context.alive ? Codes{0} : Codes{code, kStale});
      if (context.alive) device_ = context.device, context_ = context.handle;
      return;
    }
    case 2:
      return set_device(device);
    default:
      // Streams of the context end with it, so a context without any is destroyed.
      if (streams_.empty()) destroy(contexts_, "aclrtDestroyContext", aclrtDestroyContext);
      return set_device(0);
  }
}

void Runtime::functions() {
  const Object stream = pick_stream();
  const int64_t kind = bytes_.below(6);
  if (kind == 5) return callbacks(stream);
  const bool null = kind == 1;
  const auto count = [](void* calls) { ++*static_cast<std::atomic<int>*>(calls); };
  Codes expected = only_if(!null, kInvalid);
  if (!stream.alive) expected = null ? Codes{kStale, kInvalid} : Codes{kStale};
  const int status = aclrtLaunchHostFunc(stream.handle, null ? nullptr : +count, &calls_);
  expect("aclrtLaunchHostFunc", status, expected);
  calls_expected_ += status == 0;
}

void Runtime::numbers() {
  Block* const block = pick_block();
  if (block == nullptr || block->contents.size() < 32) return;
  settle();
  const auto place = static_cast<size_t>(bytes_.pick<int64_t>({0, 8, 16, 4, 1}));
  const uint64_t value = bytes_.number();
  const Object stream = pick_stream();
  const bool aligned = reinterpret_cast<uintptr_t>(block->data + place) % 8 == 0;
  Codes expected = only_if(aligned, kInvalid);
  if (!stream.alive) expected = aligned ? Codes{kStale} : Codes{kStale, kInvalid};
  const int status = aclrtValueWrite(block->data + place, value, 0, stream.handle);
  expect("aclrtValueWrite", status, expected);
  if (status != 0) return;
  std::memcpy(block->contents.data() + place, &value, 8);
  expect("aclrtValueWait", aclrtValueWait(block->data + place, value, ACL_STREAM_WAIT_VALUE_EQ, stream.handle), {0});
}

void Runtime::descriptions() {
  const std::vector<int64_t> dims(static_cast<size_t>(bytes_.pick<int64_t>({1, 0, 3, 8, 40})), bytes_.hostile());
  const auto dtype = static_cast<aclDataType>(bytes_.pick<int>({0, 1, 11, 16, 17, 29, -1, 5, 999, INT32_MIN}));
  const auto rank = static_cast<int>(dims.size());
  aclTensorDesc* const desc = aclCreateTensorDesc(dtype, rank, dims.data(), static_cast<aclFormat>(bytes_.hostile()));
  (void)aclGetTensorDescSize(desc);
  (void)aclGetTensorDescElementCount(desc);
  if (aclGetTensorDescNumDims(desc) != dims.size()) fault("a description has another rank");
  int64_t dim = 0;
  const auto index = static_cast<size_t>(bytes_.hostile());
  const int status = aclGetTensorDescDimV2(desc, index, &dim);
  if ((status == 0) != (index < dims.size())) fault("a description has other dimensions");
  aclDestroyTensorDesc(desc);

  char number[16] = {};
  aclScalar* const scalar = aclCreateScalar(number, dtype);
  const aclScalar* const list[] = {scalar};
  aclScalarList* const scalars = aclCreateScalarList(list, 1);
  uint64_t size = 0;
  expect("aclGetScalarListSize", aclGetScalarListSize(scalars, &size), {0});
  expect("aclDestroyScalarList", aclDestroyScalarList(scalars), {0});
  expect("aclDestroyScalar", aclDestroyScalar(scalar), {161002});  // gone with the list
  expect("aclDestroyTensor", aclDestroyTensor(reinterpret_cast<aclTensor*>(scalar)), {161002});

  aclDataBuffer* const buffer = aclCreateDataBuffer(number, index);
  if (aclGetDataBufferSizeV2(buffer) != index) fault("a buffer has another size");
  expect("aclUpdateDataBuffer", aclUpdateDataBuffer(buffer, nullptr, 0), {0});
  expect("aclDestroyDataBuffer", aclDestroyDataBuffer(buffer), {0});
  expect("aclDestroyDataBuffer", aclDestroyDataBuffer(buffer), {161002});
}

void Runtime::settings() {
  const auto threads = bytes_.pick<int>({1, 2, 3, 0, -1, INT32_MIN});
  expect("descendSetNumThreads", descendSetNumThreads(threads), only_if(threads >= 0, kInvalid));
  expect("descendSetProduct", descendSetProduct("no product"), {kInvalid});
  const auto option = static_cast<aclSysParamOpt>(bytes_.pick<int>({0, 1, 2, 3, -1}));
  int64_t value = bytes_.below(2), got = -1;
  const bool fine = option <= ACL_OPT_STRONG_CONSISTENCY;
  expect("aclrtSetSysParamOpt", aclrtSetSysParamOpt(option, value), only_if(fine, kInvalid));
  expect("aclrtGetSysParamOpt", aclrtGetSysParamOpt(option, &got), only_if(fine, kInvalid));
  if (fine && got != value) fault("an option has another value");
}

// After aclFinalize nothing that was there is, and nothing can be made until the next aclInit.
void Runtime::finish_and_begin() {
  settle();
  expect("aclFinalize", aclFinalize(), {0});
  expect("aclFinalize", aclFinalize(), {100037});
  void* none = nullptr;
  expect("aclrtCreateStream", aclrtCreateStream(&none), {100001});
  expect("aclInit", aclInit(nullptr), {0});
  expect("aclInit", aclInit(nullptr), {100002});
  expect("aclrtSetDevice", aclrtSetDevice(0), {0});
  for (auto* objects : {&streams_, &events_, &contexts_, &physical_}) {
    for (Object& object : *objects) object.alive = false;
  }
  device_ = 0, context_ = nullptr;
  for (int32_t device = 0; device < kDevices; ++device) uses_[device] = device == 0, end_device(device);
  shares_.clear();
  blocks_.clear();
  mapped_.clear();
  reservation_ = nullptr;
}

Runtime::~Runtime() {
  settle();
  for (const Object& stream : streams_) {
    if (stream.alive) expect("aclrtDestroyStream", aclrtDestroyStream(stream.handle), {0});
  }
  for (const Object& event : events_) {
    if (event.alive) expect("aclrtDestroyEvent", aclrtDestroyEvent(event.handle), {0});
  }
  for (const auto& [page, index] : mapped_) {
    expect("aclrtUnmapMem", aclrtUnmapMem(reservation_ + page * kPage), {0});
  }
  for (const Object& memory : physical_) {
    if (memory.alive) expect("aclrtFreePhysical", aclrtFreePhysical(memory.handle), {0});
  }
  if (reservation_ != nullptr) expect("aclrtReleaseMemAddress", aclrtReleaseMemAddress(reservation_), {0});
  for (const auto& share : shares_) {
    if (share->imported != nullptr) expect("aclrtIpcMemClose", aclrtIpcMemClose(share->key), {0});
  }
  for (const auto& block : blocks_) {
    expect("aclrtFree", block->on_host ? aclrtFreeHost(block->data) : aclrtFree(block->data), {0});
  }
  if (has_imports_) (void)ask({Request::kFree});
  expect("aclrtSetDevice", aclrtSetDevice(0), {0});
  for (const Object& context : contexts_) {
    if (context.alive) expect("aclrtDestroyContext", aclrtDestroyContext(context.handle), {0});
  }
  for (int32_t device = 1; device < kDevices; ++device) {
    if (peers_[0][device]) expect("aclrtDeviceDisablePeerAccess", aclrtDeviceDisablePeerAccess(device), {0});
  }
  for (int32_t device = 1; device < kDevices; ++device) {
    const auto& peers = peers_[device];
    if (uses_[device] == 0 && std::find(std::begin(peers), std::end(peers), true) != std::end(peers)) {
      // A context of its own made it the device that reaches others, and no reset has ended that.
      expect("aclrtSetDevice", aclrtSetDevice(device), {0});
      ++uses_[device];
    }
    if (uses_[device] > 0) expect("aclrtResetDeviceForce", aclrtResetDeviceForce(device), {0});
  }
  expect("aclrtSetDevice", aclrtSetDevice(0), {0});
}

void begin() {
  setenv("DESCEND_DEVICES", std::to_string(kDevices).c_str(), 1);
  if (is_alone) start_peer();
  expect("aclInit", aclInit(nullptr), {0});
  expect("aclrtSetDevice", aclrtSetDevice(0), {0});
}

void run(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  Runtime runtime(bytes);
  for (int steps = 0; steps < 40 && bytes.left(); ++steps) runtime.step();
}

}  // namespace fuzz
