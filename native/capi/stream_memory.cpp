// Streams that write a number to memory, or wait until memory has one.
#include <atomic>

#include "capi/stream.h"

using namespace descend;
using namespace descend::capi;

namespace {

using Word = std::atomic_ref<uint64_t>;

Status check_word(const void* address) {
  if (address == nullptr) return null_argument("devAddr");
  if (reinterpret_cast<uintptr_t>(address) % Word::required_alignment == 0) return {};
  return failure(Code::kInvalidParam, "devAddr is ", address, ", but must be a multiple of 8.");
}

bool holds(uint64_t now, uint64_t value, uint32_t flag) {
  switch (flag) {
    case ACL_STREAM_WAIT_VALUE_GEQ:
      return static_cast<int64_t>(now - value) >= 0;
    case ACL_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case ACL_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:  // ACL_STREAM_WAIT_VALUE_NOR
      return ~(now | value) != 0;
  }
}

}  // namespace

aclError aclrtValueWrite(void* devAddr, uint64_t value, uint32_t flag, aclrtStream stream) {
  return runtime_call("aclrtValueWrite", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_word(devAddr));
    if (flag != 0) return failure(Code::kInvalidParam, "flag is ", flag, ", but must be 0.");
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    found->submit({[=]() -> Status {
                     Word(*static_cast<uint64_t*>(devAddr)).store(value);
                     return {};
                   },
                   sizeof(value)});
    return {};
  });
}

aclError aclrtValueWait(void* devAddr, uint64_t value, uint32_t flag, aclrtStream stream) {
  return runtime_call("aclrtValueWait", [&]() -> Status {
    DESCEND_RETURN_IF_ERROR(check_word(devAddr));
    if (flag > ACL_STREAM_WAIT_VALUE_NOR) {
      return failure(Code::kInvalidParam, "flag is ", flag, ", but must be an ACL_STREAM_WAIT_VALUE from 0 to 3.");
    }
    std::shared_ptr<DeviceStream> found;
    DESCEND_RETURN_IF_ERROR(get_device_stream(stream, &found));
    found->wait_until([=] { return holds(Word(*static_cast<uint64_t*>(devAddr)).load(), value, flag); });
    return {};
  });
}
