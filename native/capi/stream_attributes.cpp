// Attributes of streams: read and set.
#include "capi/stream.h"

using namespace descend;
using namespace descend::capi;

namespace {

// Calls use(DeviceStream&) -> Status with the stream that a handle names.
template <class Use>
int32_t with_stream(const char* function, aclrtStream handle, Use use) noexcept {
  return runtime_call(function, [&]() -> Status {
    std::shared_ptr<DeviceStream> stream;
    DESCEND_RETURN_IF_ERROR(get_device_stream(handle, &stream));
    return use(*stream);
  });
}

// The same for a function that stores get(stream) at an address.
template <class Value, class Read>
int32_t read(const char* function, const char* name, aclrtStream handle, Value* value, Read get) noexcept {
  return with_stream(function, handle, [&](DeviceStream& stream) -> Status {
    if (value == nullptr) return null_argument(name);
    *value = get(stream);
    return {};
  });
}

Status set_switch(std::atomic<uint32_t>& kept, const char* name, uint32_t value) {
  if (value > 1) return failure(Code::kInvalidParam, name, " is ", value, ", but must be 0 or 1.");
  kept = value;
  return {};
}

Status set_failure_mode(DeviceStream& stream, uint64_t mode) {
  if (mode > ACL_STOP_ON_FAILURE) {
    return failure(Code::kInvalidParam, "mode is ", mode,
                   ", but must be ACL_CONTINUE_ON_FAILURE or ACL_STOP_ON_FAILURE.");
  }
  stream.failure_mode = mode;
  stream.set_stop_on_failure(mode == ACL_STOP_ON_FAILURE);
  return {};
}

// The code of a CANN that does not know the attribute. torch_npu accepts it and goes on. The graph capture itself is
// then refused (unsupported.cpp).
constexpr Code kParamInvalid{107000};

Status no_attribute(aclrtStreamAttr attribute) {
  if (attribute == ACL_STREAM_ATTR_CACHE_OP_INFO) {
    return {kParamInvalid, "ACL_STREAM_ATTR_CACHE_OP_INFO is for the capture of graphs, which is not supported."};
  }
  return failure(Code::kInvalidParam, "stmAttrType is ", static_cast<int>(attribute), ", which is none.");
}

}  // namespace

aclError aclrtStreamGetId(aclrtStream stream, int32_t* streamId) {
  return read("aclrtStreamGetId", "streamId", stream, streamId, [](DeviceStream& found) { return found.id; });
}

aclError aclrtStreamGetPriority(aclrtStream stream, uint32_t* priority) {
  return read("aclrtStreamGetPriority", "priority", stream, priority,
              [](DeviceStream& found) { return found.priority.load(); });
}

aclError aclrtStreamGetFlags(aclrtStream stream, uint32_t* flags) {
  return read("aclrtStreamGetFlags", "flags", stream, flags, [](DeviceStream& found) { return found.flags; });
}

aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode) {
  return with_stream("aclrtSetStreamFailureMode", stream,
                     [&](DeviceStream& found) { return set_failure_mode(found, mode); });
}

aclError aclrtSetStreamOverflowSwitch(aclrtStream stream, uint32_t flag) {
  return with_stream("aclrtSetStreamOverflowSwitch", stream,
                     [&](DeviceStream& found) { return set_switch(found.overflow_switch, "flag", flag); });
}

aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t* flag) {
  return read("aclrtGetStreamOverflowSwitch", "flag", stream, flag,
              [](DeviceStream& found) { return found.overflow_switch.load(); });
}

aclError aclrtSetStreamAttribute(aclrtStream stream, aclrtStreamAttr stmAttrType, aclrtStreamAttrValue* value) {
  return with_stream("aclrtSetStreamAttribute", stream, [&](DeviceStream& found) -> Status {
    if (value == nullptr) return null_argument("value");
    switch (stmAttrType) {
      case ACL_STREAM_ATTR_FAILURE_MODE:
        return set_failure_mode(found, value->failureMode);
      case ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK:
        return set_switch(found.overflow_switch, "overflowSwitch", value->overflowSwitch);
      case ACL_STREAM_ATTR_USER_CUSTOM_TAG:
        found.tag = value->userCustomTag;
        return {};
      case ACL_STREAM_ATTR_PRIORITY:
        found.priority = value->streamPriority;
        return {};
      default:
        return no_attribute(stmAttrType);
    }
  });
}

aclError aclrtGetStreamAttribute(aclrtStream stream, aclrtStreamAttr stmAttrType, aclrtStreamAttrValue* value) {
  return with_stream("aclrtGetStreamAttribute", stream, [&](DeviceStream& found) -> Status {
    if (value == nullptr) return null_argument("value");
    aclrtStreamAttrValue now = {};
    switch (stmAttrType) {
      case ACL_STREAM_ATTR_FAILURE_MODE:
        now.failureMode = found.failure_mode;
        break;
      case ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK:
        now.overflowSwitch = found.overflow_switch;
        break;
      case ACL_STREAM_ATTR_USER_CUSTOM_TAG:
        now.userCustomTag = found.tag;
        break;
      case ACL_STREAM_ATTR_PRIORITY:
        now.streamPriority = found.priority;
        break;
      default:
        return no_attribute(stmAttrType);
    }
    *value = now;
    return {};
  });
}
