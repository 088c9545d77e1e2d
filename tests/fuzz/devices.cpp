// Several devices: which one a thread works on, what ends with a device, and which may use the memory of which.
#include "runtime.h"

namespace fuzz {
namespace {

constexpr int kInvalid = 100000, kNoDevice = 200002, kNotSet = 507007;

bool exists(int32_t device) { return device >= 0 && device < kDevices; }

}  // namespace

// The work on the default stream is waited for first: elsewhere it has no handle.
void Runtime::set_device(int32_t device) {
  settle();
  expect("aclrtSetDevice", aclrtSetDevice(device), {exists(device) ? 0 : kNoDevice});
  if (!exists(device)) return;
  ++uses_[device];
  device_ = device, context_ = nullptr;
}

// The last reset of a device ends its default context, and the streams in that.
void Runtime::reset_device(int32_t device) {
  settle();
  const bool force = bytes_.below(2) != 0;
  const int status = force ? aclrtResetDeviceForce(device) : aclrtResetDevice(device);
  const bool is_set = exists(device) && uses_[device] > 0;
  expect("aclrtResetDevice", status, {!exists(device) ? kNoDevice : is_set ? 0 : kNotSet});
  if (is_set) {
    uses_[device] = force ? 0 : uses_[device] - 1;
    if (uses_[device] == 0) end_device(device);
  }
  set_device(0);
}

void Runtime::end_device(int32_t device) {
  for (Object& stream : streams_) {
    if (stream.device == device && stream.in_default) stream.alive = false;
  }
  for (bool& peer : peers_[device]) peer = false;
}

void Runtime::peers() {
  const auto peer = bytes_.pick<int32_t>({0, 1, 2, 3, -1, INT32_MIN});
  const auto from = bytes_.pick<int32_t>({0, 1, 2, 3, INT32_MAX});
  const int code = !exists(peer) ? kNoDevice : peer == device_ ? kInvalid : 0;
  const int code_from = !exists(from) || !exists(peer) ? kNoDevice : peer == from ? kInvalid : 0;
  const auto flags = bytes_.pick<uint32_t>({0, 0, 1});
  int32_t answer = -1;
  if (bytes_.below(2) != 0) {
    const Codes expected = flags == 0 ? Codes{code} : code == 0 ? Codes{kInvalid} : Codes{kInvalid, code};
    expect("aclrtDeviceEnablePeerAccess", aclrtDeviceEnablePeerAccess(peer, flags), expected);
    if (flags == 0 && code == 0) peers_[device_][peer] = true;
  } else {
    expect("aclrtDeviceDisablePeerAccess", aclrtDeviceDisablePeerAccess(peer), {code});
    if (code == 0) peers_[device_][peer] = false;
  }
  expect("aclrtDeviceCanAccessPeer", aclrtDeviceCanAccessPeer(&answer, from, peer), {code_from});
  if (code_from == 0 && answer != 1) fault("a device cannot reach another");
  expect("aclrtDevicePeerAccessStatus", aclrtDevicePeerAccessStatus(from, peer, &answer), {code_from});
  if (code_from == 0 && (answer != 0) != peers_[from][peer]) fault("a device reaches another one, or does not");
}

void Runtime::devices() {
  if (!is_alone) return;  // devices belong to all threads
  switch (bytes_.below(5)) {
    case 0:
    case 1:
      return set_device(bytes_.pick<int32_t>({1, 2, 0, 1, 2, 3, -1, INT32_MIN}));
    case 2:  // the others stay as they are: other inputs use device 0, too
      return reset_device(bytes_.pick<int32_t>({1, 2, 1, 2, 3, -1}));
    case 3:
      return peers();
    default:
      return ask_devices();
  }
}

void Runtime::ask_devices() {
  uint32_t count = 0;
  int32_t now = -1;
  expect("aclrtGetDeviceCount", aclrtGetDeviceCount(&count), {0});
  expect("aclrtGetDevice", aclrtGetDevice(&now), {0});
  if (count != kDevices || now != device_) fault("the current device is another, or there are more");
  size_t free = 0, total = 0;
  const auto kind = static_cast<aclrtMemAttr>(bytes_.pick<int>({0, 1, 5, 1000}));
  const int status = aclrtGetMemInfo(kind, &free, &total);
  if (status == 0 && free > total) fault("more memory is free than there is");
  if (status != 0 && kind <= 1) fault("the memory of a device is not known");
  const Block* const block = pick_block();
  if (block == nullptr) return;
  aclrtPtrAttributes found{};
  const auto place = static_cast<size_t>(bytes_.below(static_cast<int64_t>(block->contents.size())));
  expect("aclrtPointerGetAttributes", aclrtPointerGetAttributes(block->data + place, &found), {0});
  const auto type = block->on_host ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_DEVICE;
  const uint32_t id = block->on_host ? 0 : static_cast<uint32_t>(block->device);
  if (found.location.type != type || found.location.id != id) fault("memory is said to be elsewhere");
}

}  // namespace fuzz
