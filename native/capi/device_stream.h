// A stream on its device, and what programs set on it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "acl/acl_rt.h"
#include "runtime/stream.h"

namespace descend::capi {

struct CallbackQueue;  // callback_queue.h

// The most cores of each kind, by aclrtDevResLimitType; 0: not set.
using CoreLimits = std::array<std::atomic<uint32_t>, 2>;

struct DeviceStream : Stream {
  DeviceStream(int32_t on_device, aclrtContext in_context, uint32_t with_priority = 0, uint32_t with_flags = 0)
      : Stream(on_device),
        device(on_device),
        context(in_context),
        id(next_id()),
        flags(with_flags),
        priority(with_priority) {}

  const int32_t device;
  const aclrtContext context;  // in which it was created; null for the device's default stream
  const int32_t id;            // counted from 0 in the process
  const uint32_t flags;
  std::atomic<uint32_t> priority;
  std::atomic<uint32_t> tag{0};
  std::atomic<uint32_t> overflow_switch{0};
  std::atomic<uint64_t> failure_mode{ACL_CONTINUE_ON_FAILURE};
  CoreLimits limits{};
  std::shared_ptr<CallbackQueue> callbacks;  // of the thread that runs its callbacks; guarded in callback_queue.cpp

 private:
  static int32_t next_id() {
    static std::atomic<int32_t> next{0};
    return next++;
  }
};

}  // namespace descend::capi
